//! Scopes: the pods and claims that a quota covers.

use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::core::pod::quality;

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
    pub fn of_quota(spec: &Value) -> Vec<Scope> {
        let named = spec.get("scopes").map(Value::items).unwrap_or_default().iter();
        let named = named.filter_map(Value::as_str).map(|name| Scope {
            name: name.to_owned(),
            operator: "Exists".to_owned(),
            values: Vec::new(),
        });
        let selected = spec.at(&["scopeSelector", "matchExpressions"]).map(Value::items).unwrap_or_default();
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

    /// As messages print it.
    pub fn shown(&self) -> String {
        format!("{{{} {} [{}]}}", self.name, self.operator, self.values.join(" "))
    }

    /// Whether a pod matches this scope.
    pub fn holds_pod(&self, pod: &Value) -> bool {
        match self.name.as_str() {
            "Terminating" => has_deadline(pod),
            "NotTerminating" => !has_deadline(pod),
            "BestEffort" => is_best_effort(pod),
            "NotBestEffort" => !is_best_effort(pod),
            "PriorityClass" => {
                let class = pod.at(&["spec", "priorityClassName"]).and_then(Value::as_str);
                self.selects(class.filter(|class| !class.is_empty()).as_slice())
            }
            "CrossNamespacePodAffinity" => reaches_other_namespaces(pod),
            _ => false,
        }
    }

    /// Whether a claim matches this scope. A claim that changes its class matches both.
    pub fn holds_claim(&self, claim: &Value) -> bool {
        const CLASSES: [&[&str]; 3] = [
            &["spec", "volumeAttributesClassName"],
            &["status", "currentVolumeAttributesClassName"],
            &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
        ];
        let named = CLASSES.iter().filter_map(|path| claim.at(path)).filter_map(Value::as_str);
        let named: Vec<&str> = named.filter(|class| !class.is_empty()).collect();
        self.name == "VolumeAttributesClass" && self.selects(&named)
    }

    /// Whether one of the names is selected; without any names, whether absence is.
    fn selects(&self, names: &[&str]) -> bool {
        let listed = |name: &&str| self.values.iter().any(|value| value == name);
        match self.operator.as_str() {
            "Exists" => !names.is_empty(),
            "DoesNotExist" => names.is_empty(),
            "In" => names.iter().any(listed),
            "NotIn" => names.is_empty() || !names.iter().all(listed),
            _ => false,
        }
    }
}

/// Whether the pod has a deadline.
pub fn has_deadline(pod: &Value) -> bool {
    pod.at(&["spec", "activeDeadlineSeconds"]).and_then(Value::as_int).is_some_and(|seconds| seconds >= 0)
}

fn is_best_effort(pod: &Value) -> bool {
    let said = pod.at(&["status", "qosClass"]).and_then(Value::as_str).filter(|class| !class.is_empty());
    said.unwrap_or_else(|| quality(pod, true)) == "BestEffort"
}

fn reaches_other_namespaces(pod: &Value) -> bool {
    let reaches = |term: &Value| {
        let named = term.get("namespaces").map(Value::items).unwrap_or_default();
        !named.is_empty() || term.get("namespaceSelector").is_some()
    };
    ["podAffinity", "podAntiAffinity"].iter().filter_map(|side| pod.at(&["spec", "affinity", side])).any(
        |side| {
            let list = |name: &str| side.get(name).map(Value::items).unwrap_or_default();
            list("requiredDuringSchedulingIgnoredDuringExecution").iter().any(reaches)
                || list("preferredDuringSchedulingIgnoredDuringExecution")
                    .iter()
                    .filter_map(|weighted| weighted.get("podAffinityTerm"))
                    .any(reaches)
        },
    )
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
    fn each_scope_knows_its_pods() {
        let plain = r#"{"spec":{"containers":[{"name":"c"}]}}"#;
        let asking = r#"{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]}}"#;
        let said = r#"{"spec":{"containers":[{"name":"c"}]},"status":{"qosClass":"Burstable"}}"#;
        let ending = r#"{"spec":{"activeDeadlineSeconds":0}}"#;
        let high = r#"{"spec":{"priorityClassName":"high"}}"#;
        let near = r#"{"spec":{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{}]}}}}"#;
        let named = r#"{"spec":{"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":
            [{"namespaces":["x"]}]}}}}"#;
        let selected = r#"{"spec":{"affinity":{"podAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":
            [{"podAffinityTerm":{"namespaceSelector":{}}}]}}}}"#;
        for (text, holds, pods) in [
            ("Terminating", true, vec![ending]),
            ("Terminating", false, vec![plain]),
            ("NotTerminating", true, vec![plain]),
            ("NotTerminating", false, vec![ending]),
            ("BestEffort", true, vec![plain]),
            ("BestEffort", false, vec![asking, said]),
            ("NotBestEffort", true, vec![asking, said]),
            ("PriorityClass", true, vec![high]),
            ("PriorityClass", false, vec![plain]),
            ("PriorityClass In low high", true, vec![high]),
            ("PriorityClass In low", false, vec![high, plain]),
            ("PriorityClass NotIn low", true, vec![high, plain]),
            ("PriorityClass NotIn high", false, vec![high]),
            ("PriorityClass DoesNotExist", true, vec![plain]),
            ("PriorityClass DoesNotExist", false, vec![high]),
            ("CrossNamespacePodAffinity", true, vec![named, selected]),
            ("CrossNamespacePodAffinity", false, vec![plain, near]),
            ("VolumeAttributesClass", false, vec![plain]),
        ] {
            for pod in pods {
                assert_eq!(scope(text).holds_pod(&object(pod)), holds, "{text}: {pod}");
            }
        }
    }

    #[test]
    fn a_claim_is_in_the_scopes_of_all_its_classes() {
        let plain = object("{}");
        let moving = object(
            r#"{"spec":{"volumeAttributesClassName":"gold"},"status":{"currentVolumeAttributesClassName":"silver"}}"#,
        );
        for (text, of_plain, of_moving) in [
            ("VolumeAttributesClass", false, true),
            ("VolumeAttributesClass DoesNotExist", true, false),
            ("VolumeAttributesClass In silver", false, true),
            ("VolumeAttributesClass In gold", false, true),
            ("VolumeAttributesClass In tin", false, false),
            ("VolumeAttributesClass NotIn gold", true, true),
            ("VolumeAttributesClass NotIn gold silver", true, false),
            ("PriorityClass DoesNotExist", false, false),
        ] {
            assert_eq!(scope(text).holds_claim(&plain), of_plain, "{text}");
            assert_eq!(scope(text).holds_claim(&moving), of_moving, "{text}");
        }
    }

    #[test]
    fn both_lists_of_a_quota_count() {
        let spec = object(
            r#"{"scopes":["BestEffort"],"scopeSelector":{"matchExpressions":[
                {"scopeName":"PriorityClass","operator":"In","values":["a","b"]}]}}"#,
        );
        let scopes = Scope::of_quota(&spec);
        assert_eq!(scopes, [scope("BestEffort"), scope("PriorityClass In a b")]);
        assert_eq!(scopes[1].shown(), "{PriorityClass In [a b]}");
    }
}
