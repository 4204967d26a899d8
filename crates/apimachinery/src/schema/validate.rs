//! Declarative validation of the schema table: bounds, lengths, formats. It works for any type; rules about several fields are
//! functions of the kinds.

use super::{Field, ListFact, Registry, Struct, Type, TypeId};
use crate::error_list::ErrorList;
use crate::field::{FieldError, FieldPath, quoted};
use crate::names;
use crate::value::Value;

/// The rules of a field's values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether a value is required.
    pub must: bool,
    /// The minimum.
    pub min: Option<i64>,
    /// The maximum.
    pub max: Option<i64>,
    /// The minimum length of a text in bytes.
    pub min_length: Option<usize>,
    /// The maximum length of a text in bytes.
    pub max_length: Option<usize>,
    /// The minimum number of items or entries.
    pub min_items: Option<usize>,
    /// The maximum number of items or entries.
    pub max_items: Option<usize>,
    /// The format of a text.
    pub format: Option<Format>,
}

/// The formats of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A DNS label.
    DnsLabel,
    /// A DNS subdomain.
    DnsSubdomain,
    /// A label key.
    LabelKey,
    /// A label value.
    LabelValue,
    /// An IP address.
    Ip,
    /// A CIDR.
    Cidr,
}

impl Format {
    /// The format of this name in the table.
    pub fn named(word: &str) -> Option<Format> {
        Some(match word {
            "dns-label" => Format::DnsLabel,
            "dns-subdomain" => Format::DnsSubdomain,
            "label-key" => Format::LabelKey,
            "label-value" => Format::LabelValue,
            "ip" => Format::Ip,
            "cidr" => Format::Cidr,
            _ => return None,
        })
    }

    fn check(self, text: &str) -> (&'static str, Vec<String>) {
        match self {
            Format::DnsLabel => ("format=dns-label", names::dns_label(text)),
            Format::DnsSubdomain => ("format=dns-subdomain", names::dns_subdomain(text)),
            Format::LabelKey => ("format=label-key", names::qualified_name(text)),
            Format::LabelValue => ("format=label-value", names::label_value(text)),
            Format::Ip => ("format=ip", names::ip_address(text)),
            Format::Cidr => ("format=cidr", names::cidr(text)),
        }
    }
}

/// How an update treats unchanged values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchanged {
    /// They are validated like others.
    Checked,
    /// They are accepted: rules may become stricter without blocking stored objects.
    Passes,
}

/// Validates a value against the rules of its type. The old value is given for an update.
pub fn validate(
    registry: &Registry,
    ty: TypeId,
    new: &Value,
    old: Option<&Value>,
    unchanged: Unchanged,
) -> ErrorList {
    let mut validator = Validator { registry, unchanged, errors: ErrorList::new() };
    validator.value(ty, new, old, &FieldPath::root());
    validator.errors
}

/// Whether a type has rules at any level: most have none, and need no traversal.
pub fn has_rules(registry: &Registry, ty: TypeId) -> bool {
    match registry.get(ty) {
        Type::Struct(structure) => !structure.ruled.is_empty(),
        Type::List(list) => has_rules(registry, list.item),
        Type::Map(map) => has_rules(registry, map.value),
        Type::Either(_) | Type::Scalar(_) => false,
    }
}

struct Validator<'a> {
    registry: &'a Registry,
    unchanged: Unchanged,
    errors: ErrorList,
}

impl Validator<'_> {
    fn value(&mut self, ty: TypeId, new: &Value, old: Option<&Value>, path: &FieldPath) {
        let registry = self.registry;
        match registry.get(ty) {
            Type::Struct(structure) => self.structure(structure, new, old, path),
            Type::List(list) if has_rules(registry, list.item) => {
                for (index, item) in new.items().iter().enumerate() {
                    let old = old.and_then(|old| counterpart(&list.merge, item, old.items()));
                    self.value(list.item, item, old, &path.index(index));
                }
            }
            Type::Map(map) if has_rules(registry, map.value) => {
                for (key, value) in new.fields().into_iter().flatten() {
                    let old = old.and_then(|old| old.get(key));
                    self.value(map.value, value, old, &path.key(key));
                }
            }
            _ => {}
        }
    }

    fn structure(&mut self, structure: &Struct, new: &Value, old: Option<&Value>, path: &FieldPath) {
        for field in structure.ruled.iter().filter_map(|index| structure.fields.get(usize::from(*index))) {
            let (value, old_value) = (new.get(&field.name), old.and_then(|old| old.get(&field.name)));
            if self.unchanged == Unchanged::Passes && old.is_some() && value == old_value {
                continue;
            }
            let path = path.child(&field.name);
            if let Some(rules) = &field.rules {
                self.field(field, rules, value, &path);
            }
            if let Some(value) = value {
                self.value(field.ty, value, old_value, &path);
            }
        }
    }

    fn field(&mut self, field: &Field, rules: &Rules, value: Option<&Value>, path: &FieldPath) {
        let is_empty = |value: &Value| match value {
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(entries) => entries.is_empty(),
            _ => false,
        };
        if rules.must && value.is_none_or(|value| !field.pointer && is_empty(value)) {
            self.errors.push(FieldError::required(path, ""));
            return;
        }
        match value {
            Some(Value::Int(number)) => self.number(rules, *number, path),
            // A number that is no pointer counts even if absent.
            None if !field.pointer && (rules.min.is_some() || rules.max.is_some()) => {
                self.number(rules, 0, path);
            }
            Some(Value::String(text)) => self.text(rules, text, path),
            Some(Value::Array(items)) => self.items(rules, items.len(), path),
            Some(Value::Object(entries)) => self.items(rules, entries.len(), path),
            _ => {}
        }
    }

    fn number(&mut self, rules: &Rules, number: i64, path: &FieldPath) {
        if let Some(min) = rules.min.filter(|min| number < *min) {
            let detail = format!("must be greater than or equal to {min}");
            self.errors.push(FieldError::invalid(path, &number.to_string(), &detail).by_rule("minimum"));
        }
        if let Some(max) = rules.max.filter(|max| number > *max) {
            let detail = format!("must be less than or equal to {max}");
            self.errors.push(FieldError::invalid(path, &number.to_string(), &detail).by_rule("maximum"));
        }
    }

    fn text(&mut self, rules: &Rules, text: &str, path: &FieldPath) {
        if let Some(minimum) = rules.min_length.filter(|minimum| text.len() < *minimum) {
            let detail = format!("must be at least {minimum} bytes");
            self.errors.push(FieldError::invalid(path, &quoted(text), &detail).by_rule("minLength"));
        }
        if let Some(maximum) = rules.max_length.filter(|maximum| text.len() > *maximum) {
            self.errors.push(FieldError::too_long(path, maximum).by_rule("maxLength"));
        }
        if let Some(format) = rules.format.filter(|_| !text.is_empty()) {
            let (rule, messages) = format.check(text);
            let errors = messages
                .iter()
                .map(|message| FieldError::invalid(path, &quoted(text), message).by_rule(rule));
            self.errors.extend(errors);
        }
    }

    fn items(&mut self, rules: &Rules, count: usize, path: &FieldPath) {
        if let Some(minimum) = rules.min_items.filter(|minimum| count < *minimum) {
            let detail = format!("must have at least {minimum} items");
            self.errors.push(FieldError::invalid(path, &count.to_string(), &detail).by_rule("minItems"));
        }
        if let Some(maximum) = rules.max_items.filter(|maximum| count > *maximum) {
            self.errors.push(FieldError::too_many(path, count, maximum).by_rule("maxItems"));
        }
    }
}

/// The old item that corresponds to a new one, if the list has keys.
fn counterpart<'a>(merge: &ListFact, item: &Value, old: &'a [Value]) -> Option<&'a Value> {
    match merge {
        ListFact::Map(keys) => old.iter().find(|old| keys.iter().all(|key| old.get(key) == item.get(key))),
        ListFact::Set => old.iter().find(|old| *old == item),
        ListFact::Unspecified | ListFact::Atomic => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schema::table::parse;
    use crate::testing::{error_messages, object};

    const TABLE: &str = r#"package k8s.io.api.test.v1
group test version v1

resource things Thing namespaced singular=thing verbs=all storage=v1

type Thing object
  1 spec Spec
  2 parts [Part] list=map(name)

type Spec
  1 count int32* must min=0 max=9
  2 wait int32 min=0
  3 text string minlen=2 maxlen=4
  4 host string format=dns-label
  5 tags [string] minitems=1 maxitems=2
  6 plain string

type Part
  1 name string
  2 size int64 min=1
"#;

    fn thing(new: &str, old: Option<&str>, unchanged: Unchanged) -> Vec<String> {
        let registry = Registry::compile(&[parse(TABLE).unwrap()]).unwrap();
        let ty = registry.kind("test", "v1", "Thing").unwrap();
        assert!(has_rules(&registry, ty));
        let old = old.map(object);
        error_messages(&validate(&registry, ty, &object(new), old.as_ref(), unchanged))
    }

    #[test]
    fn each_declarative_rule_is_enforced() {
        let table = [
            (r#"{"spec":{"count":3}}"#, vec![]),
            (r#"{"spec":{}}"#, vec!["spec.count: Required value"]),
            (
                r#"{"spec":{"count":-1}}"#,
                vec!["spec.count: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                r#"{"spec":{"count":10}}"#,
                vec!["spec.count: Invalid value: 10: must be less than or equal to 9"],
            ),
            (
                r#"{"spec":{"count":0,"wait":-2}}"#,
                vec!["spec.wait: Invalid value: -2: must be greater than or equal to 0"],
            ),
            (
                r#"{"spec":{"count":0,"text":"a"}}"#,
                vec!["spec.text: Invalid value: \"a\": must be at least 2 bytes"],
            ),
            (
                r#"{"spec":{"count":0,"text":"abcde"}}"#,
                vec!["spec.text: Too long: may not be more than 4 bytes"],
            ),
            (
                r#"{"spec":{"count":0,"tags":["a","b","c"]}}"#,
                vec!["spec.tags: Too many: 3: must have at most 2 items"],
            ),
            (
                r#"{"spec":{"count":0},"parts":[{"name":"a","size":1},{"name":"b"}]}"#,
                vec!["parts[1].size: Invalid value: 0: must be greater than or equal to 1"],
            ),
        ];
        for (json, expected) in table {
            assert_eq!(thing(json, None, Unchanged::Checked), expected, "{json}");
        }
        let host = thing(r#"{"spec":{"count":0,"host":"A"}}"#, None, Unchanged::Checked);
        assert!(host.len() == 1 && host[0].starts_with("spec.host: Invalid value: \"A\""), "{host:?}");
    }

    #[test]
    fn unchanged_values_pass_if_allowed() {
        let old = r#"{"spec":{"count":-1},"parts":[{"name":"a"},{"name":"b"}]}"#;
        let new = r#"{"spec":{"count":-1,"wait":1},"parts":[{"name":"b"},{"name":"c"}]}"#;
        let expected = ["parts[1].size: Invalid value: 0: must be greater than or equal to 1"];
        assert_eq!(thing(new, Some(old), Unchanged::Passes), expected);
        assert_eq!(thing(new, Some(old), Unchanged::Checked).len(), 3);
    }

    proptest! {
        #[test]
        fn minimum_and_maximum_are_enforced(count: i32) {
            let errors = thing(&format!(r#"{{"spec":{{"count":{count}}}}}"#), None, Unchanged::Checked);
            prop_assert_eq!(errors.is_empty(), (0..=9).contains(&count));
        }
    }
}
