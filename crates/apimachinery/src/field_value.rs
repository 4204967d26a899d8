//! The helper type of all validation functions: a value of an object together with its field path.

use super::nano_quantity::NanoQuantity;
use crate::error_list::ErrorList;
use crate::field::{FieldError, FieldPath, quoted};
use crate::meta::{self, IMMUTABLE};
use crate::names;
use crate::value::{Object, Value};

/// A value or its absence, and its field path.
#[derive(Clone, Debug)]
pub struct FieldValue<'a> {
    /// The value, null when absent.
    pub value: &'a Value,
    /// The field path.
    pub path: FieldPath,
}

static ABSENT: Value = Value::Null;

impl<'a> FieldValue<'a> {
    /// A top-level field of an object.
    pub fn top_level(object: &'a Value, field: &str) -> FieldValue<'a> {
        FieldValue { value: object.get(field).unwrap_or(&ABSENT), path: FieldPath::new(field) }
    }

    /// A field of this object.
    pub fn child(&self, field: &str) -> FieldValue<'a> {
        FieldValue { value: self.value.get(field).unwrap_or(&ABSENT), path: self.path.child(field) }
    }

    /// A field of this object, if present. Most optional fields are absent, and then no path is built.
    pub fn opt(&self, field: &str) -> Option<FieldValue<'a>> {
        self.value.get(field).map(|value| FieldValue { value, path: self.path.child(field) })
    }

    /// The value of a field of this object, null when absent, without its path.
    pub fn read(&self, field: &str) -> &'a Value {
        self.value.get(field).unwrap_or(&ABSENT)
    }

    /// The text of a field of this object, empty when absent, without its path.
    pub fn str(&self, field: &str) -> &'a str {
        self.read(field).as_str().unwrap_or_default()
    }

    /// Whether the field is present.
    pub fn has(&self, field: &str) -> bool {
        self.value.get(field).is_some()
    }

    /// The same value with another path: some errors name the list, or the field of an older version.
    pub fn named(&self, path: FieldPath) -> FieldValue<'a> {
        FieldValue { value: self.value, path }
    }

    /// The items of this list.
    pub fn items(&self) -> impl Iterator<Item = FieldValue<'a>> {
        let path = self.path.clone();
        let items = self.value.items().iter().enumerate();
        items.map(move |(index, value)| FieldValue { value, path: path.index(index) })
    }

    /// The entries of this map.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, FieldValue<'a>)> {
        let path = self.path.clone();
        let entries = self.value.fields().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), FieldValue { value, path: path.key(key) }))
    }

    /// The number of items or entries.
    pub fn len(&self) -> usize {
        self.value.fields().map_or(self.value.items().len(), |fields| fields.len())
    }

    /// Whether the value is present.
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Whether the value is absent or the zero value of its type.
    pub fn is_empty(&self) -> bool {
        match self.value {
            Value::String(text) => text.is_empty(),
            Value::Int(number) => *number == 0,
            Value::Bool(boolean) => !boolean,
            Value::Null => true,
            _ => self.len() == 0,
        }
    }

    /// The text, empty when absent.
    pub fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    /// The integer, if the value is one.
    pub fn int(&self) -> Option<i64> {
        self.value.as_int()
    }

    /// The integer, 0 when absent.
    pub fn number(&self) -> i64 {
        self.value.as_int().unwrap_or_default()
    }

    /// The boolean, false when absent.
    pub fn is_true(&self) -> bool {
        self.value.as_bool().unwrap_or_default()
    }

    /// The quantity, if valid.
    pub fn amount(&self) -> Option<NanoQuantity> {
        NanoQuantity::from_value(self.value)
    }

    /// The value as messages print it.
    pub fn render(&self) -> String {
        render_value(self.value)
    }

    /// Adds an Invalid error.
    pub fn invalid(&self, errors: &mut ErrorList, detail: &str) {
        errors.add(|| FieldError::invalid(&self.path, &self.render(), detail));
    }

    /// Adds an Invalid error about a string; an absent one is printed as empty.
    pub fn invalid_text(&self, errors: &mut ErrorList, detail: &str) {
        errors.add(|| FieldError::invalid(&self.path, &quoted(self.text()), detail));
    }

    /// Adds a Required error.
    pub fn required(&self, errors: &mut ErrorList, detail: &str) {
        errors.add(|| FieldError::required(&self.path, detail));
    }

    /// Adds a Forbidden error.
    pub fn forbidden(&self, errors: &mut ErrorList, detail: &str) {
        errors.add(|| FieldError::forbidden(&self.path, detail));
    }

    /// Adds a Duplicate error.
    pub fn duplicate(&self, errors: &mut ErrorList) {
        errors.add(|| FieldError::duplicate(&self.path, &self.render()));
    }

    /// Adds a Required error if the value is absent or empty. Returns whether it is present.
    pub fn need(&self, errors: &mut ErrorList) -> bool {
        if self.is_empty() {
            self.required(errors, "");
            return false;
        }
        true
    }

    /// Checks the syntax of the text.
    pub fn syntax(&self, errors: &mut ErrorList, check: names::Check) {
        meta::add_invalid(errors, &self.path, self.text(), check(self.text()));
    }

    /// Checks the syntax of the text if there is one.
    pub fn syntax_if_set(&self, errors: &mut ErrorList, check: names::Check) {
        if !self.text().is_empty() {
            self.syntax(errors, check);
        }
    }

    /// Checks that the string is present and has this syntax.
    pub fn need_syntax(&self, errors: &mut ErrorList, check: names::Check) {
        if self.need(errors) {
            self.syntax(errors, check);
        }
    }

    /// Checks that a string field is present. The path is only built for an error, as in the other checks of one field.
    pub fn need_text(&self, field: &str, errors: &mut ErrorList) {
        if self.str(field).is_empty() {
            errors.add(|| FieldError::required(&self.path.child(field), ""));
        }
    }

    /// Checks that a string field is present and has this syntax.
    pub fn need_text_like(&self, field: &str, errors: &mut ErrorList, check: names::Check) {
        let text = self.str(field);
        if text.is_empty() {
            errors.add(|| FieldError::required(&self.path.child(field), ""));
            return;
        }
        let messages = check(text);
        if !messages.is_empty() {
            meta::add_invalid(errors, &self.path.child(field), text, messages);
        }
    }

    /// Checks that a string field, if set, has one of these values.
    pub fn text_among(&self, field: &str, errors: &mut ErrorList, words: &[&str]) {
        if self.value.get(field).is_some_and(|value| !words.contains(&value.as_str().unwrap_or_default())) {
            self.child(field).one_of(errors, words);
        }
    }

    /// Checks that the string is one of these values.
    pub fn one_of(&self, errors: &mut ErrorList, words: &[&str]) {
        if !words.contains(&self.text()) {
            errors.add(|| FieldError::not_supported(&self.path, &quoted(self.text()), words));
        }
    }

    /// Checks that the string is present and one of these values.
    pub fn need_one_of(&self, errors: &mut ErrorList, words: &[&str]) {
        if self.need(errors) {
            self.one_of(errors, words);
        }
    }

    /// Checks that the string, if present, is one of these values.
    pub fn one_of_if_set(&self, errors: &mut ErrorList, words: &[&str]) {
        if self.is_set() {
            self.one_of(errors, words);
        }
    }

    /// Checks that the number is not below 0.
    pub fn not_negative(&self, errors: &mut ErrorList) {
        if self.number() < 0 {
            let detail = "must be greater than or equal to 0";
            errors.add(|| FieldError::invalid(&self.path, &self.render(), detail).by_rule("minimum"));
        }
    }

    /// Checks that the number is above 0.
    pub fn positive(&self, errors: &mut ErrorList) {
        if self.number() <= 0 {
            errors.add(|| {
                FieldError::invalid(&self.path, &self.number().to_string(), "must be greater than 0")
            });
        }
    }

    /// Checks the bounds of the number.
    pub fn in_range(&self, errors: &mut ErrorList, lowest: i64, highest: i64) {
        for message in names::in_range(self.number(), lowest, highest) {
            errors.add(|| FieldError::invalid(&self.path, &self.number().to_string(), &message));
        }
    }

    /// Checks the number of a port.
    pub fn port(&self, errors: &mut ErrorList) {
        self.in_range(errors, 1, 65_535);
    }

    /// Checks the number or the name of a port.
    pub fn port_or_name(&self, errors: &mut ErrorList) {
        if self.value.as_str().is_some() {
            self.syntax(errors, names::port_name);
        } else {
            self.port(errors);
        }
    }

    /// Checks that the value equals the old one.
    pub fn unchanged(&self, old: &FieldValue<'_>, errors: &mut ErrorList) {
        if !same(Some(self.value), Some(old.value)) {
            self.invalid(errors, IMMUTABLE);
        }
    }
}

/// Marks the errors of a check as covered by declarative validation.
pub fn covered(errors: &mut ErrorList, check: impl FnOnce(&mut ErrorList)) {
    let mut covered = ErrorList::new();
    check(&mut covered);
    errors.extend(covered.into_iter().map(FieldError::covered));
}

/// A value as messages print it: strings in quotes, numbers bare, the rest in Go syntax.
fn render_value(value: &Value) -> String {
    match value {
        Value::Null => "\"null\"".to_owned(),
        Value::Bool(boolean) => boolean.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) if items.iter().all(|item| item.as_str().is_some()) => {
            let items: Vec<String> = items.iter().map(render_value).collect();
            format!("[]string{{{}}}", items.join(", "))
        }
        Value::Array(items) => {
            format!("[]{{{}}}", items.iter().map(render_value).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key}:{}", render_value(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

/// A quantity as messages print it in full.
pub fn render_quantity(value: &Value) -> String {
    format!("resource.Quantity{{s:{}}}", render_value(value))
}

/// A map of strings as messages print it.
pub fn render_map(map: Option<&Value>) -> String {
    let Some(fields) = map.and_then(Value::fields).filter(|fields| !fields.is_empty()) else {
        return "map[string]string(nil)".to_owned();
    };
    let fields: Vec<String> =
        fields.iter().map(|(key, value)| format!("{}:{}", quoted(key), render_value(value))).collect();
    format!("map[string]string{{{}}}", fields.join(", "))
}

/// Whether two values are semantically equal. An empty list equals an absent one, but an empty object does not: it stands where
/// the API's Go types have a pointer, for which empty and nil differ. Decoding removes all other empty objects; see
/// `schema/decode.rs`. Quantities are in canonical form and compare as text.
pub fn same(left: Option<&Value>, right: Option<&Value>) -> bool {
    match (left.unwrap_or(&ABSENT), right.unwrap_or(&ABSENT)) {
        (Value::Object(left), Value::Object(right)) if left.is_shared_with(right) => true,
        (Value::Object(left), Value::Object(right)) => {
            left.iter().all(|(key, value)| same(Some(value), right.get(key)))
                && right.iter().all(|(key, value)| left.contains_key(key) || is_unset(value))
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| same(Some(left), Some(right)))
        }
        (left, right) => left == right || (is_unset(left) && is_unset(right)),
    }
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Sets a field that is absent.
pub fn fill(object: &mut Value, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none() {
        object.set(field, value);
    }
}

/// Sets a string that is absent or empty.
pub fn fill_text(object: &mut Value, field: &str, text: &str) {
    if object.str(field).is_empty() {
        object.set(field, text);
    }
}

/// Keeps a singular field (such as podIP) equal to the first item of its list (podIPs). Older clients only know the singular
/// field, so it wins if both are set and differ. `item` is the string field of an item.
pub fn mirror_first(object: &mut Value, singular: &str, plural: &str, item: Option<&str>) {
    let list = object.get(plural).map(Value::items).unwrap_or_default();
    let first = list.first().map(|first| match item {
        Some(field) => first.str(field).to_owned(),
        None => first.as_str().unwrap_or_default().to_owned(),
    });
    let text = object.str(singular).to_owned();
    match first {
        Some(first) if text.is_empty() => object.set(singular, first),
        first if !text.is_empty() && first.as_deref() != Some(text.as_str()) => {
            let entry = match item {
                Some(field) => Value::from(Object::from([(field.to_owned(), Value::from(text))])),
                None => Value::from(text),
            };
            object.set(plural, vec![entry]);
        }
        _ => {}
    }
}

/// The items of a list field, mutable; none if it is no list.
pub fn items_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut [Value] {
    match object.get_mut(field) {
        Some(Value::Array(items)) => items,
        _ => &mut [],
    }
}

/// A field, mutable, if present and not null.
pub fn present_mut<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Value> {
    object.get_mut(field).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error_messages, object};
    use super::*;

    #[test]
    fn same_equates_empty_list_but_not_empty_object_with_absence() {
        let table = [
            (r#"{"a":[]}"#, "{}", true),
            (r#"{"a":{}}"#, "{}", false),
            (r#"{"a":{"b":{}}}"#, r#"{"a":{}}"#, false),
            (r#"{"a":{"b":[]}}"#, r#"{"a":{}}"#, true),
            (r#"{"a":null}"#, "{}", true),
            (r#"{"a":0}"#, "{}", false),
            (r#"{"a":[1]}"#, r#"{"a":[1,2]}"#, false),
            (r#"{"a":{"b":1}}"#, r#"{"a":{"b":1,"c":2}}"#, false),
        ];
        for (left, right, expected) in table {
            let (left, right) = (object(left), object(right));
            assert_eq!(same(Some(&left), Some(&right)), expected, "{left:?} {right:?}");
            assert_eq!(same(Some(&right), Some(&left)), expected, "{right:?} {left:?}");
        }
    }

    #[test]
    fn errors_of_field_values_have_their_paths() {
        let value = object(r#"{"spec":{"a":[{"b":"X"}],"m":{"k":"v"},"n":-1}}"#);
        let mut errors = ErrorList::new();
        for item in FieldValue::top_level(&value, "spec").child("a").items() {
            item.child("b").one_of(&mut errors, &["A"]);
            item.child("c").need(&mut errors);
        }
        for (_, entry) in FieldValue::top_level(&value, "spec").child("m").entries() {
            entry.invalid(&mut errors, "bad");
        }
        FieldValue::top_level(&value, "spec").child("n").not_negative(&mut errors);
        assert_eq!(
            error_messages(&errors),
            [
                "spec.a[0].b: Unsupported value: \"X\": supported values: \"A\"",
                "spec.a[0].c: Required value",
                "spec.m[k]: Invalid value: \"v\": bad",
                "spec.n: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }

    #[test]
    fn mirror_first_keeps_singular_field_and_first_item_equal() {
        let table = [
            (r#"{"one":"a"}"#, r#"{"one":"a","all":["a"]}"#),
            (r#"{"all":["b","c"]}"#, r#"{"one":"b","all":["b","c"]}"#),
            (r#"{"one":"a","all":["b"]}"#, r#"{"one":"a","all":["a"]}"#),
            ("{}", "{}"),
        ];
        for (before, after) in table {
            let mut value = object(before);
            mirror_first(&mut value, "one", "all", None);
            assert_eq!(value, object(after), "{before}");
        }
        let mut value = object(r#"{"one":"a"}"#);
        mirror_first(&mut value, "one", "all", Some("ip"));
        assert_eq!(value, object(r#"{"one":"a","all":[{"ip":"a"}]}"#));
    }

    #[test]
    fn maps_are_rendered_with_their_go_type() {
        assert_eq!(render_map(None), "map[string]string(nil)");
        assert_eq!(
            render_map(Some(&object(r#"{"b":"2","a":"1"}"#))),
            r#"map[string]string{"a":"1", "b":"2"}"#
        );
    }
}
