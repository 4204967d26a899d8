//! Documents that configure the server or a plug-in: an object of a known kind and version, without fields that nobody reads. A
//! misspelt field would leave the cluster less safe than its operator thinks.

use crate::codec::yaml;
use crate::field::{FieldError, FieldPath, quoted};
use crate::value::Value;

/// Parses an object without duplicate fields.
pub fn parse(text: &[u8]) -> Result<Value, String> {
    match yaml::read_strict(text)? {
        (_, Some(duplicates)) => Err(duplicates),
        (value @ Value::Object(_), None) => Ok(value),
        _ => Err("it must be an object".to_owned()),
    }
}

/// Checks that a document has this kind and one of these versions.
pub fn check_kind(document: &Value, kind: &str, versions: &[&str]) -> Result<(), String> {
    let (actual_kind, version) = (document.str("kind"), document.str("apiVersion"));
    if actual_kind == kind && versions.contains(&version) {
        return Ok(());
    }
    let latest = versions.first().copied().unwrap_or_default();
    let article = if kind.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" };
    Err(format!(
        "no kind {actual_kind:?} is known in version {version:?}: {article} {kind} of {latest} is needed"
    ))
}

/// Joins error messages, in the reference's words.
pub fn check_no_errors(errors: &[String]) -> Result<(), String> {
    match errors {
        [] => Ok(()),
        [error] => Err(error.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// Reads the fields of a document and collects all errors. `path` is that of the object that has the field. A null is an absent
/// field.
#[derive(Debug, Default)]
pub struct FieldReader {
    errors: Vec<String>,
}

impl FieldReader {
    /// Adds an error.
    pub fn push_error(&mut self, error: &FieldError) {
        self.errors.push(error.to_string());
    }

    /// Adds an error that is not about a single field.
    pub fn push_message(&mut self, message: String) {
        self.errors.push(message);
    }

    /// All errors so far.
    pub fn result(&self) -> Result<(), String> {
        check_no_errors(&self.errors)
    }

    /// Refuses all fields but these.
    pub fn check_fields(&mut self, object: &Value, path: &FieldPath, known: &[&str]) {
        let Some(fields) = object.fields() else {
            return self.push_message(format!("{path}: must be an object"));
        };
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            self.push_message(format!("unknown field {}", quoted(&path.child(name).to_string())));
        }
    }

    /// The items of a list; empty if absent.
    pub fn list<'v>(&mut self, object: &'v Value, field: &str, path: &FieldPath) -> &'v [Value] {
        match present(object, field) {
            None => &[],
            Some(Value::Array(items)) => items,
            Some(_) => {
                self.push_message(format!("{}: must be a list", path.child(field)));
                &[]
            }
        }
    }

    /// The strings of a list; empty if absent.
    pub fn texts(&mut self, object: &Value, field: &str, path: &FieldPath) -> Vec<String> {
        let items = self.list(object, field, path);
        let texts: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
        texts.unwrap_or_else(|| {
            self.push_message(format!("{}: must be a list of texts", path.child(field)));
            Vec::new()
        })
    }

    /// The entries of a map from string to string; empty if absent.
    pub fn pairs(&mut self, object: &Value, field: &str, path: &FieldPath) -> Vec<(String, String)> {
        let Some(map) = present(object, field) else { return Vec::new() };
        let pair = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        let pairs: Option<Vec<_>> = map.fields().and_then(|fields| fields.iter().map(pair).collect());
        pairs.unwrap_or_else(|| {
            self.push_message(format!("{}: must be a map from text to text", path.child(field)));
            Vec::new()
        })
    }

    /// A string; `None` if absent.
    pub fn optional_text<'v>(&mut self, object: &'v Value, field: &str, path: &FieldPath) -> Option<&'v str> {
        let value = present(object, field)?;
        if value.as_str().is_none() {
            self.push_message(format!("{}: must be a text", path.child(field)));
        }
        value.as_str()
    }

    /// A string; empty if absent.
    pub fn text<'v>(&mut self, object: &'v Value, field: &str, path: &FieldPath) -> &'v str {
        self.optional_text(object, field, path).unwrap_or_default()
    }

    /// An integer; zero if absent.
    pub fn integer(&mut self, object: &Value, field: &str, path: &FieldPath) -> i64 {
        let Some(value) = present(object, field) else { return 0 };
        value.as_int().unwrap_or_else(|| {
            self.push_message(format!("{}: must be a number", path.child(field)));
            0
        })
    }

    /// A truth value; false if absent.
    pub fn boolean(&mut self, object: &Value, field: &str, path: &FieldPath) -> bool {
        let Some(value) = present(object, field) else { return false };
        value.as_bool().unwrap_or_else(|| {
            self.push_message(format!("{}: must be true or false", path.child(field)));
            false
        })
    }
}

/// A field that is not null.
pub fn present<'v>(object: &'v Value, field: &str) -> Option<&'v Value> {
    object.get(field).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSIONS: [&str; 2] = ["x/v1", "x/v1beta1"];

    #[test]
    fn document_must_be_an_object_without_duplicate_fields() {
        assert_eq!(parse(b"a: 1\n").map(|object| object.get("a").cloned()), Ok(Some(Value::Int(1))));
        assert_eq!(parse(b"- a").unwrap_err(), "it must be an object");
        assert!(parse(b"a: 1\na: 2\n").unwrap_err().contains("already set"));
    }

    #[test]
    fn document_of_another_kind_or_version_is_refused() {
        let document = parse(b"{apiVersion: x/v1beta1, kind: Config}").unwrap();
        assert_eq!(check_kind(&document, "Config", &VERSIONS), Ok(()));
        for (kind, versions, article) in [("Config", &["y/v1"][..], "a"), ("Admission", &VERSIONS[..], "an")]
        {
            let expected = versions[0];
            assert_eq!(
                check_kind(&document, kind, versions).unwrap_err(),
                format!(
                    "no kind \"Config\" is known in version \"x/v1beta1\": {article} {kind} of {expected} is needed"
                )
            );
        }
    }

    #[test]
    fn field_reader_collects_all_errors() {
        let document = parse(b"{a: [x, w], b: {k: v}, c: text, d: 7, e: true, f: null, g: {h: 1}}").unwrap();
        let (mut reader, root) = (FieldReader::default(), FieldPath::root());
        assert_eq!(reader.list(&document, "a", &root).len(), 2);
        assert_eq!(reader.texts(&document, "a", &root), ["x", "w"]);
        assert_eq!(reader.pairs(&document, "b", &root), [("k".to_owned(), "v".to_owned())]);
        assert_eq!((reader.text(&document, "c", &root), reader.integer(&document, "d", &root)), ("text", 7));
        assert!(reader.boolean(&document, "e", &root) && !reader.boolean(&document, "z", &root));
        assert_eq!(
            (reader.optional_text(&document, "f", &root), reader.text(&document, "z", &root)),
            (None, "")
        );
        reader.check_fields(&document, &root, &["a", "b", "c", "d", "e", "f", "g"]);
        assert_eq!(reader.result(), Ok(()));
        let group = document.get("g").unwrap();
        reader.check_fields(group, &FieldPath::new("g"), &[]);
        assert_eq!(reader.result(), Err("unknown field \"g.h\"".to_owned()));
        reader.list(group, "h", &FieldPath::new("g"));
        reader.texts(&document, "c", &root);
        reader.pairs(&document, "c", &root);
        reader.text(&document, "d", &root);
        reader.integer(&document, "c", &root);
        reader.boolean(&document, "c", &root);
        reader.check_fields(document.get("c").unwrap(), &FieldPath::new("c"), &[]);
        assert_eq!(
            reader.result().unwrap_err(),
            "[unknown field \"g.h\", g.h: must be a list, c: must be a list, c: must be a map from text to text, \
             d: must be a text, c: must be a number, c: must be true or false, c: must be an object]"
        );
    }
}
