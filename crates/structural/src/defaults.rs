//! Validates the defaults of schemas.
//!
//! A default within metadata is part of every object: it must give valid metadata to an otherwise empty object.

use std::cell::OnceCell;
use std::sync::LazyLock;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::value::{Object, Value};

use super::rules::{self, CostBudget};
use super::schema::Schema;
use super::{embedded, prune, validate, values};

/// The types of metadata, which are the same for every definition.
static METADATA: LazyLock<Option<Registry>> = LazyLock::new(|| Registry::metadata().ok());

/// The types of metadata.
pub fn metadata_types() -> Option<&'static Registry> {
    METADATA.as_ref()
}

/// Checks the defaults of the schema of whole objects.
pub fn check(said: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let root = Root { said, schema: OnceCell::new() };
    let around = Around { root: &root, steps: Vec::new(), in_meta: false };
    let mut walk = Walk { left: CostBudget::default(), errors };
    walk.schema(said, path, true, around);
}

/// The schema of the innermost object with kind and metadata around a default.
struct Root<'a> {
    said: &'a Value,
    schema: OnceCell<Schema>,
}

impl Root<'_> {
    fn schema(&self) -> &Schema {
        self.schema.get_or_init(|| embedding(self.said))
    }
}

/// A schema of objects with kind and metadata.
fn embedding(said: &Value) -> Schema {
    let mut schema = Schema::read(said);
    schema.embedded = true;
    schema
}

/// One path element.
#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Item,
}

/// The position of a default.
#[derive(Clone)]
struct Around<'a> {
    root: &'a Root<'a>,
    /// The path from the root.
    steps: Vec<Step<'a>>,
    /// Whether it is inside of metadata.
    in_meta: bool,
}

impl Around<'_> {
    /// An object that contains only this value.
    fn object_with(&self, value: &Value) -> Value {
        let within = |inner: Value, step: &Step<'_>| match step {
            Step::Field(name) => Value::from(Object::from([((*name).to_owned(), inner)])),
            Step::Item => Value::Array(vec![inner].into()),
        };
        let mut object = self.steps.iter().rev().fold(value.clone(), within);
        for (field, text) in [("apiVersion", "validation/v1"), ("kind", "Validation")] {
            if object.fields().is_some() && object.get(field).is_none() {
                object.set(field, text);
            }
        }
        object
    }
}

struct Walk<'e> {
    left: CostBudget,
    errors: &'e mut ErrorList,
}

impl Walk<'_> {
    fn schema(&mut self, said: &Value, path: &FieldPath, is_root: bool, around: Around<'_>) {
        let is_embedded = said.get("x-kubernetes-embedded-resource").and_then(Value::as_bool) == Some(true);
        let own = Root { said, schema: OnceCell::new() };
        let around = match is_embedded {
            true => Around { root: &own, steps: Vec::new(), in_meta: false },
            false => around,
        };
        if said.get("default").is_some() {
            self.default(said, is_root, &path.child("default"), &around);
        }
        let below = |step| {
            let steps = around.steps.iter().copied().chain([step]).collect();
            Around { steps, ..around.clone() }
        };
        if let Some(items) = said.get("items").filter(|items| items.fields().is_some()) {
            self.schema(items, &path.child("items"), false, below(Step::Item));
        }
        let properties = path.child("properties");
        for (name, inner) in said.get("properties").and_then(Value::fields).into_iter().flatten() {
            let mut below = below(Step::Field(name));
            let is_meta = matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
            below.in_meta |= is_meta && (is_root || is_embedded);
            self.schema(inner, &properties.key(name), false, below);
        }
    }

    /// Checks the default of a schema.
    fn default(&mut self, said: &Value, is_root: bool, path: &FieldPath, around: &Around<'_>) {
        let mut schema = Schema::read(said);
        schema.embedded |= is_root;
        let Some(default) = &schema.default else { return };
        let before = self.errors.len();
        if around.in_meta {
            self.in_metadata(default, path, around);
        } else {
            let mut pruned = default.clone();
            prune::prune_default(&schema, &mut pruned);
            if pruned != *default {
                let why = "must not have unknown fields";
                self.errors.push(FieldError::invalid(path, &values::shown(default), why));
            }
        }
        if !around.in_meta
            && let Some(registry) = metadata_types()
        {
            let coerced = embedded::coerce_default(&schema, &mut default.clone(), path, registry);
            match coerced {
                Ok(()) => embedded::inside(&schema, default, path, registry, self.errors),
                Err(error) => self.errors.push(error),
            }
        }
        if self.errors.len() == before {
            validate::check(&schema, default, None, path, self.errors);
        }
        if self.errors.len() == before {
            rules::check_default(said, default, path, &mut self.left, self.errors);
        }
    }

    fn in_metadata(&mut self, default: &Value, path: &FieldPath, around: &Around<'_>) {
        let Some(registry) = metadata_types() else { return };
        let mut object = around.object_with(default);
        let (schema, nowhere) = (around.root.schema(), FieldPath::root());
        let mut found = ErrorList::new();
        match embedded::coerce_default(schema, &mut object, &nowhere, registry) {
            Ok(()) => embedded::inside(schema, &object, &nowhere, registry, &mut found),
            Err(error) => found.push(error),
        }
        let mut texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        texts.dedup();
        let why = match texts.as_slice() {
            [] => return,
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let why = format!("must result in valid metadata: {why}");
        self.errors.push(FieldError::invalid(path, &values::shown(default), &why));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn said_of(schema: &str) -> Vec<String> {
        let mut errors = ErrorList::new();
        check(&json::read(schema.as_bytes()).unwrap(), &FieldPath::new("s"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn embedded(rest: &str) -> String {
        format!(
            r#"{{"type":"object","properties":{{"e":{{"type":"object","x-kubernetes-embedded-resource":true,
                "x-kubernetes-preserve-unknown-fields":true{rest}}}}}}}"#
        )
    }

    #[test]
    fn defaults_within_metadata_make_good_metadata() {
        let of_meta = |default: &str| {
            said_of(&embedded(&format!(
                r#","properties":{{"metadata":{{"type":"object","default":{default}}}}}"#
            )))
        };
        assert_eq!(of_meta(r#"{"name":"x"}"#), [""; 0]);
        assert_eq!(
            of_meta(r#"{"name":5}"#),
            [
                "s.properties[e].properties[metadata].default: Invalid value: map[string]interface {}{\"name\":5}: must result \
                 in valid metadata: metadata: Invalid value: map[string]interface {}{\"name\":5}: json: cannot unmarshal \
                 number into Go struct field ObjectMeta.name of type string"
            ]
        );
        let labels = said_of(&embedded(
            r#","properties":{"metadata":{"type":"object","properties":{"labels":{"type":"object",
                "additionalProperties":{"type":"string"},"default":{"!":"a"}}}}}"#,
        ));
        assert!(labels[0].contains("default: Invalid value: map[string]interface {}{\"!\":\"a\"}: must result in valid metadata: metadata.labels: Invalid value: \"!\": name part"), "{labels:?}");
    }

    #[test]
    fn objects_that_are_defaults_have_good_metadata() {
        let of = |metadata: &str| {
            said_of(&embedded(&format!(
                r#","default":{{"apiVersion":"v1","kind":"Pod","metadata":{metadata}}}"#
            )))
        };
        assert_eq!(of(r#"{"name":"x"}"#), [""; 0]);
        assert_eq!(
            of(r#""x""#),
            [
                "s.properties[e].default.metadata: Invalid value: \"x\": json: cannot unmarshal string into Go value of type \
                 v1.ObjectMeta"
            ]
        );
        assert!(
            of(r#"{"labels":{"!":"a"}}"#)[0]
                .starts_with("s.properties[e].default.metadata.labels: Invalid value: \"!\": name part"),
        );
    }

    #[test]
    fn other_defaults_say_nothing_that_their_schema_does_not_know() {
        let unknown = said_of(
            r#"{"type":"object","properties":{"a":{"type":"object","default":{"x":1}},"metadata":{"type":"object","default":{"name":"x"}}}}"#,
        );
        assert_eq!(
            unknown,
            [
                "s.properties[a].default: Invalid value: map[string]interface {}{\"x\":1}: must not have unknown fields"
            ]
        );
    }
}
