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
pub fn check(schema_value: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let root = Root { schema_value, schema: OnceCell::new() };
    let position = DefaultPosition { root: &root, steps: Vec::new(), in_metadata: false };
    let mut checker = DefaultChecker { budget: CostBudget::default(), errors };
    checker.schema(schema_value, path, true, position);
}

/// The schema of the innermost object with kind and metadata around a default.
struct Root<'a> {
    schema_value: &'a Value,
    schema: OnceCell<Schema>,
}

impl Root<'_> {
    fn schema(&self) -> &Schema {
        self.schema.get_or_init(|| read_resource_schema(self.schema_value))
    }
}

/// A schema of objects with kind and metadata.
fn read_resource_schema(schema_value: &Value) -> Schema {
    let mut schema = Schema::read(schema_value);
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
struct DefaultPosition<'a> {
    root: &'a Root<'a>,
    /// The path from the root.
    steps: Vec<Step<'a>>,
    /// Whether it is inside of metadata.
    in_metadata: bool,
}

impl DefaultPosition<'_> {
    /// An object that contains only this value.
    fn object_with(&self, value: &Value) -> Value {
        let wrap = |inner: Value, step: &Step<'_>| match step {
            Step::Field(name) => Value::from(Object::from([((*name).to_owned(), inner)])),
            Step::Item => Value::Array(vec![inner].into()),
        };
        let mut object = self.steps.iter().rev().fold(value.clone(), wrap);
        for (field, text) in [("apiVersion", "validation/v1"), ("kind", "Validation")] {
            if object.fields().is_some() && object.get(field).is_none() {
                object.set(field, text);
            }
        }
        object
    }
}

struct DefaultChecker<'e> {
    budget: CostBudget,
    errors: &'e mut ErrorList,
}

impl DefaultChecker<'_> {
    fn schema(
        &mut self,
        schema_value: &Value,
        path: &FieldPath,
        is_root: bool,
        position: DefaultPosition<'_>,
    ) {
        let is_embedded =
            schema_value.get("x-kubernetes-embedded-resource").and_then(Value::as_bool) == Some(true);
        let own_root = Root { schema_value, schema: OnceCell::new() };
        let position = match is_embedded {
            true => DefaultPosition { root: &own_root, steps: Vec::new(), in_metadata: false },
            false => position,
        };
        if schema_value.get("default").is_some() {
            self.default(schema_value, is_root, &path.child("default"), &position);
        }
        let child_position = |step| {
            let steps = position.steps.iter().copied().chain([step]).collect();
            DefaultPosition { steps, ..position.clone() }
        };
        if let Some(items) = schema_value.get("items").filter(|items| items.fields().is_some()) {
            self.schema(items, &path.child("items"), false, child_position(Step::Item));
        }
        let properties = path.child("properties");
        for (name, inner) in schema_value.get("properties").and_then(Value::fields).into_iter().flatten() {
            let mut child_position = child_position(Step::Field(name));
            let is_meta = matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
            child_position.in_metadata |= is_meta && (is_root || is_embedded);
            self.schema(inner, &properties.key(name), false, child_position);
        }
    }

    /// Checks the default of a schema.
    fn default(
        &mut self,
        schema_value: &Value,
        is_root: bool,
        path: &FieldPath,
        position: &DefaultPosition<'_>,
    ) {
        let mut schema = Schema::read(schema_value);
        schema.embedded |= is_root;
        let Some(default) = &schema.default else { return };
        let error_count = self.errors.len();
        if position.in_metadata {
            self.check_metadata_default(default, path, position);
        } else {
            let mut pruned = default.clone();
            prune::prune_default(&schema, &mut pruned);
            if pruned != *default {
                let message = "must not have unknown fields";
                self.errors.push(FieldError::invalid(path, &values::render(default), message));
            }
        }
        if !position.in_metadata
            && let Some(registry) = metadata_types()
        {
            let coerced = embedded::coerce_default(&schema, &mut default.clone(), path, registry);
            match coerced {
                Ok(()) => embedded::check_value(&schema, default, path, registry, self.errors),
                Err(error) => self.errors.push(error),
            }
        }
        if self.errors.len() == error_count {
            validate::check(&schema, default, None, path, self.errors);
        }
        if self.errors.len() == error_count {
            rules::check_default(schema_value, default, path, &mut self.budget, self.errors);
        }
    }

    fn check_metadata_default(&mut self, default: &Value, path: &FieldPath, position: &DefaultPosition<'_>) {
        let Some(registry) = metadata_types() else { return };
        let mut object = position.object_with(default);
        let (schema, root) = (position.root.schema(), FieldPath::root());
        let mut errors = ErrorList::new();
        match embedded::coerce_default(schema, &mut object, &root, registry) {
            Ok(()) => embedded::check_value(schema, &object, &root, registry, &mut errors),
            Err(error) => errors.push(error),
        }
        let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        texts.dedup();
        let message = match texts.as_slice() {
            [] => return,
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("must result in valid metadata: {message}");
        self.errors.push(FieldError::invalid(path, &values::render(default), &message));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn check_schema(schema: &str) -> Vec<String> {
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
    fn metadata_defaults_must_result_in_valid_metadata() {
        let check_default = |default: &str| {
            check_schema(&embedded(&format!(
                r#","properties":{{"metadata":{{"type":"object","default":{default}}}}}"#
            )))
        };
        assert_eq!(check_default(r#"{"name":"x"}"#), [""; 0]);
        assert_eq!(
            check_default(r#"{"name":5}"#),
            [
                "s.properties[e].properties[metadata].default: Invalid value: map[string]interface {}{\"name\":5}: must result \
                 in valid metadata: metadata: Invalid value: map[string]interface {}{\"name\":5}: json: cannot unmarshal \
                 number into Go struct field ObjectMeta.name of type string"
            ]
        );
        let labels = check_schema(&embedded(
            r#","properties":{"metadata":{"type":"object","properties":{"labels":{"type":"object",
                "additionalProperties":{"type":"string"},"default":{"!":"a"}}}}}"#,
        ));
        assert!(labels[0].contains("default: Invalid value: map[string]interface {}{\"!\":\"a\"}: must result in valid metadata: metadata.labels: Invalid value: \"!\": name part"), "{labels:?}");
    }

    #[test]
    fn embedded_resource_defaults_must_have_valid_metadata() {
        let check_metadata = |metadata: &str| {
            check_schema(&embedded(&format!(
                r#","default":{{"apiVersion":"v1","kind":"Pod","metadata":{metadata}}}"#
            )))
        };
        assert_eq!(check_metadata(r#"{"name":"x"}"#), [""; 0]);
        assert_eq!(
            check_metadata(r#""x""#),
            [
                "s.properties[e].default.metadata: Invalid value: \"x\": json: cannot unmarshal string into Go value of type \
                 v1.ObjectMeta"
            ]
        );
        assert!(
            check_metadata(r#"{"labels":{"!":"a"}}"#)[0]
                .starts_with("s.properties[e].default.metadata.labels: Invalid value: \"!\": name part"),
        );
    }

    #[test]
    fn defaults_with_unknown_fields_are_refused() {
        let errors = check_schema(
            r#"{"type":"object","properties":{"a":{"type":"object","default":{"x":1}},"metadata":{"type":"object","default":{"name":"x"}}}}"#,
        );
        assert_eq!(
            errors,
            [
                "s.properties[a].default: Invalid value: map[string]interface {}{\"x\":1}: must not have unknown fields"
            ]
        );
    }
}
