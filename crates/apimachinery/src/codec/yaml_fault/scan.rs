//! Tokenizes a document. A key is only recognized by its colon, so tokens wait until that is known.

use std::collections::{HashMap, VecDeque};

use super::cursor::{Cursor, Mark};
use super::{Fault, ParseResult};

/// The maximum distance of a colon from the beginning of a simple key.
const MAX_KEY_LENGTH: usize = 1024;
/// The maximum depth of brackets and indentation.
const MAX_DEPTH: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind<'t> {
    StreamEnd,
    /// `%YAML`, of the supported version or another.
    Version {
        known: bool,
    },
    TagDirective {
        handle: &'t str,
    },
    DocumentStart,
    DocumentEnd,
    BlockListStart,
    BlockMapStart,
    BlockEnd,
    ListStart,
    ListEnd,
    MapStart,
    MapEnd,
    BlockEntry,
    FlowEntry,
    Key,
    Value,
    Alias(&'t str),
    Anchor(&'t str),
    /// A tag; the handle is empty for a verbatim one.
    Tag {
        handle: &'t str,
    },
    Scalar,
}

#[derive(Clone, Debug)]
pub(super) struct Token<'t> {
    pub kind: Kind<'t>,
    /// Lines before the one on which the token begins.
    pub line: usize,
}

/// A possible simple key.
#[derive(Clone, Copy)]
struct Candidate {
    possible: bool,
    /// Whether only a key is allowed there.
    required: bool,
    /// The number of the token, counted from the start of the stream.
    number: usize,
    mark: Mark,
}

pub(super) struct Scanner<'t> {
    pub(super) cursor: Cursor<'t>,
    ready: VecDeque<Token<'t>>,
    /// The number of consumed tokens, which is the number of the first one in `ready`.
    consumed: usize,
    ended: bool,
    pub(super) indent: isize,
    indents: Vec<isize>,
    /// Whether a simple key may begin here.
    pub(super) key_may_begin: bool,
    /// One per open bracket, and one for the outermost level.
    candidates: Vec<Candidate>,
    /// The level of each candidate by the number of its token.
    candidate_by_token: HashMap<usize, usize>,
}

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t str) -> Scanner<'t> {
        let cursor = Cursor::new(text);
        let none = Candidate { possible: false, required: false, number: 0, mark: cursor.mark };
        Scanner {
            cursor,
            ready: VecDeque::new(),
            consumed: 0,
            ended: false,
            indent: -1,
            indents: Vec::new(),
            key_may_begin: true,
            candidates: vec![none],
            candidate_by_token: HashMap::new(),
        }
    }

    /// The next token, without consuming it.
    pub(super) fn peek(&mut self) -> ParseResult<Token<'t>> {
        while self.needs_more()? && !self.ended {
            self.fetch()?;
        }
        let end = || Token { kind: Kind::StreamEnd, line: self.cursor.mark.line };
        Ok(self.ready.front().cloned().unwrap_or_else(end))
    }

    /// Consumes the next token.
    pub(super) fn consume(&mut self) {
        if self.ready.pop_front().is_some() {
            self.consumed += 1;
        }
    }

    /// Whether the next token is missing, or may have to come after a key token.
    fn needs_more(&mut self) -> ParseResult<bool> {
        if self.ready.is_empty() {
            return Ok(true);
        }
        match self.candidate_by_token.get(&self.consumed).copied() {
            Some(level) => self.is_valid(level),
            None => Ok(false),
        }
    }

    pub(super) fn fault(&self, message: &str) -> Fault {
        Fault::from_scanner(message, self.cursor.mark.line)
    }

    pub(super) fn in_flow(&self) -> bool {
        self.candidates.len() > 1
    }

    /// Whether a candidate can still be a key: its colon must be on the same line, and near.
    fn is_valid(&mut self, level: usize) -> ParseResult<bool> {
        let current = self.cursor.mark;
        let Some(candidate) = self.candidates.get_mut(level).filter(|candidate| candidate.possible) else {
            return Ok(false);
        };
        let is_too_far =
            candidate.mark.line < current.line || candidate.mark.index + MAX_KEY_LENGTH < current.index;
        if !is_too_far {
            return Ok(true);
        }
        if candidate.required {
            return Err(self.fault("could not find expected ':'"));
        }
        candidate.possible = false;
        Ok(false)
    }

    fn next_number(&self) -> usize {
        self.consumed + self.ready.len()
    }

    fn save_key(&mut self) -> ParseResult<()> {
        if self.key_may_begin {
            let mark = self.cursor.mark;
            let required = !self.in_flow() && usize::try_from(self.indent) == Ok(mark.column);
            let number = self.next_number();
            self.drop_key()?;
            if let Some(last) = self.candidates.last_mut() {
                *last = Candidate { possible: true, required, number, mark };
            }
            self.candidate_by_token.insert(number, self.candidates.len() - 1);
        }
        Ok(())
    }

    fn drop_key(&mut self) -> ParseResult<()> {
        let Some(last) = self.candidates.last_mut().filter(|last| last.possible) else { return Ok(()) };
        if last.required {
            return Err(self.fault("could not find expected ':'"));
        }
        last.possible = false;
        let number = last.number;
        self.candidate_by_token.remove(&number);
        Ok(())
    }

    fn put(&mut self, kind: Kind<'t>, line: usize) {
        self.ready.push_back(Token { kind, line });
    }

    /// Inserts a token before one with a given number; at the end if that was consumed.
    fn put_before(&mut self, number: usize, kind: Kind<'t>, line: usize) {
        let token = Token { kind, line };
        match number.checked_sub(self.consumed).filter(|index| *index <= self.ready.len()) {
            Some(index) => self.ready.insert(index, token),
            None => self.ready.push_back(token),
        }
    }

    /// Begins a block collection if the column is indented further.
    fn indent_to(
        &mut self,
        column: usize,
        number: Option<usize>,
        kind: Kind<'t>,
        line: usize,
    ) -> ParseResult<()> {
        let column = isize::try_from(column).unwrap_or(isize::MAX);
        if self.in_flow() || self.indent >= column {
            return Ok(());
        }
        self.indents.push(self.indent);
        self.indent = column;
        if self.indents.len() > MAX_DEPTH {
            return Err(self.fault("exceeded max depth of 10000"));
        }
        match number {
            Some(number) => self.put_before(number, kind, line),
            None => self.put(kind, line),
        }
        Ok(())
    }

    /// Ends the block collections that are indented further than the column.
    fn unindent_to(&mut self, column: isize) {
        while !self.in_flow() && self.indent > column {
            self.put(Kind::BlockEnd, self.cursor.mark.line);
            self.indent = self.indents.pop().unwrap_or(-1);
        }
    }

    fn fetch(&mut self) -> ParseResult<()> {
        self.skip_to_token();
        if self.cursor.is_barred() {
            return Err(Fault::without_line("control characters are not allowed".to_owned()));
        }
        self.unindent_to(isize::try_from(self.cursor.mark.column).unwrap_or(isize::MAX));
        if self.cursor.is_end() {
            self.cursor.end_line();
            self.ended = true;
            return self.fetch_marker(0, Kind::StreamEnd);
        }
        if self.cursor.mark.column == 0 && self.cursor.byte(0) == b'%' {
            self.unindent_to(-1);
            self.drop_key()?;
            self.key_may_begin = false;
            return self.directive();
        }
        if self.cursor.is_document_mark("---") {
            return self.fetch_marker(3, Kind::DocumentStart);
        }
        if self.cursor.is_document_mark("...") {
            return self.fetch_marker(3, Kind::DocumentEnd);
        }
        let flow = self.in_flow();
        let before_space = self.cursor.is_space(1);
        match self.cursor.byte(0) {
            b'[' => self.fetch_open(Kind::ListStart),
            b'{' => self.fetch_open(Kind::MapStart),
            b']' => self.fetch_close(Kind::ListEnd),
            b'}' => self.fetch_close(Kind::MapEnd),
            b',' => {
                self.drop_key()?;
                self.key_may_begin = true;
                self.fetch_char(Kind::FlowEntry)
            }
            b'-' if before_space => self.fetch_indicator(Kind::BlockEntry, Kind::BlockListStart),
            b'?' if flow || before_space => self.fetch_indicator(Kind::Key, Kind::BlockMapStart),
            b':' if flow || before_space => self.fetch_value(),
            b'*' => self.fetch_name(Kind::Alias),
            b'&' => self.fetch_name(Kind::Anchor),
            b'!' => {
                self.save_key()?;
                self.key_may_begin = false;
                self.tag()
            }
            b'|' | b'>' if !flow => {
                self.drop_key()?;
                self.key_may_begin = true;
                self.scalar(Scanner::block_scalar)
            }
            quote @ (b'\'' | b'"') => self.fetch_word(|scanner| scanner.quoted_scalar(quote)),
            b'#' | b'|' | b'>' | b'%' | b'@' | b'`' | b'\t' => {
                Err(self.fault("found character that cannot start any token"))
            }
            _ => self.fetch_word(Scanner::plain_scalar),
        }
    }

    fn skip_to_token(&mut self) {
        loop {
            // A tab is no indentation: where a key may begin it is no whitespace.
            let tabs = self.in_flow() || !self.key_may_begin;
            self.cursor.skip_while(|c| c == ' ' || (tabs && c == '\t'));
            self.cursor.skip_comment();
            if !self.cursor.is_break() {
                return;
            }
            self.cursor.skip_break();
            if !self.in_flow() {
                self.key_may_begin = true;
            }
        }
    }

    /// A token that ends all indentation.
    fn fetch_marker(&mut self, length: usize, kind: Kind<'t>) -> ParseResult<()> {
        self.unindent_to(-1);
        self.drop_key()?;
        self.key_may_begin = false;
        self.put(kind, self.cursor.mark.line);
        self.cursor.skip(length);
        Ok(())
    }

    fn fetch_char(&mut self, kind: Kind<'t>) -> ParseResult<()> {
        self.put(kind, self.cursor.mark.line);
        self.cursor.skip(1);
        Ok(())
    }

    fn fetch_open(&mut self, kind: Kind<'t>) -> ParseResult<()> {
        self.save_key()?;
        let number = self.next_number();
        self.candidates.push(Candidate { possible: false, required: false, number, mark: self.cursor.mark });
        if self.candidates.len() > MAX_DEPTH + 1 {
            return Err(self.fault("exceeded max depth of 10000"));
        }
        self.key_may_begin = true;
        self.fetch_char(kind)
    }

    fn fetch_close(&mut self, kind: Kind<'t>) -> ParseResult<()> {
        self.drop_key()?;
        if self.in_flow()
            && let Some(last) = self.candidates.pop()
        {
            self.candidate_by_token.remove(&last.number);
        }
        self.key_may_begin = false;
        self.fetch_char(kind)
    }

    /// A list item, or an explicit key.
    fn fetch_indicator(&mut self, kind: Kind<'t>, start: Kind<'t>) -> ParseResult<()> {
        let flow = self.in_flow();
        let is_entry = kind == Kind::BlockEntry;
        if !flow {
            if !self.key_may_begin {
                let name = if is_entry { "block sequence entries" } else { "mapping keys" };
                return Err(self.fault(&format!("{name} are not allowed in this context")));
            }
            self.indent_to(self.cursor.mark.column, None, start, self.cursor.mark.line)?;
        }
        self.drop_key()?;
        self.key_may_begin = is_entry || !flow;
        self.fetch_char(kind)
    }

    fn fetch_value(&mut self) -> ParseResult<()> {
        let level = self.candidates.len() - 1;
        if self.is_valid(level)?
            && let Some(key) = self.candidates.last_mut()
        {
            key.possible = false;
            let key = *key;
            self.put_before(key.number, Kind::Key, key.mark.line);
            self.indent_to(key.mark.column, Some(key.number), Kind::BlockMapStart, key.mark.line)?;
            self.candidate_by_token.remove(&key.number);
            self.key_may_begin = false;
        } else {
            let flow = self.in_flow();
            if !flow {
                if !self.key_may_begin {
                    return Err(self.fault("mapping values are not allowed in this context"));
                }
                self.indent_to(self.cursor.mark.column, None, Kind::BlockMapStart, self.cursor.mark.line)?;
            }
            self.key_may_begin = !flow;
        }
        self.fetch_char(Kind::Value)
    }

    fn fetch_name(&mut self, kind: impl Fn(&'t str) -> Kind<'t>) -> ParseResult<()> {
        self.save_key()?;
        self.key_may_begin = false;
        let line = self.cursor.mark.line;
        self.cursor.skip(1);
        let name = self.cursor.skip_while(is_word);
        let is_end = matches!(self.cursor.byte(0), b'?' | b':' | b',' | b']' | b'}' | b'%' | b'@' | b'`');
        if name.is_empty() || !(is_end || self.cursor.is_space(0)) {
            return Err(self.fault("did not find expected alphabetic or numeric character"));
        }
        self.put(kind(name), line);
        Ok(())
    }

    /// A scalar that may be a key.
    fn fetch_word(&mut self, read: impl Fn(&mut Self) -> ParseResult<()>) -> ParseResult<()> {
        self.save_key()?;
        self.key_may_begin = false;
        self.scalar(read)
    }

    fn scalar(&mut self, read: impl Fn(&mut Self) -> ParseResult<()>) -> ParseResult<()> {
        let line = self.cursor.mark.line;
        read(self)?;
        self.put(Kind::Scalar, line);
        Ok(())
    }

    pub(super) fn put_token(&mut self, kind: Kind<'t>, line: usize) {
        self.put(kind, line);
    }
}

/// The characters of names.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}
