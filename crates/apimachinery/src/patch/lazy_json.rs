//! A JSON text that is parsed only where it is accessed.
//!
//! A patch changes a few fields of a large object: the rest stays text. That is fast, but visible in error messages: parsed parts
//! have sorted keys, others keep their order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::chunked_list::ChunkedList;
use crate::json::write_string;

/// A part of a text.
#[derive(Clone, Debug)]
pub enum Node<'a> {
    /// `null`
    Null,
    /// Anything else, unparsed.
    Text(Cow<'a, str>),
    /// A parsed object.
    Object(BTreeMap<String, Node<'a>>),
    /// A parsed list.
    Array(ChunkedList<Node<'a>>),
}

impl<'a> Node<'a> {
    /// A whole text, which must be valid JSON.
    pub fn from_text(text: Cow<'a, str>) -> Node<'a> {
        if text.trim_ascii() == "null" { Node::Null } else { Node::Text(text) }
    }

    /// Parses an object or a list; scalars stay as they are.
    pub fn open(&mut self) {
        if let Node::Text(text) = self {
            let parsed = match text {
                Cow::Borrowed(text) => parse_container(text, Cow::Borrowed),
                Cow::Owned(text) => parse_container(text, |part| Cow::Owned(part.to_owned())),
            };
            if let Some(parsed) = parsed {
                *self = parsed;
            }
        }
    }

    /// The nesting depth: 0 for scalars.
    pub fn depth(&self) -> usize {
        match self {
            Node::Null => 0,
            Node::Text(text) => text_depth(text),
            Node::Object(fields) => 1 + fields.values().map(Node::depth).max().unwrap_or(0),
            Node::Array(items) => 1 + items.iter().map(Node::depth).max().unwrap_or(0),
        }
    }

    /// The cost to traverse it: the number of parsed parts, and a share of the length of unparsed text.
    pub fn parts(&self) -> usize {
        /// Characters of text that take as long to scan as one parsed part.
        const CHARS_PER_PART: usize = 32;
        match self {
            Node::Null => 1,
            Node::Text(text) => 1 + text.len() / CHARS_PER_PART,
            Node::Object(fields) => 1 + fields.values().map(Node::parts).sum::<usize>(),
            Node::Array(items) => 1 + items.iter().map(Node::parts).sum::<usize>(),
        }
    }

    /// The compact text, with sorted keys in parsed parts.
    pub fn to_text(&self) -> String {
        let mut out = Vec::with_capacity(256);
        self.write(&mut out);
        // The text was split at ASCII characters only.
        String::from_utf8(out).unwrap_or_default()
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Node::Null => out.extend_from_slice(b"null"),
            Node::Text(text) => write_compact(out, text.as_bytes()),
            Node::Object(fields) => {
                out.push(b'{');
                for (index, (key, value)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_string(out, key);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
            Node::Array(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
        }
    }

    /// Whether two parts are equal. Scalars are compared as text: 1 and 1.0 differ.
    pub fn same(&mut self, other: &mut Node<'_>) -> bool {
        self.open();
        other.open();
        match (self, other) {
            (Node::Null, Node::Null) => true,
            (Node::Text(text), Node::Text(other)) => text.trim_ascii() == other.trim_ascii(),
            (Node::Object(fields), Node::Object(others)) => {
                fields.len() == others.len()
                    && fields
                        .iter_mut()
                        .zip(others)
                        .all(|((key, value), (other_key, other))| key == other_key && value.same(other))
            }
            (Node::Array(items), Node::Array(others)) => {
                items.len() == others.len()
                    && items.iter_mut().zip(others.iter_mut()).all(|(item, other)| item.same(other))
            }
            _ => false,
        }
    }
}

/// The fields of an object in the order of the text. The last of several with one key counts, as with a map.
struct Pairs<'t>(Vec<(String, &'t RawValue)>);

impl<'t> Deserialize<'t> for Pairs<'t> {
    fn deserialize<D: Deserializer<'t>>(tokens: D) -> Result<Pairs<'t>, D::Error> {
        struct Reader;
        impl<'t> Visitor<'t> for Reader {
            type Value = Pairs<'t>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'t>>(self, mut entries: A) -> Result<Pairs<'t>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = entries.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        tokens.deserialize_map(Reader)
    }
}

fn parse_container<'t, 'a>(text: &'t str, part: impl Fn(&'t str) -> Cow<'a, str>) -> Option<Node<'a>> {
    let node = |raw: &'t RawValue| Node::from_text(part(raw.get()));
    match text.trim_ascii_start().as_bytes().first() {
        Some(b'{') => {
            let Pairs(fields) = serde_json::from_str(text).ok()?;
            // Collected at once, which is fast for keys that are in order.
            Some(Node::Object(fields.into_iter().map(|(key, raw)| (key, node(raw))).collect()))
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Some(Node::Array(items.into_iter().map(node).collect()))
        }
        _ => None,
    }
}

/// Appends a JSON text without whitespace, escaped for HTML.
fn write_compact(out: &mut Vec<u8>, text: &[u8]) {
    let (mut quoted, mut escaped) = (false, false);
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' if !quoted => continue,
            b'<' => out.extend_from_slice(b"\\u003c"),
            b'>' => out.extend_from_slice(b"\\u003e"),
            b'&' => out.extend_from_slice(b"\\u0026"),
            0xe2 => match after {
                [0x80, last @ (0xa8 | 0xa9), after @ ..] => {
                    out.extend_from_slice(if *last == 0xa8 { b"\\u2028" } else { b"\\u2029" });
                    rest = after;
                }
                _ => out.push(byte),
            },
            _ => out.push(byte),
        }
        quoted ^= byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
    }
}

fn text_depth(text: &str) -> usize {
    let (mut depth, mut max_depth) = (0usize, 0usize);
    let (mut quoted, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' if !quoted => {
                depth += 1;
                max_depth = max_depth.max(depth);
            }
            b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        quoted ^= byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
    }
    max_depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parsed_parts_are_sorted() {
        let mut node = Node::from_text(Cow::Borrowed(r#" {"b": {"z":1, "a":"<\"{"}, "a": [ ] } "#));
        node.open();
        assert_eq!(node.to_text(), r#"{"a":[],"b":{"z":1,"a":"\u003c\"{"}}"#);
        assert_eq!(node.depth(), 2);
        let Node::Object(fields) = &mut node else { unreachable!("opened above") };
        fields.get_mut("b").unwrap().open();
        assert_eq!(node.to_text(), r#"{"a":[],"b":{"a":"\u003c\"{","z":1}}"#);
    }

    #[test]
    fn same_ignores_order_of_keys_and_whitespace() {
        let same = |a: &'static str, b: &'static str| {
            Node::from_text(Cow::Borrowed(a)).same(&mut Node::from_text(Cow::Owned(b.to_owned())))
        };
        assert!(same(r#"{"a":1,"b":[null]}"#, r#" { "b" : [ null ], "a" : 1 } "#));
        assert!(!same("1", "1.0") && !same("[1]", "[1,2]") && !same("{}", "[]") && !same("null", "{}"));
        assert!(!same(r#"{"a":1}"#, r#"{"b":1}"#));
    }
}
