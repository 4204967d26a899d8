//! The status of definitions: accepted names, conditions, progress of deletion.

use std::collections::BTreeMap;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::APPROVED;

/// The condition type for the acceptance of all names.
pub const NAMES_ACCEPTED: &str = "NamesAccepted";
/// The condition type for being served.
pub const ESTABLISHED: &str = "Established";
/// The condition type for being deleted.
pub const TERMINATING: &str = "Terminating";
/// The finalizer that keeps a definition until its objects are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The accepted names of a group's definitions, with the number of uses: a definition may use a name twice.
#[derive(Clone, Debug, Default)]
pub struct AcceptedNames {
    resources: BTreeMap<String, usize>,
    kinds: BTreeMap<String, usize>,
}

impl AcceptedNames {
    /// Adds the names of a definition.
    pub fn add(&mut self, definition: &Value) {
        let (resources, kinds) = accepted_names(definition);
        for (names, counts) in [(resources, &mut self.resources), (kinds, &mut self.kinds)] {
            names.iter().for_each(|name| *counts.entry((*name).to_owned()).or_default() += 1);
        }
    }

    /// Removes the names of a definition.
    pub fn remove(&mut self, definition: &Value) {
        let (resources, kinds) = accepted_names(definition);
        for (names, counts) in [(resources, &mut self.resources), (kinds, &mut self.kinds)] {
            for name in names {
                if let Some(count) = counts.get_mut(name) {
                    *count -= 1;
                    if *count == 0 {
                        counts.remove(name);
                    }
                }
            }
        }
    }

    /// Whether no names are used.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.kinds.is_empty()
    }
}

/// The accepted names of a definition: of its resource, and of its kind.
fn accepted_names(definition: &Value) -> (Vec<&str>, Vec<&str>) {
    let Some(names) = definition.get_path(&["status", "acceptedNames"]) else {
        return (Vec::new(), Vec::new());
    };
    let short = names.get("shortNames").map(Value::items).unwrap_or_default();
    let short = short.iter().filter_map(Value::as_str);
    let is_set = |name: &&str| !name.is_empty();
    let resources = [names.str("plural"), names.str("singular")].into_iter().chain(short).filter(is_set);
    (resources.collect(), [names.str("kind"), names.str("listKind")].into_iter().filter(is_set).collect())
}

/// A condition of a definition.
struct Condition<'a> {
    kind: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

/// Whether a condition is true.
pub fn is_true(definition: &Value, kind: &str) -> bool {
    find_condition(definition, kind).is_some_and(|condition| condition.str("status") == "True")
}

fn find_condition<'v>(definition: &'v Value, kind: &str) -> Option<&'v Value> {
    let conditions = definition.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    conditions.iter().find(|condition| condition.str("type") == kind)
}

fn set_condition(definition: &mut Value, new: &Condition<'_>, now: &str) {
    let list = definition.entry("status").entry("conditions");
    let mut conditions = list.items().to_vec();
    let index = match conditions.iter().position(|condition| condition.str("type") == new.kind) {
        Some(index) => index,
        None => {
            let mut condition = Value::object();
            condition.set("type", new.kind);
            conditions.push(condition);
            conditions.len() - 1
        }
    };
    if let Some(condition) = conditions.get_mut(index) {
        if condition.str("status") != new.status {
            condition.set("lastTransitionTime", now);
        }
        condition.set("status", new.status);
        condition.set("reason", new.reason);
        condition.set("message", new.message);
    }
    *list = Value::Array(conditions.into());
}

/// Writes accepted names and conditions into a definition. `taken`: the accepted names of its group, including its own; `None`
/// if not all are known, so that no names can be accepted. Returns whether anything changed.
pub fn update_status(definition: &mut Value, taken: Option<&AcceptedNames>, now: &str) -> bool {
    let old_status = definition.get("status").cloned();
    match taken {
        Some(taken) => accept_names(definition, taken, now),
        None if has_names(definition) => {}
        None => {
            let (status, reason) = ("False", "NamesUnknown");
            let message = "a CustomResourceDefinition of this group cannot be read";
            set_condition(definition, &Condition { kind: NAMES_ACCEPTED, status, reason, message }, now);
        }
    }
    if is_true(definition, NAMES_ACCEPTED) && !is_true(definition, ESTABLISHED) {
        let (status, reason, message) = if super::has_invalid_ca_bundle(definition) {
            ("False", "InvalidCABundle", "The conversion webhook CABundle is invalid")
        } else {
            ("True", "InitialNamesAccepted", "the initial names have been accepted")
        };
        set_condition(definition, &Condition { kind: ESTABLISHED, status, reason, message }, now);
    }
    set_nonstructural_condition(definition, now);
    set_approval_condition(definition, now);
    definition.get("status") != old_status.as_ref()
}

/// Whether all requested names of a definition are accepted.
fn has_names(definition: &Value) -> bool {
    let empty = Value::object();
    let requested = definition.get_path(&["spec", "names"]).unwrap_or(&empty);
    let accepted = definition.get_path(&["status", "acceptedNames"]).unwrap_or(&empty);
    let list = |names: &Value, field: &str| names.get(field).map(Value::items).unwrap_or_default().to_vec();
    ["plural", "singular", "kind", "listKind"].iter().all(|field| requested.str(field) == accepted.str(field))
        && ["shortNames", "categories"].iter().all(|field| list(requested, field) == list(accepted, field))
}

fn accept_names(definition: &mut Value, taken: &AcceptedNames, now: &str) {
    if has_names(definition) {
        return;
    }
    let empty = Value::object();
    let requested = definition.get_path(&["spec", "names"]).unwrap_or(&empty).clone();
    let accepted = definition.get_path(&["status", "acceptedNames"]).unwrap_or(&empty).clone();
    let short_names = |names: &Value| names.get("shortNames").map(Value::items).unwrap_or_default().to_vec();
    let categories = |names: &Value| names.get("categories").map(Value::items).unwrap_or_default().to_vec();
    let mut new = accepted.clone();
    let mut conflict: Option<(&str, String)> = None;
    let in_use = |name: &str| format!("{} is already in use", quoted(name));
    let mut accept_name = |field: &str,
                           used: &BTreeMap<String, usize>,
                           reason: &'static str,
                           conflict: &mut Option<(&str, String)>| {
        let name = requested.str(field);
        if name != accepted.str(field) && used.contains_key(name) {
            *conflict = Some((reason, in_use(name)));
        } else {
            new.set(field, name);
        }
    };
    accept_name("plural", &taken.resources, "PluralConflict", &mut conflict);
    accept_name("singular", &taken.resources, "SingularConflict", &mut conflict);
    let accepted_short_names = short_names(&accepted);
    let short_name_conflicts: Vec<String> = short_names(&requested)
        .iter()
        .filter(|name| !accepted_short_names.contains(name))
        .filter_map(Value::as_str)
        .filter(|name| taken.resources.contains_key(*name))
        .map(in_use)
        .collect();
    if !short_name_conflicts.is_empty() && short_names(&requested) != accepted_short_names {
        let message = if short_name_conflicts.len() == 1 {
            short_name_conflicts.concat()
        } else {
            format!("[{}]", short_name_conflicts.join(", "))
        };
        conflict = Some(("ShortNamesConflict", message));
    }
    let accepts_short_names = short_name_conflicts.is_empty();
    accept_name("kind", &taken.kinds, "KindConflict", &mut conflict);
    accept_name("listKind", &taken.kinds, "ListKindConflict", &mut conflict);
    let mut set_list = |field: &str, items: Vec<Value>| {
        new.remove(field);
        if !items.is_empty() {
            new.set(field, Value::Array(items.into()));
        }
    };
    if accepts_short_names {
        set_list("shortNames", short_names(&requested));
    }
    set_list("categories", categories(&requested));
    let (status, reason, message) = match &conflict {
        Some((reason, message)) => ("False", *reason, message.as_str()),
        None => ("True", "NoConflicts", "no conflicts found"),
    };
    definition.entry("status").set("acceptedNames", new);
    set_condition(definition, &Condition { kind: NAMES_ACCEPTED, status, reason, message }, now);
    if find_condition(definition, ESTABLISHED).is_none() {
        let (status, reason, message) = ("False", "NotAccepted", "not all names are accepted");
        set_condition(definition, &Condition { kind: ESTABLISHED, status, reason, message }, now);
    }
}

/// The condition of a definition with preserveUnknownFields, from before structural schemas.
fn set_nonstructural_condition(definition: &mut Value, now: &str) {
    const KIND: &str = "NonStructuralSchema";
    let preserves_unknown =
        definition.get_path(&["spec", "preserveUnknownFields"]).and_then(Value::as_bool) == Some(true);
    if preserves_unknown {
        let message = "spec.preserveUnknownFields: Invalid value: true: must be false";
        set_condition(
            definition,
            &Condition { kind: KIND, status: "True", reason: "Violations", message },
            now,
        );
    } else if find_condition(definition, KIND).is_some() {
        let list = definition.entry("status").entry("conditions");
        let rest: Vec<Value> =
            list.items().iter().filter(|condition| condition.str("type") != KIND).cloned().collect();
        *list = Value::Array(rest.into());
    }
}

/// The condition of a definition in a protected community group without approval.
fn set_approval_condition(definition: &mut Value, now: &str) {
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let group = definition.get("spec").map_or("", |spec| spec.str("group"));
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    if !is_protected {
        return;
    }
    let annotation = definition
        .get_path(&["metadata", "annotations", APPROVED])
        .and_then(Value::as_str)
        .unwrap_or_default();
    let is_url = annotation
        .split_once("://")
        .is_some_and(|(scheme, host)| !scheme.is_empty() && !host.starts_with('/') && !host.is_empty());
    let (status, reason, message) = match annotation {
        "" => (
            "False",
            "MissingAnnotation",
            format!("protected groups must have approval annotation {}, {SEE}", quoted(APPROVED)),
        ),
        _ if annotation.starts_with("unapproved") => {
            ("False", "UnapprovedAnnotation", format!("not approved: {}", quoted(annotation)))
        }
        _ if is_url => ("True", "ApprovedAnnotation", format!("approved in {annotation}")),
        _ => (
            "False",
            "InvalidAnnotation",
            format!(
                "protected groups must have approval annotation {} with either a URL or a reason starting with \
                 \"unapproved\", {SEE}",
                quoted(APPROVED)
            ),
        ),
    };
    set_condition(definition, &Condition { kind: KIND, status, reason, message: &message }, now);
}

/// The progress of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionProgress {
    /// The deletion was requested.
    Pending,
    /// Its objects are being deleted.
    Deleting,
    /// Its objects could not be deleted.
    Failed(String),
    /// Some of its objects have finalizers.
    Waiting,
    /// All objects are gone.
    Done,
    /// The definition was never served, so there are no objects.
    NeverServed,
}

/// Writes the progress of a deletion into a definition.
pub fn set_deletion_progress(definition: &mut Value, progress: &DeletionProgress, now: &str) {
    let (status, reason, message) = match progress {
        DeletionProgress::Pending => (
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        ),
        DeletionProgress::Deleting => {
            ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
        }
        DeletionProgress::Failed(detail) => ("True", "InstanceDeletionFailed", detail.as_str()),
        DeletionProgress::Waiting => (
            "True",
            "InstanceDeletionCheck",
            "could not confirm zero CustomResources remaining: timed out waiting for the condition",
        ),
        DeletionProgress::Done => ("False", "InstanceDeletionCompleted", "removed all instances"),
        DeletionProgress::NeverServed => ("False", "NeverEstablished", "resource was never established"),
    };
    set_condition(definition, &Condition { kind: TERMINATING, status, reason, message }, now);
}

/// Whether a terminating definition still has the cleanup finalizer.
pub fn has_cleanup_finalizer(definition: &Value) -> bool {
    let finalizers = definition.get_path(&["metadata", "finalizers"]).map(Value::items).unwrap_or_default();
    definition.get_path(&["metadata", "deletionTimestamp"]).is_some()
        && finalizers.iter().any(|finalizer| finalizer.as_str() == Some(CLEANUP_FINALIZER))
}

/// Removes the cleanup finalizer.
pub fn remove_cleanup_finalizer(definition: &mut Value) {
    let finalizers = definition.get_path(&["metadata", "finalizers"]).map(Value::items).unwrap_or_default();
    let rest: Vec<Value> = finalizers
        .iter()
        .filter(|finalizer| finalizer.as_str() != Some(CLEANUP_FINALIZER))
        .cloned()
        .collect();
    definition.entry("metadata").set("finalizers", Value::Array(rest.into()));
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn definition(plural: &str, kind: &str, short: &str) -> Value {
        let text = format!(
            r#"{{"metadata":{{"name":"{plural}.g"}},"spec":{{"group":"g","names":{{"plural":"{plural}","singular":"{plural}1",
            "kind":"{kind}","listKind":"{kind}List","shortNames":["{short}"]}}}},"status":{{"storedVersions":["v1"]}}}}"#
        );
        json::read(text.as_bytes()).unwrap()
    }

    fn conditions_of(definition: &Value) -> Vec<String> {
        let conditions = definition.get_path(&["status", "conditions"]).unwrap().items().iter();
        conditions
            .map(|condition| {
                format!(
                    "{} {} {} {}",
                    condition.str("type"),
                    condition.str("status"),
                    condition.str("reason"),
                    condition.str("message")
                )
            })
            .collect()
    }

    #[test]
    fn names_are_accepted_once_per_group() {
        let mut first = definition("kites", "Kite", "k");
        assert!(update_status(&mut first, Some(&AcceptedNames::default()), "now"));
        assert_eq!(
            conditions_of(&first),
            [
                "NamesAccepted True NoConflicts no conflicts found",
                "Established True InitialNamesAccepted the initial names have been accepted"
            ]
        );
        let mut taken = AcceptedNames::default();
        taken.add(&first);
        assert!(!update_status(&mut first.clone(), Some(&taken), "later"), "accepted names stay unchanged");
        let mut second = definition("birds", "Kite", "k");
        assert!(update_status(&mut second, Some(&taken), "now"));
        assert_eq!(
            conditions_of(&second),
            [
                "NamesAccepted False ListKindConflict \"KiteList\" is already in use",
                "Established False NotAccepted not all names are accepted"
            ]
        );
        let names = second.get_path(&["status", "acceptedNames"]).unwrap();
        assert_eq!((names.str("plural"), names.str("kind")), ("birds", ""));
        assert!(!is_true(&second, ESTABLISHED));
        // The first is removed, and its names are free.
        taken.remove(&first);
        assert!(taken.is_empty());
        assert!(update_status(&mut second, Some(&taken), "later"));
        assert!(is_true(&second, ESTABLISHED) && is_true(&second, NAMES_ACCEPTED));
    }

    #[test]
    fn cleanup_finalizer_keeps_a_deleted_definition() {
        let mut deleted = definition("kites", "Kite", "k");
        deleted.entry("metadata").set("deletionTimestamp", "now");
        assert!(!has_cleanup_finalizer(&deleted));
        deleted.entry("metadata").set("finalizers", vec!["x", CLEANUP_FINALIZER]);
        assert!(has_cleanup_finalizer(&deleted));
        set_deletion_progress(&mut deleted, &DeletionProgress::Done, "now");
        remove_cleanup_finalizer(&mut deleted);
        assert!(!has_cleanup_finalizer(&deleted) && !is_true(&deleted, TERMINATING));
        assert_eq!(deleted.get_path(&["metadata", "finalizers"]).unwrap().items().len(), 1);
    }
}
