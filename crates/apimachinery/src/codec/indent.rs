//! Indents a stream of JSON, piece by piece.

/// Spaces per level.
const INDENT: usize = 2;

/// Indents one JSON text that is given in pieces. Its state is constant in size.
#[derive(Clone, Copy, Debug, Default)]
pub struct Indenter {
    level: usize,
    in_string: bool,
    /// Whether the last byte, inside of a string, was a backslash that the next byte belongs to.
    escaped: bool,
    /// Whether the last byte was an opening bracket: whether its content gets lines of its own depends on the next byte.
    opened: bool,
}

impl Indenter {
    /// Appends the indented text of `json` to `out`, until `out` has about `limit` bytes. Returns how many bytes of `json` were
    /// consumed; the caller passes the others again.
    pub fn indent(&mut self, json: &[u8], out: &mut Vec<u8>, limit: usize) -> usize {
        let mut consumed = 0;
        while out.len() < limit
            && let Some(byte) = json.get(consumed).copied()
        {
            if self.in_string {
                let rest = json.get(consumed..).unwrap_or_default();
                consumed += self.string(rest.get(..limit - out.len()).unwrap_or(rest), out);
            } else {
                self.byte(byte, out);
                consumed += 1;
            }
        }
        consumed
    }

    /// Copies text inside of a string, at most to its end, and returns the number of bytes.
    fn string(&mut self, text: &[u8], out: &mut Vec<u8>) -> usize {
        if self.escaped {
            self.escaped = false;
            out.extend(text.first());
            return 1;
        }
        let end = memchr::memchr2(b'"', b'\\', text);
        let length = end.map_or(text.len(), |end| end + 1);
        let part = text.get(..length).unwrap_or_default();
        out.extend_from_slice(part);
        if end.is_some() {
            self.escaped = part.ends_with(b"\\");
            self.in_string = self.escaped;
        }
        length
    }

    /// Writes one byte outside of strings.
    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.opened) {
            if matches!(byte, b'}' | b']') {
                out.push(byte);
                return;
            }
            self.level += 1;
            self.new_line(out);
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'{' | b'[' => {
                out.push(byte);
                self.opened = true;
            }
            b'}' | b']' => {
                self.level = self.level.saturating_sub(1);
                self.new_line(out);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                self.new_line(out);
            }
            b':' => out.extend_from_slice(b": "),
            _ => {
                self.in_string = byte == b'"';
                out.push(byte);
            }
        }
    }

    fn new_line(self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + self.level * INDENT, b' ');
    }
}

/// Indents a whole JSON text, by two spaces per level.
pub fn pretty(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    Indenter::default().indent(json, &mut out, usize::MAX);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json;
    use crate::json::tests::any_value;
    use crate::value::Value;

    #[test]
    fn pretty_keeps_empty_brackets_together() {
        let pretty = pretty(br#"{"a":[],"b":{},"c":[1,"x{\"}"]}"#);
        let expected = "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    \"x{\\\"}\"\n  ]\n}";
        assert_eq!(String::from_utf8(pretty).unwrap(), expected);
    }

    /// A reference implementation that indents a whole value.
    fn indent_value(value: &Value, level: usize, out: &mut Vec<u8>) {
        let line = |level: usize| format!("\n{}", "  ".repeat(level)).into_bytes();
        let ends = match value {
            Value::Array(items) if !items.is_empty() => *b"[]",
            Value::Object(fields) if !fields.is_empty() => *b"{}",
            _ => return out.extend(json::to_json(value)),
        };
        out.push(ends[0]);
        let named = value.fields().into_iter().flatten().map(|(key, value)| (Some(key.as_str()), value));
        for (position, (key, value)) in named.chain(value.items().iter().map(|item| (None, item))).enumerate()
        {
            out.extend(if position > 0 { &b","[..] } else { b"" });
            out.extend(line(level + 1));
            if let Some(key) = key {
                json::write_string(out, key);
                out.extend(b": ");
            }
            indent_value(value, level + 1, out);
        }
        out.extend(line(level));
        out.push(ends[1]);
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_are_indented_like_the_whole(
            value in any_value(),
            cuts in proptest::collection::vec(1..40usize, 1..8),
            limit in 1..60usize,
        ) {
            let mut expected = Vec::new();
            indent_value(&value, 0, &mut expected);
            let whole = [json::to_json(&value), b"\n".to_vec()].concat();
            prop_assert_eq!(String::from_utf8(pretty(&whole)).unwrap(), String::from_utf8(expected.clone()).unwrap());
            let (mut indenter, mut out, mut rest) = (Indenter::default(), Vec::new(), whole.as_slice());
            for length in cuts.into_iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let mut piece = &rest[..length.min(rest.len())];
                rest = &rest[piece.len()..];
                while !piece.is_empty() {
                    let mut text = Vec::new();
                    let consumed = indenter.indent(piece, &mut text, limit);
                    // One byte more than allowed is a line break with its spaces, or a colon.
                    prop_assert!(consumed > 0 && text.len() <= limit + 1 + 2 * INDENT * 8, "{}", text.len());
                    piece = &piece[consumed..];
                    out.extend(text);
                }
            }
            prop_assert_eq!(out, expected);
        }
    }
}
