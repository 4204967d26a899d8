//! A part of an object that is put into it by somebody who owns nothing of it: a policy of the cluster.

use std::fmt::Write as _;

use super::check::check;
use super::merge::merge;
use crate::limits::{FIELD_ERRORS, OWNED_DEPTH};
use crate::schema::{ListFact, Registry, Type, TypeId};
use crate::value::Value;

/// The object with what `partial` states in it, both of this type. What can only be replaced as a whole may not be stated:
/// whoever states a part of it would take away the rest.
pub fn apply_configuration(
    registry: &Registry,
    ty: TypeId,
    object: &Value,
    partial: &Value,
) -> Result<Value, String> {
    let untyped = |which: &'static str| {
        move |why: String| format!("failed to convert {which} object to typed object: {why}")
    };
    check(registry, ty, partial).map_err(untyped("patch"))?;
    let mut found = Wholes { registry, path: String::new(), paths: Vec::new() };
    found.look(ty, None, partial, OWNED_DEPTH);
    if !found.paths.is_empty() {
        let paths = found.paths.join(", ");
        return Err(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {paths}"
        ));
    }
    check(registry, ty, object).map_err(untyped("original"))?;
    merge(registry, ty, object, partial).map_err(|why| format!("failed to merge patch: {why}"))
}

/// Looks for what can only be replaced as a whole.
struct Wholes<'r> {
    registry: &'r Registry,
    path: String,
    paths: Vec<String>,
}

impl Wholes<'_> {
    fn note(&mut self) {
        if self.paths.len() < FIELD_ERRORS {
            self.paths.push(self.path.clone());
        }
    }

    /// `whole`: what the field that holds the value says of it.
    fn look(&mut self, ty: TypeId, whole: Option<bool>, value: &Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        let registry = self.registry;
        let length = self.path.len();
        match (registry.get(ty), value) {
            (Type::Struct(structure), Value::Object(fields)) => {
                if whole.unwrap_or(structure.atomic) {
                    self.note();
                }
                for (name, value) in fields {
                    if let Some(field) = structure.field(name) {
                        let _ = write!(self.path, ".{name}");
                        self.look(field.ty, field.map_atomic, value, depth);
                        self.path.truncate(length);
                    }
                }
            }
            (Type::Map(_), Value::Object(_)) if whole == Some(true) => self.note(),
            (Type::List(list), Value::Array(items)) => {
                if matches!(list.merge, ListFact::Unsaid | ListFact::Atomic) {
                    self.note();
                }
                for (index, item) in items.iter().enumerate() {
                    let _ = write!(self.path, "[{index}]");
                    self.look(list.item, None, item, depth);
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
    fn what_is_stated_is_merged_by_the_kind() {
        let made = configured(
            r#"{"metadata":{"labels":{"b":"2"}},"spec":{"hostNetwork":true,"containers":[{"name":"b","image":"k"},{"name":"c"}]}}"#,
        );
        let wanted = r#"{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"args":["x"],"image":"i","name":"a"},
            {"image":"k","name":"b"},{"name":"c"}],"hostNetwork":true,"nodeSelector":{"n":"1"}}}"#;
        assert_eq!(made, Ok(json::read(wanted.as_bytes()).unwrap()));
    }

    #[test]
    fn what_can_only_be_replaced_as_a_whole_may_not_be_stated() {
        const WHOLE: &str = "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: ";
        const UNTYPED: &str = "failed to convert patch object to typed object: ";
        for (partial, start, rest) in [
            (
                r#"{"spec":{"nodeSelector":{"m":"2"},"containers":[{"name":"b"},{"name":"a","args":[]}]}}"#,
                WHOLE,
                ".spec.containers[1].args, .spec.nodeSelector",
            ),
            (r#"{"spec":{"tolerations":[{"key":"a"}]}}"#, WHOLE, ".spec.tolerations"),
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
