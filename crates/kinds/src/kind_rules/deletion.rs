//! Rules of deletion and garbage collection.

use pilothouse_apimachinery::value::Value;

/// The deletion of an object and the treatment of its dependents.
#[derive(Clone, Copy, Debug)]
pub struct DeletionRules {
    /// What the garbage collector does with dependents if a DELETE has no propagation policy.
    pub garbage_collection: GarbageCollection,
    /// What the first DELETE of an object does.
    pub first_deletion: FirstDeletion,
    /// The grace period in seconds, from the object and the requested period; `None` if the kind has no graceful deletion. The
    /// reference calls this CheckGracefulDelete.
    pub grace_period: fn(object: &Value, requested: Option<i64>) -> Option<i64>,
    /// Changes the object when its deletion becomes pending, besides the metadata.
    pub terminate: fn(object: &mut Value),
    /// Whether the object blocks its removal, besides metadata.finalizers.
    pub blocks_removal: fn(object: &Value) -> bool,
    /// The reason why the object of this name must not be deleted, if it must not.
    pub undeletable_reason: fn(name: &str) -> Option<&'static str>,
    /// Whether a DELETE returns the deleted object instead of a Status. The reference calls this ReturnDeletedObject.
    pub returns_object: bool,
    /// The warning for a DELETE without a propagation policy.
    pub warning: Option<&'static str>,
}

impl DeletionRules {
    /// A DELETE removes the object at once if it has no finalizers; the garbage collector deletes its dependents.
    pub const DEFAULT: DeletionRules = DeletionRules {
        garbage_collection: GarbageCollection::DeleteDependents,
        first_deletion: FirstDeletion::Plain,
        grace_period: |_, _| None,
        terminate: |_| {},
        blocks_removal: |_| false,
        undeletable_reason: |_| None,
        returns_object: false,
        warning: None,
    };
    /// The same, and a DELETE returns the deleted object.
    pub const RETURNS_OBJECT: DeletionRules =
        DeletionRules { returns_object: true, ..DeletionRules::DEFAULT };
}

/// The default garbage collection policy of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageCollection {
    /// Dependents are deleted.
    DeleteDependents,
    /// Dependents are orphaned.
    OrphanDependents,
    /// The kind takes no part in garbage collection: propagation policies have no effect.
    Unsupported,
}

/// What the first DELETE of an object does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstDeletion {
    /// Depends on finalizers and grace period.
    Plain,
    /// Sets deletionTimestamp and the finalizer of the propagation policy, even without finalizers; the next DELETE removes the
    /// object.
    SetsDeletionTimestampAndFinalizer,
    /// Sets deletionTimestamp, whatever the propagation policy.
    SetsDeletionTimestamp,
}
