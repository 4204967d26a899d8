//! The effect of a deletion on an object: it is removed now, marked and removed later, or already pending.

use pilothouse_apimachinery::meta::{self, FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use pilothouse_apimachinery::options::{DeleteOptions, Propagation};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::{DeletionRules, FirstDeletion, GarbageCollection};
use pilothouse_types::clock::Timestamp;

/// The next step of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The object is removed at once.
    Now,
    /// The object was changed, which watches must see, and is then removed at once.
    MarkThenRemove,
    /// The object was marked and must be stored: it is removed after its finalizers are gone and its grace period is over.
    Mark,
    /// An earlier deletion is pending and this one adds nothing.
    Pending,
}

/// Checks the preconditions of a deletion of an object of `resource`.
pub fn check_preconditions(
    rules: &DeletionRules,
    options: &DeleteOptions,
    object: &Value,
    resource: GroupResource<'_>,
) -> Result<()> {
    let meta = meta::metadata(object);
    let preconditions = [
        ("UID", &options.uid, meta.str("uid"), "deleted and then recreated"),
        ("ResourceVersion", &options.resource_version, meta.str("resourceVersion"), "modified"),
    ];
    for (field, expected, actual, fate) in preconditions {
        let Some(expected) = expected.as_deref().filter(|expected| *expected != actual) else { continue };
        let (resource, message) = match rules.first_deletion {
            // Only here errors name the kind instead of the resource.
            FirstDeletion::Plain => (
                GroupResource { resource: object.str("kind"), ..resource },
                format!(
                    "the {field} in the precondition ({expected}) does not match the {field} in record ({actual}). The \
                     object might have been {fate}"
                ),
            ),
            // In the reference the storage of these kinds checks preconditions itself, with messages of its own.
            FirstDeletion::SetsDeletionTimestamp | FirstDeletion::SetsDeletionTimestampAndFinalizer => (
                resource,
                format!(
                    "Precondition failed: {field} in precondition: {expected}, {field} in object meta: {actual}"
                ),
            ),
        };
        return Err(Status::conflict(resource, meta.str("name"), &message));
    }
    Ok(())
}

/// Decides the next step, and marks the object if it must wait. `collects_garbage`: whether a garbage collector is told by finalizers
/// what to do with dependents. For the first deletion of a namespace it is, as in the reference.
pub fn prepare(
    rules: &DeletionRules,
    object: &mut Value,
    options: &DeleteOptions,
    collects_garbage: bool,
    now: Timestamp,
) -> Deletion {
    if !meta::is_terminating(object) && rules.first_deletion != FirstDeletion::Plain {
        if rules.first_deletion == FirstDeletion::SetsDeletionTimestampAndFinalizer {
            // For these kinds orphanDependents=false means foreground deletion, unlike elsewhere.
            let is_foreground = options.orphan_dependents == Some(false);
            let propagation = if is_foreground { Some(Propagation::Foreground) } else { options.propagation };
            set_finalizers(rules, object, &DeleteOptions { propagation, ..options.clone() });
        }
        object.entry("metadata").set("deletionTimestamp", time::format_seconds(now.unix_seconds()));
        (rules.terminate)(object);
        return Deletion::Mark;
    }
    if (rules.blocks_removal)(object) {
        return Deletion::Pending;
    }
    let is_graceful = match grace(rules, object, options, now) {
        Grace::Pending => return Deletion::Pending,
        Grace::Given => true,
        Grace::None => false,
    };
    if collects_garbage {
        set_finalizers(rules, object, options);
    }
    let is_finalized = !has_finalizers(object);
    if !is_finalized && !is_graceful {
        mark(object, now);
    }
    let is_expired =
        meta::metadata(object).get("deletionGracePeriodSeconds").and_then(Value::as_int).unwrap_or(0) == 0;
    match (is_finalized, is_graceful) {
        (true, true) if is_expired => Deletion::MarkThenRemove,
        (true, false) => Deletion::Now,
        _ => Deletion::Mark,
    }
}

fn has_finalizers(object: &Value) -> bool {
    meta::metadata(object).get("finalizers").is_some_and(|finalizers| !finalizers.items().is_empty())
}

enum Grace {
    /// The kind has none, or it is over.
    None,
    /// A grace period was set on the object.
    Given,
    /// A grace period is running already.
    Pending,
}

fn grace(rules: &DeletionRules, object: &mut Value, options: &DeleteOptions, now: Timestamp) -> Grace {
    let Some(seconds) = (rules.grace_period)(object, options.grace_period_seconds) else {
        return Grace::None;
    };
    let generation = meta::generation(object);
    let is_terminating = meta::is_terminating(object);
    let remaining =
        meta::metadata(object).get("deletionGracePeriodSeconds").and_then(Value::as_int).unwrap_or(0);
    let metadata = object.entry("metadata");
    if !is_terminating {
        metadata.set("deletionTimestamp", time::format_seconds(now.unix_seconds().saturating_add(seconds)));
        metadata.set("deletionGracePeriodSeconds", seconds);
        if generation > 0 {
            metadata.set("generation", generation + 1);
        }
        return Grace::Given;
    }
    if remaining == 0 {
        return Grace::None;
    }
    // A running grace period can only be shortened.
    match options.grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds }) {
        Some(seconds) if seconds < remaining => {
            let now = now.unix_seconds();
            let end =
                time::parse_seconds(metadata.str("deletionTimestamp")).unwrap_or(now) - remaining + seconds;
            let (end, seconds) = if end < now { (now, seconds.min(1)) } else { (end, seconds) };
            metadata.set("deletionTimestamp", time::format_seconds(end));
            metadata.set("deletionGracePeriodSeconds", seconds);
            Grace::Given
        }
        _ => Grace::Pending,
    }
}

/// Marks an object that only waits for finalizers.
fn mark(object: &mut Value, now: Timestamp) {
    let generation = meta::generation(object);
    let is_terminating = meta::is_terminating(object);
    let metadata = object.entry("metadata");
    if !is_terminating {
        if generation > 0 {
            metadata.set("generation", generation + 1);
        }
        metadata.set("deletionTimestamp", time::format_seconds(now.unix_seconds()));
    }
    metadata.set("deletionGracePeriodSeconds", 0);
}

/// Adds or removes the finalizers that tell the garbage collector how to treat dependents.
fn set_finalizers(rules: &DeletionRules, object: &mut Value, options: &DeleteOptions) {
    if rules.garbage_collection == GarbageCollection::Unsupported {
        return;
    }
    let has_finalizer = |object: &Value, finalizer: &str| {
        let all = meta::metadata(object).get("finalizers").map(Value::items).unwrap_or_default();
        all.iter().any(|name| name.as_str() == Some(finalizer))
    };
    let orphan = wants_orphans(rules, options).unwrap_or_else(|| has_finalizer(object, ORPHAN_FINALIZER));
    let foreground = match (options.propagation, options.orphan_dependents) {
        (Some(policy), _) => policy == Propagation::Foreground,
        (None, Some(_)) => false,
        (None, None) => has_finalizer(object, FOREGROUND_FINALIZER),
    };
    for (finalizer, is_wanted) in [(ORPHAN_FINALIZER, orphan), (FOREGROUND_FINALIZER, foreground)] {
        if has_finalizer(object, finalizer) == is_wanted {
            continue;
        }
        let mut all = meta::metadata(object).get("finalizers").map(Value::items).unwrap_or_default().to_vec();
        all.retain(|name| name.as_str() != Some(finalizer));
        if is_wanted {
            all.push(finalizer.into());
        }
        object.entry("metadata").set("finalizers", all);
    }
}

/// The orphaning policy of the options or the kind; `None` if neither has one.
fn wants_orphans(rules: &DeletionRules, options: &DeleteOptions) -> Option<bool> {
    match (options.orphan_dependents, options.propagation) {
        (Some(orphan), _) => Some(orphan),
        (None, Some(policy)) => Some(policy == Propagation::Orphan),
        (None, None) => (rules.garbage_collection == GarbageCollection::OrphanDependents).then_some(true),
    }
}

/// Whether a terminating object can be removed: it has no finalizers and its grace period is over.
pub fn is_complete(rules: &DeletionRules, object: &Value) -> bool {
    let grace = meta::metadata(object).get("deletionGracePeriodSeconds").and_then(Value::as_int).unwrap_or(0);
    meta::is_terminating(object) && !has_finalizers(object) && !(rules.blocks_removal)(object) && grace == 0
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;
    use pilothouse_kinds::rules;

    use super::*;

    #[test]
    fn namespaces_and_definitions_are_marked_before_removal() {
        let delete = |group: &str, kind: &str, body: &str, options: &DeleteOptions| {
            let mut object = json::read(body.as_bytes()).unwrap();
            let decision =
                prepare(&rules(group, kind).deletion, &mut object, options, true, Timestamp(1_000_000));
            (decision, object)
        };
        let plain = DeleteOptions::default();
        let foreground =
            DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
        let adopted = DeleteOptions { orphan_dependents: Some(false), ..DeleteOptions::default() };
        let finalizers = |object: &Value| meta::metadata(object).get("finalizers").cloned();

        let (decision, empty) = delete("", "Namespace", r#"{"metadata":{"name":"a"}}"#, &plain);
        assert_eq!(decision, Deletion::Mark, "even if nothing is pending");
        assert_eq!(empty.get_path(&["status", "phase"]), Some(&Value::from("Terminating")));
        assert_eq!(meta::metadata(&empty).get("deletionGracePeriodSeconds"), None);
        let terminating = r#"{"metadata":{"name":"a","deletionTimestamp":"2001-01-01T00:00:00Z"}}"#;
        assert_eq!(delete("", "Namespace", terminating, &plain).0, Deletion::Now);
        for options in [&foreground, &adopted] {
            let (_, waiting) = delete("", "Namespace", r#"{"metadata":{"name":"a"}}"#, options);
            assert_eq!(finalizers(&waiting), Some(Value::Array(vec![FOREGROUND_FINALIZER.into()].into())));
        }
        let full = terminating.replacen("}}", r#"},"spec":{"finalizers":["kubernetes"]}}"#, 1);
        let (decision, held) = delete("", "Namespace", &full, &foreground);
        assert_eq!(
            (decision, finalizers(&held)),
            (Deletion::Pending, None),
            "a pending deletion changes nothing"
        );

        let group = "apiextensions.k8s.io";
        let (decision, definition) =
            delete(group, "CustomResourceDefinition", r#"{"metadata":{"name":"a"}}"#, &foreground);
        let cleanup = Value::from("customresourcecleanup.apiextensions.k8s.io");
        assert_eq!(
            (decision, finalizers(&definition)),
            (Deletion::Mark, Some(Value::Array(vec![cleanup].into())))
        );
    }

    #[test]
    fn finalizers_follow_garbage_collection_policy_of_kind() {
        let foreground =
            DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
        let table = [
            ("batch", "Job", DeleteOptions::default(), Some(ORPHAN_FINALIZER)),
            ("", "ReplicationController", DeleteOptions::default(), Some(ORPHAN_FINALIZER)),
            ("apps", "Deployment", DeleteOptions::default(), None),
            ("apps", "Deployment", foreground.clone(), Some(FOREGROUND_FINALIZER)),
            ("", "Event", foreground, None),
        ];
        for (group, kind, options, expected) in table {
            let mut object = json::read(br#"{"metadata":{"name":"a"}}"#).unwrap();
            set_finalizers(&rules(group, kind).deletion, &mut object, &options);
            let finalizers = meta::metadata(&object).get("finalizers").map(Value::items).unwrap_or_default();
            assert_eq!(finalizers.first().and_then(Value::as_str), expected, "{kind}");
        }
    }

    #[test]
    fn failed_precondition_has_the_message_of_its_kind() {
        let message = |kind: &str, group: &str, options: &DeleteOptions| {
            let text =
                format!(r#"{{"kind":"{kind}","metadata":{{"name":"a","uid":"u","resourceVersion":"3"}}}}"#);
            let object = json::read(text.as_bytes()).unwrap();
            let resource = GroupResource { group, resource: "namespaces" };
            let refused = check_preconditions(&rules(group, kind).deletion, options, &object, resource);
            refused.err().map(|status| status.message).unwrap_or_default()
        };
        let uid = DeleteOptions { uid: Some("x".into()), ..DeleteOptions::default() };
        let version = DeleteOptions { resource_version: Some("2".into()), ..DeleteOptions::default() };
        assert_eq!(
            message("Pod", "", &DeleteOptions { uid: Some("u".into()), ..DeleteOptions::default() }),
            ""
        );
        assert_eq!(
            message("Pod", "", &uid),
            "Operation cannot be fulfilled on Pod \"a\": the UID in the precondition (x) does not match the UID in record \
             (u). The object might have been deleted and then recreated"
        );
        assert_eq!(
            message("Namespace", "", &version),
            "Operation cannot be fulfilled on namespaces \"a\": Precondition failed: ResourceVersion in precondition: 2, \
             ResourceVersion in object meta: 3"
        );
        assert!(
            message("CustomResourceDefinition", "apiextensions.k8s.io", &uid)
                .ends_with("Precondition failed: UID in precondition: x, UID in object meta: u")
        );
    }
}
