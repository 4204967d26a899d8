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
pub use usage::Meter;

use super::amounts::{self, Amounts};
use super::meta;
use super::value::Value;

/// The feature gates that decide what is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// What the status says of the resources of containers counts: pods can be resized while they run.
    pub resized_pods: bool,
    /// Pods can ask for resources as a whole.
    pub pod_resources: bool,
    /// A claim whose growth failed is charged for what was allocated.
    pub failed_expansion: bool,
    /// Quotas can be about claims of certain volume attributes classes.
    pub attributes_classes: bool,
    /// Claims of devices are counted by the devices they ask for.
    pub device_claims: bool,
}

/// A quota as decisions need it.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// Its name, for messages.
    pub name: String,
    /// What may be used, as its status says: a specification that nobody has looked at yet binds nobody.
    pub hard: Amounts,
    /// What is used.
    pub used: Amounts,
    /// What it is about; everything if there are none.
    pub scopes: Vec<Scope>,
}

impl Quota {
    /// Reads the object.
    pub fn read(object: &Value) -> Quota {
        Quota {
            name: meta::name(object).to_owned(),
            hard: amounts::read(object.at(&["status", "hard"])),
            used: amounts::read(object.at(&["status", "used"])),
            scopes: Scope::of_quota(object.get("spec").unwrap_or(&Value::Null)),
        }
    }
}

#[cfg(test)]
pub(in crate::api) const USUAL: Features = Features {
    resized_pods: true,
    pod_resources: false,
    failed_expansion: true,
    attributes_classes: false,
    device_claims: false,
};
