//! The rules of each kind: defaulting, preparation and validation of writes, and warnings. The reference calls this the
//! strategy of a resource.
//!
//! The rules see decoded objects in canonical form: unknown fields are dropped, and a field that Go omits when it is zero
//! (`omitempty`) is absent rather than zero. All functions are pure: time and user are in the [`WriteContext`].

mod admission;
mod admission_policy;
pub mod allowed;
mod api_service;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
pub mod core;
pub mod definition;
mod devices;
mod discovery;
mod finalizers;
mod flowcontrol;
mod gated;
mod lifecycle;
pub mod limits;
mod messages;
mod migration;
mod misc;
mod networking;
mod pem;
mod policy;
#[cfg(test)]
mod properties;
mod rbac;
pub mod services;
mod storage;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod validation_engines;
mod webhook;

pub use certificates::{before_approval, parse_request as certificate_request};
pub use core::pod::qos_class;
pub use core::pod_change;
pub use core::resources::is_extended;
pub use definition::has_invalid_ca_bundle;
pub use gated::Gated;
pub use lifecycle::{
    Kind, SubresourceRules, apply_defaults, before_create, before_finalize, before_status_update,
    before_subresource_update, before_update, finish, grace_period, warn_early,
};

pub use pem::Request as CertificateRequest;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names::{self, NameRule};
use pilothouse_apimachinery::value::Value;

use finalizers::warn_about_finalizers;

/// What rules know of a write besides the objects.
#[derive(Clone, Copy, Debug)]
pub struct WriteContext<'a> {
    /// The time of the request, as objects print it.
    pub now: &'a str,
    /// The user.
    pub user: &'a UserInfo,
    /// The enabled features.
    pub features: EnabledFeatures,
}

/// The user of a write, for kinds that record it.
#[derive(Clone, Debug, Default)]
pub struct UserInfo {
    /// The name of the user.
    pub name: String,
    /// The uid of the user.
    pub uid: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// The extra attributes of the user.
    pub extra: Vec<(String, Vec<String>)>,
}

/// When `metadata.generation` is increased.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    /// Whether a new object has generation 1.
    pub starts: bool,
    /// The fields whose change increases it.
    pub increased_by: &'static [&'static [&'static str]],
    /// Whether an empty list in the request counts as a change each time, because it is never stored.
    pub counts_empty_lists: bool,
    /// Whether fields of disabled features count as a change, although they are dropped.
    pub counts_dropped_fields: bool,
}

impl Generation {
    /// Never set.
    pub const NONE: Generation = Generation {
        starts: false,
        increased_by: &[],
        counts_empty_lists: false,
        counts_dropped_fields: false,
    };
    /// 1, and never increased.
    pub const FIRST: Generation = Generation { starts: true, ..Generation::NONE };
    /// 1, and increased when the spec changes.
    pub const SPEC: Generation = Generation { increased_by: &[&["spec"]], ..Generation::FIRST };
}

/// The metadata that an update of the status subresource may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusMeta {
    /// The same as an update of the object.
    Mutable,
    /// The same, except for these fields.
    MutableExcept(&'static [&'static str]),
    /// Only fields that are not in `DESCRIPTIONS`.
    DescriptionsKept,
    /// Only managedFields.
    AllKept,
}

/// The metadata that a status update keeps for most kinds.
const DESCRIPTIONS: &[&str] =
    &["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp", "selfLink"];

/// Which metadata validations an update repeats. Some kinds of the reference validate metadata several times, and each error
/// appears as often among the causes of the Status, so clients see the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaRevalidation {
    /// None.
    No,
    /// The update validation of the metadata.
    Change,
    /// The full validation of the metadata, with the kind's syntax of names.
    Whole,
    /// Both.
    WholeAndChange,
    /// The full validation twice: the kind validates an update both as a create and as an update.
    WholeTwice,
    /// The full validation twice, and the update validation.
    WholeTwiceAndChange,
}

impl MetaRevalidation {
    /// The number of additional full validations and of update validations.
    pub fn times(self) -> (usize, usize) {
        match self {
            MetaRevalidation::No => (0, 0),
            MetaRevalidation::Change => (0, 1),
            MetaRevalidation::Whole => (1, 0),
            MetaRevalidation::WholeAndChange => (1, 1),
            MetaRevalidation::WholeTwice => (2, 0),
            MetaRevalidation::WholeTwiceAndChange => (2, 1),
        }
    }
}

/// How often an update runs the create validation before the update validation. Errors that are found twice are two causes in
/// the Status, so clients see the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revalidation {
    /// Not at all: the update validation calls what it needs.
    No,
    /// Once.
    Once,
    /// Twice: both validations of the reference include it.
    Twice,
}

/// What the first DELETE of an object does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstDeletion {
    /// Depends on finalizers and grace period.
    Plain,
    /// Sets deletionTimestamp and the finalizer of the propagation policy, even without finalizers; the next DELETE removes the
    /// object.
    MarksWithDependents,
    /// Sets deletionTimestamp, whatever the propagation policy.
    Marks,
}

/// The rules of one kind. The reference calls this its strategy.
pub struct KindRules {
    /// The syntax of names.
    pub name: NameRule,
    /// Whether an object without a name gets its `generateName` as name, because a suffix would make it invalid.
    pub prefix_is_name: bool,
    /// Whether a finalizer without a domain must be a standard one.
    pub known_finalizers: bool,
    /// Whether the metadata of a new object is checked only if nothing else is wrong.
    pub meta_last: bool,
    /// Whether a PUT may create.
    pub create_on_update: bool,
    /// Whether a PUT without a resourceVersion overwrites the object.
    pub unconditional_update: bool,
    /// When the generation is increased.
    pub generation: Generation,
    /// Whether a new object keeps the status that the client sent.
    pub status_on_create: bool,
    /// Whether an update of the object may change the status.
    pub status_on_update: bool,
    /// The metadata that a status update may change.
    pub status_meta: StatusMeta,
    /// The metadata validations that an update repeats.
    pub meta_revalidation: MetaRevalidation,
    /// The same for a status update.
    pub status_meta_revalidation: MetaRevalidation,
    /// The path of the PodSpec, for pods and kinds with a pod template.
    pub pod_spec_path: &'static [&'static str],
    /// The fields of feature gates. Those of disabled features are dropped, after managedFields were updated.
    pub gated: &'static [Gated],
    /// Whether the kind is garbage collected, so that DeleteOptions may have a propagation policy.
    pub garbage_collected: bool,
    /// Validates the name, or generateName, against the object.
    pub own_name: fn(&Value, &str) -> Option<String>,
    /// Whether the default propagation policy is Orphan.
    pub orphans_by_default: bool,
    /// The warning for a DELETE without a propagation policy.
    pub warn_on_delete: Option<&'static str>,
    /// The reason why the object of this name must not be deleted, if it must not.
    pub undeletable_reason: fn(&str) -> Option<&'static str>,
    /// Whether deletion is graceful.
    pub graceful: bool,
    /// What the first DELETE of an object does.
    pub first_deletion: FirstDeletion,
    /// Whether the object blocks its removal, besides metadata.finalizers.
    pub blocks_removal: fn(&Value) -> bool,
    /// Changes the object when its deletion becomes pending, besides the metadata.
    pub terminate: fn(&mut Value),
    /// Sets defaults that depend on other fields. May run before or after the defaults of the schema table, and twice.
    pub default: fn(&mut Value),
    /// Sets defaults that depend on feature gates.
    pub default_by_feature: fn(&mut Value, EnabledFeatures),
    /// PrepareForCreate: runs after the system fields were set.
    pub prepare_create: fn(&mut Value, &WriteContext<'_>),
    /// PrepareForUpdate: copies fields from the old object that an update must not change.
    pub prepare_update: fn(&mut Value, &Value, &WriteContext<'_>),
    /// The same for a status update.
    pub prepare_status: fn(&mut Value, &Value, &WriteContext<'_>),
    /// Sets defaults that the reference only sets when it decodes a stored object. They are not validated, and the next update
    /// stores them.
    pub finish: Option<fn(&mut Value)>,
    /// Validates what is checked before the metadata of a new object.
    pub validate_first: fn(&Value, &mut ErrorList),
    /// Validates a new object, except for its metadata.
    pub validate: fn(&Value, &mut ErrorList),
    /// How often an update runs `validate`.
    pub revalidation: Revalidation,
    /// Validates an update, except for its metadata. Need not repeat `validate` where [`Self::revalidation`] does.
    pub validate_update: fn(&Value, &Value, &mut ErrorList),
    /// Validates a status update.
    pub validate_status: fn(&Value, &Value, &mut ErrorList),
    /// Warnings about an accepted object: deprecated or dubious fields. Updates also get the old object.
    pub warn: fn(&Value, Option<&Value>, &mut WarningList),
    /// Warnings about a status update.
    pub warn_status: fn(&Value, &mut WarningList),
    /// Warnings about a new object even if it is refused.
    pub warn_early: fn(&Value, &mut WarningList),
}

impl KindRules {
    /// Validates an update, except for its metadata.
    fn check_update(&self, new: &Value, old: &Value, errors: &mut ErrorList) {
        let times = match self.revalidation {
            Revalidation::No => 0,
            Revalidation::Once => 1,
            Revalidation::Twice => 2,
        };
        for _ in 0..times {
            (self.validate)(new, errors);
        }
        (self.validate_update)(new, old, errors);
    }
}

/// The rules of kinds without an entry in the table.
pub static GENERIC: KindRules = KindRules { unconditional_update: false, ..BASE };

/// The defaults of all rules.
const BASE: KindRules = KindRules {
    name: names::subdomain_name,
    prefix_is_name: false,
    known_finalizers: true,
    meta_last: false,
    create_on_update: false,
    unconditional_update: true,
    generation: Generation::NONE,
    status_on_create: false,
    status_on_update: false,
    status_meta: StatusMeta::Mutable,
    meta_revalidation: MetaRevalidation::Change,
    status_meta_revalidation: MetaRevalidation::Change,
    pod_spec_path: &[],
    gated: &[],
    garbage_collected: true,
    own_name: meta::any_name,
    orphans_by_default: false,
    warn_on_delete: None,
    undeletable_reason: |_| None,
    graceful: false,
    blocks_removal: |_| false,
    first_deletion: FirstDeletion::Plain,
    terminate: |_| {},
    default: |_| {},
    default_by_feature: |_, _| {},
    prepare_create: |_, _| {},
    prepare_update: |_, _, _| {},
    prepare_status: |_, _, _| {},
    finish: None,
    validate_first: |_, _| {},
    validate: |_, _| {},
    revalidation: Revalidation::No,
    validate_update: |_, _, _| {},
    validate_status: |_, _, _| {},
    warn: |_, _, _| {},
    warn_status: |_, _| {},
    warn_early: |_, _| {},
};

/// A kind whose generation counts changes of the spec.
const WITH_GENERATION: KindRules =
    KindRules { generation: Generation::SPEC, meta_revalidation: MetaRevalidation::WholeAndChange, ..BASE };
/// A kind without a generation.
const WITHOUT_GENERATION: KindRules =
    KindRules { meta_revalidation: MetaRevalidation::WholeAndChange, ..BASE };
/// A kind without unconditional updates: a PUT needs a resourceVersion.
const GUARDED: KindRules = KindRules { unconditional_update: false, ..WITHOUT_GENERATION };
/// The path of the PodSpec in a pod template.
const POD_TEMPLATE: &[&str] = &["spec", "template", "spec"];

/// The rules of custom resources, in addition to their schemas.
pub static CUSTOM: KindRules = KindRules {
    known_finalizers: false,
    generation: Generation::FIRST,
    status_meta: StatusMeta::DescriptionsKept,
    prepare_update: |new, old, _| {
        if !same_but_metadata(new, old) {
            new.entry("metadata").set("generation", meta::generation(old) + 1);
        }
    },
    warn: warn_about_finalizers,
    unconditional_update: false,
    ..BASE
};

/// Whether two objects are equal except for their metadata.
fn same_but_metadata(first: &Value, second: &Value) -> bool {
    fn rest(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
        object.fields().into_iter().flatten().filter(|(name, _)| *name != "metadata")
    }
    rest(first).eq(rest(second))
}

/// The rules of a kind.
pub fn rules(group: &str, kind: &str) -> &'static KindRules {
    table::TABLE.iter().find(|row| row.0 == group && row.1 == kind).map_or(&GENERIC, |row| &row.2)
}

/// Whether DELETE returns the deleted object instead of a Status.
pub fn returns_deleted_object(group: &str, kind: &str) -> bool {
    table::RETURNED_WHEN_DELETED.contains(&(group, kind))
}
