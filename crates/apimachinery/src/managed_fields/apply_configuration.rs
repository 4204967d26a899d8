//! Apply configurations of mutating admission policies: merged into an object without field ownership.

use std::fmt::Write as _;

use super::check::check;
use super::merge::merge;
use crate::limits::{FIELD_ERRORS, OWNED_DEPTH};
use crate::schema::{ListFact, Registry, Type, TypeId};
use crate::value::Value;

/// Merges `partial` into an object of the same type. Atomic values may not be stated: a policy that states a part of one would
/// remove the rest.
pub fn apply_configuration(
    registry: &Registry,
    ty: TypeId,
    object: &Value,
    partial: &Value,
) -> Result<Value, String> {
    let typing_error = |role: &'static str| {
        move |error: String| format!("failed to convert {role} object to typed object: {error}")
    };
    check(registry, ty, partial).map_err(typing_error("patch"))?;
    let mut finder = AtomicValueFinder { registry, path: String::new(), paths: Vec::new() };
    finder.visit(ty, None, partial, OWNED_DEPTH);
    if !finder.paths.is_empty() {
        let paths = finder.paths.join(", ");
        return Err(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {paths}"
        ));
    }
    check(registry, ty, object).map_err(typing_error("original"))?;
    merge(registry, ty, object, partial).map_err(|error| format!("failed to merge patch: {error}"))
}

/// Collects the paths of atomic values.
struct AtomicValueFinder<'r> {
    registry: &'r Registry,
    path: String,
    paths: Vec<String>,
}

impl AtomicValueFinder<'_> {
    fn record(&mut self) {
        if self.paths.len() < FIELD_ERRORS {
            self.paths.push(self.path.clone());
        }
    }

    /// `is_atomic`: whether the field of the value overrides the type.
    fn visit(&mut self, ty: TypeId, is_atomic: Option<bool>, value: &Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        let registry = self.registry;
        let length = self.path.len();
        match (registry.get(ty), value) {
            (Type::Struct(structure), Value::Object(fields)) => {
                if is_atomic.unwrap_or(structure.atomic) {
                    self.record();
                }
                for (name, value) in fields {
                    if let Some(field) = structure.field(name) {
                        let _ = write!(self.path, ".{name}");
                        self.visit(field.ty, field.map_atomic, value, depth);
                        self.path.truncate(length);
                    }
                }
            }
            (Type::Map(_), Value::Object(_)) if is_atomic == Some(true) => self.record(),
            (Type::List(list), Value::Array(items)) => {
                if matches!(list.merge, ListFact::Unspecified | ListFact::Atomic) {
                    self.record();
                }
                for (index, item) in items.iter().enumerate() {
                    let _ = write!(self.path, "[{index}]");
                    self.visit(list.item, None, item, depth);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::schema::GroupVersionKind;

    const POD: &str = r#"{"metadata":{"labels":{"a":"1"}},"spec":{"containers":[
        {"name":"a","image":"i","args":["x"]},{"name":"b","image":"j"}],"nodeSelector":{"n":"1"}}}"#;

    fn configured(partial: &str) -> Result<Value, String> {
        let registry = Registry::builtin().unwrap();
        let ty = registry.lookup(&GroupVersionKind::new("", "v1", "Pod")).unwrap();
        let read = |text: &str| json::read(text.as_bytes()).unwrap();
        apply_configuration(&registry, ty, &read(POD), &read(partial))
    }

    #[test]
    fn apply_configuration_is_merged_by_schema() {
        let merged = configured(
            r#"{"metadata":{"labels":{"b":"2"}},"spec":{"hostNetwork":true,"containers":[{"name":"b","image":"k"},{"name":"c"}]}}"#,
        );
        let expected = r#"{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"args":["x"],"image":"i","name":"a"},
            {"image":"k","name":"b"},{"name":"c"}],"hostNetwork":true,"nodeSelector":{"n":"1"}}}"#;
        assert_eq!(merged, Ok(json::read(expected.as_bytes()).unwrap()));
    }

    #[test]
    fn apply_configuration_with_atomic_values_is_refused() {
        const ATOMIC: &str = "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: ";
        const UNTYPED: &str = "failed to convert patch object to typed object: ";
        for (partial, start, rest) in [
            (
                r#"{"spec":{"nodeSelector":{"m":"2"},"containers":[{"name":"b"},{"name":"a","args":[]}]}}"#,
                ATOMIC,
                ".spec.containers[1].args, .spec.nodeSelector",
            ),
            (r#"{"spec":{"tolerations":[{"key":"a"}]}}"#, ATOMIC, ".spec.tolerations"),
            (r#"{"spec":{"foo":1}}"#, UNTYPED, ".spec.foo: field not declared in schema"),
            (
                r#"{"spec":{"containers":[{"name":"a"},{"name":"a"}]}}"#,
                UNTYPED,
                ".spec.containers: duplicate entries for key [name=\"a\"]",
            ),
        ] {
            assert_eq!(configured(partial), Err(format!("{start}{rest}")), "{partial}");
        }
    }
}
