//! Strategic merge patch: a merge in which the schema determines which lists are merged, and by which key.
//!
//! Directives begin with a dollar sign: `$patch` (replace, delete) in an object or item, `$retainKeys` beside the fields of an
//! object, `$setElementOrder/LIST` and `$deleteFromPrimitiveList/LIST` beside a list. Clients know the error messages, even those
//! that the reference reports as its own errors.

use std::collections::HashSet;

use super::body::printed;
use super::lists::{Identity, element_kind, interleave, is_deletion, split_by_identity};
use crate::codec::to_json;
use crate::field::quoted;
use crate::schema::{Field, Registry, Scalar, Type, TypeId};
use crate::status::{Result, Status};
use crate::value::{Object, Value};

/// The directive for the object that contains it.
pub const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

/// The reason why a patch cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A directive is malformed.
    Malformed(&'static str),
    /// A list contains lists.
    DoesNotApply,
    /// The patch does not fit the object or its type. The reference returns 500 for these; they are errors of the client.
    Unfit(String),
}

impl Fault {
    /// An error of a patch that does not fit.
    pub fn unfit(message: impl Into<String>) -> Fault {
        Fault::Unfit(message.into())
    }
}

type Merged<T> = std::result::Result<T, Fault>;

/// An item lacks the merge key.
pub fn no_merge_key(item: &Object, key: &str) -> Fault {
    let item = printed(&Value::Object(item.clone()));
    Fault::Unfit(format!("map: {item} does not contain declared merge key: {key}"))
}

/// A value has the wrong type.
pub fn wrong_type(expected: &str, actual: &Value) -> Fault {
    let actual = match actual {
        Value::Null => "%!s(<nil>)",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
        other => super::body::kind(other),
    };
    Fault::Unfit(format!("expected a {expected}, but received a {actual}"))
}

/// Merges a patch into an object of type `ty`. Executed directives are removed from the patch: messages print the rest.
pub fn apply(registry: &Registry, ty: TypeId, original: Value, patch: &mut Value) -> Result<Value> {
    let Value::Object(patch) = patch else { return Ok(original) };
    let Value::Object(original) = original else { return Ok(original) };
    let merge = Merge { registry };
    merge.objects(original, patch, ty).map(Value::Object).map_err(|fault| match fault {
        Fault::Malformed(message) => Status::bad_request(message),
        Fault::DoesNotApply => Status::patch_does_not_apply(),
        Fault::Unfit(message) => Status::bad_request(message),
    })
}

/// The schema of one field.
struct FieldSchema<'r> {
    ty: TypeId,
    field: &'r Field,
}

impl FieldSchema<'_> {
    /// Whether the field is merged or replaced; empty if the schema does not specify it.
    fn strategy(&self) -> &str {
        let strategies = self.field.patch.iter().flat_map(|fact| &fact.strategies);
        strategies.map(String::as_str).find(|strategy| *strategy != "retainKeys").unwrap_or_default()
    }

    fn identity(&self) -> Identity<'_> {
        Identity(self.field.patch.as_ref().and_then(|fact| fact.key.as_deref()))
    }
}

struct Merge<'r> {
    registry: &'r Registry,
}

impl<'r> Merge<'r> {
    /// Merges two objects of type `ty`.
    fn objects(&self, mut original: Object, patch: &mut Object, ty: TypeId) -> Merged<Object> {
        if let Some(directive) = patch.get(DIRECTIVE) {
            return match directive.as_str() {
                Some("replace") => {
                    patch.remove(DIRECTIVE);
                    Ok(patch.clone())
                }
                Some("delete") => Ok(Object::new()),
                _ => {
                    let (directive, patch) = (printed(directive), printed(&Value::Object(patch.clone())));
                    Err(Fault::Unfit(format!("unknown patch type: {directive} in map: {patch}")))
                }
            };
        }
        retain_keys(&mut original, patch)?;
        self.ordered_lists(&mut original, patch, ty)?;
        for (key, change) in patch.iter_mut() {
            let deletes = key.starts_with(DELETE_FROM);
            let key = if deletes { directive_list(key, DELETE_FROM)? } else { key };
            if change.is_null() {
                original.remove(key);
                continue;
            }
            let before = original.remove(key);
            let after = match (before, change) {
                (Some(Value::Object(before)), Value::Object(change)) => {
                    let schema = self.schema_of(ty, key)?;
                    Some(Value::Object(if schema.strategy() == "replace" {
                        change.clone()
                    } else {
                        self.objects(before, change, schema.ty)?
                    }))
                }
                (Some(Value::Array(before)), Value::Array(change)) => {
                    let schema = self.list_schema_of(ty, key)?;
                    Some(Value::from(self.lists(before.into_items(), change, &schema, deletes)?))
                }
                (before, _) if deletes => before,
                (_, change) => {
                    discard_nulls(change);
                    without_directives(change)
                }
            };
            if let Some(after) = after {
                original.insert(key.to_owned(), after);
            }
        }
        Ok(original)
    }

    /// The schema of a field.
    fn schema_of(&self, ty: TypeId, key: &str) -> Merged<FieldSchema<'r>> {
        let unknown = |name: &str| {
            let key = quoted(key);
            Fault::Unfit(format!("unable to find api field in struct {name} for the json field {key}"))
        };
        let field = match self.registry.get(ty) {
            Type::Struct(structure) => structure.field(key).ok_or_else(|| unknown(&structure.name))?,
            Type::Scalar(Scalar::Raw) => return Err(unknown("RawExtension")),
            Type::Map(_) => {
                return Err(Fault::unfit(
                    "merging an object in json but data type is not struct, instead is: map",
                ));
            }
            _ => return Err(unknown(&self.registry.type_name(ty))),
        };
        Ok(FieldSchema { ty: field.ty, field })
    }

    /// The schema of a list's items.
    fn list_schema_of(&self, ty: TypeId, key: &str) -> Merged<FieldSchema<'r>> {
        let schema = self.schema_of(ty, key)?;
        match self.registry.get(schema.ty) {
            Type::List(list) if matches!(self.registry.get(list.item), Type::List(_)) => {
                Err(Fault::unfit("unexpected slice of slice"))
            }
            Type::List(list) => Ok(FieldSchema { ty: list.item, ..schema }),
            _ => Err(Fault::unfit("expected slice or array type, but got: struct")),
        }
    }

    /// Merges the lists whose order the patch sets, and removes them from the patch.
    fn ordered_lists(&self, original: &mut Object, patch: &mut Object, ty: TypeId) -> Merged<()> {
        let orders: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
        for order_key in orders {
            let Some(order) = patch.remove(&order_key) else { continue };
            let Value::Array(order) = order else { return Err(wrong_type("[]interface {}", &order)) };
            let key = directive_list(&order_key, SET_ORDER)?;
            let before = list(original.get(key))?;
            let change = list(patch.get(key))?;
            let schema = self.list_schema_of(ty, key)?;
            let identity = schema.identity();
            check_order(change.unwrap_or_default(), &order, identity)?;
            let lists = [before.unwrap_or_default(), change.unwrap_or_default()];
            let merged = match (before, change) {
                (None, None) => continue,
                (Some(before), None) => before.to_vec(),
                (None, Some(change)) => items_without_directives(&mut change.to_vec()),
                (Some(before), Some(change)) => {
                    self.lists(before.to_vec(), &mut change.to_vec(), &schema, false)?
                }
            };
            let (listed, unlisted) = split_by_identity(merged, &order, identity)?;
            element_kind(&lists)?;
            let all = interleave(listed, unlisted, &order, before.unwrap_or_default(), identity)?;
            let key = key.to_owned();
            patch.remove(&key);
            original.insert(key, Value::Array(all.into()));
        }
        Ok(())
    }

    /// Merges two lists, or removes the items of the second from the first.
    fn lists(
        &self,
        original: Vec<Value>,
        patch: &mut [Value],
        schema: &FieldSchema<'r>,
        deletes: bool,
    ) -> Merged<Vec<Value>> {
        if schema.strategy() != "merge" && !deletes {
            return Ok(patch.to_vec());
        }
        if original.is_empty() && patch.is_empty() {
            return Ok(original);
        }
        let identity = schema.identity();
        let kind = element_kind(&[&original, patch])?;
        let (original, patch, merged) = if kind == "map" {
            let Some(key) = identity.0 else {
                return Err(Fault::unfit("cannot merge lists without merge key for struct"));
            };
            let (original, mut plain) = execute_item_directives(original, patch, key, identity)?;
            let (original, merged) = self.items(original, &mut plain, identity, schema.ty)?;
            (original, plain.into_iter().map(|item| item.clone()).collect(), merged)
        } else if deletes {
            let deleted: HashSet<Vec<u8>> = patch.iter().map(to_json).collect();
            return Ok(original.into_iter().filter(|item| !deleted.contains(&to_json(item))).collect());
        } else {
            let mut seen = HashSet::new();
            let both = original.iter().chain(patch.iter());
            let merged = both.filter(|item| seen.insert(to_json(item))).cloned().collect();
            (original, patch.to_vec(), merged)
        };
        let (listed, unlisted) = split_by_identity(merged, &patch, identity)?;
        interleave(listed, unlisted, &patch, &original, identity)
    }

    /// Merges items that are objects: existing ones in place, new ones behind them.
    fn items(
        &self,
        mut original: Vec<Value>,
        patch: &mut [&mut Value],
        identity: Identity<'_>,
        ty: TypeId,
    ) -> Merged<(Vec<Value>, Vec<Value>)> {
        let mut positions = identity.positions(&original);
        let original_len = original.len();
        for item in patch.iter_mut() {
            let name = identity.required(item)?;
            if let Some(existing) = positions.get(&name).and_then(|index| original.get_mut(*index)) {
                let (Value::Object(before), Value::Object(change)) = (std::mem::take(existing), &mut **item)
                else {
                    continue;
                };
                *existing = Value::Object(self.objects(before, change, ty)?);
            } else {
                positions.insert(name, original.len());
                original.push((*item).clone());
            }
        }
        let before = original.get(..original_len).unwrap_or_default().to_vec();
        Ok((before, original))
    }
}

/// Executes the directives among the items of a patch. Returns the rest of the original, and the patch without them.
fn execute_item_directives<'p>(
    mut original: Vec<Value>,
    patch: &'p mut [Value],
    key: &str,
    identity: Identity<'_>,
) -> Merged<(Vec<Value>, Vec<&'p mut Value>)> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut deleted = HashSet::new();
    let mut replaces = false;
    for item in patch {
        let Some(fields) = item.fields() else { continue };
        match fields.get(DIRECTIVE) {
            None => plain.push(item),
            Some(Value::String(directive)) if directive == "replace" => replaces = true,
            Some(Value::String(directive)) if directive == "merge" => {
                return Err(Fault::unfit("merging lists cannot yet be specified in the patch"));
            }
            Some(_) if is_deletion(fields) => {
                deleted.insert(identity.of_item(item).ok_or_else(|| no_merge_key(fields, key))?);
            }
            Some(directive) => {
                let (directive, item) = (printed(directive), printed(item));
                return Err(Fault::Unfit(format!("unknown patch type: {directive} in map: {item}")));
            }
        }
    }
    if replaces {
        return Ok((plain.into_iter().map(|item| item.clone()).collect(), Vec::new()));
    }
    original.retain(|item| identity.of_item(item).is_none_or(|identity| !deleted.contains(&identity)));
    Ok((original, plain))
}

/// Drops the fields that `$retainKeys` does not list.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Merged<()> {
    const MALFORMED: Fault = Fault::Malformed("invalid patch format of retainKeys");
    let Some(retained) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(retained) = retained else { return Err(MALFORMED) };
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let is_directive = |key: &str| key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
    if patch
        .iter()
        .any(|(key, value)| !value.is_null() && !is_directive(key) && !retained.contains(key.as_str()))
    {
        return Err(MALFORMED);
    }
    original.retain(|key, _| retained.contains(key.as_str()));
    Ok(())
}

/// The name of the list that a directive is about.
fn directive_list<'k>(key: &'k str, directive: &'static str) -> Merged<&'k str> {
    let list = key.strip_prefix(directive).and_then(|rest| rest.strip_prefix('/'));
    list.ok_or(Fault::Malformed(if directive == SET_ORDER {
        "invalid patch format of setElementOrder list"
    } else {
        "invalid patch format of primitive list"
    }))
}

fn list(value: Option<&Value>) -> Merged<Option<&[Value]>> {
    match value {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(other) => Err(wrong_type("[]interface {}", other)),
    }
}

/// Checks that the order lists the items of the patch in the same order.
fn check_order(patch: &[Value], order: &[Value], identity: Identity<'_>) -> Merged<()> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    if identity.0.is_some()
        && let Some(item) = patch.iter().find(|item| item.fields().is_none())
    {
        return Err(wrong_type("map[string]interface {}", item));
    }
    let deletes = |item: &&Value| identity.0.is_some() && item.fields().is_some_and(is_deletion);
    let mut rest = order.iter();
    for item in patch.iter().filter(|item| !deletes(item)) {
        if item.fields().is_some_and(|fields| fields.contains_key(DIRECTIVE)) {
            continue;
        }
        let name = identity.required(item)?;
        let mut is_present = false;
        for candidate in rest.by_ref() {
            if identity.required(candidate)? == name {
                is_present = true;
                break;
            }
        }
        if !is_present {
            let render = |items: &[Value]| printed(&Value::Array(items.to_vec().into()));
            return Err(Fault::Unfit(format!(
                "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
                render(patch),
                render(order)
            )));
        }
    }
    Ok(())
}

/// Removes null fields: there is nothing that they could remove.
fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// A value without objects that are only directives; `None` if it is one itself.
fn without_directives(value: &mut Value) -> Option<Value> {
    match value {
        Value::Array(items) => Some(Value::from(items_without_directives(items))),
        other => remove_directives(other).then(|| other.clone()),
    }
}

/// The items of a list without directives; the list itself keeps its length.
fn items_without_directives(items: &mut [Value]) -> Vec<Value> {
    items.iter_mut().filter_map(|item| remove_directives(item).then(|| item.clone())).collect()
}

/// Removes directive objects from a value. Returns false if the value itself is one.
fn remove_directives(value: &mut Value) -> bool {
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => return false,
        Value::Object(fields) => fields.retain(|_, value| remove_directives(value)),
        Value::Array(items) => items.retain_mut(remove_directives),
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::json;

    static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

    fn merged(original: &str, patch: &str) -> std::result::Result<String, (u16, String)> {
        let registry = &*REGISTRY;
        let ty = registry.kind("", "v1", "Pod").unwrap();
        let read = |text: &str| json::read(text.as_bytes()).unwrap();
        let result = apply(registry, ty, read(original), &mut read(patch));
        result
            .map(|value| String::from_utf8(to_json(&value)).unwrap())
            .map_err(|status| (status.code, status.message))
    }

    fn pod(original: &str, patch: &str) -> std::result::Result<String, (u16, String)> {
        let inside = |spec: &str| format!(r#"{{"spec":{spec}}}"#);
        let object = merged(&inside(original), &inside(patch))?;
        Ok(object.strip_prefix(r#"{"spec":"#).unwrap().strip_suffix('}').unwrap().to_owned())
    }

    #[test]
    fn lists_are_merged_by_their_key() {
        let two = r#"{"containers":[{"image":"1","name":"a"},{"image":"2","name":"b"}]}"#;
        for (patch, result) in [
            (r#"[{"name":"b","image":"9"}]"#, r#"[{"image":"1","name":"a"},{"image":"9","name":"b"}]"#),
            // New items come before those that only the server has.
            (r#"[{"name":"c"}]"#, r#"[{"name":"c"},{"image":"1","name":"a"},{"image":"2","name":"b"}]"#),
            (r#"[{"name":"a","$patch":"delete"}]"#, r#"[{"image":"2","name":"b"}]"#),
            (r#"[{"name":"z","$patch":"delete"}]"#, r#"[{"image":"1","name":"a"},{"image":"2","name":"b"}]"#),
            (r#"[{"$patch":"replace"},{"name":"z"}]"#, r#"[{"name":"z"}]"#),
            (r#"[{"name":"b","image":null},{"name":"a"}]"#, r#"[{"name":"b"},{"image":"1","name":"a"}]"#),
        ] {
            let patch = format!(r#"{{"containers":{patch}}}"#);
            assert_eq!(pod(two, &patch).unwrap(), format!(r#"{{"containers":{result}}}"#), "{patch}");
        }
    }

    #[test]
    fn set_element_order_orders_a_list() {
        let three = r#"{"containers":[{"name":"a"},{"name":"b"},{"name":"c"}]}"#;
        for (patch, result) in [
            (r#"{"$setElementOrder/containers":[{"name":"c"},{"name":"a"}]}"#, "b,c,a"),
            (
                r#"{"$setElementOrder/containers":[{"name":"d"},{"name":"a"}],"containers":[{"name":"d"}]}"#,
                "d,a,b,c",
            ),
            (r#"{"$setElementOrder/containers":[{"name":"c"},{"name":"b"},{"name":"a"}]}"#, "c,b,a"),
            (
                r#"{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],"containers":[{"name":"c","$patch":"delete"}]}"#,
                "b,a",
            ),
        ] {
            let merged = json::read(pod(three, patch).unwrap().as_bytes()).unwrap();
            let names: Vec<&str> =
                merged.get("containers").unwrap().items().iter().map(|item| item.str("name")).collect();
            assert_eq!(names.join(","), result, "{patch}");
        }
    }

    #[test]
    fn primitive_lists_are_merged_or_replaced_by_schema() {
        let patched = |patch: &str| {
            let original = r#"{"metadata":{"finalizers":["a","b","c"]}}"#;
            let patch = format!(r#"{{"metadata":{patch}}}"#);
            merged(original, &patch).unwrap()
        };
        let finalizers = |items: &str| format!(r#"{{"metadata":{{"finalizers":[{items}]}}}}"#);
        assert_eq!(patched(r#"{"finalizers":["d","b"]}"#), finalizers(r#""d","a","b","c""#));
        assert_eq!(patched(r#"{"$deleteFromPrimitiveList/finalizers":["b","x"]}"#), finalizers(r#""a","c""#));
        assert_eq!(patched(r#"{"$setElementOrder/finalizers":["c","a"]}"#), finalizers(r#""b","c","a""#));
        let args = pod(
            r#"{"containers":[{"args":["a"],"name":"a"}]}"#,
            r#"{"containers":[{"args":["b"],"name":"a"}]}"#,
        );
        assert_eq!(args.unwrap(), r#"{"containers":[{"args":["b"],"name":"a"}]}"#);
    }

    #[test]
    fn directives_of_objects_are_executed() {
        for (patch, result) in [
            (r#"{"labels":{"b":"2","a":null,"z":null}}"#, r#"{"labels":{"b":"2"}}"#),
            (r#"{"labels":{"$patch":"replace","c":"3"}}"#, r#"{"labels":{"c":"3"}}"#),
            (r#"{"labels":{"$patch":"delete"}}"#, r#"{"labels":{}}"#),
            (r#"{"annotations":{"$patch":"nope"}}"#, r#"{"labels":{"a":"1"}}"#),
            (r#"{"annotations":{"x":null,"y":"1"}}"#, r#"{"annotations":{"y":"1"},"labels":{"a":"1"}}"#),
            (r#"{"$retainKeys":["name"],"name":"n"}"#, r#"{"name":"n"}"#),
            (r#"{"$retainKeys":[],"labels":null}"#, "{}"),
        ] {
            let (original, patch) =
                (r#"{"metadata":{"labels":{"a":"1"}}}"#, format!(r#"{{"metadata":{patch}}}"#));
            let expected = format!(r#"{{"metadata":{result}}}"#);
            assert_eq!(merged(original, &patch).unwrap(), expected, "{patch}");
        }
        assert_eq!(merged(r#"{"a":1}"#, "null").unwrap(), r#"{"a":1}"#);
    }

    #[test]
    fn malformed_strategic_patches_have_the_reference_message() {
        let original = r#"{"containers":[{"name":"a"}],"hostAliases":[{"ip":"1","hostnames":["h"]}]}"#;
        for (patch, code, message) in [
            (r#"{"$retainKeys":"x"}"#, 400, "invalid patch format of retainKeys"),
            (r#"{"$retainKeys":[],"nodeName":"x"}"#, 400, "invalid patch format of retainKeys"),
            (r#"{"$setElementOrder":[]}"#, 400, "invalid patch format of setElementOrder list"),
            (r#"{"$deleteFromPrimitiveListx":[]}"#, 400, "invalid patch format of primitive list"),
            (
                r#"{"$setElementOrder/containers":{}}"#,
                400,
                "expected a []interface {}, but received a map[string]interface {}",
            ),
            (
                r#"{"$setElementOrder/nope":["a"]}"#,
                400,
                "unable to find api field in struct PodSpec for the json field \"nope\"",
            ),
            (r#"{"$patch":"nope"}"#, 400, "unknown patch type: nope in map: map[$patch:nope]"),
            (
                r#"{"containers":[{"name":"a","$patch":"merge"}]}"#,
                400,
                "merging lists cannot yet be specified in the patch",
            ),
            (
                r#"{"containers":[{"image":"x"}]}"#,
                400,
                "map: map[image:x] does not contain declared merge key: name",
            ),
            (
                r#"{"containers":[{"$patch":"delete"}]}"#,
                400,
                "map: map[$patch:delete] does not contain declared merge key: name",
            ),
            (r#"{"containers":["x"]}"#, 400, "list element types are not identical: [[map[name:a]] [x]]"),
            (
                r#"{"$setElementOrder/containers":[{"name":"b"}],"containers":[{"name":"a"}]}"#,
                400,
                "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
            ),
        ] {
            assert_eq!(pod(original, patch).unwrap_err(), (code, message.to_owned()), "{patch}");
        }
    }

    /// Containers with different names, in any order.
    fn any_containers() -> impl Strategy<Value = String> {
        let names = proptest::sample::subsequence(vec!["a", "b", "c", "d", "e", "f"], 0..=6).prop_shuffle();
        (names, 0..3u8).prop_map(|(names, image)| {
            let item = |name| format!(r#"{{"image":"{image}","name":"{name}"}}"#);
            names.into_iter().map(item).collect::<Vec<_>>().join(",")
        })
    }

    proptest! {
        #[test]
        fn strategic_merge_is_idempotent_and_keeps_the_order_of_the_patch(
            original in any_containers(),
            patch in any_containers(),
        ) {
            let spec = |items: &str| format!(r#"{{"containers":[{items}]}}"#);
            let once = pod(&spec(&original), &spec(&patch)).unwrap();
            prop_assert_eq!(&pod(&once, &spec(&patch)).unwrap(), &once);
            let items = |text: &str| json::read(text.as_bytes()).unwrap().get("containers").unwrap().items().to_vec();
            let (expected, merged) = (items(&spec(&patch)), items(&once));
            // All items of the patch are there, in its order.
            let patched: Vec<Value> = merged.into_iter().filter(|item| expected.contains(item)).collect();
            prop_assert_eq!(patched, expected);
        }
    }

    #[test]
    fn merging_long_lists_takes_linear_time() {
        let items = |from: usize, to: usize| {
            let item = |n| format!(r#"{{"name":"n{n}","value":"v"}}"#);
            (from..to).map(item).collect::<Vec<_>>().join(",")
        };
        let spec = |env: &str| format!(r#"{{"containers":[{{"name":"a","env":[{env}]}}]}}"#);
        let merged = pod(&spec(&items(0, 20_000)), &spec(&items(10_000, 30_000))).unwrap();
        assert_eq!(merged.matches("\"value\"").count(), 30_000);
    }
}
