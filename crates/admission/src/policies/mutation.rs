//! Evaluates the mutations of a MutatingAdmissionPolicy.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::RULES_COST;
use pilothouse_cel::{ConstructedObject, JSON_PATCH, NativeError, SizeBudget, Val};

use super::decision::AuthorizationPending;
use super::evaluate::{BUDGET_EXCEEDED, Inputs, StopReason, evaluate_value};
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
    if let Err(error) = &expression.program {
        return Ok(Err(error.clone()));
    }
    let mut budget = RULES_COST;
    let read = |value: &Val<'_>| match mutation {
        Mutation::Configuration(_) => to_configuration(value),
        Mutation::Patch(_) => to_patch(value),
    };
    match evaluate_value(&policy.variables, expression, inputs, &mut budget, read) {
        Ok(result) => Ok(result.and_then(|mutation| mutation)),
        Err(StopReason::BudgetExceeded) => Ok(Err(BUDGET_EXCEEDED.to_owned())),
        Err(StopReason::AuthorizationPending) => Err(AuthorizationPending),
    }
}

fn to_configuration(value: &Val<'_>) -> Result<ObjectMutation, String> {
    let Val::Constructed(object) = value else {
        let kind = value.type_name();
        return Err(format!("unsupported return type from ApplyConfiguration expression: {kind}"));
    };
    check_type_paths(object)?;
    match SizeBudget::default().to_object(value) {
        Ok(object) => Ok(ObjectMutation::Configuration(object)),
        Err(NativeError::TooLarge) => Err(BUDGET_EXCEEDED.to_owned()),
        Err(NativeError::Unsupported(error)) => {
            Err(format!("error applying patch: failed to convert patch object to typed object: {error}"))
        }
    }
}

/// Checks that the type of each nested object matches its path.
fn check_type_paths(object: &ConstructedObject<'_>) -> Result<(), String> {
    match object.type_path_errors() {
        Ok(None) => Ok(()),
        Ok(Some(errors)) => Err(format!("type mismatch: {errors}")),
        Err(_) => Err(BUDGET_EXCEEDED.to_owned()),
    }
}

fn to_patch(value: &Val<'_>) -> Result<ObjectMutation, String> {
    let Val::List(list) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut budget = SizeBudget::default();
    let mut operations = Vec::new();
    for item in list.iter() {
        match item {
            Ok(Val::Constructed(operation)) if operation.name() == JSON_PATCH => {
                operations.push(to_operation(&operation, &mut budget)?);
            }
            other => {
                let kind = other.as_ref().map_or("error", Val::type_name).to_owned();
                return Err(format!(
                    "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {kind}"
                ));
            }
        }
    }
    Ok(ObjectMutation::Patch(json::to_json(&Value::Array(operations.into()))))
}

fn to_operation(operation: &ConstructedObject<'_>, budget: &mut SizeBudget) -> Result<Value, String> {
    const UNSUPPORTED: &str = "JSONPath valueExpression evaluated to a type that could not marshal to JSON";
    let mut json = Value::object();
    for (name, value) in operation.fields() {
        if let Val::Constructed(object) = value {
            check_type_paths(object)?;
        }
        let value = match budget.to_json(value) {
            Ok(value) => value,
            Err(NativeError::TooLarge) => return Err(BUDGET_EXCEEDED.to_owned()),
            Err(NativeError::Unsupported(error)) => return Err(format!("{UNSUPPORTED}: {error}")),
        };
        // An empty `from` counts as absent.
        if *name != "from" || value.as_str() != Some("") {
            json.set(name, value);
        }
    }
    for name in ["op", "path"] {
        if json.get(name).is_none() {
            json.set(name, "");
        }
    }
    Ok(json)
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

    fn evaluate_with(
        policy: &Policy,
        authorizer: &Authorizer,
    ) -> Result<Result<ObjectMutation, String>, AuthorizationPending> {
        let object = read(r#"{"n":2,"labels":{"a":"b"}}"#);
        let null = Value::Null;
        let inputs = Inputs {
            object: &object,
            old: &null,
            params: &null,
            request: &null,
            namespace: &null,
            authorizer: Some(authorizer),
        };
        evaluate_mutation(policy, policy.mutations.first().unwrap(), inputs)
    }

    fn evaluate(policy: &Policy) -> Result<ObjectMutation, String> {
        evaluate_with(policy, &Authorizer::new(RequestTarget::default())).unwrap()
    }

    #[test]
    fn apply_configuration_evaluates_to_object() {
        let evaluate_configuration =
            |expression: &str| evaluate(&policy("applyConfiguration", "ApplyConfiguration", expression));
        assert_eq!(
            evaluate_configuration("Object{spec: Object.spec{n: variables.n, labels: object.labels}}"),
            Ok(ObjectMutation::Configuration(read(r#"{"spec":{"n":3,"labels":{"a":"b"}}}"#)))
        );
        for (expression, error) in [
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
            assert_eq!(evaluate_configuration(expression), Err(error.to_owned()), "{expression}");
        }
    }

    #[test]
    fn json_patch_evaluates_to_operations() {
        let evaluate_patch = |expression: &str| match evaluate(&policy("jsonPatch", "JSONPatch", expression))
        {
            Ok(ObjectMutation::Patch(patch)) => Ok(read(std::str::from_utf8(&patch).unwrap())),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        assert_eq!(
            evaluate_patch(
                "[JSONPatch{op: 'add', path: '/a', value: Object.a{b: variables.n}}] + \
                 ['x'].map(x, JSONPatch{op: 'move', from: '/' + x, path: '/y'}) + [JSONPatch{from: '', value: null}]"
            ),
            Ok(read(
                r#"[{"op":"add","path":"/a","value":{"b":3}},{"from":"/x","op":"move","path":"/y"},{"op":"","path":"","value":null}]"#
            ))
        );
        for (expression, error) in [
            ("[1]", "must evaluate to list(JSONPatch) but got list(int)"),
            (
                "[JSONPatch{value: quantity('1')}]",
                "JSONPath valueExpression evaluated to a type that could not marshal to JSON: type conversion error from \
                 'Quantity' to '*structpb.Value'",
            ),
        ] {
            assert_eq!(evaluate_patch(expression), Err(error.to_owned()), "{expression}");
        }
    }

    #[test]
    fn mutation_waits_for_authorization_checks() {
        let policy = policy(
            "applyConfiguration",
            "ApplyConfiguration",
            "Object{a: authorizer.path('/x').check('get').allowed()}",
        );
        let authorizer = Authorizer::new(RequestTarget::default());
        assert_eq!(evaluate_with(&policy, &authorizer), Err(AuthorizationPending));
        for check in authorizer.cache.pending() {
            authorizer
                .cache
                .record(check, AuthorizationResult { allowed: true, ..AuthorizationResult::default() });
        }
        let expected = ObjectMutation::Configuration(read(r#"{"a":true}"#));
        assert_eq!(evaluate_with(&policy, &authorizer), Ok(Ok(expected)));
    }
}
