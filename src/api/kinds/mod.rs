//! The rules of each kind, beside their kind: what a write fills in, what it may say, what it may change.
//!
//! The rules see objects that were decoded and type-checked, in canonical form: unknown fields are gone, absent fields
//! are missing, and a field that Go would leave out when it is zero is absent rather than zero. All of it is pure: the
//! time and the user come with the [`WriteContext`].

mod admission;
mod admission_policy;
pub(in crate::api) mod allowed;
mod api_service;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
pub(in crate::api) mod core;
mod definition;
mod devices;
mod discovery;
mod field_value;
mod flowcontrol;
mod gated;
mod lifecycle;
mod messages;
mod migration;
mod misc;
mod nano_quantity;
mod networking;
mod pem;
mod policy;
#[cfg(test)]
mod properties;
mod rbac;
pub mod selector;
mod storage;
mod table;
#[cfg(test)]
pub(crate) mod testing;
pub mod validation_engines;
mod webhook;

pub use certificates::{before_approval, parse_request as certificate_request};
pub use core::pod::quality;
pub use core::pod_change;
pub use core::resources::is_extended;
pub use definition::has_bad_bundle;
pub use field_value::same;
pub(in crate::api) use field_value::{FieldValue, items_mut};
pub use gated::Gated;
pub use lifecycle::{
    Kind, SubresourceRules, apply_defaults, before_create, before_finalize, before_status_update,
    before_subresource_update, before_update, finish, grace_period, warn_given,
};

pub use super::error_list::{ErrorList, WarningList};
pub use super::features::{EnabledFeatures, Feature};
pub use pem::Request as CertificateRequest;
pub(in crate::api) use selector::{check_values, is_set_based};
pub use selector::{is_empty as selector_is_empty, matches as selector_matches};

use super::custom::warn_of_finalizers;
use super::meta;
use super::names::{self, NameRule};
use super::value::Value;

/// What a rule may know besides the objects.
#[derive(Clone, Copy, Debug)]
pub struct WriteContext<'a> {
    /// The time of the request, as objects print it.
    pub now: &'a str,
    /// Who writes.
    pub user: &'a UserInfo,
    /// What the operator of the server has decided.
    pub features: EnabledFeatures,
}

/// Who writes, for the kinds that record it.
#[derive(Clone, Debug, Default)]
pub struct UserInfo {
    /// The name of the user.
    pub name: String,
    /// The uid of the user.
    pub uid: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// What else is known of the user.
    pub extra: Vec<(String, Vec<String>)>,
}

/// How `metadata.generation` moves.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    /// Whether a new object has generation 1, whatever it says.
    pub starts: bool,
    /// The fields whose change raises it.
    pub moves_with: &'static [&'static [&'static str]],
    /// Whether a list that is there without items counts as a change each time, since none is ever stored.
    pub empty_lists_count: bool,
    /// Whether what features that are off would read counts as a change, though it is dropped.
    pub dropped_count: bool,
}

impl Generation {
    /// The server leaves it alone.
    pub const NONE: Generation =
        Generation { starts: false, moves_with: &[], empty_lists_count: false, dropped_count: false };
    /// It starts at 1 and stays.
    pub const FIRST: Generation = Generation { starts: true, ..Generation::NONE };
    /// It starts at 1 and moves with the spec.
    pub const SPEC: Generation = Generation { moves_with: &[&["spec"]], ..Generation::FIRST };
}

/// What a write of the status may change in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusMeta {
    /// All that a write of the object may change.
    Free,
    /// All of that but these fields.
    Without(&'static [&'static str]),
    /// Nothing of what says what the object is for.
    Fixed,
    /// Nothing at all but the managed fields.
    Kept,
}

/// The fields that say what an object is for, which a strict status write keeps.
const DESCRIPTIONS: &[&str] =
    &["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp", "selfLink"];

/// Which checks of the metadata an update repeats on behalf of the kind. Each repeated finding is one more cause in
/// the answer, so the numbers are visible to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaRevalidation {
    /// None.
    No,
    /// How the metadata changed.
    Change,
    /// All of the metadata, with the name's own syntax.
    Whole,
    /// Both.
    WholeAndChange,
    /// All of the metadata, and once more because the kind checks an update both as new and as changed.
    WholeTwice,
    /// The same and how it changed.
    WholeTwiceAndChange,
}

impl MetaRevalidation {
    /// How often all of the metadata is checked again, and how often its change.
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

/// How often an update checks all of what the object became, as if it were new, before its change is looked at. What is
/// found twice is two causes in the answer, so the numbers are visible to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revalidation {
    /// Not at all: the check of the change looks at what it must.
    No,
    /// Once.
    Once,
    /// Twice: the kind checks an update both as new and as changed.
    Twice,
}

/// What the first deletion of an object does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstDeletion {
    /// What its finalizers and its grace say.
    Plain,
    /// It marks the object and what shall become of its dependents, even if nothing holds it; the next one decides.
    MarksWithDependents,
    /// It marks the object, whatever shall become of its dependents.
    Marks,
}

/// Everything that sets one kind apart from the others.
pub struct KindRules {
    /// The syntax of names.
    pub name: NameRule,
    /// Whether `generateName` is the name of an object that has none, because no suffix would make a good name.
    pub prefix_is_name: bool,
    /// Whether a finalizer without a domain must be one of the known ones.
    pub known_finalizers: bool,
    /// Whether a PUT may create.
    pub create_on_update: bool,
    /// Whether a PUT without a resourceVersion overwrites what is there.
    pub unconditional_update: bool,
    /// How the generation moves.
    pub generation: Generation,
    /// Whether a new object keeps the status that the client sent.
    pub status_on_create: bool,
    /// Whether a write of the whole object may change the status.
    pub status_on_update: bool,
    /// What a status write may change besides the status.
    pub status_meta: StatusMeta,
    /// Which metadata checks an update repeats.
    pub meta_revalidation: MetaRevalidation,
    /// The same for a write of the status.
    pub status_meta_revalidation: MetaRevalidation,
    /// Where the spec of the pods stands that the kind is or makes.
    pub pods_at: &'static [&'static str],
    /// The fields that belong to features. Where those are off they are dropped, as in pods, but only after it was noted who
    /// wrote them.
    pub gated: &'static [Gated],
    /// Whether a deletion may say what becomes of dependents: nothing depends on some kinds.
    pub garbage_collected: bool,
    /// What else is wrong with a name, or the beginning of one, that depends on the object.
    pub own_name: fn(&Value, &str) -> Option<String>,
    /// Whether a deletion that does not say otherwise leaves the dependents.
    pub orphans: bool,
    /// What the one who deletes should know who does not say what becomes of the dependents.
    pub warn_on_delete: Option<&'static str>,
    /// Why the object of this name cannot be deleted, if it cannot.
    pub keep: fn(&str) -> Option<&'static str>,
    /// Whether a deletion gives the object time to end.
    pub graceful: bool,
    /// What the first deletion of an object does.
    pub first_deletion: FirstDeletion,
    /// Whether the object itself says that its deletion is not over, besides its finalizers.
    pub holds: fn(&Value) -> bool,
    /// What a deletion that has to wait changes in the object, besides its metadata.
    pub terminate: fn(&mut Value),
    /// Fills in what depends on other values. May run before or after the table's plain defaults, and twice.
    pub default: fn(&mut Value),
    /// The same for what depends on which features are on.
    pub default_by: fn(&mut Value, EnabledFeatures),
    /// Sets what a new object must have, after the system fields were set.
    pub prepare_create: fn(&mut Value, &WriteContext<'_>),
    /// Carries over what an update may not change silently.
    pub prepare_update: fn(&mut Value, &Value, &WriteContext<'_>),
    /// The same for a write of the status.
    pub prepare_status: fn(&mut Value, &Value, &WriteContext<'_>),
    /// Sets what the reference fills in when what was written is read back: its checks do not look at it, and the next update
    /// stores it.
    pub finish: Option<fn(&mut Value)>,
    /// Checks a new object, its metadata apart.
    pub validate: fn(&Value, &mut ErrorList),
    /// How often an update runs that check again.
    pub revalidation: Revalidation,
    /// Checks a changed object against the old one, its metadata apart. What the check of a new object finds is not its
    /// business where [`Self::revalidation`] repeats that one.
    pub validate_update: fn(&Value, &Value, &mut ErrorList),
    /// Checks a changed status against the old one.
    pub validate_status: fn(&Value, &Value, &mut ErrorList),
    /// What the writer of a valid object should know: deprecated or dubious fields. The old object comes with an update.
    pub warn: fn(&Value, Option<&Value>, &mut WarningList),
    /// The same for the writer of a status.
    pub warn_status: fn(&Value, &mut WarningList),
    /// What the writer of a new object should know even if it is refused.
    pub warn_given: fn(&Value, &mut WarningList),
}

impl KindRules {
    /// Checks a changed object, its metadata apart.
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

/// The rules of a kind that says nothing special; custom resources have these too.
pub static GENERIC: KindRules = KindRules { unconditional_update: false, ..BASE };

/// What a kind starts from.
const BASE: KindRules = KindRules {
    name: names::subdomain_name,
    prefix_is_name: false,
    known_finalizers: true,
    create_on_update: false,
    unconditional_update: true,
    generation: Generation::NONE,
    status_on_create: false,
    status_on_update: false,
    status_meta: StatusMeta::Free,
    meta_revalidation: MetaRevalidation::Change,
    status_meta_revalidation: MetaRevalidation::Change,
    pods_at: &[],
    gated: &[],
    garbage_collected: true,
    own_name: meta::any_name,
    orphans: false,
    warn_on_delete: None,
    keep: |_| None,
    graceful: false,
    holds: |_| false,
    first_deletion: FirstDeletion::Plain,
    terminate: |_| {},
    default: |_| {},
    default_by: |_, _| {},
    prepare_create: |_, _| {},
    prepare_update: |_, _, _| {},
    prepare_status: |_, _, _| {},
    finish: None,
    validate: |_, _| {},
    revalidation: Revalidation::No,
    validate_update: |_, _, _| {},
    validate_status: |_, _, _| {},
    warn: |_, _, _| {},
    warn_status: |_, _| {},
    warn_given: |_, _| {},
};

/// A kind whose spec moves the generation.
const COUNTED: KindRules =
    KindRules { generation: Generation::SPEC, meta_revalidation: MetaRevalidation::WholeAndChange, ..BASE };
/// A kind without a generation.
const PLAIN: KindRules = KindRules { meta_revalidation: MetaRevalidation::WholeAndChange, ..BASE };
/// A kind that must be read before it is written.
const GUARDED: KindRules = KindRules { unconditional_update: false, ..PLAIN };
/// Where a controller says what its pods are like.
const POD_TEMPLATE: &[&str] = &["spec", "template", "spec"];

/// The rules of custom kinds. What their schemas say is checked besides.
pub static CUSTOM: KindRules = KindRules {
    known_finalizers: false,
    generation: Generation::FIRST,
    status_meta: StatusMeta::Fixed,
    prepare_update: |new, old, _| {
        if !same_but_metadata(new, old) {
            new.entry("metadata").set("generation", meta::generation(old) + 1);
        }
    },
    warn: warn_of_finalizers,
    unconditional_update: false,
    ..BASE
};

/// Whether two objects say the same, their metadata apart.
fn same_but_metadata(one: &Value, other: &Value) -> bool {
    fn rest(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
        object.fields().into_iter().flatten().filter(|(name, _)| *name != "metadata")
    }
    rest(one).eq(rest(other))
}

/// The rules of a kind.
pub fn rules(group: &str, kind: &str) -> &'static KindRules {
    table::TABLE.iter().find(|row| row.0 == group && row.1 == kind).map_or(&GENERIC, |row| &row.2)
}

/// Whether a finished deletion answers with the object as it last was.
pub fn shows_deleted(group: &str, kind: &str) -> bool {
    table::SHOWN_WHEN_DELETED.contains(&(group, kind))
}
