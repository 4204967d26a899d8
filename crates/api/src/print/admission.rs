//! Rows of webhook configurations and admission policies.

use pilothouse_apimachinery::value::Value;

use super::Printer;
use super::cells::{PrintedObject, UNSET, cells};
use super::labels::selector_in_full;

/// The printer of a kind.
pub fn printer(kind: &str) -> Option<Printer> {
    Some(match kind {
        "MutatingAdmissionPolicy" => |object| policy(object, "spec.mutations"),
        "ValidatingAdmissionPolicy" => |object| policy(object, "spec.validations"),
        "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding" => binding,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => webhooks,
        _ => return None,
    })
}

fn webhooks(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.count("webhooks"), object.age()]
}

fn policy(object: &PrintedObject<'_>, rules: &str) -> Vec<Value> {
    let params = object.field("spec.paramKind").map_or_else(
        || UNSET.to_owned(),
        |params| format!("{}/{}", params.str("apiVersion"), params.str("kind")),
    );
    cells![object.name(), object.count(rules), params, object.age()]
}

fn binding(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.text("spec.policyName"), params(object.field("spec.paramRef")), object.age()]
}

/// The parameters of a binding. Without a namespace they may be in any.
fn params(reference: Option<&Value>) -> String {
    let Some(reference) = reference else { return UNSET.to_owned() };
    match (reference.str("namespace"), reference.str("name"), reference.get("selector")) {
        (_, "", None) => UNSET.to_owned(),
        (_, "", Some(selector)) => selector_in_full(selector),
        ("", name, _) => format!("*/{name}"),
        (namespace, name, _) => format!("{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    const GROUP: &str = "admissionregistration.k8s.io";

    #[test]
    fn webhook_and_policy_cells_count_rules() {
        for (kind, content, row) in [
            ("MutatingWebhookConfiguration", r#""webhooks":[{},{}]"#, r#"["x",2,"<unknown>"]"#),
            ("ValidatingWebhookConfiguration", r#""webhooks":[{}]"#, r#"["x",1,"<unknown>"]"#),
            (
                "ValidatingAdmissionPolicy",
                r#""spec":{"validations":[{},{}]}"#,
                r#"["x",2,"<unset>","<unknown>"]"#,
            ),
            (
                "MutatingAdmissionPolicy",
                r#""spec":{"mutations":[{}],"paramKind":{"apiVersion":"v1","kind":"ConfigMap"}}"#,
                r#"["x",1,"v1/ConfigMap","<unknown>"]"#,
            ),
        ] {
            assert_cells(GROUP, kind, &format!(r#"{{"metadata":{{"name":"x"}},{content}}}"#), row);
        }
    }

    #[test]
    fn policy_binding_cells_show_parameters() {
        let full = "&LabelSelector{MatchLabels:map[string]string{a: b,c: d,},MatchExpressions:\
            []LabelSelectorRequirement{LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},}";
        for (reference, cell) in [
            ("null", "<unset>"),
            ("{}", "<unset>"),
            (r#"{"name":"n"}"#, "*/n"),
            (r#"{"name":"n","namespace":"s"}"#, "s/n"),
            (
                r#"{"selector":{"matchLabels":{"c":"d","a":"b"},
                    "matchExpressions":[{"key":"k","operator":"In","values":["x","y"]}]}}"#,
                full,
            ),
        ] {
            let object = format!(
                r#"{{"metadata":{{"name":"x"}},"spec":{{"policyName":"p","paramRef":{reference}}}}}"#
            );
            for kind in ["MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicyBinding"] {
                assert_cells(GROUP, kind, &object, &format!(r#"["x","p","{cell}","<unknown>"]"#));
            }
        }
    }
}
