//! Scopes: the pods and claims that a quota covers.

use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::core::pod::qos_class;

/// One scope requirement of a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The name of the scope.
    pub name: String,
    /// The operator.
    pub operator: String,
    /// The values to compare with.
    pub values: Vec<String>,
}

impl Scope {
    /// All scopes of a quota's spec.
    pub fn from_spec(spec: &Value) -> Vec<Scope> {
        let named = spec.get("scopes").map(Value::items).unwrap_or_default().iter();
        let named = named.filter_map(Value::as_str).map(|name| Scope {
            name: name.to_owned(),
            operator: "Exists".to_owned(),
            values: Vec::new(),
        });
        let selected =
            spec.get_path(&["scopeSelector", "matchExpressions"]).map(Value::items).unwrap_or_default();
        named.chain(selected.iter().map(Scope::read)).collect()
    }

    /// Parses a requirement of a scope selector.
    pub fn read(requirement: &Value) -> Scope {
        let values = requirement.get("values").map(Value::items).unwrap_or_default();
        Scope {
            name: requirement.str("scopeName").to_owned(),
            operator: requirement.str("operator").to_owned(),
            values: values.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    /// The scope as messages print it.
    pub fn render(&self) -> String {
        format!("{{{} {} [{}]}}", self.name, self.operator, self.values.join(" "))
    }

    /// Whether a pod matches this scope.
    pub fn matches_pod(&self, pod: &Value) -> bool {
        match self.name.as_str() {
            "Terminating" => has_deadline(pod),
            "NotTerminating" => !has_deadline(pod),
            "BestEffort" => is_best_effort(pod),
            "NotBestEffort" => !is_best_effort(pod),
            "PriorityClass" => {
                let class = pod.get_path(&["spec", "priorityClassName"]).and_then(Value::as_str);
                self.selects(class.filter(|class| !class.is_empty()).as_slice())
            }
            "CrossNamespacePodAffinity" => has_cross_namespace_affinity(pod),
            _ => false,
        }
    }

    /// Whether a claim matches this scope. A claim that changes its class matches both.
    pub fn matches_claim(&self, claim: &Value) -> bool {
        const CLASSES: [&[&str]; 3] = [
            &["spec", "volumeAttributesClassName"],
            &["status", "currentVolumeAttributesClassName"],
            &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
        ];
        let classes = CLASSES.iter().filter_map(|path| claim.get_path(path)).filter_map(Value::as_str);
        let classes: Vec<&str> = classes.filter(|class| !class.is_empty()).collect();
        self.name == "VolumeAttributesClass" && self.selects(&classes)
    }

    /// Whether one of the names is selected; without any names, whether absence is.
    fn selects(&self, names: &[&str]) -> bool {
        let is_listed = |name: &&str| self.values.iter().any(|value| value == name);
        match self.operator.as_str() {
            "Exists" => !names.is_empty(),
            "DoesNotExist" => names.is_empty(),
            "In" => names.iter().any(is_listed),
            "NotIn" => names.is_empty() || !names.iter().all(is_listed),
            _ => false,
        }
    }
}

/// Whether the pod has a deadline.
pub fn has_deadline(pod: &Value) -> bool {
    pod.get_path(&["spec", "activeDeadlineSeconds"])
        .and_then(Value::as_int)
        .is_some_and(|seconds| seconds >= 0)
}

fn is_best_effort(pod: &Value) -> bool {
    let reported =
        pod.get_path(&["status", "qosClass"]).and_then(Value::as_str).filter(|class| !class.is_empty());
    reported.unwrap_or_else(|| qos_class(pod, true)) == "BestEffort"
}

fn has_cross_namespace_affinity(pod: &Value) -> bool {
    let is_cross_namespace = |term: &Value| {
        let namespaces = term.get("namespaces").map(Value::items).unwrap_or_default();
        !namespaces.is_empty() || term.get("namespaceSelector").is_some()
    };
    ["podAffinity", "podAntiAffinity"]
        .iter()
        .filter_map(|side| pod.get_path(&["spec", "affinity", side]))
        .any(|side| {
            let list = |name: &str| side.get(name).map(Value::items).unwrap_or_default();
            list("requiredDuringSchedulingIgnoredDuringExecution").iter().any(is_cross_namespace)
                || list("preferredDuringSchedulingIgnoredDuringExecution")
                    .iter()
                    .filter_map(|weighted| weighted.get("podAffinityTerm"))
                    .any(is_cross_namespace)
        })
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    fn scope(text: &str) -> Scope {
        let parts: Vec<&str> = text.split(' ').collect();
        Scope {
            name: parts[0].to_owned(),
            operator: parts.get(1).unwrap_or(&"Exists").to_string(),
            values: parts.iter().skip(2).map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn scopes_match_pods() {
        let plain = r#"{"spec":{"containers":[{"name":"c"}]}}"#;
        let with_requests = r#"{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]}}"#;
        let reported = r#"{"spec":{"containers":[{"name":"c"}]},"status":{"qosClass":"Burstable"}}"#;
        let with_deadline = r#"{"spec":{"activeDeadlineSeconds":0}}"#;
        let high = r#"{"spec":{"priorityClassName":"high"}}"#;
        let same_namespace = r#"{"spec":{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{}]}}}}"#;
        let with_namespaces = r#"{"spec":{"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":
            [{"namespaces":["x"]}]}}}}"#;
        let with_namespace_selector = r#"{"spec":{"affinity":{"podAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":
            [{"podAffinityTerm":{"namespaceSelector":{}}}]}}}}"#;
        for (text, holds, pods) in [
            ("Terminating", true, vec![with_deadline]),
            ("Terminating", false, vec![plain]),
            ("NotTerminating", true, vec![plain]),
            ("NotTerminating", false, vec![with_deadline]),
            ("BestEffort", true, vec![plain]),
            ("BestEffort", false, vec![with_requests, reported]),
            ("NotBestEffort", true, vec![with_requests, reported]),
            ("PriorityClass", true, vec![high]),
            ("PriorityClass", false, vec![plain]),
            ("PriorityClass In low high", true, vec![high]),
            ("PriorityClass In low", false, vec![high, plain]),
            ("PriorityClass NotIn low", true, vec![high, plain]),
            ("PriorityClass NotIn high", false, vec![high]),
            ("PriorityClass DoesNotExist", true, vec![plain]),
            ("PriorityClass DoesNotExist", false, vec![high]),
            ("CrossNamespacePodAffinity", true, vec![with_namespaces, with_namespace_selector]),
            ("CrossNamespacePodAffinity", false, vec![plain, same_namespace]),
            ("VolumeAttributesClass", false, vec![plain]),
        ] {
            for pod in pods {
                assert_eq!(scope(text).matches_pod(&object(pod)), holds, "{text}: {pod}");
            }
        }
    }

    #[test]
    fn scopes_match_claims_by_any_of_their_classes() {
        let plain = object("{}");
        let moving = object(
            r#"{"spec":{"volumeAttributesClassName":"gold"},"status":{"currentVolumeAttributesClassName":"silver"}}"#,
        );
        for (text, matches_plain, matches_moving) in [
            ("VolumeAttributesClass", false, true),
            ("VolumeAttributesClass DoesNotExist", true, false),
            ("VolumeAttributesClass In silver", false, true),
            ("VolumeAttributesClass In gold", false, true),
            ("VolumeAttributesClass In tin", false, false),
            ("VolumeAttributesClass NotIn gold", true, true),
            ("VolumeAttributesClass NotIn gold silver", true, false),
            ("PriorityClass DoesNotExist", false, false),
        ] {
            assert_eq!(scope(text).matches_claim(&plain), matches_plain, "{text}");
            assert_eq!(scope(text).matches_claim(&moving), matches_moving, "{text}");
        }
    }

    #[test]
    fn scopes_and_scope_selector_are_combined() {
        let spec = object(
            r#"{"scopes":["BestEffort"],"scopeSelector":{"matchExpressions":[
                {"scopeName":"PriorityClass","operator":"In","values":["a","b"]}]}}"#,
        );
        let scopes = Scope::from_spec(&spec);
        assert_eq!(scopes, [scope("BestEffort"), scope("PriorityClass In a b")]);
        assert_eq!(scopes[1].render(), "{PriorityClass In [a b]}");
    }
}
