//! Validates a value against its schema, in the words of the reference.
//!
//! An update need not repair earlier errors: errors of unchanged values are not reported (ratcheting).

use std::collections::BTreeMap;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::ListFact;
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Checks, Schema};
use super::value_errors::{ErrorKind, ValueError, ValueErrors, ValuePath, invalid_value, root_path};
use super::values::{check_enum, check_number, check_string, check_type};
use crate::limits::CUSTOM_STEPS;

/// Validates a value. `base` is its path in the object, and `old` the previous value, if any.
pub fn check(schema: &Schema, value: &Value, old: Option<&Value>, base: &FieldPath, errors: &mut ErrorList) {
    let mut validator = Validator { steps: CUSTOM_STEPS, has_type: base.is_empty() };
    let value_errors = validator.check_value(schema, value, old, &ValuePath::ROOT);
    if validator.steps == 0 {
        errors.push(FieldError::forbidden(&root_path(base), "the object takes too long to check"));
    }
    for error in value_errors.errors {
        errors.push(error.into_field_error(base));
    }
}

/// Whether a field of the root is part of the object's type. Old and new object are both converted to the version of the request, so
/// that an unchanged type says nothing: it is not ratcheted.
pub(super) fn is_type_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind")
}

/// The fields that have a schema, sorted by name. The cost depends on the smaller of both sides: a schema with many properties
/// may be applied to many objects with few of them.
fn declared_fields<'a>(schema: &'a Schema, fields: &'a Object) -> Vec<(&'a String, &'a Schema, &'a Value)> {
    if schema.properties.len() <= fields.len() {
        let with_value = |(name, inner): (&'a String, _)| Some((name, inner, fields.get(name)?));
        return schema.properties.iter().filter_map(with_value).collect();
    }
    let with_schema = |(name, value): (&String, _)| {
        schema.properties.get_key_value(name).map(|(name, inner)| (name, inner, value))
    };
    let mut declared: Vec<_> = fields.iter().filter_map(with_schema).collect();
    declared.sort_unstable_by_key(|(name, ..)| *name);
    declared
}

struct Validator {
    /// The remaining number of values to check.
    steps: usize,
    /// Whether the root is a whole object, with its type.
    has_type: bool,
}

impl Validator {
    /// Validates a value, and drops its errors if it is unchanged.
    fn check_value(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &ValuePath<'_>,
    ) -> ValueErrors {
        let mut errors = self.check_constraints(schema, value, old, path);
        if !errors.is_valid() && old.is_some_and(|old| is_unchanged(schema, value, old)) {
            errors.clear();
        }
        errors
    }

    fn check_constraints(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &ValuePath<'_>,
    ) -> ValueErrors {
        let mut errors = ValueErrors::default();
        // Long texts take longer to match against patterns.
        let text_steps = value.as_str().map_or(0, |text| text.len() / 64);
        let checks = schema.checks.as_deref();
        // A large enum takes longer as well.
        let enum_steps = checks.map_or(0, |checks| checks.values.len() / 64);
        self.steps = self.steps.saturating_sub(1 + text_steps + enum_steps);
        if self.steps == 0 {
            return errors;
        }
        check_type(schema, checks, value, path, &mut errors);
        if value.is_null() {
            if let Some(checks) = checks {
                check_enum(checks, value, path, &mut errors);
            }
            return errors;
        }
        errors.matched += 1;
        if let Some(checks) = checks {
            self.check_combinations(checks, value, path, &mut errors);
            match value {
                Value::String(text) => check_string(checks, text, path, &mut errors),
                Value::Int(_) | Value::Float(_) => check_number(checks, value, path, &mut errors),
                _ => {}
            }
        }
        if let Value::Array(items) = value {
            self.check_items(schema, items, old, path, &mut errors);
        }
        if let Some(checks) = checks {
            check_enum(checks, value, path, &mut errors);
        }
        if let Value::Object(fields) = value {
            self.check_fields(schema, fields, old, path, &mut errors);
        }
        errors.matched += 1;
        // Errors contain the value, and a schema can report the same long value repeatedly.
        self.steps = self.steps.saturating_sub(errors.written / 64);
        errors
    }

    fn check_fields(
        &mut self,
        schema: &Schema,
        fields: &Object,
        old: Option<&Value>,
        path: &ValuePath<'_>,
        errors: &mut ValueErrors,
    ) {
        let checks = schema.checks.as_deref();
        let size = fields.len();
        if let Some(min) = checks.and_then(|checks| checks.min_fields).filter(|min| (size as i64) < *min) {
            let message = format!("{path} in body should have at least {min} properties");
            errors.add(invalid_value(path, size.to_string(), message));
        }
        if let Some(max) = checks.and_then(|checks| checks.max_fields).filter(|max| size as i64 > *max) {
            let message = format!("{path} in body should have at most {max} properties");
            errors.add(ValueError {
                path: Some(path.to_string()),
                kind: ErrorKind::TooMany { actual: size, max },
                message,
            });
        }
        let old = old.and_then(Value::fields);
        let has_type = self.has_type && path.is_root();
        let old_value = |name: &str| old.filter(|_| !(has_type && is_type_field(name)))?.get(name);
        if let Some(AdditionalProperties::Schema(inner)) = &schema.additional_properties {
            for (name, value) in fields.iter().filter(|(name, _)| !schema.properties.contains_key(name)) {
                errors.merge(self.check_value(inner, value, old_value(name), &path.additional_field(name)));
            }
        }
        for (name, inner, value) in declared_fields(schema, fields) {
            errors.merge(self.check_value(inner, value, old_value(name), &path.declared_field(name)));
        }
        for name in checks.map(|checks| checks.required.as_slice()).unwrap_or_default() {
            if !fields.contains_key(name) {
                let field_path = path.additional_field(name).to_string();
                let message = format!("{field_path} in body is required");
                errors.add(ValueError { path: Some(field_path), kind: ErrorKind::Required, message });
            }
        }
    }

    fn check_items(
        &mut self,
        schema: &Schema,
        items: &[Value],
        old: Option<&Value>,
        path: &ValuePath<'_>,
        errors: &mut ValueErrors,
    ) {
        if let Some(inner) = &schema.items {
            let old_items = OldItems::new(&schema.list, old);
            for (index, item) in items.iter().enumerate() {
                errors.merge(self.check_value(inner, item, old_items.correlated(item), &path.item(index)));
            }
        }
        let Some(checks) = &schema.checks else { return };
        let size = items.len();
        if let Some(min) = checks.min_items.filter(|min| (size as i64) < *min) {
            let message = format!("{path} in body should have at least {min} items");
            errors.add(invalid_value(path, size.to_string(), message));
        }
        if let Some(max) = checks.max_items.filter(|max| size as i64 > *max) {
            let message = format!("{path} in body should have at most {max} items");
            errors.add(ValueError {
                path: Some(path.to_string()),
                kind: ErrorKind::TooMany { actual: size, max },
                message,
            });
        }
    }

    /// Checks `allOf`, `anyOf`, `oneOf` and `not`, without ratcheting: unchanged fields would be valid in every alternative.
    fn check_combinations(
        &mut self,
        checks: &Checks,
        value: &Value,
        path: &ValuePath<'_>,
        errors: &mut ValueErrors,
    ) {
        let combination_error = |text: String| ValueError {
            path: None,
            kind: ErrorKind::Other { value: quoted("") },
            message: format!("{} {text}", quoted(&path.to_string())),
        };
        if !checks.any_of.is_empty() {
            let (valid_count, best) = self.check_alternatives(&checks.any_of, value, path, true);
            if valid_count == 0 {
                errors.add(combination_error("must validate at least one schema (anyOf)".to_owned()));
            }
            errors.merge(best);
        }
        if !checks.one_of.is_empty() {
            let (valid_count, best) = self.check_alternatives(&checks.one_of, value, path, false);
            match valid_count {
                1 => errors.merge(best),
                0 => {
                    let text = "must validate one and only one schema (oneOf). Found none valid";
                    errors.add(combination_error(text.to_owned()));
                    errors.merge(best);
                }
                count => {
                    let text = format!(
                        "must validate one and only one schema (oneOf). Found {count} valid alternatives"
                    );
                    errors.add(combination_error(text));
                }
            }
        }
        if !checks.all_of.is_empty() {
            let mut valid_count = 0;
            for schema in &checks.all_of {
                let result = self.check_constraints(schema, value, None, path);
                valid_count += usize::from(result.is_valid());
                errors.merge(result);
            }
            let is_invalid = valid_count != checks.all_of.len();
            if is_invalid {
                let none = if valid_count == 0 { ". None validated" } else { "" };
                errors.add(combination_error(format!("must validate all the schemas (allOf){none}")));
            }
        }
        if let Some(not) = &checks.not
            && self.check_constraints(not, value, None, path).is_valid()
        {
            errors.add(combination_error("must not validate the schema (not)".to_owned()));
        }
    }

    /// How many of the schemas match, and the errors to report: of the first match, or else of the closest one.
    fn check_alternatives(
        &mut self,
        schemas: &[Schema],
        value: &Value,
        path: &ValuePath<'_>,
        stop_at_first: bool,
    ) -> (usize, ValueErrors) {
        let mut valid_count = 0;
        let mut best: Option<ValueErrors> = None;
        for schema in schemas {
            let errors = self.check_constraints(schema, value, None, path);
            if errors.is_valid() {
                valid_count += 1;
                if valid_count == 1 {
                    best = Some(errors);
                }
                if stop_at_first {
                    break;
                }
            } else if valid_count == 0 && best.as_ref().is_none_or(|best| errors.matched > best.matched) {
                best = Some(errors);
            }
        }
        (valid_count, best.unwrap_or_default())
    }
}

/// Whether a value is the old one as far as its schema can tell: keyed lists may change their order, and an object with a field
/// that no schema describes counts as changed, as it does in the reference.
pub(super) fn is_unchanged(schema: &Schema, value: &Value, old: &Value) -> bool {
    match (value, old) {
        (Value::Array(items), Value::Array(old_items)) if items.len() != old_items.len() => false,
        (Value::Array(items), Value::Array(_)) if matches!(schema.list, ListFact::Map(_)) => {
            let old_items = OldItems::new(&schema.list, Some(old));
            items.iter().all(|item| {
                let correlated = schema.items.as_deref().zip(old_items.correlated(item));
                correlated.is_some_and(|(inner, old)| is_unchanged(inner, item, old))
            })
        }
        (Value::Object(fields), Value::Object(old_fields)) => {
            fields.len() == old_fields.len()
                && fields.iter().all(|(name, value)| {
                    let correlated = schema.field(name).zip(old_fields.get(name));
                    correlated.is_some_and(|(inner, old)| is_unchanged(inner, value, old))
                })
        }
        _ => value == old,
    }
}

/// The old items of a list: correlated by keys if it has some, else unknown.
struct OldItems<'v> {
    keys: &'v [String],
    items: BTreeMap<Vec<u8>, &'v Value>,
}

impl<'v> OldItems<'v> {
    fn new(list: &'v ListFact, old: Option<&'v Value>) -> OldItems<'v> {
        let ListFact::Map(keys) = list else { return OldItems { keys: &[], items: BTreeMap::new() } };
        let items = old.map(Value::items).unwrap_or_default().iter();
        OldItems { keys, items: items.map(|item| (key_of(keys, item), item)).collect() }
    }

    fn correlated(&self, item: &Value) -> Option<&'v Value> {
        if self.items.is_empty() { None } else { self.items.get(&key_of(self.keys, item)).copied() }
    }
}

fn key_of(keys: &[String], item: &Value) -> Vec<u8> {
    let fields = keys.iter().filter_map(|key| Some((key.clone(), item.fields()?.get(key)?.clone())));
    json::to_json(&Value::Object(fields.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    fn check_errors(schema: &str, object: &str, old: Option<&str>) -> Vec<String> {
        let mut errors = ErrorList::new();
        let old = old.map(value);
        check(&Schema::read(&value(schema)), &value(object), old.as_ref(), &FieldPath::root(), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    const SCHEMA: &str = r#"{"type":"object","properties":{"spec":{"type":"object","required":["color"],"properties":{
        "size":{"type":"integer","minimum":1,"maximum":10},"color":{"type":"string","enum":["red","blue"]},
        "name":{"type":"string","pattern":"^[a-z]+$","maxLength":5,"minLength":2},
        "tags":{"type":"array","maxItems":2,"minItems":1,"items":{"type":"string"}},
        "when":{"type":"string","format":"date-time"},"port":{"x-kubernetes-int-or-string":true},
        "ratio":{"type":"number","exclusiveMinimum":true,"minimum":0.5},"n":{"type":"string","nullable":true},
        "map":{"type":"object","additionalProperties":{"type":"integer"},"maxProperties":1},
        "one":{"type":"integer","oneOf":[{"minimum":5},{"maximum":3}]},
        "keyed":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
            "items":{"type":"object","properties":{"k":{"type":"string"},"v":{"type":"integer"}}}}}}}}"#;

    #[test]
    fn enum_compares_numbers_by_type_of_allowed_value() {
        let schema = r#"{"type":"object","properties":{"n":{"type":"number","enum":[1,2.5]},
            "t":{"type":"string","nullable":true,"enum":["a",null]}}}"#;
        for good in [r#"{"n":1.5}"#, r#"{"n":2.5}"#, r#"{"t":"a"}"#] {
            assert_eq!(check_errors(schema, good, None), [""; 0], "{good}");
        }
        for (object, error) in [
            (r#"{"n":2}"#, r#"n: Unsupported value: 2: supported values: "1", "2.5""#),
            (r#"{"t":null}"#, r#"t: Unsupported value: "null": supported values: "a", "null""#),
        ] {
            assert_eq!(check_errors(schema, object, None), [error]);
        }
    }

    #[test]
    fn unchanged_api_version_is_not_ratcheted() {
        let schema = r#"{"type":"object","properties":{"apiVersion":{"type":"string","pattern":"^g/v1$"},
            "spec":{"type":"object","properties":{"kind":{"type":"string","maxLength":1}}}}}"#;
        let (old, new) = (
            r#"{"apiVersion":"g/v2","spec":{"kind":"ab"}}"#,
            r#"{"apiVersion":"g/v2","i":1,"spec":{"kind":"ab"}}"#,
        );
        let error = "apiVersion: Invalid value: \"g/v2\": apiVersion in body should match '^g/v1$'";
        assert_eq!(check_errors(schema, new, Some(old)), [error]);
        assert_eq!(check_errors(schema, old, Some(old)), [""; 0], "the whole object is unchanged");
    }

    #[test]
    fn reordered_keyed_list_is_ratcheted() {
        let schema = r#"{"type":"object","properties":{"l":{"type":"array","maxItems":1,"x-kubernetes-list-type":"map",
            "x-kubernetes-list-map-keys":["k"],"items":{"type":"object","properties":{"k":{"type":"string"},"v":{"type":"integer"}}}}}}"#;
        let old = r#"{"l":[{"k":"a","v":1},{"k":"b","v":2}]}"#;
        assert_eq!(
            check_errors(schema, r#"{"l":[{"k":"b","v":2},{"k":"a","v":1}],"x":1}"#, Some(old)),
            [""; 0]
        );
        let error = "l: Too many: 2: must have at most 1 items";
        assert_eq!(check_errors(schema, r#"{"l":[{"k":"b","v":2},{"k":"a","v":2}]}"#, Some(old)), [error]);
        assert_eq!(check_errors(schema, r#"{"l":[{"k":"b","v":2},{"k":"c","v":1}]}"#, Some(old)), [error]);
    }

    #[test]
    fn validation_errors_match_the_reference() {
        let table: [(&str, &[&str]); 16] = [
            (r#"{"spec":{"color":"red","size":3,"port":1,"n":null,"ratio":1}}"#, &[]),
            (r#"{"spec":{}}"#, &["spec.color: Required value"]),
            (
                r#"{"spec":5}"#,
                &[r#"spec: Invalid value: "integer": spec in body must be of type object: "integer""#],
            ),
            (
                r#"{"spec":{"color":"red","size":11}}"#,
                &["spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"],
            ),
            (
                r#"{"spec":{"color":"red","size":0}}"#,
                &["spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"],
            ),
            (
                r#"{"spec":{"color":"red","size":"a"}}"#,
                &[
                    r#"spec.size: Invalid value: "string": spec.size in body must be of type integer: "string""#,
                ],
            ),
            (
                r#"{"spec":{"color":"green"}}"#,
                &[r#"spec.color: Unsupported value: "green": supported values: "red", "blue""#],
            ),
            (
                r#"{"spec":{"color":"red","name":"toolong"}}"#,
                &["spec.name: Too long: may not be more than 5 bytes"],
            ),
            (
                r#"{"spec":{"color":"red","name":"A1"}}"#,
                &[r#"spec.name: Invalid value: "A1": spec.name in body should match '^[a-z]+$'"#],
            ),
            (
                r#"{"spec":{"color":"red","tags":["a","b","c"]}}"#,
                &["spec.tags: Too many: 3: must have at most 2 items"],
            ),
            (
                r#"{"spec":{"color":"red","tags":[]}}"#,
                &["spec.tags: Invalid value: 0: spec.tags in body should have at least 1 items"],
            ),
            (
                r#"{"spec":{"color":"red","when":"x"}}"#,
                &[r#"spec.when: Invalid value: "x": spec.when in body must be of type date-time: "x""#],
            ),
            (
                r#"{"spec":{"color":"red","port":true}}"#,
                &[
                    r#"spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean""#,
                ],
            ),
            (
                r#"{"spec":{"color":"red","ratio":0.5}}"#,
                &["spec.ratio: Invalid value: 0.5: spec.ratio in body should be greater than 0.5"],
            ),
            (
                r#"{"spec":{"color":"red","map":{"a":"x"}}}"#,
                &[
                    r#"spec.map.a: Invalid value: "string": spec.map.a in body must be of type integer: "string""#,
                ],
            ),
            (
                r#"{"spec":{"color":"red","one":4}}"#,
                &[
                    r#"<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). Found none valid"#,
                    "spec.one: Invalid value: 4: spec.one in body should be greater than or equal to 5",
                ],
            ),
        ];
        for (object, expected) in table {
            assert_eq!(check_errors(SCHEMA, object, None), expected, "{object}");
        }
    }

    #[test]
    fn unchanged_invalid_values_are_ratcheted() {
        let old = r#"{"spec":{"color":"green","size":99,"keyed":[{"k":"a","v":"x"},{"k":"b","v":1}]}}"#;
        assert!(check_errors(SCHEMA, old, None).len() == 3);
        assert!(check_errors(SCHEMA, old, Some(old)).is_empty());
        let new = r#"{"spec":{"color":"green","size":98,"keyed":[{"k":"b","v":"y"},{"k":"a","v":"x"}]}}"#;
        assert_eq!(
            check_errors(SCHEMA, new, Some(old)),
            [
                r#"spec.keyed[0].v: Invalid value: "string": spec.keyed[0].v in body must be of type integer: "string""#,
                "spec.size: Invalid value: 98: spec.size in body should be less than or equal to 10",
            ]
        );
    }

    #[test]
    fn declared_fields_are_sorted_by_name() {
        let schema = r#"{"type":"object","properties":{"b":{},"a":{},"c":{},"d":{}}}"#;
        let schema = Schema::read(&json::read(schema.as_bytes()).unwrap());
        for fields in [r#"{"c":1,"x":2,"a":3}"#, r#"{"c":1,"x":2,"a":3,"y":4,"z":5,"w":6}"#] {
            let value = json::read(fields.as_bytes()).unwrap();
            let names: Vec<&str> = declared_fields(&schema, value.fields().unwrap())
                .into_iter()
                .map(|(name, ..)| name.as_str())
                .collect();
            assert_eq!(names, ["a", "c"], "{fields}");
        }
    }

    #[test]
    fn large_enum_counts_towards_step_limit() {
        let allowed: Vec<String> = (0..30_000).map(|number| format!(r#""v{number}""#)).collect();
        let text =
            format!(r#"{{"type":"array","items":{{"type":"string","enum":[{}]}}}}"#, allowed.join(","));
        let check =
            |count: usize| check_errors(&text, &format!("[{}]", vec![r#""v29999""#; count].join(",")), None);
        assert!(check(1_000).is_empty());
        assert!(check(10_000).first().unwrap().contains("takes too long"));
    }

    #[test]
    fn validation_stops_at_step_limit() {
        let many: Vec<String> = (0..400).map(|index| format!("{{\"enum\":[\"{index}\"]}}")).collect();
        let schema = format!(
            r#"{{"type":"object","properties":{{"l":{{"type":"array","items":{{"anyOf":[{}]}}}}}}}}"#,
            many.join(",")
        );
        let items = vec!["\"x\""; 60_000].join(",");
        let errors = check_errors(&schema, &format!(r#"{{"l":[{items}]}}"#), None);
        assert!(errors.first().unwrap().contains("takes too long"), "{}", errors.len());
    }

    #[test]
    fn combined_schemas_are_not_ratcheted() {
        const KINDS: &str = r#"{"type":"object","properties":{"s":{"type":"object","properties":{"type":{"type":"string"},
            "n":{"type":"integer"}},"oneOf":[{"properties":{"type":{"enum":["A"]}}},{"properties":{"type":{"enum":["B"]}}}],
            "anyOf":[{"properties":{"n":{"minimum":5}}}],"allOf":[{"properties":{"n":{"minimum":5}}}],
            "not":{"properties":{"type":{"enum":["C"]}}}}}}"#;
        let old = r#"{"s":{"type":"A","n":5}}"#;
        assert!(check_errors(KINDS, r#"{"s":{"type":"A","n":6}}"#, Some(old)).is_empty());
        let errors =
            check_errors(KINDS, r#"{"s":{"type":"D","n":1,"more":1}}"#, Some(r#"{"s":{"type":"D","n":1}}"#));
        let has = |part: &str| errors.iter().any(|text| text.contains(part));
        assert!(has("Found none valid") && has("(anyOf)") && has("(allOf)") && !has("(not)"), "{errors:?}");
    }

    #[test]
    fn errors_truncate_long_keys() {
        const LISTS: &str =
            r#"{"type":"object","additionalProperties":{"type":"array","items":{"type":"string"}}}"#;
        let object = format!(r#"{{"{}":[{}]}}"#, "k".repeat(1 << 20), vec!["1"; 1_000].join(","));
        let errors = check_errors(LISTS, &object, None);
        assert!(!errors.is_empty());
        assert!(errors.iter().map(String::len).sum::<usize>() < 32 << 10, "{}", errors.len());
    }

    #[test]
    fn rendered_values_count_towards_step_limit() {
        let many = vec![r#"{"enum":["x"]}"#; 10_000].join(",");
        let schema = format!(r#"{{"type":"object","properties":{{"o":{{"allOf":[{many}]}}}}}}"#);
        let object = format!(r#"{{"o":["{}"]}}"#, "y".repeat(1 << 20));
        let errors = check_errors(&schema, &object, None);
        assert!(errors.first().unwrap().contains("takes too long"), "{}", errors.len());
    }
}
