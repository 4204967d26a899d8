//! The conditions of a terminating namespace, with the texts of the reference.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::value::Value;

/// The conditions in order, each with its reason and message if there is no problem.
const ALL: [(&str, &str, &str); 5] = [
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
];

/// The remaining objects and errors after the deletion of a namespace's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionFindings {
    /// The number of remaining objects by `resource.group`.
    pub remaining: BTreeMap<String, usize>,
    /// The number of remaining objects by finalizer.
    pub finalizers: BTreeMap<String, usize>,
    /// Errors of deletions.
    pub failures: Vec<String>,
    /// Versions whose discovery failed.
    pub undiscovered: BTreeSet<String>,
}

/// The message about failed discovery.
pub fn undiscovered(versions: &BTreeSet<String>) -> Option<String> {
    let stale = |version: &String| format!("{version}: stale GroupVersion discovery: {version}");
    let all: Vec<String> = versions.iter().map(stale).collect();
    let all = all.join(", ");
    (!versions.is_empty()).then(|| format!("unable to retrieve the complete list of server APIs: {all}"))
}

impl DeletionFindings {
    /// The reason and message of a condition that reports a problem.
    fn problem(&self, condition: &str) -> Option<(&'static str, String)> {
        let render = |all: &BTreeMap<String, usize>, preposition: &str| {
            let mut lines: Vec<String> = all
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(name, count)| format!("{name} {preposition} {count} resource instances"))
                .collect();
            lines.sort();
            lines.join(", ")
        };
        match condition {
            "NamespaceDeletionDiscoveryFailure" => {
                let (error, count) = (undiscovered(&self.undiscovered)?, self.undiscovered.len());
                Some((
                    "DiscoveryFailed",
                    format!("Discovery failed for some groups, {count} failing: {error}"),
                ))
            }
            "NamespaceDeletionContentFailure" if !self.failures.is_empty() => {
                let mut failures = self.failures.clone();
                failures.sort();
                let text = failures.join(", ");
                let count = failures.len();
                Some((
                    "ContentDeletionFailed",
                    format!("Failed to delete all resource types, {count} remaining: {text}"),
                ))
            }
            "NamespaceContentRemaining" if !self.remaining.is_empty() => {
                let text = render(&self.remaining, "has");
                Some(("SomeResourcesRemain", format!("Some resources are remaining: {text}")))
            }
            "NamespaceFinalizersRemaining" if !self.finalizers.is_empty() => {
                let text = render(&self.finalizers, "in");
                let text = format!("Some content in the namespace has finalizers remaining: {text}");
                Some(("SomeFinalizersRemain", text))
            }
            _ => None,
        }
    }

    /// Writes the conditions into the status; returns whether any changed.
    pub fn write(&self, namespace: &mut Value, now: &str) -> bool {
        let mut conditions =
            namespace.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default().to_vec();
        let mut changed = false;
        for (name, ok_reason, ok_message) in ALL {
            let (status, reason, message) = match self.problem(name) {
                Some((reason, message)) => ("True", reason, message),
                None => ("False", ok_reason, ok_message.to_owned()),
            };
            let index = conditions.iter().position(|condition| condition.str("type") == name);
            let index = index.unwrap_or_else(|| {
                let mut condition = Value::object();
                condition.set("type", name);
                conditions.push(condition);
                conditions.len() - 1
            });
            let Some(condition) = conditions.get_mut(index) else { continue };
            let values = [("status", status), ("reason", reason), ("message", message.as_str())];
            if values.iter().all(|(field, text)| condition.str(field) == *text) {
                continue;
            }
            if condition.str("status") != status {
                condition.set("lastTransitionTime", now);
            }
            for (field, text) in values {
                condition.set(field, text);
            }
            changed = true;
        }
        if changed {
            namespace.entry("status").set("conditions", conditions);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition_of(namespace: &Value, name: &str) -> (String, String, String, String) {
        let conditions = namespace.get_path(&["status", "conditions"]).unwrap().items();
        let condition = conditions.iter().find(|condition| condition.str("type") == name).unwrap();
        let text = |field| condition.str(field).to_owned();
        (text("status"), text("reason"), text("message"), text("lastTransitionTime"))
    }

    #[test]
    fn namespace_conditions_report_problems_and_recover() {
        let mut namespace = Value::object();
        let mut findings = DeletionFindings::default();
        assert!(findings.write(&mut namespace, "t1"));
        assert!(!findings.write(&mut namespace, "t2"));
        assert_eq!(namespace.get_path(&["status", "conditions"]).unwrap().items().len(), 5);
        findings.remaining = BTreeMap::from([("pods.".to_owned(), 2), ("deployments.apps".to_owned(), 1)]);
        findings.finalizers = BTreeMap::from([("a.b/c".to_owned(), 3)]);
        findings.failures = vec!["y".to_owned(), "x".to_owned()];
        assert!(findings.write(&mut namespace, "t3"));
        let expected = |status: &str, reason: &str, message: &str, time: &str| {
            (status.to_owned(), reason.to_owned(), message.to_owned(), time.to_owned())
        };
        assert_eq!(
            condition_of(&namespace, "NamespaceContentRemaining"),
            expected(
                "True",
                "SomeResourcesRemain",
                "Some resources are remaining: deployments.apps has 1 resource instances, pods. has 2 resource instances",
                "t3"
            )
        );
        assert_eq!(
            condition_of(&namespace, "NamespaceFinalizersRemaining"),
            expected(
                "True",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: a.b/c in 3 resource instances",
                "t3"
            )
        );
        assert_eq!(
            condition_of(&namespace, "NamespaceDeletionContentFailure"),
            expected(
                "True",
                "ContentDeletionFailed",
                "Failed to delete all resource types, 2 remaining: x, y",
                "t3"
            )
        );
        assert_eq!(condition_of(&namespace, "NamespaceDeletionDiscoveryFailure").3, "t1");
        findings.undiscovered = BTreeSet::from(["a.io/v1".to_owned(), "b.io/v1".to_owned()]);
        assert!(findings.write(&mut namespace, "t3"));
        assert_eq!(
            condition_of(&namespace, "NamespaceDeletionDiscoveryFailure"),
            expected(
                "True",
                "DiscoveryFailed",
                "Discovery failed for some groups, 2 failing: unable to retrieve the complete list of server APIs: \
                 a.io/v1: stale GroupVersion discovery: a.io/v1, b.io/v1: stale GroupVersion discovery: b.io/v1",
                "t3"
            )
        );
        findings.remaining.insert("pods.".to_owned(), 1);
        assert!(findings.write(&mut namespace, "t4"));
        assert_eq!(condition_of(&namespace, "NamespaceContentRemaining").3, "t3", "the status is the same");
    }
}
