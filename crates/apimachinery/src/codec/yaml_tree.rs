//! The nodes of a YAML document with their lines, before aliases are expanded.

use std::borrow::Cow;
use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use crate::limits;

/// The nodes of a document. A container comes before its contents, and the first node is the root.
pub(super) struct Tree<'t> {
    nodes: Vec<Node<'t>>,
}

pub(super) struct Node<'t> {
    /// The line on which the node begins, counted from 1.
    pub line: usize,
    pub content: Content<'t>,
}

pub(super) enum Content<'t> {
    Scalar(Scalar<'t>),
    List(Vec<usize>),
    /// Keys and values, alternating.
    Map(Vec<usize>),
    Alias {
        /// The index of the anchored node.
        target: usize,
        name: &'t str,
    },
}

pub(super) struct Scalar<'t> {
    pub text: Cow<'t, str>,
    /// Whether the scalar is written without quotes.
    pub plain: bool,
    /// The tag, with `!!` for the well-known ones.
    pub tag: Option<String>,
}

impl Scalar<'_> {
    /// Whether this is a merge key.
    pub(super) fn is_merge(&self) -> bool {
        self.text == "<<" && self.tag.as_deref().map_or(self.plain, |tag| matches!(tag, "!" | "!!merge"))
    }
}

impl<'t> Tree<'t> {
    /// Parses the first document of a text; the rest is ignored. Errors have the text of the reference.
    pub(super) fn read(text: &'t str) -> Result<Self, String> {
        let options = granit_parser::options! {
            flow_nesting_limit: limits::YAML_DEPTH,
            block_nesting_limit: limits::YAML_DEPTH,
            emit_unresolved_aliases: true,
            emit_anchor_events: true,
        };
        let mut parser = Parser::new_from_str_with_options(text, options);
        let mut tree = Tree { nodes: Vec::new() };
        let mut open: Vec<usize> = Vec::new();
        let mut anchors = HashMap::new();
        let mut aliases = 0;
        while let Some(next) = parser.next_event() {
            let (event, span) = next.map_err(|error| error_message(&error))?;
            let line = first_line(text, &event, &span);
            let (content, anchor) = match event {
                Event::DocumentEnd | Event::StreamEnd => break,
                Event::SequenceEnd | Event::MappingEnd => {
                    open.pop();
                    continue;
                }
                Event::Scalar(text, style, anchor, tag) => {
                    let tag = tag.map(|tag| short_tag(&tag));
                    (Content::Scalar(Scalar { text, plain: style == ScalarStyle::Plain, tag }), anchor)
                }
                Event::SequenceStart(_, anchor, _) => (Content::List(Vec::new()), anchor),
                Event::MappingStart(_, anchor, _) => (Content::Map(Vec::new()), anchor),
                Event::Alias(anchor) => {
                    aliases += 1;
                    let name = span.slice(text).unwrap_or_default().trim_start_matches('*');
                    // The parser reports no alias before its anchor.
                    let target = anchors.get(&anchor).copied().unwrap_or_default();
                    (Content::Alias { target, name }, 0)
                }
                Event::UnresolvedAlias(name) => {
                    check_name(&name, span.start.line())?;
                    return Err(format!("unknown anchor '{name}' referenced"));
                }
                Event::Anchor(_, name) => {
                    check_name(&name, span.start.line())?;
                    continue;
                }
                _ => continue,
            };
            let index = tree.nodes.len();
            if index >= limits::YAML_NODES
                || aliases > limits::YAML_ALIASES
                || anchors.len() > limits::YAML_ANCHORS
            {
                return Err("document is too complex".to_owned());
            }
            if let Some(Content::List(inner) | Content::Map(inner)) =
                open.last().and_then(|outer| tree.nodes.get_mut(*outer)).map(|node| &mut node.content)
            {
                inner.push(index);
            }
            if anchor != 0 {
                anchors.insert(anchor, index);
            }
            if matches!(content, Content::List(_) | Content::Map(_)) {
                open.push(index);
            }
            tree.nodes.push(Node { line, content });
        }
        Ok(tree)
    }

    /// A node by index, `None` if the document is empty.
    pub(super) fn node(&self, index: usize) -> Option<&Node<'t>> {
        self.nodes.get(index)
    }
}

/// A tag with the well-known prefix shortened.
fn short_tag(tag: &Tag) -> String {
    let (handle, suffix) = tag.parts();
    let tag = format!("{handle}{suffix}");
    tag.strip_prefix("tag:yaml.org,2002:").map_or(tag.clone(), |known| format!("!!{known}"))
}

/// The line on which a node begins. Block scalars are reported where their text begins, not at their indicator.
fn first_line(text: &str, event: &Event<'_>, span: &Span) -> usize {
    let line = span.start.line();
    let is_block = matches!(event, Event::Scalar(_, ScalarStyle::Literal | ScalarStyle::Folded, ..));
    let before = span.start.byte_offset().filter(|_| is_block).and_then(|start| text.get(..start));
    let Some(before) = before else { return line };
    let is_blank = |row: &&str| row.trim().is_empty();
    line.saturating_sub(before.rsplit('\n').skip(1).take_while(is_blank).count() + 1)
}

/// Refuses anchor names that the parser accepts but the reference does not.
fn check_name(name: &str, line: usize) -> Result<(), String> {
    if !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    {
        return Ok(());
    }
    Err(at_line(line, "did not find expected alphabetic or numeric character"))
}

/// The message of an error of this parser, for documents whose error `yaml_fault` does not find.
fn error_message(error: &ScanError) -> String {
    let report = error.info();
    at_line(error.marker().line(), report.lines().next().unwrap_or_default())
}

/// A message with its line; as in the reference, the first line is not named.
fn at_line(line: usize, message: &str) -> String {
    if line > 1 { format!("line {line}: {message}") } else { message.to_owned() }
}
