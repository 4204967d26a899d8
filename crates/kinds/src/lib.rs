//! The rules of each kind: defaulting, preparation and validation of writes, and warnings. The reference calls this the
//! strategy of a resource.
//!
//! The rules see decoded objects in canonical form: unknown fields are dropped, and a field that Go omits when it is zero
//! (`omitempty`) is absent rather than zero. All functions are pure: time and user are in the [`WriteContext`].

mod address;
mod admission;
mod admission_policy;
pub mod allowed;
mod api_service;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod conversion;
mod coordination;
pub mod core;
mod custom_resource;
pub mod definition;
mod devices;
mod discovery;
mod flowcontrol;
mod gated;
mod kind_rules;
mod lifecycle;
pub mod limits;
mod messages;
mod migration;
mod networking;
mod node;
mod pem;
mod policy;
#[cfg(test)]
mod properties;
mod rbac;
mod scheduling;
pub mod services;
mod storage;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod validation_engines;
mod webhook;

pub use certificates::{before_approval, parse_request as certificate_request};
pub use conversion::CONVERSIONS;
pub use core::pod::qos_class;
pub use core::pod_change;
pub use core::resources::is_extended;
pub use custom_resource::RULES as CUSTOM;
pub use definition::has_invalid_ca_bundle;
pub use gated::Gated;
pub use kind_rules::{
    DefaultingRules, DeletionRules, FieldPaths, FirstDeletion, GarbageCollection, Generation, KindRules,
    MetaRevalidation, MetadataOrder, MetadataRules, PodSpecPath, PreparationRules, ResetFields, Revalidation,
    StatusMeta, StatusRules, UpdateRules, ValidationRules, WarningRules,
};
pub use lifecycle::{
    Kind, SubresourceRules, apply_defaults, before_create, before_finalize, before_status_update,
    before_subresource_update, before_update,
};

pub use pem::Request as CertificateRequest;

use pilothouse_apimachinery::features::EnabledFeatures;

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

/// The rules of kinds without an entry in the table.
pub static GENERIC: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::Change, ..MetadataRules::DEFAULT },
    update: UpdateRules::CONDITIONAL,
    ..KindRules::DEFAULT
};

/// The rules of a kind.
pub fn rules(group: &str, kind: &str) -> &'static KindRules {
    table::TABLE.iter().find(|row| row.0 == group && row.1 == kind).map_or(&GENERIC, |row| &row.2)
}
