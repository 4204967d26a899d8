//! Decides whether a YAML document is well-formed, and finds its first error with the message of the reference's parser.
//!
//! Why this is not left to the library that reads the document afterwards: the two accept different documents. The library
//! reads tabs as indentation, unknown directives and other line separators that the reference refuses, and an object must not be
//! accepted here that is refused there. The messages were tried from a table over the library's error kinds; the line and the
//! sentence then differ wherever the two parsers notice an error at different tokens, and these sentences are the ones that
//! people search for.
//!
//! It builds nothing: it walks through tokens and grammar in the reference's order, so that it fails at the same position.

mod cursor;
mod scalars;
mod scan;

use std::collections::HashSet;

use self::scan::{Kind, Scanner, Token};

/// An error and its line.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    message: String,
    /// The reported line; 0 if it is not reported.
    line: usize,
}

impl Fault {
    /// An error of the scanner, on a line counted from 0. The first line is not reported.
    fn from_scanner(message: &str, line: usize) -> Fault {
        Fault { message: message.to_owned(), line: if line == 0 { 0 } else { line + 1 } }
    }

    /// An error of the parser. It is reported with the line before its token's.
    fn from_parser(message: &str, token: &Token<'_>) -> Fault {
        Fault { message: message.to_owned(), line: token.line }
    }

    fn without_line(message: String) -> Fault {
        Fault { message, line: 0 }
    }
}

/// The first error of the first document of a text.
pub(super) fn find(text: &str) -> Option<String> {
    let mut grammar = Grammar {
        tokens: Scanner::new(text),
        anchors: HashSet::new(),
        handles: HashSet::new(),
        steps: Vec::new(),
    };
    let Fault { message, line } = grammar.document().err()?;
    Some(if line > 0 { format!("line {line}: {message}") } else { message })
}

/// A production of the grammar that is to be parsed.
#[derive(Clone, Copy)]
enum Step {
    /// A node: whether block style is allowed, and whether a list needs no indentation.
    Node { block: bool, indentless: bool },
    /// The next item of a block list, or its end.
    Entry,
    /// The next item of a list without indentation: nothing marks its end.
    IndentlessEntry,
    /// The next key of a block map, or its end.
    Key,
    /// The value of a key.
    Value,
    /// The next item of a flow list, or its end.
    Item { first: bool },
    /// The key of a pair in a flow list.
    PairKey,
    /// The value of such a pair.
    PairValue,
    /// The next key of a flow map, or its end.
    FlowKey { first: bool },
    /// The value of such a key.
    FlowValue,
}

struct Grammar<'t> {
    tokens: Scanner<'t>,
    anchors: HashSet<&'t str>,
    /// The tag handles that the document declares.
    handles: HashSet<&'t str>,
    /// The productions to parse, the next one last.
    steps: Vec<Step>,
}

type ParseResult<T> = Result<T, Fault>;

impl<'t> Grammar<'t> {
    fn document(&mut self) -> ParseResult<()> {
        let first = self.tokens.peek()?;
        match first.kind {
            Kind::StreamEnd => return Ok(()),
            Kind::Version { .. } | Kind::TagDirective { .. } | Kind::DocumentStart => {
                self.directives()?;
                let token = self.tokens.peek()?;
                if token.kind != Kind::DocumentStart {
                    return Err(Fault::from_parser("did not find expected <document start>", &token));
                }
                self.tokens.consume();
                let is_end = |kind: &Kind<'_>| {
                    matches!(kind, Kind::Version { .. } | Kind::TagDirective { .. } | Kind::StreamEnd)
                        || matches!(kind, Kind::DocumentStart | Kind::DocumentEnd)
                };
                if is_end(&self.tokens.peek()?.kind) {
                    return Ok(());
                }
            }
            _ => {}
        }
        self.steps.push(Step::Node { block: true, indentless: false });
        while let Some(step) = self.steps.pop() {
            self.walk(step)?;
        }
        // The token that ends the document is checked, too.
        self.tokens.peek().map(drop)
    }

    fn directives(&mut self) -> ParseResult<()> {
        let mut versions = 0;
        loop {
            let token = self.tokens.peek()?;
            match token.kind {
                Kind::Version { .. } if versions > 0 => {
                    return Err(Fault::from_parser("found duplicate %YAML directive", &token));
                }
                Kind::Version { known: false } => {
                    return Err(Fault::from_parser("found incompatible YAML document", &token));
                }
                Kind::Version { .. } => versions += 1,
                Kind::TagDirective { handle } => {
                    if !self.handles.insert(handle) {
                        return Err(Fault::from_parser("found duplicate %TAG directive", &token));
                    }
                }
                _ => return Ok(()),
            }
            self.tokens.consume();
        }
    }

    fn walk(&mut self, step: Step) -> ParseResult<()> {
        match step {
            Step::Node { block, indentless } => self.node(block, indentless),
            Step::Entry => self.entry(),
            Step::IndentlessEntry => self.indentless_entry(),
            Step::Key => self.key(),
            Step::Value => {
                if self.tokens.peek()?.kind == Kind::Value {
                    self.tokens.consume();
                    self.node_unless(|kind| matches!(kind, Kind::Key | Kind::Value | Kind::BlockEnd), true)?;
                }
                Ok(())
            }
            Step::Item { first } => self.item(first),
            Step::PairKey => {
                self.steps.push(Step::PairValue);
                let is_end = |kind: &Kind<'_>| matches!(kind, Kind::Value | Kind::FlowEntry | Kind::ListEnd);
                if is_end(&self.tokens.peek()?.kind) {
                    // As in the reference, the token is consumed.
                    self.tokens.consume();
                    return Ok(());
                }
                self.flow_node();
                Ok(())
            }
            Step::PairValue => self.flow_value(&Kind::ListEnd),
            Step::FlowKey { first } => self.flow_key(first),
            Step::FlowValue => self.flow_value(&Kind::MapEnd),
        }
    }

    /// Parses a node next, unless the next token is one before which the node is empty.
    fn node_unless(&mut self, is_absent: impl Fn(&Kind<'t>) -> bool, indentless: bool) -> ParseResult<()> {
        if !is_absent(&self.tokens.peek()?.kind) {
            self.steps.push(Step::Node { block: true, indentless });
        }
        Ok(())
    }

    fn flow_node(&mut self) {
        self.steps.push(Step::Node { block: false, indentless: false });
    }

    fn entry(&mut self) -> ParseResult<()> {
        let token = self.tokens.peek()?;
        match token.kind {
            Kind::BlockEntry => {
                self.tokens.consume();
                self.steps.push(Step::Entry);
                self.node_unless(|kind| matches!(kind, Kind::BlockEntry | Kind::BlockEnd), false)
            }
            Kind::BlockEnd => {
                self.tokens.consume();
                Ok(())
            }
            _ => Err(Fault::from_parser("did not find expected '-' indicator", &token)),
        }
    }

    fn indentless_entry(&mut self) -> ParseResult<()> {
        if self.tokens.peek()?.kind == Kind::BlockEntry {
            self.tokens.consume();
            self.steps.push(Step::IndentlessEntry);
            let is_absent =
                |kind: &Kind<'_>| matches!(kind, Kind::BlockEntry | Kind::Key | Kind::Value | Kind::BlockEnd);
            return self.node_unless(is_absent, false);
        }
        Ok(())
    }

    fn key(&mut self) -> ParseResult<()> {
        let token = self.tokens.peek()?;
        match token.kind {
            Kind::Key => {
                self.tokens.consume();
                self.steps.extend([Step::Key, Step::Value]);
                self.node_unless(|kind| matches!(kind, Kind::Key | Kind::Value | Kind::BlockEnd), true)
            }
            Kind::BlockEnd => {
                self.tokens.consume();
                Ok(())
            }
            _ => Err(Fault::from_parser("did not find expected key", &token)),
        }
    }

    fn item(&mut self, first: bool) -> ParseResult<()> {
        let token = self.next_in_flow(first, &Kind::ListEnd, "did not find expected ',' or ']'")?;
        match token.kind {
            Kind::ListEnd => self.tokens.consume(),
            Kind::Key => {
                self.tokens.consume();
                self.steps.extend([Step::Item { first: false }, Step::PairKey]);
            }
            _ => {
                self.steps.push(Step::Item { first: false });
                self.flow_node();
            }
        }
        Ok(())
    }

    fn flow_key(&mut self, first: bool) -> ParseResult<()> {
        let token = self.next_in_flow(first, &Kind::MapEnd, "did not find expected ',' or '}'")?;
        match token.kind {
            Kind::MapEnd => self.tokens.consume(),
            Kind::Key => {
                self.tokens.consume();
                self.steps.extend([Step::FlowKey { first: false }, Step::FlowValue]);
                let is_end = |kind: &Kind<'_>| matches!(kind, Kind::Value | Kind::FlowEntry | Kind::MapEnd);
                if !is_end(&self.tokens.peek()?.kind) {
                    self.flow_node();
                }
            }
            // A key without a value.
            _ => {
                self.steps.push(Step::FlowKey { first: false });
                self.flow_node();
            }
        }
        Ok(())
    }

    /// The token that begins the next part of a flow collection, after the comma.
    fn next_in_flow(&mut self, first: bool, end: &Kind<'_>, error: &str) -> ParseResult<Token<'t>> {
        let token = self.tokens.peek()?;
        if first || token.kind == *end {
            return Ok(token);
        }
        if token.kind != Kind::FlowEntry {
            return Err(Fault::from_parser(error, &token));
        }
        self.tokens.consume();
        self.tokens.peek()
    }

    fn flow_value(&mut self, end: &Kind<'_>) -> ParseResult<()> {
        if self.tokens.peek()?.kind == Kind::Value {
            self.tokens.consume();
            let next = self.tokens.peek()?.kind;
            if next != Kind::FlowEntry && next != *end {
                self.flow_node();
            }
        }
        Ok(())
    }

    fn node(&mut self, block: bool, indentless: bool) -> ParseResult<()> {
        let mut token = self.tokens.peek()?;
        if let Kind::Alias(name) = token.kind {
            self.tokens.consume();
            let is_known = self.anchors.contains(name);
            return if is_known {
                Ok(())
            } else {
                Err(Fault::without_line(format!("unknown anchor '{name}' referenced")))
            };
        }
        let (mut anchor, mut tag) = (None, None);
        loop {
            match token.kind {
                Kind::Anchor(name) if anchor.is_none() => anchor = Some(name),
                Kind::Tag { handle } if tag.is_none() => tag = Some((handle, token.clone())),
                _ => break,
            }
            self.tokens.consume();
            token = self.tokens.peek()?;
        }
        if let Some((handle, token)) = &tag
            && !matches!(*handle, "" | "!" | "!!")
            && !self.handles.contains(handle)
        {
            return Err(Fault::from_parser("found undefined tag handle", token));
        }
        self.anchors.extend(anchor);
        let next = match token.kind {
            Kind::BlockEntry if indentless => {
                self.steps.push(Step::IndentlessEntry);
                return Ok(());
            }
            Kind::Scalar => None,
            Kind::ListStart => Some(Step::Item { first: true }),
            Kind::MapStart => Some(Step::FlowKey { first: true }),
            Kind::BlockListStart if block => Some(Step::Entry),
            Kind::BlockMapStart if block => Some(Step::Key),
            _ if anchor.is_some() || tag.is_some() => return Ok(()),
            _ => return Err(Fault::from_parser("did not find expected node content", &token)),
        };
        self.tokens.consume();
        self.steps.extend(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
