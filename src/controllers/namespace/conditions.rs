//! The conditions of a terminating namespace, in the words of the reference.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::value::Value;

/// The conditions in order, with their texts if all is well.
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

/// What is left in a namespace after everything was deleted.
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
    fn trouble(&self, condition: &str) -> Option<(&'static str, String)> {
        let listed = |all: &BTreeMap<String, usize>, how: &str| {
            let mut lines: Vec<String> = all
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(name, count)| format!("{name} {how} {count} resource instances"))
                .collect();
            lines.sort();
            lines.join(", ")
        };
        match condition {
            "NamespaceDeletionDiscoveryFailure" => {
                let (why, count) = (undiscovered(&self.undiscovered)?, self.undiscovered.len());
                Some(("DiscoveryFailed", format!("Discovery failed for some groups, {count} failing: {why}")))
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
                let text = listed(&self.remaining, "has");
                Some(("SomeResourcesRemain", format!("Some resources are remaining: {text}")))
            }
            "NamespaceFinalizersRemaining" if !self.finalizers.is_empty() => {
                let text = listed(&self.finalizers, "in");
                let text = format!("Some content in the namespace has finalizers remaining: {text}");
                Some(("SomeFinalizersRemain", text))
            }
            _ => None,
        }
    }

    /// Writes the conditions into the status; answers whether any changed.
    pub fn write(&self, namespace: &mut Value, now: &str) -> bool {
        let mut conditions =
            namespace.at(&["status", "conditions"]).map(Value::items).unwrap_or_default().to_vec();
        let mut changed = false;
        for (name, well, all_well) in ALL {
            let (status, reason, message) = match self.trouble(name) {
                Some((reason, message)) => ("True", reason, message),
                None => ("False", well, all_well.to_owned()),
            };
            let at = conditions.iter().position(|condition| condition.str("type") == name);
            let at = at.unwrap_or_else(|| {
                let mut condition = Value::object();
                condition.set("type", name);
                conditions.push(condition);
                conditions.len() - 1
            });
            let Some(condition) = conditions.get_mut(at) else { continue };
            let same = [("status", status), ("reason", reason), ("message", message.as_str())];
            if same.iter().all(|(field, text)| condition.str(field) == *text) {
                continue;
            }
            if condition.str("status") != status {
                condition.set("lastTransitionTime", now);
            }
            for (field, text) in same {
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

    fn said(namespace: &Value, name: &str) -> (String, String, String, String) {
        let conditions = namespace.at(&["status", "conditions"]).unwrap().items();
        let one = conditions.iter().find(|condition| condition.str("type") == name).unwrap();
        let text = |field| one.str(field).to_owned();
        (text("status"), text("reason"), text("message"), text("lastTransitionTime"))
    }

    #[test]
    fn trouble_comes_and_goes() {
        let mut namespace = Value::object();
        let mut found = DeletionFindings::default();
        assert!(found.write(&mut namespace, "t1"));
        assert!(!found.write(&mut namespace, "t2"));
        assert_eq!(namespace.at(&["status", "conditions"]).unwrap().items().len(), 5);
        found.remaining = BTreeMap::from([("pods.".to_owned(), 2), ("deployments.apps".to_owned(), 1)]);
        found.finalizers = BTreeMap::from([("a.b/c".to_owned(), 3)]);
        found.failures = vec!["y".to_owned(), "x".to_owned()];
        assert!(found.write(&mut namespace, "t3"));
        let wanted = |status: &str, reason: &str, message: &str, at: &str| {
            (status.to_owned(), reason.to_owned(), message.to_owned(), at.to_owned())
        };
        assert_eq!(
            said(&namespace, "NamespaceContentRemaining"),
            wanted(
                "True",
                "SomeResourcesRemain",
                "Some resources are remaining: deployments.apps has 1 resource instances, pods. has 2 resource instances",
                "t3"
            )
        );
        assert_eq!(
            said(&namespace, "NamespaceFinalizersRemaining"),
            wanted(
                "True",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: a.b/c in 3 resource instances",
                "t3"
            )
        );
        assert_eq!(
            said(&namespace, "NamespaceDeletionContentFailure"),
            wanted(
                "True",
                "ContentDeletionFailed",
                "Failed to delete all resource types, 2 remaining: x, y",
                "t3"
            )
        );
        assert_eq!(said(&namespace, "NamespaceDeletionDiscoveryFailure").3, "t1");
        found.undiscovered = BTreeSet::from(["a.io/v1".to_owned(), "b.io/v1".to_owned()]);
        assert!(found.write(&mut namespace, "t3"));
        assert_eq!(
            said(&namespace, "NamespaceDeletionDiscoveryFailure"),
            wanted(
                "True",
                "DiscoveryFailed",
                "Discovery failed for some groups, 2 failing: unable to retrieve the complete list of server APIs: \
                 a.io/v1: stale GroupVersion discovery: a.io/v1, b.io/v1: stale GroupVersion discovery: b.io/v1",
                "t3"
            )
        );
        found.remaining.insert("pods.".to_owned(), 1);
        assert!(found.write(&mut namespace, "t4"));
        assert_eq!(said(&namespace, "NamespaceContentRemaining").3, "t3", "the status is the same");
    }
}
