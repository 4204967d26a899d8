//! The position of a scanner in a text.

/// The number of bytes that the reference decodes at a time. An invalid character is found with its whole chunk.
const CHUNK: usize = 512;

/// A position in a text.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    /// Characters before the position.
    pub index: usize,
    /// Lines before the position.
    pub line: usize,
    /// Characters before the position on its line.
    pub column: usize,
}

pub(super) struct Cursor<'t> {
    text: &'t str,
    position: usize,
    pub mark: Mark,
    /// Where reading ends because of an invalid character.
    barrier: Option<usize>,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Cursor<'t> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let unprintable = text.char_indices().find(|(_, c)| !is_printable(*c));
        let barrier = unprintable.map(|(position, _)| position / CHUNK * CHUNK);
        Cursor { text, position: 0, mark: Mark { index: 0, line: 0, column: 0 }, barrier }
    }

    /// Whether the next characters cannot be read.
    pub(super) fn is_barred(&self) -> bool {
        // The reference always reads a few characters ahead.
        self.barrier.is_some_and(|barrier| self.position + 4 > barrier)
    }

    pub(super) fn rest(&self) -> &'t str {
        self.text.get(self.position..).unwrap_or_default()
    }

    pub(super) fn char(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// The byte `ahead` bytes from here; 0 after the end.
    pub(super) fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.position + ahead).copied().unwrap_or_default()
    }

    fn char_ahead(&self, ahead: usize) -> Option<char> {
        self.text.get(self.position + ahead..).and_then(|rest| rest.chars().next())
    }

    pub(super) fn is_end(&self) -> bool {
        self.position >= self.text.len()
    }

    pub(super) fn is_break(&self) -> bool {
        self.char().is_some_and(is_line_break)
    }

    pub(super) fn is_blank(&self) -> bool {
        matches!(self.byte(0), b' ' | b'\t')
    }

    pub(super) fn is_break_or_end(&self) -> bool {
        self.is_end() || self.is_break()
    }

    /// Whether there is whitespace or the end some ASCII bytes ahead.
    pub(super) fn is_space(&self, ahead: usize) -> bool {
        self.char_ahead(ahead).is_none_or(|c| matches!(c, ' ' | '\t') || is_line_break(c))
    }

    /// Whether a document marker is here.
    pub(super) fn is_document_mark(&self, mark: &str) -> bool {
        self.mark.column == 0 && self.rest().starts_with(mark) && self.is_space(3)
    }

    /// Moves some characters ahead on the same line.
    pub(super) fn skip(&mut self, count: usize) {
        for _ in 0..count {
            let Some(c) = self.char() else { return };
            self.position += c.len_utf8();
            self.mark.index += 1;
            self.mark.column += 1;
        }
    }

    pub(super) fn skip_while(&mut self, predicate: impl Fn(char) -> bool) -> &'t str {
        let start = self.position;
        while self.char().is_some_and(&predicate) {
            self.skip(1);
        }
        self.text.get(start..self.position).unwrap_or_default()
    }

    pub(super) fn skip_comment(&mut self) {
        if self.byte(0) == b'#' {
            self.skip_while(|c| !is_line_break(c));
        }
    }

    /// Moves from the end of a line to the next one.
    pub(super) fn skip_break(&mut self) {
        let Some(c) = self.char() else { return };
        let length = if self.rest().starts_with("\r\n") { 2 } else { c.len_utf8() };
        self.position += length;
        self.mark = Mark { index: self.mark.index + 1, line: self.mark.line + 1, column: 0 };
    }

    /// Moves behind the end of the text, to a line of its own.
    pub(super) fn end_line(&mut self) {
        if self.mark.column != 0 {
            self.mark.column = 0;
            self.mark.line += 1;
        }
    }
}

pub(super) fn is_line_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}
