//! An index of stored JSON without a tree: one flat list of positions, made in one pass.
//!
//! The text is canonical, because only this server writes it: no whitespace, sorted map keys, no duplicates. Anything else is
//! corruption; the result may be wrong, but it never panics.

use std::borrow::Cow;

use super::source::Source;

/// The maximum depth of stored objects. Nothing deeper could be decoded otherwise.
const MAX_DEPTH: usize = 128;
/// The approximate number of bytes per token, for the initial allocation.
const BYTES_PER_TOKEN: usize = 16;
/// No token.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Object,
    Array,
    /// A string without escapes, without its quotes.
    Plain,
    /// A string with escapes, without its quotes.
    Escaped,
    /// A number, boolean or null.
    Word,
}

/// A part of the text.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    end: u32,
}

/// One value of the text.
#[derive(Clone, Copy, Debug)]
struct Token {
    kind: Kind,
    span: Span,
    /// Its key, without quotes, if it is an entry of an object.
    key: Span,
    /// Whether the key has escapes.
    escaped_key: bool,
    /// The last value inside.
    last: u32,
    /// The previous value in the same container.
    previous: u32,
}

/// A text with the positions of its values.
#[derive(Debug)]
pub struct Tape<'a> {
    text: &'a str,
    tokens: Vec<Token>,
}

impl<'a> Tape<'a> {
    /// Indexes a text; `None` if it is corrupt.
    pub fn read(text: &'a [u8]) -> Option<Tape<'a>> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() < NONE as usize)?;
        let tokens = Vec::with_capacity(text.len() / BYTES_PER_TOKEN);
        let mut scanner =
            Scanner { text: text.as_bytes(), position: 0, tokens, open: Vec::with_capacity(16) };
        scanner.run()?;
        Some(Tape { text, tokens: scanner.tokens })
    }

    /// The whole value.
    pub fn root(&self) -> TapeValue<'_> {
        TapeValue { tape: self, index: 0 }
    }

    fn slice(&self, span: Span) -> &str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or_default()
    }
}

struct Scanner<'a> {
    text: &'a [u8],
    position: usize,
    tokens: Vec<Token>,
    /// The open objects and arrays.
    open: Vec<u32>,
}

impl Scanner<'_> {
    fn run(&mut self) -> Option<()> {
        loop {
            let (key, escaped_key) = self.key()?;
            self.value(key, escaped_key)?;
            // Close everything that ends here; then a comma or the end follows.
            loop {
                match (self.text.get(self.position), self.open.last()) {
                    (None, None) => return Some(()),
                    (Some(b','), Some(_)) => {
                        self.position += 1;
                        break;
                    }
                    (Some(b'}' | b']'), Some(_)) => self.close()?,
                    // The first value of a container that was just opened.
                    (Some(_), Some(&index)) if self.is_just_opened(index) => break,
                    _ => return None,
                }
            }
        }
    }

    /// Whether a container was just opened.
    fn is_just_opened(&self, index: u32) -> bool {
        self.tokens.get(index as usize).is_some_and(|token| token.span.start as usize + 1 == self.position)
    }

    /// The next key, inside of an object.
    fn key(&mut self) -> Option<(Span, bool)> {
        let container = self.open.last().and_then(|index| self.tokens.get(*index as usize));
        if container.is_none_or(|token| token.kind != Kind::Object) {
            return Some((Span::default(), false));
        }
        let (key, escaped) = self.string()?;
        if self.text.get(self.position) != Some(&b':') {
            return None;
        }
        self.position += 1;
        Some((key, escaped))
    }

    fn value(&mut self, key: Span, escaped_key: bool) -> Option<()> {
        let start = self.position as u32;
        let (kind, span) = match *self.text.get(self.position)? {
            // The end follows when it is closed.
            b'{' => (Kind::Object, Span { start, end: start }),
            b'[' => (Kind::Array, Span { start, end: start }),
            b'"' => {
                let (span, escaped) = self.string()?;
                (if escaped { Kind::Escaped } else { Kind::Plain }, span)
            }
            _ => (Kind::Word, self.word()?),
        };
        let index = u32::try_from(self.tokens.len()).ok()?;
        let container = self.open.last().and_then(|open| self.tokens.get_mut(*open as usize));
        let previous = container.map_or(NONE, |container| std::mem::replace(&mut container.last, index));
        self.tokens.push(Token { kind, span, key, escaped_key, last: NONE, previous });
        if matches!(kind, Kind::Object | Kind::Array) {
            self.position += 1;
            self.open.push(index);
        }
        (self.open.len() <= MAX_DEPTH).then_some(())
    }

    fn close(&mut self) -> Option<()> {
        let byte = *self.text.get(self.position)?;
        self.position += 1;
        let index = self.open.pop()?;
        let token = self.tokens.get_mut(index as usize)?;
        token.span.end = self.position as u32;
        let expected = if token.kind == Kind::Object { b'}' } else { b']' };
        (byte == expected).then_some(())
    }

    /// A string and whether it has escapes. Moves behind it.
    fn string(&mut self) -> Option<(Span, bool)> {
        if self.text.get(self.position) != Some(&b'"') {
            return None;
        }
        let start = self.position + 1;
        let (mut end, mut escaped) = (start, false);
        loop {
            end += memchr::memchr2(b'"', b'\\', self.text.get(end..)?)?;
            if self.text.get(end) == Some(&b'"') {
                break;
            }
            escaped = true;
            end += 2;
        }
        self.position = end + 1;
        Some((Span { start: start as u32, end: end as u32 }, escaped))
    }

    fn word(&mut self) -> Option<Span> {
        let rest = self.text.get(self.position..)?;
        let length = rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']')).unwrap_or(rest.len());
        let start = self.position as u32;
        self.position += length;
        (length > 0).then_some(Span { start, end: self.position as u32 })
    }
}

/// A value of a tape.
#[derive(Clone, Copy, Debug)]
pub struct TapeValue<'t> {
    tape: &'t Tape<'t>,
    index: u32,
}

impl<'t> TapeValue<'t> {
    fn token(self) -> Option<&'t Token> {
        self.tape.tokens.get(self.index as usize)
    }

    fn word(self) -> Option<&'t str> {
        self.token().filter(|token| token.kind == Kind::Word).map(|token| self.tape.slice(token.span))
    }

    fn children(self, kind: Kind) -> impl Iterator<Item = TapeValue<'t>> {
        let tape = self.tape;
        let value_at = move |index: u32| {
            let value = TapeValue { tape, index };
            value.token().map(|_| value)
        };
        let last = self.token().filter(|token| token.kind == kind).and_then(|token| value_at(token.last));
        std::iter::successors(last, move |value| value.token().and_then(|token| value_at(token.previous)))
    }
}

/// The unescaped text between two quotes.
fn unescaped(text: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str(&format!("\"{text}\"")).ok().map(Cow::Owned)
}

impl<'t> Source<'t> for TapeValue<'t> {
    fn is_null(self) -> bool {
        self.word() == Some("null")
    }

    fn is_object(self) -> bool {
        self.token().is_some_and(|token| token.kind == Kind::Object)
    }

    fn text(self) -> Option<Cow<'t, str>> {
        let token = self.token()?;
        match token.kind {
            Kind::Plain => Some(Cow::Borrowed(self.tape.slice(token.span))),
            Kind::Escaped => unescaped(self.tape.slice(token.span)),
            _ => None,
        }
    }

    fn integer(self) -> Option<i64> {
        self.word()?.parse().ok()
    }

    fn double(self) -> Option<f64> {
        self.word()?.parse().ok()
    }

    fn boolean(self) -> Option<bool> {
        self.word()?.parse().ok()
    }

    fn json(self) -> Cow<'t, [u8]> {
        let span = self.token().map(|token| match token.kind {
            Kind::Plain | Kind::Escaped => Span { start: token.span.start - 1, end: token.span.end + 1 },
            _ => token.span,
        });
        Cow::Borrowed(self.tape.slice(span.unwrap_or_default()).as_bytes())
    }

    fn items_back(self) -> impl Iterator<Item = TapeValue<'t>> {
        self.children(Kind::Array)
    }

    fn entries_back(self) -> impl Iterator<Item = (Cow<'t, str>, TapeValue<'t>)> {
        self.children(Kind::Object).map(|value| {
            let (key, escaped) =
                value.token().map(|token| (token.key, token.escaped_key)).unwrap_or_default();
            let text = value.tape.slice(key);
            let key = if escaped { unescaped(text).unwrap_or_default() } else { Cow::Borrowed(text) };
            (key, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json;
    use crate::value::Value;

    /// The tree of a tape.
    fn tree(value: TapeValue<'_>) -> Value {
        if value.is_null() {
            Value::Null
        } else if let Some(text) = value.text() {
            Value::String(text.into_owned())
        } else if let Some(number) = value.integer() {
            Value::Int(number)
        } else if let Some(boolean) = value.boolean() {
            Value::Bool(boolean)
        } else if let Some(number) = value.double() {
            Value::Float(number)
        } else if value.is_object() {
            Value::Object(value.entries_back().map(|(key, value)| (key.into_owned(), tree(value))).collect())
        } else {
            let mut items: Vec<Value> = value.items_back().map(tree).collect();
            items.reverse();
            Value::Array(items.into())
        }
    }

    #[test]
    fn tape_yields_the_values_of_the_text() {
        let text = r#"{"a":[],"b":{},"c":[1,[true,null],{"d\n":"\"e\\"}],"f":-1.5e+300,"":"grüße"}"#;
        let tape = Tape::read(text.as_bytes()).unwrap();
        assert_eq!(tree(tape.root()), json::read(text.as_bytes()).unwrap());
        assert_eq!(tape.root().json(), text.as_bytes());
        let inner: Vec<_> = tape.root().entries_back().map(|(_, value)| value.json()).collect();
        assert_eq!(inner[0], "\"grüße\"".as_bytes());
        assert_eq!(inner[2], br#"[1,[true,null],{"d\n":"\"e\\"}]"#.as_slice());
    }

    #[test]
    fn corrupt_text_has_no_tape() {
        for text in [
            "", "{", "}", "[1", "[1}", "{\"a\"}", "{\"a\":}", "{1:2}", "\"a", "\"a\\", "[,]", "1,", "[1]]",
            "{}{}",
        ] {
            assert!(Tape::read(text.as_bytes()).is_none(), "{text}");
        }
        assert!(Tape::read(&[b'"', 0xff, b'"']).is_none());
        assert!(Tape::read(&[b'['; 200]).is_none());
    }

    proptest! {
        #[test]
        fn tape_never_panics(text in "[\\[\\]{}\",:\\\\a1n ]{0,40}") {
            if let Some(tape) = Tape::read(text.as_bytes()) {
                let _ = tree(tape.root());
            }
        }
    }
}
