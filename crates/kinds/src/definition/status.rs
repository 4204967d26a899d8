//! The status of definitions: accepted names, conditions, progress of deletion.

use std::collections::BTreeMap;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::APPROVED;

/// The condition that all its names are accepted.
pub const NAMES_ACCEPTED: &str = "NamesAccepted";
/// The condition that it is served.
pub const ESTABLISHED: &str = "Established";
/// The condition that it is being deleted.
pub const TERMINATING: &str = "Terminating";
/// The finalizer that keeps a definition until its objects are gone.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The accepted names of a group's definitions, and how many use each: a definition may use one twice.
#[derive(Clone, Debug, Default)]
pub struct AcceptedNames {
    resources: BTreeMap<String, usize>,
    kinds: BTreeMap<String, usize>,
}

impl AcceptedNames {
    /// Adds the names of a definition.
    pub fn add(&mut self, definition: &Value) {
        let (resources, kinds) = had(definition);
        for (names, known) in [(resources, &mut self.resources), (kinds, &mut self.kinds)] {
            names.iter().for_each(|name| *known.entry((*name).to_owned()).or_default() += 1);
        }
    }

    /// Removes the names of a definition.
    pub fn remove(&mut self, definition: &Value) {
        let (resources, kinds) = had(definition);
        for (names, known) in [(resources, &mut self.resources), (kinds, &mut self.kinds)] {
            for name in names {
                if let Some(count) = known.get_mut(name) {
                    *count -= 1;
                    if *count == 0 {
                        known.remove(name);
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
fn had(definition: &Value) -> (Vec<&str>, Vec<&str>) {
    let Some(names) = definition.at(&["status", "acceptedNames"]) else { return (Vec::new(), Vec::new()) };
    let short = names.get("shortNames").map(Value::items).unwrap_or_default();
    let short = short.iter().filter_map(Value::as_str);
    let said = |name: &&str| !name.is_empty();
    let resources = [names.str("plural"), names.str("singular")].into_iter().chain(short).filter(said);
    (resources.collect(), [names.str("kind"), names.str("listKind")].into_iter().filter(said).collect())
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
    find(definition, kind).is_some_and(|condition| condition.str("status") == "True")
}

fn find<'v>(definition: &'v Value, kind: &str) -> Option<&'v Value> {
    let all = definition.at(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    all.iter().find(|condition| condition.str("type") == kind)
}

fn set(definition: &mut Value, new: &Condition<'_>, now: &str) {
    let list = definition.entry("status").entry("conditions");
    let mut all = list.items().to_vec();
    let at = match all.iter().position(|condition| condition.str("type") == new.kind) {
        Some(at) => at,
        None => {
            let mut condition = Value::object();
            condition.set("type", new.kind);
            all.push(condition);
            all.len() - 1
        }
    };
    if let Some(condition) = all.get_mut(at) {
        if condition.str("status") != new.status {
            condition.set("lastTransitionTime", now);
        }
        condition.set("status", new.status);
        condition.set("reason", new.reason);
        condition.set("message", new.message);
    }
    *list = Value::Array(all.into());
}

/// Writes accepted names and conditions into a definition. `taken`: the accepted names of its group, including its own; `None` if
/// they are not all known, and none can be given. Answers whether anything changed.
pub fn settle(definition: &mut Value, taken: Option<&AcceptedNames>, now: &str) -> bool {
    let before = definition.get("status").cloned();
    match taken {
        Some(taken) => name(definition, taken, now),
        None if has_names(definition) => {}
        None => {
            let (status, reason) = ("False", "NamesUnknown");
            let message = "a CustomResourceDefinition of this group cannot be read";
            set(definition, &Condition { kind: NAMES_ACCEPTED, status, reason, message }, now);
        }
    }
    if is_true(definition, NAMES_ACCEPTED) && !is_true(definition, ESTABLISHED) {
        let (status, reason, message) = if super::has_bad_bundle(definition) {
            ("False", "InvalidCABundle", "The conversion webhook CABundle is invalid")
        } else {
            ("True", "InitialNamesAccepted", "the initial names have been accepted")
        };
        set(definition, &Condition { kind: ESTABLISHED, status, reason, message }, now);
    }
    keeps_all(definition, now);
    approve(definition, now);
    definition.get("status") != before.as_ref()
}

/// Whether a definition has the names that it asks for.
fn has_names(definition: &Value) -> bool {
    let empty = Value::object();
    let asked = definition.at(&["spec", "names"]).unwrap_or(&empty);
    let has = definition.at(&["status", "acceptedNames"]).unwrap_or(&empty);
    let list = |names: &Value, field: &str| names.get(field).map(Value::items).unwrap_or_default().to_vec();
    ["plural", "singular", "kind", "listKind"].iter().all(|field| asked.str(field) == has.str(field))
        && ["shortNames", "categories"].iter().all(|field| list(asked, field) == list(has, field))
}

fn name(definition: &mut Value, taken: &AcceptedNames, now: &str) {
    if has_names(definition) {
        return;
    }
    let empty = Value::object();
    let asked = definition.at(&["spec", "names"]).unwrap_or(&empty).clone();
    let has = definition.at(&["status", "acceptedNames"]).unwrap_or(&empty).clone();
    let short = |names: &Value| names.get("shortNames").map(Value::items).unwrap_or_default().to_vec();
    let categories = |names: &Value| names.get("categories").map(Value::items).unwrap_or_default().to_vec();
    let mut new = has.clone();
    let mut conflict: Option<(&str, String)> = None;
    let in_use = |name: &str| format!("{} is already in use", quoted(name));
    let mut text = |field: &str,
                    among: &BTreeMap<String, usize>,
                    reason: &'static str,
                    conflict: &mut Option<(&str, String)>| {
        let name = asked.str(field);
        if name != has.str(field) && among.contains_key(name) {
            *conflict = Some((reason, in_use(name)));
        } else {
            new.set(field, name);
        }
    };
    text("plural", &taken.resources, "PluralConflict", &mut conflict);
    text("singular", &taken.resources, "SingularConflict", &mut conflict);
    let had = short(&has);
    let wrong: Vec<String> = short(&asked)
        .iter()
        .filter(|name| !had.contains(name))
        .filter_map(Value::as_str)
        .filter(|name| taken.resources.contains_key(*name))
        .map(in_use)
        .collect();
    if !wrong.is_empty() && short(&asked) != had {
        let message = if wrong.len() == 1 { wrong.concat() } else { format!("[{}]", wrong.join(", ")) };
        conflict = Some(("ShortNamesConflict", message));
    }
    let short_fits = wrong.is_empty();
    text("kind", &taken.kinds, "KindConflict", &mut conflict);
    text("listKind", &taken.kinds, "ListKindConflict", &mut conflict);
    let mut list = |field: &str, items: Vec<Value>| {
        new.remove(field);
        if !items.is_empty() {
            new.set(field, Value::Array(items.into()));
        }
    };
    if short_fits {
        list("shortNames", short(&asked));
    }
    list("categories", categories(&asked));
    let (status, reason, message) = match &conflict {
        Some((reason, message)) => ("False", *reason, message.as_str()),
        None => ("True", "NoConflicts", "no conflicts found"),
    };
    definition.entry("status").set("acceptedNames", new);
    set(definition, &Condition { kind: NAMES_ACCEPTED, status, reason, message }, now);
    if find(definition, ESTABLISHED).is_none() {
        let (status, reason, message) = ("False", "NotAccepted", "not all names are accepted");
        set(definition, &Condition { kind: ESTABLISHED, status, reason, message }, now);
    }
}

/// The condition of a definition with preserveUnknownFields, from before structural schemas.
fn keeps_all(definition: &mut Value, now: &str) {
    const KIND: &str = "NonStructuralSchema";
    let keeps = definition.at(&["spec", "preserveUnknownFields"]).and_then(Value::as_bool) == Some(true);
    if keeps {
        let message = "spec.preserveUnknownFields: Invalid value: true: must be false";
        set(definition, &Condition { kind: KIND, status: "True", reason: "Violations", message }, now);
    } else if find(definition, KIND).is_some() {
        let list = definition.entry("status").entry("conditions");
        let rest: Vec<Value> = list.items().iter().filter(|one| one.str("type") != KIND).cloned().collect();
        *list = Value::Array(rest.into());
    }
}

/// The condition of a definition in a protected community group without approval.
fn approve(definition: &mut Value, now: &str) {
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let group = definition.get("spec").map_or("", |spec| spec.str("group"));
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    if !protected {
        return;
    }
    let said =
        definition.at(&["metadata", "annotations", APPROVED]).and_then(Value::as_str).unwrap_or_default();
    let is_url = said
        .split_once("://")
        .is_some_and(|(scheme, host)| !scheme.is_empty() && !host.starts_with('/') && !host.is_empty());
    let (status, reason, message) = match said {
        "" => (
            "False",
            "MissingAnnotation",
            format!("protected groups must have approval annotation {}, {SEE}", quoted(APPROVED)),
        ),
        _ if said.starts_with("unapproved") => {
            ("False", "UnapprovedAnnotation", format!("not approved: {}", quoted(said)))
        }
        _ if is_url => ("True", "ApprovedAnnotation", format!("approved in {said}")),
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
    set(definition, &Condition { kind: KIND, status, reason, message: &message }, now);
}

/// The progress of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionProgress {
    /// It was requested.
    Pending,
    /// Its objects are being deleted.
    Deleting,
    /// Its objects could not be deleted.
    Failed(String),
    /// Some of its objects have finalizers.
    Waiting,
    /// All objects are gone.
    Done,
    /// There never were any.
    NeverServed,
}

/// Writes the progress of a deletion into a definition.
pub fn ending(definition: &mut Value, how: &DeletionProgress, now: &str) {
    let (status, reason, message) = match how {
        DeletionProgress::Pending => (
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        ),
        DeletionProgress::Deleting => {
            ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
        }
        DeletionProgress::Failed(why) => ("True", "InstanceDeletionFailed", why.as_str()),
        DeletionProgress::Waiting => (
            "True",
            "InstanceDeletionCheck",
            "could not confirm zero CustomResources remaining: timed out waiting for the condition",
        ),
        DeletionProgress::Done => ("False", "InstanceDeletionCompleted", "removed all instances"),
        DeletionProgress::NeverServed => ("False", "NeverEstablished", "resource was never established"),
    };
    set(definition, &Condition { kind: TERMINATING, status, reason, message }, now);
}

/// Whether a terminating definition still has our finalizer.
pub fn is_kept(definition: &Value) -> bool {
    let finalizers = definition.at(&["metadata", "finalizers"]).map(Value::items).unwrap_or_default();
    definition.at(&["metadata", "deletionTimestamp"]).is_some()
        && finalizers.iter().any(|one| one.as_str() == Some(CLEANUP_FINALIZER))
}

/// Removes our finalizer.
pub fn release(definition: &mut Value) {
    let all = definition.at(&["metadata", "finalizers"]).map(Value::items).unwrap_or_default();
    let rest: Vec<Value> =
        all.iter().filter(|one| one.as_str() != Some(CLEANUP_FINALIZER)).cloned().collect();
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

    fn said(definition: &Value) -> Vec<String> {
        let all = definition.at(&["status", "conditions"]).unwrap().items().iter();
        all.map(|one| {
            format!("{} {} {} {}", one.str("type"), one.str("status"), one.str("reason"), one.str("message"))
        })
        .collect()
    }

    #[test]
    fn names_are_given_once_in_a_group() {
        let mut first = definition("kites", "Kite", "k");
        assert!(settle(&mut first, Some(&AcceptedNames::default()), "now"));
        assert_eq!(
            said(&first),
            [
                "NamesAccepted True NoConflicts no conflicts found",
                "Established True InitialNamesAccepted the initial names have been accepted"
            ]
        );
        let mut taken = AcceptedNames::default();
        taken.add(&first);
        assert!(!settle(&mut first.clone(), Some(&taken), "later"), "what is settled stays so");
        let mut second = definition("birds", "Kite", "k");
        assert!(settle(&mut second, Some(&taken), "now"));
        assert_eq!(
            said(&second),
            [
                "NamesAccepted False ListKindConflict \"KiteList\" is already in use",
                "Established False NotAccepted not all names are accepted"
            ]
        );
        let names = second.at(&["status", "acceptedNames"]).unwrap();
        assert_eq!((names.str("plural"), names.str("kind")), ("birds", ""));
        assert!(!is_true(&second, ESTABLISHED));
        // The first is removed, and its names are free.
        taken.remove(&first);
        assert!(taken.is_empty());
        assert!(settle(&mut second, Some(&taken), "later"));
        assert!(is_true(&second, ESTABLISHED) && is_true(&second, NAMES_ACCEPTED));
    }

    #[test]
    fn a_definition_that_goes_is_kept_until_its_objects_have_gone() {
        let mut one = definition("kites", "Kite", "k");
        one.entry("metadata").set("deletionTimestamp", "now");
        assert!(!is_kept(&one));
        one.entry("metadata").set("finalizers", vec!["x", CLEANUP_FINALIZER]);
        assert!(is_kept(&one));
        ending(&mut one, &DeletionProgress::Done, "now");
        release(&mut one);
        assert!(!is_kept(&one) && !is_true(&one, TERMINATING));
        assert_eq!(one.at(&["metadata", "finalizers"]).unwrap().items().len(), 1);
    }
}
