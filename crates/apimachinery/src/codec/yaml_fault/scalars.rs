//! Complex tokens: scalars, tags and directives.

use super::cursor::is_line_break;
use super::scan::{Kind, Scanner, is_word};
use super::{Fault, ParseResult};

impl<'t> Scanner<'t> {
    /// A plain scalar. It may continue on lines that are indented further.
    pub(super) fn plain_scalar(&mut self) -> ParseResult<()> {
        let indent = usize::try_from(self.indent + 1).unwrap_or_default();
        let flow = self.in_flow();
        let mut after_break = false;
        loop {
            if self.cursor.is_document_mark("---") || self.cursor.is_document_mark("...") {
                break;
            }
            if self.cursor.byte(0) == b'#' {
                break;
            }
            while !self.cursor.is_space(0) {
                let is_end = match self.cursor.byte(0) {
                    b':' => self.cursor.is_space(1),
                    b',' | b'?' | b'[' | b']' | b'{' | b'}' => flow,
                    _ => false,
                };
                if is_end {
                    break;
                }
                after_break = false;
                self.cursor.skip(1);
            }
            if !(self.cursor.is_blank() || self.cursor.is_break()) {
                break;
            }
            while self.cursor.is_blank() || self.cursor.is_break() {
                if self.cursor.is_break() {
                    self.cursor.skip_break();
                    after_break = true;
                } else if after_break && self.cursor.mark.column < indent && self.cursor.byte(0) == b'\t' {
                    return Err(self.fault("found a tab character that violates indentation"));
                } else {
                    self.cursor.skip(1);
                }
            }
            if !flow && self.cursor.mark.column < indent {
                break;
            }
        }
        if after_break {
            self.key_may_begin = true;
        }
        Ok(())
    }

    pub(super) fn quoted_scalar(&mut self, quote: u8) -> ParseResult<()> {
        self.cursor.skip(1);
        loop {
            if self.cursor.is_document_mark("---") || self.cursor.is_document_mark("...") {
                return Err(self.fault("found unexpected document indicator"));
            }
            if self.cursor.is_barred() {
                return Err(Fault::without_line("control characters are not allowed".to_owned()));
            }
            if self.cursor.is_end() {
                return Err(self.fault("found unexpected end of stream"));
            }
            while !self.cursor.is_space(0) {
                match self.cursor.byte(0) {
                    b'\'' if quote == b'\'' && self.cursor.byte(1) == b'\'' => self.cursor.skip(2),
                    byte if byte == quote => break,
                    b'\\' if quote == b'"' => {
                        if self.escape()? {
                            break;
                        }
                    }
                    _ => self.cursor.skip(1),
                }
            }
            if self.cursor.byte(0) == quote {
                self.cursor.skip(1);
                return Ok(());
            }
            while self.cursor.is_blank() || self.cursor.is_break() {
                if self.cursor.is_break() {
                    self.cursor.skip_break();
                } else {
                    self.cursor.skip(1);
                }
            }
        }
    }

    /// Skips one escape; returns whether it was a line break.
    fn escape(&mut self) -> ParseResult<bool> {
        let next = self.cursor.rest().chars().nth(1);
        if next.is_some_and(is_line_break) {
            self.cursor.skip(1);
            self.cursor.skip_break();
            return Ok(true);
        }
        let digits = match next {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if "0abt\tnvfre \"'\\N_LP".contains(c) => 0,
            _ => return Err(self.fault("found unknown escape character")),
        };
        self.cursor.skip(2);
        let text = self.cursor.rest().as_bytes().get(..digits).unwrap_or_default();
        if text.len() < digits || !text.iter().all(u8::is_ascii_hexdigit) {
            return Err(self.fault("did not find expected hexdecimal number"));
        }
        let code = std::str::from_utf8(text).ok().and_then(|text| u32::from_str_radix(text, 16).ok());
        if digits > 0 && code.and_then(char::from_u32).is_none() {
            return Err(self.fault("found invalid Unicode character escape code"));
        }
        self.cursor.skip(digits);
        Ok(false)
    }

    pub(super) fn block_scalar(&mut self) -> ParseResult<()> {
        self.cursor.skip(1);
        let mut increment = 0;
        let mut signs = 0;
        // A sign and a digit, in any order.
        for _ in 0..2 {
            match self.cursor.byte(0) {
                b'+' | b'-' if signs == 0 => signs += 1,
                b'0' if increment == 0 => return Err(self.fault("found an indentation indicator equal to 0")),
                digit @ b'1'..=b'9' if increment == 0 => increment = usize::from(digit - b'0'),
                _ => break,
            }
            self.cursor.skip(1);
        }
        self.cursor.skip_while(|c| matches!(c, ' ' | '\t'));
        self.cursor.skip_comment();
        if !self.cursor.is_break_or_end() {
            return Err(self.fault("did not find expected comment or line break"));
        }
        self.cursor.skip_break();
        let outer = usize::try_from(self.indent).unwrap_or_default();
        let mut indent = if increment > 0 { outer + increment } else { 0 };
        self.block_breaks(&mut indent)?;
        while self.cursor.mark.column == indent && !self.cursor.is_end() {
            self.cursor.skip_while(|c| !is_line_break(c));
            self.cursor.skip_break();
            self.block_breaks(&mut indent)?;
        }
        Ok(())
    }

    /// The empty lines and the indentation before text in a block; an unknown indentation is that of the first line.
    fn block_breaks(&mut self, indent: &mut usize) -> ParseResult<()> {
        let mut widest = 0;
        loop {
            let is_inside = |column| *indent == 0 || column < *indent;
            while is_inside(self.cursor.mark.column) && self.cursor.byte(0) == b' ' {
                self.cursor.skip(1);
            }
            widest = widest.max(self.cursor.mark.column);
            if is_inside(self.cursor.mark.column) && self.cursor.byte(0) == b'\t' {
                return Err(self.fault("found a tab character where an indentation space is expected"));
            }
            if !self.cursor.is_break() {
                break;
            }
            self.cursor.skip_break();
        }
        if *indent == 0 {
            *indent = widest.max(usize::try_from(self.indent + 1).unwrap_or_default()).max(1);
        }
        Ok(())
    }

    pub(super) fn tag(&mut self) -> ParseResult<()> {
        let line = self.cursor.mark.line;
        let mut handle = "";
        if self.cursor.byte(1) == b'<' {
            self.cursor.skip(2);
            self.tag_uri(false)?;
            if self.cursor.byte(0) != b'>' {
                return Err(self.fault("did not find the expected '>'"));
            }
            self.cursor.skip(1);
        } else {
            let rest = self.cursor.rest();
            self.cursor.skip(1);
            let word = self.cursor.skip_while(is_word);
            if self.cursor.byte(0) == b'!' {
                self.cursor.skip(1);
                handle = rest.get(..word.len() + 2).unwrap_or_default();
                self.tag_uri(false)?;
            } else {
                self.tag_uri(true)?;
                handle = "!";
            }
        }
        if !self.cursor.is_space(0) {
            return Err(self.fault("did not find expected whitespace or line break"));
        }
        self.put_token(Kind::Tag { handle }, line);
        Ok(())
    }

    /// The URI of a tag. `is_begun`: whether a part of it has been read.
    fn tag_uri(&mut self, is_begun: bool) -> ParseResult<()> {
        let start = self.cursor.mark.index;
        loop {
            self.cursor.skip_while(|c| is_word(c) || ";/?:@&=+$,.!~*'()[]".contains(c));
            if self.cursor.byte(0) != b'%' {
                break;
            }
            self.escaped_char()?;
        }
        if !is_begun && self.cursor.mark.index == start {
            return Err(self.fault("did not find expected tag URI"));
        }
        Ok(())
    }

    /// A character as escaped octets.
    fn escaped_char(&mut self) -> ParseResult<()> {
        let mut remaining = 0;
        let mut first = true;
        while first || remaining > 0 {
            let octet = self.cursor.rest().get(1..3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            let Some(octet) = octet.filter(|_| self.cursor.byte(0) == b'%') else {
                return Err(self.fault("did not find URI escaped octet"));
            };
            if first {
                remaining = match octet {
                    0..=0x7f => 1,
                    0xc0..=0xdf => 2,
                    0xe0..=0xef => 3,
                    0xf0..=0xf7 => 4,
                    _ => return Err(self.fault("found an incorrect leading UTF-8 octet")),
                };
                first = false;
            } else if octet & 0xc0 != 0x80 {
                return Err(self.fault("found an incorrect trailing UTF-8 octet"));
            }
            self.cursor.skip(3);
            remaining -= 1;
        }
        Ok(())
    }

    pub(super) fn directive(&mut self) -> ParseResult<()> {
        let line = self.cursor.mark.line;
        self.cursor.skip(1);
        let name = self.cursor.skip_while(is_word);
        if name.is_empty() {
            return Err(self.fault("could not find expected directive name"));
        }
        if !self.cursor.is_space(0) {
            return Err(self.fault("found unexpected non-alphabetical character"));
        }
        let kind = match name {
            "YAML" => self.version()?,
            "TAG" => self.tag_directive()?,
            _ => return Err(self.fault("found unknown directive name")),
        };
        self.cursor.skip_while(|c| matches!(c, ' ' | '\t'));
        self.cursor.skip_comment();
        if !self.cursor.is_break_or_end() {
            return Err(self.fault("did not find expected comment or line break"));
        }
        self.cursor.skip_break();
        self.put_token(kind, line);
        Ok(())
    }

    fn version(&mut self) -> ParseResult<Kind<'t>> {
        self.cursor.skip_while(|c| matches!(c, ' ' | '\t'));
        let major = self.version_number()?;
        if self.cursor.byte(0) != b'.' {
            return Err(self.fault("did not find expected digit or '.' character"));
        }
        self.cursor.skip(1);
        let minor = self.version_number()?;
        Ok(Kind::Version { known: (major, minor) == ("1", "1") })
    }

    fn version_number(&mut self) -> ParseResult<&'t str> {
        let digits = self.cursor.skip_while(|c| c.is_ascii_digit());
        match digits.len() {
            0 => Err(self.fault("did not find expected version number")),
            1..=2 => Ok(digits),
            _ => Err(self.fault("found extremely long version number")),
        }
    }

    fn tag_directive(&mut self) -> ParseResult<Kind<'t>> {
        self.cursor.skip_while(|c| matches!(c, ' ' | '\t'));
        if self.cursor.byte(0) != b'!' {
            return Err(self.fault("did not find expected '!'"));
        }
        let rest = self.cursor.rest();
        self.cursor.skip(1);
        let word = self.cursor.skip_while(is_word);
        let mut length = 1 + word.len();
        if self.cursor.byte(0) == b'!' {
            self.cursor.skip(1);
            length += 1;
        } else if !word.is_empty() {
            return Err(self.fault("did not find expected '!'"));
        }
        if !self.cursor.is_blank() {
            return Err(self.fault("did not find expected whitespace"));
        }
        self.cursor.skip_while(|c| matches!(c, ' ' | '\t'));
        self.tag_uri(false)?;
        if !self.cursor.is_space(0) {
            return Err(self.fault("did not find expected whitespace or line break"));
        }
        Ok(Kind::TagDirective { handle: rest.get(..length).unwrap_or_default() })
    }
}
