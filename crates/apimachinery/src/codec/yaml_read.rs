//! Evaluates a YAML document: expands aliases and merges, resolves plain scalars, and converts keys to text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::yaml_plain::{Plain, resolve};
use super::yaml_tree::{Content, Node, Scalar, Tree};
use super::yaml_write::key_float;
use crate::field::quoted;
use crate::limits;
use crate::value::{Array, Fields, Value};

/// The value of a document, and its duplicate keys.
pub(super) struct ParsedDocument {
    pub value: Value,
    /// The duplicate keys as written, each with the line of its second value.
    pub duplicate_keys: Vec<(usize, String)>,
}

/// Parses the first document of a text.
pub(super) fn parse_document(text: &str) -> Result<ParsedDocument, String> {
    let tree = Tree::read(text)?;
    let mut reader = Reader {
        tree: &tree,
        duplicate_keys: Vec::new(),
        open: Vec::new(),
        steps: 0,
        alias_steps: 0,
        alias_bytes: 0,
    };
    let value = match tree.node(0) {
        Some(root) => reader.value(root, 0)?,
        None => Value::Null,
    };
    Ok(ParsedDocument { value, duplicate_keys: reader.duplicate_keys })
}

struct Reader<'d, 't> {
    tree: &'d Tree<'t>,
    duplicate_keys: Vec<(usize, String)>,
    /// The nodes whose aliases are being expanded, to detect cycles.
    open: Vec<usize>,
    /// The number of nodes, and how many of them come from aliases.
    steps: usize,
    alias_steps: usize,
    /// Bytes of text that come from aliases.
    alias_bytes: usize,
}

const EXCESSIVE_ALIASING: &str = "document contains excessive aliasing";

impl<'d, 't> Reader<'d, 't> {
    fn value(&mut self, node: &'d Node<'t>, depth: usize) -> Result<Value, String> {
        self.count_node(depth)?;
        match &node.content {
            Content::Scalar(scalar) => {
                self.count_text(scalar)?;
                read_scalar(scalar)
            }
            Content::List(items) => {
                let items = items.iter().filter_map(|item| self.tree.node(*item));
                items.map(|item| self.value(item, depth + 1)).collect::<Result<Array, _>>().map(Value::Array)
            }
            Content::Map(_) => {
                let mut fields = Fields::new();
                self.fields(node, &mut fields, depth)?;
                Ok(Value::Object(fields.into()))
            }
            Content::Alias { .. } => {
                self.through_alias(node, |reader, target| reader.value(target, depth + 1))
            }
        }
    }

    /// Adds the fields of a map.
    fn fields(&mut self, map: &'d Node<'t>, into: &mut Fields, depth: usize) -> Result<(), String> {
        let Content::Map(entries) = &map.content else { return Err(MERGE_REQUIRES_MAP.to_owned()) };
        let nodes = |pair: &[usize]| Some((self.tree.node(*pair.first()?)?, self.tree.node(*pair.get(1)?)?));
        for (key, value) in entries.chunks_exact(2).filter_map(nodes).collect::<Vec<_>>() {
            if matches!(&key.content, Content::Scalar(scalar) if scalar.is_merge()) {
                self.merge(value, into, depth + 1)?;
                continue;
            }
            let key = self.key(key, depth + 1)?;
            let read = self.value(value, depth + 1)?;
            let Some((key, rendered)) = key else {
                let value = if read.is_null() { "<nil>".to_owned() } else { render_go_value(&read) };
                return Err(format!("{UNSUPPORTED_KEY}%!s(<nil>), key: <nil>, value: {value}"));
            };
            if into.insert(key, read).is_some() && self.duplicate_keys.len() < limits::FIELD_ERRORS {
                self.duplicate_keys.push((value.line, rendered));
            }
        }
        Ok(())
    }

    /// A key as JSON has it, and as messages print it; `None` if JSON has no such key.
    fn key(&mut self, node: &'d Node<'t>, depth: usize) -> Result<Option<(String, String)>, String> {
        if let Content::Scalar(Scalar { text, plain: true, tag: None }) = &node.content
            && let Plain::Float(number) = resolve(text)
        {
            let text = key_float(number);
            return Ok(Some((text.clone(), text)));
        }
        let text = match self.value(node, depth)? {
            Value::String(text) => return Ok(Some((text.clone(), quoted(&text)))),
            Value::Bool(boolean) => boolean.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Float(number) => key_float(number),
            Value::Null => return Ok(None),
            key @ (Value::Array(_) | Value::Object(_)) => {
                return Err(format!("invalid map key: {}", render_go_value(&key)));
            }
        };
        Ok(Some((text.clone(), text)))
    }

    /// Adds the fields of a merge key: of one map, or of several, of which the first takes precedence.
    fn merge(&mut self, from: &'d Node<'t>, into: &mut Fields, depth: usize) -> Result<(), String> {
        if let Content::List(maps) = &from.content {
            for map in maps.iter().rev().filter_map(|map| self.tree.node(*map)) {
                self.merge_one(map, into, depth)?;
            }
            return Ok(());
        }
        self.merge_one(from, into, depth)
    }

    fn merge_one(&mut self, from: &'d Node<'t>, into: &mut Fields, depth: usize) -> Result<(), String> {
        self.count_node(depth)?;
        if matches!(from.content, Content::Alias { .. }) {
            return self.through_alias(from, |reader, map| reader.fields(map, into, depth));
        }
        self.fields(from, into, depth)
    }

    /// Evaluates the node of an alias.
    fn through_alias<T>(
        &mut self,
        alias: &'d Node<'t>,
        read: impl FnOnce(&mut Self, &'d Node<'t>) -> Result<T, String>,
    ) -> Result<T, String> {
        let Content::Alias { target, name } = &alias.content else {
            return Err(MERGE_REQUIRES_MAP.to_owned());
        };
        let node = self.tree.node(*target).filter(|_| !self.open.contains(target));
        let Some(node) = node else { return Err(format!("anchor '{name}' value contains itself")) };
        self.open.push(*target);
        let result = read(self, node);
        self.open.pop();
        result
    }

    /// Counts one more node. A small document may consist of aliases, but must not expand without bound.
    fn count_node(&mut self, depth: usize) -> Result<(), String> {
        self.steps += 1;
        self.alias_steps += usize::from(!self.open.is_empty());
        if depth > limits::YAML_DEPTH {
            return Err(format!("exceeded max depth of {}", limits::YAML_DEPTH));
        }
        let is_excessive =
            self.alias_steps > 100 && self.steps > 1000 && self.alias_steps * 100 > self.steps * 99;
        if is_excessive || self.steps > limits::YAML_NODES {
            return Err(EXCESSIVE_ALIASING.to_owned());
        }
        Ok(())
    }

    /// Counts text that an alias repeats: with a long text, few aliases make a small document large.
    fn count_text(&mut self, scalar: &Scalar<'_>) -> Result<(), String> {
        if !self.open.is_empty() {
            self.alias_bytes += scalar.text.len();
        }
        if self.alias_bytes > limits::YAML_ALIAS_BYTES { Err(EXCESSIVE_ALIASING.to_owned()) } else { Ok(()) }
    }
}

/// The prefix of errors about keys that JSON cannot express.
pub(super) const UNSUPPORTED_KEY: &str = "unsupported map key of type: ";
/// The prefix of errors about values that JSON cannot express.
pub(super) const UNSUPPORTED_VALUE: &str = "json: unsupported value: ";

/// A value in messages about unsupported keys.
fn render_go_value(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(boolean) => boolean.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => key_float(*number),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", joined(items.iter().map(render_go_value).collect()))
        }
        Value::Object(fields) => {
            let pairs =
                fields.iter().map(|(key, value)| format!("{}:{}", quoted(key), render_go_value(value)));
            format!("map[interface {{}}]interface {{}}{{{}}}", joined(pairs.collect()))
        }
    }
}

const MERGE_REQUIRES_MAP: &str = "map merge requires map or sequence of maps as the value";

fn read_scalar(scalar: &Scalar<'_>) -> Result<Value, String> {
    let text = || Value::String(scalar.text.clone().into_owned());
    let Some(tag) = scalar.tag.as_deref() else {
        return if scalar.plain { to_value(resolve(&scalar.text), text) } else { Ok(text()) };
    };
    let plain = match resolve(&scalar.text) {
        Plain::Instant if tag != "!!timestamp" => Plain::Text,
        plain => plain,
    };
    match (tag, plain) {
        ("!!binary", _) => STANDARD
            .decode(scalar.text.replace(['\r', '\n'], ""))
            .map(|bytes| Value::String(String::from_utf8_lossy(&bytes).into_owned()))
            .map_err(|_| "!!binary value contains invalid base64 data".to_owned()),
        ("!!float", Plain::Int(number)) => to_value(Plain::Float(number as f64), text),
        ("!!bool" | "!!int" | "!!float" | "!!null" | "!!timestamp", plain) if plain.tag() != tag => {
            Err(format!("cannot decode {} `{}` as a {tag}", plain.tag(), scalar.text))
        }
        ("!!bool" | "!!int" | "!!float" | "!!null", plain) => to_value(plain, text),
        _ => Ok(text()),
    }
}

fn to_value(plain: Plain, text: impl FnOnce() -> Value) -> Result<Value, String> {
    Ok(match plain {
        Plain::Text | Plain::Instant => text(),
        Plain::Null => Value::Null,
        Plain::Bool(boolean) => Value::Bool(boolean),
        Plain::Int(number) => Value::Int(number),
        Plain::Large(number) => Value::Float(number as f64),
        Plain::Float(number) if !number.is_finite() => {
            let name = if number.is_nan() {
                "NaN"
            } else if number > 0.0 {
                "+Inf"
            } else {
                "-Inf"
            };
            return Err(format!("{UNSUPPORTED_VALUE}{name}"));
        }
        // As in JSON, a zero with a sign is the integer 0.
        Plain::Float(0.0) => Value::Int(0),
        Plain::Float(number) => Value::Float(number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::to_json;

    fn as_json(text: &str) -> String {
        String::from_utf8(to_json(&parse_document(text).unwrap().value)).unwrap()
    }

    #[test]
    fn boolean_and_null_words_have_fixed_spellings() {
        assert_eq!(
            as_json("a: On\nb: oN\nc: nULL\nd: tRue\n"),
            r#"{"a":true,"b":"oN","c":"nULL","d":"tRue"}"#
        );
    }

    #[test]
    fn keys_are_converted_to_text() {
        assert_eq!(
            as_json("1: a\n.5: b\n.inf: c\nyes: d\n1e9: e\n"),
            r#"{".inf":"c","0.5":"b","1":"a","1e+09":"e","true":"d"}"#
        );
        let error = |text| parse_document(text).err().unwrap();
        let no_key = "unsupported map key of type: %!s(<nil>), key: <nil>, value: ";
        assert_eq!(error("~: a\n"), format!("{no_key}\"a\""));
        assert_eq!(error("~: ~\n"), format!("{no_key}<nil>"));
        assert_eq!(
            error("~: [1, {b: c}, x, true, 1.5, ~]\n"),
            format!(
                "{no_key}[]interface {{}}{{1, map[interface {{}}]interface {{}}{{\"b\":\"c\"}}, \"x\", true, 1.5, interface {{}}(nil)}}"
            )
        );
        assert_eq!(error("? [a]\n: b\n"), "invalid map key: []interface {}{\"a\"}");
    }

    #[test]
    fn tags_override_the_resolved_type() {
        assert_eq!(
            as_json(
                "a: !!str 1\nb: !!float 2\nc: !own 3\nd: !!binary |\n  aG\n  k=\ne: !!timestamp 2001-01-01\n"
            ),
            r#"{"a":"1","b":2,"c":"3","d":"hi","e":"2001-01-01"}"#
        );
        assert_eq!(parse_document("a: !!int x\n").err().unwrap(), "cannot decode !!str `x` as a !!int");
    }

    #[test]
    fn merge_keys_apply_in_document_order() {
        let shared = "x: &x {k: 1, l: 1}\ny: &y {k: 2, m: 2}\n";
        assert!(
            as_json(&format!("{shared}a:\n  <<: [*x, *y]\n  l: 3\n"))
                .starts_with(r#"{"a":{"k":1,"l":3,"m":2}"#)
        );
        assert!(as_json(&format!("{shared}a:\n  k: 3\n  <<: *x\n")).starts_with(r#"{"a":{"k":1,"l":1}"#));
        assert_eq!(parse_document("<<: 1\n").err().unwrap(), MERGE_REQUIRES_MAP);
    }

    #[test]
    fn duplicate_keys_are_reported_with_their_line() {
        let duplicate_keys = |text| parse_document(text).unwrap().duplicate_keys;
        assert_eq!(
            duplicate_keys("a: 1\na: |\n\n  x\n1: x\n1: y\n"),
            [(2, "\"a\"".to_owned()), (6, "1".to_owned())]
        );
    }

    #[test]
    fn alias_expansion_is_bounded() {
        assert_eq!(parse_document("a: &a [*a]\n").err().unwrap(), "anchor 'a' value contains itself");
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..9 {
            let many = vec![format!("*a{}", level - 1); 10].join(",");
            laughs.push_str(&format!("a{level}: &a{level} [{many}]\n"));
        }
        assert_eq!(parse_document(&laughs).err().unwrap(), "document contains excessive aliasing");
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), ["*a"; 5].join(","));
        assert_eq!(parse_document(&long).err().unwrap(), "document contains excessive aliasing");
        let keys = format!("a: &a {{? {} : 1}}\nb: [{}]\n", "x".repeat(1 << 20), ["*a"; 5].join(","));
        assert_eq!(parse_document(&keys).err().unwrap(), "document contains excessive aliasing");
        let few = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 10), ["*a"; 900].join(","));
        assert!(parse_document(&few).is_ok());
        let mut deep = "a0: &a0 [x]\n".to_owned();
        for level in 1..200 {
            deep.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
        }
        assert!(parse_document(&deep).err().unwrap().starts_with("exceeded max depth"));
    }
}
