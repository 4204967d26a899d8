//! Reads a stream of objects: JSON lines, JSON or YAML documents, and the lists that `kubectl get` writes.

use std::collections::VecDeque;
use std::io::{self, BufRead};

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{json, meta};

use super::document_reader::{Document, DocumentReader};

/// An element of the stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Element {
    /// An object with apiVersion, kind and name.
    Object(Value),
    /// What should have been one, and why it is not.
    Malformed(String),
}

/// Reads a stream.
pub(crate) struct ObjectReader<R> {
    documents: DocumentReader<R>,
    /// The rest of the lists in progress, and the line on which their document began.
    items: VecDeque<Value>,
    line: u64,
}

impl<R: BufRead> ObjectReader<R> {
    /// Reads from this input.
    pub(crate) fn new(input: R) -> ObjectReader<R> {
        ObjectReader { documents: DocumentReader::new(input), items: VecDeque::new(), line: 0 }
    }

    /// The next element; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> io::Result<Option<Element>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                if let Some(items) = list_items(&item) {
                    for item in items.into_iter().rev() {
                        self.items.push_front(item);
                    }
                    continue;
                }
                return Ok(Some(self.check(item)));
            }
            let Some(document) = self.documents.next()? else { return Ok(None) };
            let (line, parsed) = parse(&document);
            self.line = line;
            match parsed {
                // A document without content.
                Ok(Value::Null) => {}
                Ok(value) => self.items.push_back(value),
                Err(message) => return Ok(Some(self.malformed(&message))),
            }
        }
    }

    fn malformed(&self, message: &str) -> Element {
        Element::Malformed(format!("line {}: {message}", self.line))
    }

    fn check(&self, value: Value) -> Element {
        let missing = [("kind", value.str("kind")), ("apiVersion", value.str("apiVersion"))];
        let missing = missing.into_iter().chain([("metadata.name", meta::name(&value))]);
        let missing: Vec<&str> =
            missing.filter(|(_, text)| text.is_empty()).map(|(field, _)| field).collect();
        if missing.is_empty() {
            return Element::Object(value);
        }
        self.malformed(&format!("not an object: it has no {}", missing.join(", no ")))
    }
}

fn parse(document: &Document) -> (u64, Result<Value, String>) {
    match document {
        Document::Json(line, bytes) => {
            (*line, json::read(bytes).map_err(|error| format!("not JSON: {error}")))
        }
        Document::Yaml(line, bytes) => {
            (*line, yaml::read(bytes).map_err(|error| format!("not YAML: {error}")))
        }
        Document::TooLong(line, max_bytes) => {
            let message = format!("more than {max_bytes} bytes; write one object per line, as JSON");
            (*line, Err(message))
        }
    }
}

/// The items of a list of objects; `None` if this is none. Items of a typed list have no kind of their own: it follows from that of
/// the list.
fn list_items(value: &Value) -> Option<Vec<Value>> {
    let kind = value.str("kind").strip_suffix("List")?;
    let Some(Value::Array(items)) = value.get("items") else {
        // An empty list may have no items at all.
        return (kind.is_empty()).then(Vec::new);
    };
    if !meta::name(value).is_empty() {
        return None;
    }
    let with_kind = |item: &Value| {
        let mut item = item.clone();
        if !kind.is_empty() && item.str("kind").is_empty() && item.fields().is_some() {
            item.set("kind", kind);
            item.set("apiVersion", value.str("apiVersion"));
        }
        item
    };
    Some(items.iter().map(with_kind).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(text: &str) -> Vec<String> {
        let mut reader = ObjectReader::new(text.as_bytes());
        let describe = |element| match element {
            Element::Object(object) => super::super::resource::describe_object(&object),
            Element::Malformed(message) => message,
        };
        std::iter::from_fn(|| reader.next().unwrap()).map(describe).collect()
    }

    #[test]
    fn lists_are_flattened() {
        let nested = r#"{"kind":"List","apiVersion":"v1","items":[
            {"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"n"}},
            {"kind":"List","apiVersion":"v1","items":[
                {"kind":"Node","apiVersion":"v1","metadata":{"name":"b"}}, {"kind":"List","apiVersion":"v1"}]},
            {"kind":"DeploymentList","apiVersion":"apps/v1","items":[{"metadata":{"name":"c"}}]}]}"#;
        assert_eq!(elements(nested), ["ConfigMap n/a", "Node b", "Deployment.apps c"]);
    }

    #[test]
    fn yaml_documents_and_lists_are_read() {
        let text = "---\n# nothing\n---\nkind: Node\napiVersion: v1\nmetadata: {name: a}\n---\n\
                    apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: p\n    namespace: ns\n\
                    kind: List\n";
        assert_eq!(elements(text), ["Node a", "Pod ns/p"]);
    }

    #[test]
    fn object_named_like_a_list_is_an_object() {
        let text = r#"{"kind":"PlayList","apiVersion":"e.com/v1","metadata":{"name":"p"},"items":[{"a":1}]}"#;
        assert_eq!(elements(text), ["PlayList.e.com p"]);
    }

    #[test]
    fn malformed_lines_do_not_end_the_stream() {
        let good = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}"#;
        let text = format!("{good}\n{{\"kind\":\"No\n{good}\n{{\"kind\":\"Node\"}}\n[1]\n{good}");
        let elements = elements(&text);
        assert_eq!((elements[0].as_str(), elements.len()), ("Node a", 6), "{elements:?}");
        assert!(elements[1].starts_with("line 2: not JSON: EOF while parsing a string"), "{elements:?}");
        assert_eq!(elements[3], "line 4: not an object: it has no apiVersion, no metadata.name");
        assert!(elements[4].starts_with("line 5: not an object: it has no kind"), "{elements:?}");
        assert_eq!(elements[5], "Node a");
    }
}
