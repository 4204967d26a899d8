//! Deprecated node labels: accepted in selectors, with a warning.

use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

/// Deprecated labels and their warnings.
const DEPRECATED: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// The stable name of a label that was renamed as it became stable.
pub fn stable_name(label: &str) -> Option<&'static str> {
    Some(match label {
        "failure-domain.beta.kubernetes.io/zone" => "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region" => "topology.kubernetes.io/region",
        "beta.kubernetes.io/os" => "kubernetes.io/os",
        "beta.kubernetes.io/arch" => "kubernetes.io/arch",
        "beta.kubernetes.io/instance-type" => "node.kubernetes.io/instance-type",
        _ => return None,
    })
}

/// The warning about a deprecated label.
pub fn deprecated(label: &str) -> Option<&'static str> {
    DEPRECATED.iter().find(|(old, _)| *old == label).map(|(_, warning)| *warning)
}

/// Warns about the labels of a node selector term. Values of preferred terms are not validated, so invalid ones give a warning.
pub fn warn_term(path: &FieldPath, term: &Value, only_preferred: bool, warnings: &mut WarningList) {
    let expressions = term.get("matchExpressions").map(Value::items).unwrap_or_default();
    for (index, expression) in expressions.iter().enumerate() {
        let expression_path = || path.child("matchExpressions").index(index);
        let key = expression.str("key");
        if let Some(warning) = deprecated(key) {
            warnings.push(format!("{}: {key} is {warning}", expression_path().child("key")));
        }
        let values = expression.get("values").map(Value::items).unwrap_or_default();
        for (position, value) in values.iter().enumerate().filter(|_| only_preferred) {
            let text = value.as_str().unwrap_or_default();
            for detail in names::label_value(text) {
                warnings.push(format!(
                    "{}: {text} is invalid, {detail}",
                    expression_path().child("values").index(position)
                ));
            }
        }
    }
}

/// Warns about the labels of a label selector for nodes.
pub fn warn_selector(path: &FieldPath, selector: Option<&Value>, warnings: &mut WarningList) {
    let Some(selector) = selector else { return };
    warn_term(path, selector, false, warnings);
    for (label, _) in selector.get("matchLabels").and_then(Value::fields).into_iter().flatten() {
        if let Some(warning) = deprecated(label) {
            warnings.push(format!("{}: {warning}", path.child("matchLabels").child(label)));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn deprecated_labels_give_warnings_with_their_path() {
        let term = object(
            r#"{"matchExpressions":[{"key":"beta.kubernetes.io/os","operator":"In","values":["-"]}],
                "matchLabels":{"app.kubernetes.io/created-by":"x"}}"#,
        );
        let mut warnings = WarningList::new();
        warn_term(&FieldPath::new("t"), &term, true, &mut warnings);
        assert_eq!(
            warnings[0],
            "t.matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead"
        );
        assert!(
            warnings[1].starts_with("t.matchExpressions[0].values[0]: - is invalid, a valid label must be")
        );
        warnings = WarningList::new();
        warn_selector(&FieldPath::new("s"), Some(&term), &mut warnings);
        assert_eq!(warnings[1], "s.matchLabels.app.kubernetes.io/created-by: deprecated since v1.9");
        assert_eq!(stable_name("beta.kubernetes.io/arch"), Some("kubernetes.io/arch"));
    }
}
