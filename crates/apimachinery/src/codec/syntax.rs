//! JSON syntax errors with the messages of Go's encoding/json.
//!
//! The tokenizer has other messages, so this scanner runs after a failure, or if the depth is in doubt.

use crate::field::quoted;
use crate::limits;

/// The next expected token.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    After,
}

/// Checks a whole text. The error is the message.
pub fn check(text: &[u8]) -> Result<(), String> {
    Scanner { text, position: 0 }.run()
}

/// Whether a text has more brackets than may be nested, so that its depth must be checked.
pub fn may_be_deep(text: &[u8]) -> bool {
    text.len() > limits::JSON_DEPTH
        && memchr::memchr2_iter(b'{', b'[', text).take(limits::JSON_DEPTH + 1).count() > limits::JSON_DEPTH
}

struct Scanner<'a> {
    text: &'a [u8],
    position: usize,
}

impl Scanner<'_> {
    fn run(mut self) -> Result<(), String> {
        // One entry per open bracket: whether it is an object.
        let mut open: Vec<bool> = Vec::new();
        let mut next = Next::Value;
        loop {
            while matches!(self.text.get(self.position), Some(b' ' | b'\t' | b'\r' | b'\n')) {
                self.position += 1;
            }
            let Some(&byte) = self.text.get(self.position) else {
                let is_complete = next == Next::After && open.is_empty();
                return if is_complete { Ok(()) } else { Err(unexpected_end()) };
            };
            self.position += 1;
            next = match (next, byte) {
                (Next::Value | Next::ValueOrEnd, b'{' | b'[') => {
                    if open.len() >= limits::JSON_DEPTH {
                        return Err(invalid_character(byte, "exceeded max depth"));
                    }
                    open.push(byte == b'{');
                    if byte == b'{' { Next::KeyOrEnd } else { Next::ValueOrEnd }
                }
                (Next::ValueOrEnd, b']') | (Next::KeyOrEnd, b'}') => {
                    open.pop();
                    Next::After
                }
                (Next::Value | Next::ValueOrEnd, _) => self.scalar(byte)?,
                (Next::Key | Next::KeyOrEnd, b'"') => {
                    self.string()?;
                    Next::Colon
                }
                (Next::Key | Next::KeyOrEnd, _) => {
                    return Err(invalid_character(byte, "looking for beginning of object key string"));
                }
                (Next::Colon, b':') => Next::Value,
                (Next::Colon, _) => return Err(invalid_character(byte, "after object key")),
                (Next::After, _) => after_value(&mut open, byte)?,
            };
        }
    }

    fn scalar(&mut self, first: u8) -> Result<Next, String> {
        match first {
            b'"' => self.string()?,
            b'-' | b'0'..=b'9' => self.number(first)?,
            b't' => self.word("true")?,
            b'f' => self.word("false")?,
            b'n' => self.word("null")?,
            _ => return Err(invalid_character(first, "looking for beginning of value")),
        }
        Ok(Next::After)
    }

    /// The byte at the position; a space past the end, which is what Go's messages show there.
    fn peek(&self) -> u8 {
        self.text.get(self.position).copied().unwrap_or(b' ')
    }

    fn word(&mut self, word: &str) -> Result<(), String> {
        for expected in word.bytes().skip(1) {
            let byte = self.peek();
            if byte != expected {
                let expected = char::from(expected);
                return Err(invalid_character(byte, &format!("in literal {word} (expecting '{expected}')")));
            }
            self.position += 1;
        }
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.position;
        while self.peek().is_ascii_digit() {
            self.position += 1;
        }
        self.position - start
    }

    fn number(&mut self, first: u8) -> Result<(), String> {
        let leading = if first == b'-' {
            let byte = self.peek();
            if !byte.is_ascii_digit() {
                return Err(invalid_character(byte, "in numeric literal"));
            }
            self.position += 1;
            byte
        } else {
            first
        };
        if leading != b'0' {
            self.digits();
        }
        if self.peek() == b'.' {
            self.position += 1;
            if self.digits() == 0 {
                return Err(invalid_character(self.peek(), "after decimal point in numeric literal"));
            }
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.position += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.position += 1;
            }
            if self.digits() == 0 {
                return Err(invalid_character(self.peek(), "in exponent of numeric literal"));
            }
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), String> {
        loop {
            let byte = *self.text.get(self.position).ok_or_else(unexpected_end)?;
            self.position += 1;
            match byte {
                b'"' => return Ok(()),
                b'\\' => self.escape()?,
                0..0x20 => return Err(invalid_character(byte, "in string literal")),
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let byte = self.peek();
        self.position += 1;
        match byte {
            b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => Ok(()),
            b'u' => {
                for _ in 0..4 {
                    let byte = self.peek();
                    if !byte.is_ascii_hexdigit() {
                        return Err(invalid_character(byte, "in \\u hexadecimal character escape"));
                    }
                    self.position += 1;
                }
                Ok(())
            }
            _ => Err(invalid_character(byte, "in string escape code")),
        }
    }
}

fn after_value(open: &mut Vec<bool>, byte: u8) -> Result<Next, String> {
    match (open.last(), byte) {
        (None, _) => Err(invalid_character(byte, "after top-level value")),
        (Some(true), b',') => Ok(Next::Key),
        (Some(false), b',') => Ok(Next::Value),
        (Some(true), b'}') | (Some(false), b']') => {
            open.pop();
            Ok(Next::After)
        }
        (Some(true), _) => Err(invalid_character(byte, "after object key:value pair")),
        (Some(false), _) => Err(invalid_character(byte, "after array element")),
    }
}

fn unexpected_end() -> String {
    "unexpected end of JSON input".to_owned()
}

fn invalid_character(byte: u8, context: &str) -> String {
    let rendered = match byte {
        b'\'' => "\\'".to_owned(),
        b'"' => "\"".to_owned(),
        0x80..=0xa0 | 0xad => format!("\\u{byte:04x}"),
        _ => {
            let text = quoted(char::from(byte).encode_utf8(&mut [0; 4]));
            text.get(1..text.len().saturating_sub(1)).unwrap_or_default().to_owned()
        }
    };
    format!("invalid character '{rendered}' {context}")
}

/// Replaces invalid UTF-8 and lone surrogates by U+FFFD: the API accepts such texts, the tokenizer does not.
pub fn repair(text: &[u8]) -> Vec<u8> {
    let mut valid = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        valid.push_str(chunk.valid());
        valid.extend(std::iter::repeat_n('\u{fffd}', chunk.invalid().len()));
    }
    let mut out = Vec::with_capacity(valid.len());
    let mut rest = valid.as_bytes();
    while let Some(index) = memchr::memchr(b'\\', rest) {
        let (before, escape) = rest.split_at(index);
        out.extend_from_slice(before);
        let length = match (code_unit(escape), escape.get(6..).and_then(code_unit)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 12,
            (Some(0xd800..0xe000), _) => {
                out.extend_from_slice(b"\\ufffd");
                rest = escape.get(6..).unwrap_or_default();
                continue;
            }
            (Some(_), _) => 6,
            (None, _) => 2,
        };
        let (escape, tail) = escape.split_at(length.min(escape.len()));
        out.extend_from_slice(escape);
        rest = tail;
    }
    out.extend_from_slice(rest);
    out
}

/// The code unit of a `\u` escape.
fn code_unit(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn syntax_errors_have_the_messages_of_go() {
        for (text, message) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{x", "invalid character 'x' looking for beginning of object key string"),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":1 "b":2}"#, r#"invalid character '"' after object key:value pair"#),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} {}", "invalid character '{' after top-level value"),
            ("tru", "invalid character ' ' in literal true (expecting 'e')"),
            ("nil", "invalid character 'i' in literal null (expecting 'u')"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.", "invalid character ' ' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g0\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("'a'", "invalid character '\\'' looking for beginning of value"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("01", "invalid character '1' after top-level value"),
        ] {
            assert_eq!(check(text.as_bytes()).unwrap_err(), message, "{text}");
        }
        assert_eq!(check(&b"[".repeat(10_001)).unwrap_err(), "invalid character '[' exceeded max depth");
        assert_eq!(check(b"\xff").unwrap_err(), "invalid character '\u{ff}' looking for beginning of value");
    }

    #[test]
    fn invalid_utf8_and_lone_surrogates_are_replaced() {
        assert_eq!(repair(b"\"a\xff\xfeb\""), "\"a\u{fffd}\u{fffd}b\"".as_bytes());
        assert_eq!(
            repair(br#""\ud800x\ud83d\ude00\\ud800\udc00""#),
            br#""\ufffdx\ud83d\ude00\\ud800\ufffd""#
        );
    }

    proptest! {
        #[test]
        fn scanner_and_tokenizer_accept_the_same_texts(text in "[\\[\\]{}\",:0-9a-e.tru\\-+ \\\\]{0,24}") {
            let ours = check(text.as_bytes()).is_ok();
            let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn check_and_repair_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = check(&bytes);
            let _ = repair(&bytes);
        }
    }
}
