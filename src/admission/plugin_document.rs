//! Reads plug-in configurations and checks their fields.

use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::value::Value;

/// A configuration of an expected kind.
pub struct Document<'a>(&'a Value);

impl<'a> Document<'a> {
    /// Checks that a configuration has one of these versions and this kind.
    pub fn typed(value: &'a Value, versions: &[&str], kind: &str) -> Result<Document<'a>, String> {
        let (version, actual_kind) = (value.str("apiVersion"), value.str("kind"));
        if versions.contains(&version) && actual_kind == kind {
            return Ok(Document(value));
        }
        let expected = versions.first().copied().unwrap_or_default();
        Err(format!(
            "no kind {actual_kind:?} is known in version {version:?}: a {kind} of {expected} is needed"
        ))
    }

    /// A configuration without a kind, as the oldest plug-ins have.
    pub fn untyped(value: &'a Value) -> Document<'a> {
        Document(value)
    }

    /// Refuses unknown fields: a misspelt one would leave the cluster less safe than its operator thinks. `field` is a top-level
    /// field, or empty for the configuration itself.
    pub fn check_fields(&self, field: &str, known: &[&str]) -> Result<(), String> {
        let object = if field.is_empty() { Some(self.0) } else { self.0.get(field) };
        let Some(object) = object else { return Ok(()) };
        let fields = object.fields().ok_or_else(|| format!("{field} must be an object"))?;
        match fields.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) if field.is_empty() => Err(format!("unknown field {name:?}")),
            Some(name) => Err(format!("unknown field \"{field}.{name}\"")),
            None => Ok(()),
        }
    }

    /// The string at a path; empty if absent.
    pub fn text(&self, path: &[&str]) -> Result<&'a str, String> {
        match self.0.at(path) {
            None => Ok(""),
            Some(value) => value.as_str().ok_or_else(|| format!("{} must be text", path.join("."))),
        }
    }

    /// The strings of a list.
    pub fn texts(&self, path: &[&str]) -> Result<Vec<String>, String> {
        let invalid = || format!("{} must be a list of texts", path.join("."));
        self.list(path)?.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(invalid)).collect()
    }

    /// The items of a list; empty if absent.
    pub fn list(&self, path: &[&str]) -> Result<&'a [Value], String> {
        match self.0.at(path) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(format!("{} must be a list", path.join("."))),
        }
    }

    /// The entries of a map from string to string.
    pub fn pairs(&self, path: &[&str]) -> Result<Vec<(String, String)>, String> {
        let invalid = || format!("{} must be a map from text to text", path.join("."));
        let Some(value) = self.0.at(path) else { return Ok(Vec::new()) };
        let pair = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        value.fields().ok_or_else(invalid)?.iter().map(|entry| pair(entry).ok_or_else(invalid)).collect()
    }
}

/// Joins errors into one, in the reference's words.
pub fn check_no_errors(errors: &[FieldError]) -> Result<(), String> {
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match messages.as_slice() {
        [] => Ok(()),
        [message] => Err(message.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}
