//! Rows of webhook configurations and admission policies.

use pilothouse_apimachinery::value::Value;

use super::Printer;
use super::cells::{PrintedObject, UNSET, cells};
use super::labels::selector_in_full;

/// The printer of a kind.
pub fn printer(kind: &str) -> Option<Printer> {
    Some(match kind {
        "MutatingAdmissionPolicy" => |it| policy(it, "spec.mutations"),
        "ValidatingAdmissionPolicy" => |it| policy(it, "spec.validations"),
        "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding" => binding,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => webhooks,
        _ => return None,
    })
}

fn webhooks(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.count("webhooks"), it.age()]
}

fn policy(it: &PrintedObject<'_>, rules: &str) -> Vec<Value> {
    let params = it.at("spec.paramKind").map_or_else(
        || UNSET.to_owned(),
        |params| format!("{}/{}", params.str("apiVersion"), params.str("kind")),
    );
    cells![it.name(), it.count(rules), params, it.age()]
}

fn binding(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.text("spec.policyName"), params(it.at("spec.paramRef")), it.age()]
}

/// The parameters that a binding names. Without a namespace they may stand in any.
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
    use crate::print::testing::shows;

    const GROUP: &str = "admissionregistration.k8s.io";

    #[test]
    fn configurations_count_their_rules() {
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
            shows(GROUP, kind, &format!(r#"{{"metadata":{{"name":"x"}},{content}}}"#), row);
        }
    }

    #[test]
    fn bindings_name_their_parameters() {
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
                shows(GROUP, kind, &object, &format!(r#"["x","p","{cell}","<unknown>"]"#));
            }
        }
    }
}
