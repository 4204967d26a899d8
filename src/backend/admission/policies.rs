//! Policies of the cluster: what may be stored, and what becomes of it before, said in expressions.
//!
//! What policies say is compiled once and shared ([`table`]). Of the policies whose rules mean a request, each binding that means
//! it too is looked at ([`matcher`]): its parameters are read ([`params`]), the object is shown in the version that the rule names
//! (`versioned.rs`), and the policy is asked, which is pure (`api/admission_policies/`). A policy that asks who may do what is
//! asked again once the authorizer has answered. [`mutating`] lets policies change objects, [`validating`] lets them refuse.

mod matcher;
mod mutating;
mod params;
pub mod table;
mod validating;

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_admission::policies::policy::Policy;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::well_known::ADMISSION_REGISTRATION_GROUP;

use crate::metrics::Metrics;
use crate::metrics::match_conditions::ConditionLabels;

pub use self::mutating::MutatingAdmissionPolicy;
use self::table::{Hook, Policies, Table};
pub use self::validating::ValidatingAdmissionPolicy;
use super::{Equivalents, Kinds, Write};

/// What no policy is asked about: policies, which somebody must be able to put right, and questions, without which the
/// cluster would not work.
const EXEMPT: [(&str, &str); 10] = [
    (ADMISSION_REGISTRATION_GROUP, "validatingadmissionpolicies"),
    (ADMISSION_REGISTRATION_GROUP, "validatingadmissionpolicybindings"),
    (ADMISSION_REGISTRATION_GROUP, "mutatingadmissionpolicies"),
    (ADMISSION_REGISTRATION_GROUP, "mutatingadmissionpolicybindings"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// The policies of one sort, and what asking them needs.
pub struct PolicyDeps {
    /// The policies.
    pub policies: Arc<Policies>,
    /// What is served, by kind.
    pub kinds: Kinds,
    /// What shows the same objects.
    pub equivalents: Equivalents,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl PolicyDeps {
    /// Whether there may be something to ask about a write.
    fn concerns(&self, write: &Write<'_>) -> bool {
        let GroupResource { group, resource } = write.call.of();
        // A table that is behind may have something to say.
        let is_used = || self.policies.fresh().is_none_or(|table| !table.is_idle());
        !EXEMPT.contains(&(group, resource)) && is_used()
    }

    /// The policies that count, each with its bindings. An error if some cannot be read.
    async fn hooks(&self) -> Result<Arc<Vec<Hook>>> {
        let hooks = match self.policies.look(Table::readable_hooks) {
            Answer::Now(hooks) => hooks,
            Answer::Later(hooks) => hooks.await,
        };
        hooks.map_err(|_| Status::unavailable("the policies of the cluster cannot be read"))?
    }
}

/// Counts that the conditions of a policy were evaluated.
fn count_conditions(metrics: &Metrics, policy: &Policy, operation: &str, errors: usize, seconds: f64) {
    if !policy.conditions.is_empty() {
        // Policies of both sorts are counted as what checks.
        let of = ConditionLabels { name: &policy.name, kind: "policy", sort: "validate", operation };
        metrics.hooks.conditions.evaluated(&of, errors, seconds);
    }
}
