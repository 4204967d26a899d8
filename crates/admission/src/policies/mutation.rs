//! Evaluates the mutations of a MutatingAdmissionPolicy.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::RULES_COST;
use pilothouse_cel::{ConstructedObject, JSON_PATCH, NativeError, SizeBudget, Val};

use super::decision::AuthorizationPending;
use super::evaluate::{Inputs, StopReason, USED_UP, value};
use super::policy::{Mutation, Policy};

/// The result of a mutation.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectMutation {
    /// An apply configuration: a partial object to merge.
    Configuration(Value),
    /// A JSON Patch as text.
    Patch(Vec<u8>),
}

/// Evaluates a mutation.
pub fn evaluate_mutation(
    policy: &Policy,
    mutation: &Mutation,
    inputs: Inputs<'_>,
) -> Result<Result<ObjectMutation, String>, AuthorizationPending> {
    let expression = mutation.expression();
    if let Err(why) = &expression.program {
        return Ok(Err(why.clone()));
    }
    let mut budget = RULES_COST;
    let read = |made: &Val<'_>| match mutation {
        Mutation::Configuration(_) => configuration(made),
        Mutation::Patch(_) => operations(made),
    };
    match value(&policy.variables, expression, inputs, &mut budget, read) {
        Ok(made) => Ok(made.and_then(|read| read)),
        Err(StopReason::UsedUp) => Ok(Err(USED_UP.to_owned())),
        Err(StopReason::Unanswered) => Err(AuthorizationPending),
    }
}

fn configuration(made: &Val<'_>) -> Result<ObjectMutation, String> {
    let Val::Made(object) = made else {
        let kind = made.type_name();
        return Err(format!("unsupported return type from ApplyConfiguration expression: {kind}"));
    };
    well_placed(object)?;
    match SizeBudget::default().exact(made) {
        Ok(object) => Ok(ObjectMutation::Configuration(object)),
        Err(NativeError::TooLarge) => Err(USED_UP.to_owned()),
        Err(NativeError::Because(why)) => {
            Err(format!("error applying patch: failed to convert patch object to typed object: {why}"))
        }
    }
}

/// Checks that the type of each nested object matches its path.
fn well_placed(object: &ConstructedObject<'_>) -> Result<(), String> {
    match object.misplaced() {
        Ok(None) => Ok(()),
        Ok(Some(wrong)) => Err(format!("type mismatch: {wrong}")),
        Err(_) => Err(USED_UP.to_owned()),
    }
}

fn operations(made: &Val<'_>) -> Result<ObjectMutation, String> {
    let Val::List(list) = made else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut room = SizeBudget::default();
    let mut all = Vec::new();
    for item in list.iter() {
        match item {
            Ok(Val::Made(operation)) if operation.name() == JSON_PATCH => {
                all.push(one_operation(&operation, &mut room)?);
            }
            other => {
                let kind = other.as_ref().map_or("error", Val::type_name).to_owned();
                return Err(format!(
                    "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {kind}"
                ));
            }
        }
    }
    Ok(ObjectMutation::Patch(json::to_json(&Value::Array(all.into()))))
}

fn one_operation(operation: &ConstructedObject<'_>, room: &mut SizeBudget) -> Result<Value, String> {
    const UNSHOWN: &str = "JSONPath valueExpression evaluated to a type that could not marshal to JSON";
    let mut shown = Value::object();
    for (name, value) in operation.fields() {
        if let Val::Made(object) = value {
            well_placed(object)?;
        }
        let value = match room.json(value) {
            Ok(value) => value,
            Err(NativeError::TooLarge) => return Err(USED_UP.to_owned()),
            Err(NativeError::Because(why)) => return Err(format!("{UNSHOWN}: {why}")),
        };
        // An empty `from` counts as absent.
        if *name != "from" || value.as_str() != Some("") {
            shown.set(name, value);
        }
    }
    for name in ["op", "path"] {
        if shown.get(name).is_none() {
            shown.set(name, "");
        }
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::authorizer::{AuthorizationResult, Authorizer, RequestTarget};

    fn read(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    fn policy(field: &str, kind: &str, expression: &str) -> Policy {
        let mut mutation = Value::object();
        mutation.set("patchType", kind);
        mutation.entry(field).set("expression", expression);
        let mut policy = read(
            r#"{"metadata":{"name":"p"},"spec":{"variables":[{"name":"n","expression":"object.n + 1"}]}}"#,
        );
        policy.entry("spec").set("mutations", vec![mutation]);
        Policy::read(&policy)
    }

    fn changed_with(
        policy: &Policy,
        rights: &Authorizer,
    ) -> Result<Result<ObjectMutation, String>, AuthorizationPending> {
        let object = read(r#"{"n":2,"labels":{"a":"b"}}"#);
        let nothing = Value::Null;
        let inputs = Inputs {
            object: &object,
            old: &nothing,
            params: &nothing,
            request: &nothing,
            namespace: &nothing,
            rights: Some(rights),
        };
        evaluate_mutation(policy, policy.mutations.first().unwrap(), inputs)
    }

    fn changed(policy: &Policy) -> Result<ObjectMutation, String> {
        changed_with(policy, &Authorizer::new(RequestTarget::default())).unwrap()
    }

    #[test]
    fn a_configuration_is_what_an_object_shall_say() {
        let configured =
            |expression: &str| changed(&policy("applyConfiguration", "ApplyConfiguration", expression));
        assert_eq!(
            configured("Object{spec: Object.spec{n: variables.n, labels: object.labels}}"),
            Ok(ObjectMutation::Configuration(read(r#"{"spec":{"n":3,"labels":{"a":"b"}}}"#)))
        );
        for (expression, why) in [
            ("Object.spec{}", "must evaluate to Object but got Object.spec"),
            ("Object{a: object.b}", "expression 'Object{a: object.b}' resulted in error: no such key: b"),
            (
                "object.n > 5 ? Object{} : null",
                "unsupported return type from ApplyConfiguration expression: null_type",
            ),
            (
                "Object{a: {1: 2}}",
                "error applying patch: failed to convert patch object to typed object: .a: keys of type int cannot stand in an \
                 object",
            ),
            (
                "Object{a: [Object.a{b: null}]}",
                "error applying patch: failed to convert patch object to typed object: .a[0].b: a value of type null_type \
                 cannot stand in an object",
            ),
            (
                "Object{a: Object.b{}}",
                "type mismatch: unexpected type name \"Object.b\", expected \"Object.a\", which matches field name path \
                 from root Object type",
            ),
        ] {
            assert_eq!(configured(expression), Err(why.to_owned()), "{expression}");
        }
    }

    #[test]
    fn a_patch_is_a_list_of_operations() {
        let patched = |expression: &str| match changed(&policy("jsonPatch", "JSONPatch", expression)) {
            Ok(ObjectMutation::Patch(patch)) => Ok(read(std::str::from_utf8(&patch).unwrap())),
            Ok(other) => panic!("{other:?}"),
            Err(why) => Err(why),
        };
        assert_eq!(
            patched(
                "[JSONPatch{op: 'add', path: '/a', value: Object.a{b: variables.n}}] + \
                 ['x'].map(x, JSONPatch{op: 'move', from: '/' + x, path: '/y'}) + [JSONPatch{from: '', value: null}]"
            ),
            Ok(read(
                r#"[{"op":"add","path":"/a","value":{"b":3}},{"from":"/x","op":"move","path":"/y"},{"op":"","path":"","value":null}]"#
            ))
        );
        for (expression, why) in [
            ("[1]", "must evaluate to list(JSONPatch) but got list(int)"),
            (
                "[JSONPatch{value: quantity('1')}]",
                "JSONPath valueExpression evaluated to a type that could not marshal to JSON: type conversion error from \
                 'Quantity' to '*structpb.Value'",
            ),
        ] {
            assert_eq!(patched(expression), Err(why.to_owned()), "{expression}");
        }
    }

    #[test]
    fn a_change_waits_for_answers() {
        let asking = policy(
            "applyConfiguration",
            "ApplyConfiguration",
            "Object{a: authorizer.path('/x').check('get').allowed()}",
        );
        let rights = Authorizer::new(RequestTarget::default());
        assert_eq!(changed_with(&asking, &rights), Err(AuthorizationPending));
        for question in rights.answers.wanted() {
            rights
                .answers
                .tell(question, AuthorizationResult { allowed: true, ..AuthorizationResult::default() });
        }
        let wanted = ObjectMutation::Configuration(read(r#"{"a":true}"#));
        assert_eq!(changed_with(&asking, &rights), Ok(Ok(wanted)));
    }
}
