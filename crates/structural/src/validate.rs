//! Validates a value against its schema, in the words of the reference.
//!
//! A change need not repair earlier errors: an unchanged value is not reported, however wrong it is (ratcheting).

use std::collections::BTreeMap;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::ListFact;
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Checks, Schema};
use super::value_errors::{ErrorKind, ValueError, ValueErrors, ValuePath, nowhere, other};
use super::values::{of_number, of_text, of_type, of_values};
use crate::limits::CUSTOM_STEPS;

/// Validates a value. `base` is its path in the object, and `old` the previous value, if any.
pub fn check(schema: &Schema, value: &Value, old: Option<&Value>, base: &FieldPath, errors: &mut ErrorList) {
    let mut walk = Walk { steps: CUSTOM_STEPS, has_type: base.is_empty() };
    let found = walk.value(schema, value, old, &ValuePath::ROOT);
    if walk.steps == 0 {
        errors.push(FieldError::forbidden(&nowhere(base), "the object takes too long to check"));
    }
    for problem in found.problems {
        errors.push(problem.at(base));
    }
}

/// Whether a field of the root is the type of the object. It is shown in the version of the request, now and before: that it is
/// unchanged forgives nothing.
pub(super) fn is_type_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind")
}

/// The fields that have a schema, sorted by name. The cost depends on the smaller of both sides: a schema with many properties
/// may be applied to many objects with few of them.
fn named<'a>(schema: &'a Schema, fields: &'a Object) -> Vec<(&'a String, &'a Schema, &'a Value)> {
    if schema.properties.len() <= fields.len() {
        let with_value = |(name, inner): (&'a String, _)| Some((name, inner, fields.get(name)?));
        return schema.properties.iter().filter_map(with_value).collect();
    }
    let with_schema = |(name, value): (&String, _)| {
        schema.properties.get_key_value(name).map(|(name, inner)| (name, inner, value))
    };
    let mut found: Vec<_> = fields.iter().filter_map(with_schema).collect();
    found.sort_unstable_by_key(|(name, ..)| *name);
    found
}

struct Walk {
    /// The remaining number of values to check.
    steps: usize,
    /// Whether the root is a whole object, with its type.
    has_type: bool,
}

impl Walk {
    /// Validates a value, and forgives errors that existed before.
    fn value(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &ValuePath<'_>,
    ) -> ValueErrors {
        let mut found = self.looked_at(schema, value, old, path);
        if !found.is_good() && old.is_some_and(|old| is_unchanged(schema, value, old)) {
            found.forgive();
        }
        found
    }

    fn looked_at(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &ValuePath<'_>,
    ) -> ValueErrors {
        let mut found = ValueErrors::default();
        // Long texts take longer to match against patterns.
        let length = value.as_str().map_or(0, |text| text.len() / 64);
        let checks = schema.checks.as_deref();
        // A large enum takes longer as well.
        let allowed = checks.map_or(0, |checks| checks.values.len() / 64);
        self.steps = self.steps.saturating_sub(1 + length + allowed);
        if self.steps == 0 {
            return found;
        }
        of_type(schema, checks, value, path, &mut found);
        if value.is_null() {
            if let Some(checks) = checks {
                of_values(checks, value, path, &mut found);
            }
            return found;
        }
        found.matched += 1;
        if let Some(checks) = checks {
            self.combined(checks, value, path, &mut found);
            match value {
                Value::String(text) => of_text(checks, text, path, &mut found),
                Value::Int(_) | Value::Float(_) => of_number(checks, value, path, &mut found),
                _ => {}
            }
        }
        if let Value::Array(items) = value {
            self.items(schema, items, old, path, &mut found);
        }
        if let Some(checks) = checks {
            of_values(checks, value, path, &mut found);
        }
        if let Value::Object(fields) = value {
            self.fields(schema, fields, old, path, &mut found);
        }
        found.matched += 1;
        // Errors contain the value, and a schema can report the same long value repeatedly.
        self.steps = self.steps.saturating_sub(found.written / 64);
        found
    }

    fn fields(
        &mut self,
        schema: &Schema,
        fields: &Object,
        old: Option<&Value>,
        path: &ValuePath<'_>,
        found: &mut ValueErrors,
    ) {
        let checks = schema.checks.as_deref();
        let size = fields.len();
        if let Some(least) =
            checks.and_then(|checks| checks.min_fields).filter(|least| (size as i64) < *least)
        {
            let text = format!("{path} in body should have at least {least} properties");
            found.add(other(path, size.to_string(), text));
        }
        if let Some(most) = checks.and_then(|checks| checks.max_fields).filter(|most| size as i64 > *most) {
            let text = format!("{path} in body should have at most {most} properties");
            found.add(ValueError {
                place: Some(path.to_string()),
                what: ErrorKind::TooMany { found: size, most },
                text,
            });
        }
        let old = old.and_then(Value::fields);
        let has_type = self.has_type && path.is_root();
        let was = |name: &str| old.filter(|_| !(has_type && is_type_field(name)))?.get(name);
        if let Some(AdditionalProperties::Of(inner)) = &schema.others {
            for (name, value) in fields.iter().filter(|(name, _)| !schema.properties.contains_key(name)) {
                found.merge(self.value(inner, value, was(name), &path.other(name)));
            }
        }
        for (name, inner, value) in named(schema, fields) {
            found.merge(self.value(inner, value, was(name), &path.named(name)));
        }
        for name in checks.map(|checks| checks.required.as_slice()).unwrap_or_default() {
            if !fields.contains_key(name) {
                let place = path.other(name).to_string();
                let text = format!("{place} in body is required");
                found.add(ValueError { place: Some(place), what: ErrorKind::Required, text });
            }
        }
    }

    fn items(
        &mut self,
        schema: &Schema,
        items: &[Value],
        old: Option<&Value>,
        path: &ValuePath<'_>,
        found: &mut ValueErrors,
    ) {
        if let Some(inner) = &schema.items {
            let before = Before::of(&schema.list, old);
            for (index, item) in items.iter().enumerate() {
                found.merge(self.value(inner, item, before.of_item(item), &path.item(index)));
            }
        }
        let Some(checks) = &schema.checks else { return };
        let size = items.len();
        if let Some(least) = checks.min_items.filter(|least| (size as i64) < *least) {
            let text = format!("{path} in body should have at least {least} items");
            found.add(other(path, size.to_string(), text));
        }
        if let Some(most) = checks.max_items.filter(|most| size as i64 > *most) {
            let text = format!("{path} in body should have at most {most} items");
            found.add(ValueError {
                place: Some(path.to_string()),
                what: ErrorKind::TooMany { found: size, most },
                text,
            });
        }
    }

    /// Old values do not count here: unchanged fields would be valid in every alternative.
    fn combined(&mut self, checks: &Checks, value: &Value, path: &ValuePath<'_>, found: &mut ValueErrors) {
        let whole = |text: String| ValueError {
            place: None,
            what: ErrorKind::Other { value: quoted("") },
            text: format!("{} {text}", quoted(&path.to_string())),
        };
        if !checks.any_of.is_empty() {
            let (good, best) = self.tried(&checks.any_of, value, path, true);
            if good == 0 {
                found.add(whole("must validate at least one schema (anyOf)".to_owned()));
            }
            found.merge(best);
        }
        if !checks.one_of.is_empty() {
            let (good, best) = self.tried(&checks.one_of, value, path, false);
            match good {
                1 => found.merge(best),
                0 => {
                    let text = "must validate one and only one schema (oneOf). Found none valid";
                    found.add(whole(text.to_owned()));
                    found.merge(best);
                }
                many => {
                    let text = format!(
                        "must validate one and only one schema (oneOf). Found {many} valid alternatives"
                    );
                    found.add(whole(text));
                }
            }
        }
        if !checks.all_of.is_empty() {
            let mut good = 0;
            for schema in &checks.all_of {
                let one = self.looked_at(schema, value, None, path);
                good += usize::from(one.is_good());
                found.merge(one);
            }
            let wrong = good != checks.all_of.len();
            if wrong {
                let none = if good == 0 { ". None validated" } else { "" };
                found.add(whole(format!("must validate all the schemas (allOf){none}")));
            }
        }
        if let Some(not) = &checks.not
            && self.looked_at(not, value, None, path).is_good()
        {
            found.add(whole("must not validate the schema (not)".to_owned()));
        }
    }

    /// How many of the schemas match, and the errors to report: of the first match, or else of the closest one.
    fn tried(
        &mut self,
        schemas: &[Schema],
        value: &Value,
        path: &ValuePath<'_>,
        one_will_do: bool,
    ) -> (usize, ValueErrors) {
        let mut good = 0;
        let mut best: Option<ValueErrors> = None;
        for schema in schemas {
            let found = self.looked_at(schema, value, None, path);
            if found.is_good() {
                good += 1;
                if good == 1 {
                    best = Some(found);
                }
                if one_will_do {
                    break;
                }
            } else if good == 0 && best.as_ref().is_none_or(|best| found.matched > best.matched) {
                best = Some(found);
            }
        }
        (good, best.unwrap_or_default())
    }
}

/// Whether a value is the old one as far as its schema can tell: keyed lists may change their order, and an object with a field
/// that no schema describes counts as changed, as it does in the reference.
pub(super) fn is_unchanged(schema: &Schema, value: &Value, old: &Value) -> bool {
    match (value, old) {
        (Value::Array(items), Value::Array(before)) if items.len() != before.len() => false,
        (Value::Array(items), Value::Array(_)) if matches!(schema.list, ListFact::Map(_)) => {
            let before = Before::of(&schema.list, Some(old));
            items.iter().all(|item| {
                let known = schema.items.as_deref().zip(before.of_item(item));
                known.is_some_and(|(inner, old)| is_unchanged(inner, item, old))
            })
        }
        (Value::Object(fields), Value::Object(before)) => {
            fields.len() == before.len()
                && fields.iter().all(|(name, value)| {
                    let known = schema.field(name).zip(before.get(name));
                    known.is_some_and(|(inner, old)| is_unchanged(inner, value, old))
                })
        }
        _ => value == old,
    }
}

/// The old items of a list: correlated by keys if it has some, else unknown.
struct Before<'v> {
    keys: &'v [String],
    items: BTreeMap<Vec<u8>, &'v Value>,
}

impl<'v> Before<'v> {
    fn of(list: &'v ListFact, old: Option<&'v Value>) -> Before<'v> {
        let ListFact::Map(keys) = list else { return Before { keys: &[], items: BTreeMap::new() } };
        let items = old.map(Value::items).unwrap_or_default().iter();
        Before { keys, items: items.map(|item| (key_of(keys, item), item)).collect() }
    }

    fn of_item(&self, item: &Value) -> Option<&'v Value> {
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

    fn told(schema: &str, object: &str, old: Option<&str>) -> Vec<String> {
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
    fn values_are_compared_as_those_that_are_allowed() {
        let schema = r#"{"type":"object","properties":{"n":{"type":"number","enum":[1,2.5]},
            "t":{"type":"string","nullable":true,"enum":["a",null]}}}"#;
        for good in [r#"{"n":1.5}"#, r#"{"n":2.5}"#, r#"{"t":"a"}"#] {
            assert_eq!(told(schema, good, None), [""; 0], "{good}");
        }
        for (wrong, why) in [
            (r#"{"n":2}"#, r#"n: Unsupported value: 2: supported values: "1", "2.5""#),
            (r#"{"t":null}"#, r#"t: Unsupported value: "null": supported values: "a", "null""#),
        ] {
            assert_eq!(told(schema, wrong, None), [why]);
        }
    }

    #[test]
    fn an_unchanged_type_is_not_forgiven() {
        let schema = r#"{"type":"object","properties":{"apiVersion":{"type":"string","pattern":"^g/v1$"},
            "spec":{"type":"object","properties":{"kind":{"type":"string","maxLength":1}}}}}"#;
        let (old, new) = (
            r#"{"apiVersion":"g/v2","spec":{"kind":"ab"}}"#,
            r#"{"apiVersion":"g/v2","i":1,"spec":{"kind":"ab"}}"#,
        );
        let why = "apiVersion: Invalid value: \"g/v2\": apiVersion in body should match '^g/v1$'";
        assert_eq!(told(schema, new, Some(old)), [why]);
        assert_eq!(told(schema, old, Some(old)), [""; 0], "the whole object is unchanged");
    }

    #[test]
    fn a_list_with_keys_may_change_its_order() {
        let schema = r#"{"type":"object","properties":{"l":{"type":"array","maxItems":1,"x-kubernetes-list-type":"map",
            "x-kubernetes-list-map-keys":["k"],"items":{"type":"object","properties":{"k":{"type":"string"},"v":{"type":"integer"}}}}}}"#;
        let old = r#"{"l":[{"k":"a","v":1},{"k":"b","v":2}]}"#;
        assert_eq!(told(schema, r#"{"l":[{"k":"b","v":2},{"k":"a","v":1}],"x":1}"#, Some(old)), [""; 0]);
        let why = "l: Too many: 2: must have at most 1 items";
        assert_eq!(told(schema, r#"{"l":[{"k":"b","v":2},{"k":"a","v":2}]}"#, Some(old)), [why]);
        assert_eq!(told(schema, r#"{"l":[{"k":"b","v":2},{"k":"c","v":1}]}"#, Some(old)), [why]);
    }

    #[test]
    fn what_is_wrong_is_told_in_the_words_of_the_reference() {
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
        for (object, wanted) in table {
            assert_eq!(told(SCHEMA, object, None), wanted, "{object}");
        }
    }

    #[test]
    fn what_was_wrong_before_may_stay() {
        let old = r#"{"spec":{"color":"green","size":99,"keyed":[{"k":"a","v":"x"},{"k":"b","v":1}]}}"#;
        assert!(told(SCHEMA, old, None).len() == 3);
        assert!(told(SCHEMA, old, Some(old)).is_empty());
        let new = r#"{"spec":{"color":"green","size":98,"keyed":[{"k":"b","v":"y"},{"k":"a","v":"x"}]}}"#;
        assert_eq!(
            told(SCHEMA, new, Some(old)),
            [
                r#"spec.keyed[0].v: Invalid value: "string": spec.keyed[0].v in body must be of type integer: "string""#,
                "spec.size: Invalid value: 98: spec.size in body should be less than or equal to 10",
            ]
        );
    }

    #[test]
    fn the_fields_that_a_schema_names_are_found_by_name_whichever_has_more() {
        let schema = r#"{"type":"object","properties":{"b":{},"a":{},"c":{},"d":{}}}"#;
        let schema = Schema::read(&json::read(schema.as_bytes()).unwrap());
        for fields in [r#"{"c":1,"x":2,"a":3}"#, r#"{"c":1,"x":2,"a":3,"y":4,"z":5,"w":6}"#] {
            let value = json::read(fields.as_bytes()).unwrap();
            let found: Vec<&str> =
                named(&schema, value.fields().unwrap()).into_iter().map(|(name, ..)| name.as_str()).collect();
            assert_eq!(found, ["a", "c"], "{fields}");
        }
    }

    #[test]
    fn very_many_allowed_values_take_their_time() {
        let allowed: Vec<String> = (0..30_000).map(|number| format!(r#""v{number}""#)).collect();
        let text =
            format!(r#"{{"type":"array","items":{{"type":"string","enum":[{}]}}}}"#, allowed.join(","));
        let told = |count: usize| told(&text, &format!("[{}]", vec![r#""v29999""#; count].join(",")), None);
        assert!(told(1_000).is_empty());
        assert!(told(10_000).first().unwrap().contains("takes too long"));
    }

    #[test]
    fn a_schema_that_asks_for_too_much_ends() {
        let many: Vec<String> = (0..400).map(|at| format!("{{\"enum\":[\"{at}\"]}}")).collect();
        let schema = format!(
            r#"{{"type":"object","properties":{{"l":{{"type":"array","items":{{"anyOf":[{}]}}}}}}}}"#,
            many.join(",")
        );
        let items = vec!["\"x\""; 60_000].join(",");
        let told = told(&schema, &format!(r#"{{"l":[{items}]}}"#), None);
        assert!(told.first().unwrap().contains("takes too long"), "{}", told.len());
    }

    #[test]
    fn alternatives_do_not_look_at_what_was_before() {
        const KINDS: &str = r#"{"type":"object","properties":{"s":{"type":"object","properties":{"type":{"type":"string"},
            "n":{"type":"integer"}},"oneOf":[{"properties":{"type":{"enum":["A"]}}},{"properties":{"type":{"enum":["B"]}}}],
            "anyOf":[{"properties":{"n":{"minimum":5}}}],"allOf":[{"properties":{"n":{"minimum":5}}}],
            "not":{"properties":{"type":{"enum":["C"]}}}}}}"#;
        let old = r#"{"s":{"type":"A","n":5}}"#;
        assert!(told(KINDS, r#"{"s":{"type":"A","n":6}}"#, Some(old)).is_empty());
        let wrong = told(KINDS, r#"{"s":{"type":"D","n":1,"more":1}}"#, Some(r#"{"s":{"type":"D","n":1}}"#));
        let has = |part: &str| wrong.iter().any(|text| text.contains(part));
        assert!(has("Found none valid") && has("(anyOf)") && has("(allOf)") && !has("(not)"), "{wrong:?}");
    }

    #[test]
    fn a_long_key_is_not_repeated_for_each_item() {
        const LISTS: &str =
            r#"{"type":"object","additionalProperties":{"type":"array","items":{"type":"string"}}}"#;
        let object = format!(r#"{{"{}":[{}]}}"#, "k".repeat(1 << 20), vec!["1"; 1_000].join(","));
        let told = told(LISTS, &object, None);
        assert!(!told.is_empty());
        assert!(told.iter().map(String::len).sum::<usize>() < 32 << 10, "{}", told.len());
    }

    #[test]
    fn a_long_value_is_not_printed_for_ever() {
        let many = vec![r#"{"enum":["x"]}"#; 10_000].join(",");
        let schema = format!(r#"{{"type":"object","properties":{{"o":{{"allOf":[{many}]}}}}}}"#);
        let object = format!(r#"{{"o":["{}"]}}"#, "y".repeat(1 << 20));
        let told = told(&schema, &object, None);
        assert!(told.first().unwrap().contains("takes too long"), "{}", told.len());
    }
}
