//! ResourceQuotas: the usage of objects, and whether it fits.
//!
//! - [`usage`] computes the usage of an object by its kind; [`pods`] is the longest part of it;
//! - [`scope`] selects the objects of a quota;
//! - [`check`] checks a write and computes the new usage;
//! - [`tally`] counts the usage of a namespace from its objects;
//! - [`limited`] are resources that may be used only if a quota covers them.
//!
//! Nothing is stored here: the caller stores the result of [`check`].

pub mod check;
pub mod limited;
pub mod pods;
pub mod scope;
pub mod tally;
pub mod usage;

pub use check::{Refusal, Request, check};
pub use limited::Limited;
pub use scope::Scope;
pub use tally::Tally;
pub use usage::UsageEvaluator;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::resource_list::{self, ResourceList};
use pilothouse_apimachinery::value::Value;

/// The feature gates that change how usage is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Container statuses count, because pods can be resized in place.
    pub resized_pods: bool,
    /// Pods can have resources as a whole.
    pub pod_resources: bool,
    /// A claim whose expansion failed is charged for its allocated size.
    pub failed_expansion: bool,
    /// Quotas can have scopes of VolumeAttributesClasses.
    pub attributes_classes: bool,
    /// ResourceClaims are counted by their devices.
    pub device_claims: bool,
}

/// A quota, parsed for decisions.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// The name, for messages.
    pub name: String,
    /// The limits in its status: a spec that the controller has not processed yet has no effect.
    pub hard: ResourceList,
    /// The current usage.
    pub used: ResourceList,
    /// The scopes; empty for everything.
    pub scopes: Vec<Scope>,
}

impl Quota {
    /// Parses a quota.
    pub fn read(object: &Value) -> Quota {
        Quota {
            name: meta::name(object).to_owned(),
            hard: resource_list::read(object.get_path(&["status", "hard"])),
            used: resource_list::read(object.get_path(&["status", "used"])),
            scopes: Scope::from_spec(object.get("spec").unwrap_or(&Value::Null)),
        }
    }
}

#[cfg(test)]
pub(crate) const DEFAULT_FEATURES: Features = Features {
    resized_pods: true,
    pod_resources: false,
    failed_expansion: true,
    attributes_classes: false,
    device_claims: false,
};
