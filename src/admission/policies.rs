//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy.
//!
//! Policies are compiled once and shared ([`table`]). For each policy and binding that matches a request ([`matcher`]), the
//! parameters are read ([`params`]), the object is converted to the version of the matched rule (`versioned.rs`), and the
//! expressions are evaluated, which is pure (`crates/admission/src/policies/`). An expression with authorization checks is
//! evaluated again once the authorizer has answered. [`mutating`] changes objects, [`validating`] refuses them.

mod matcher;
mod mutating;
mod params;
pub mod table;
mod validating;

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_admission::policies::policy::{Binding, Policy};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::well_known::ADMISSION_REGISTRATION_GROUP;
use pilothouse_types::trace::span::Attribute;

use crate::metrics::Metrics;
use crate::metrics::match_conditions::ConditionLabels;

pub use self::mutating::MutatingAdmissionPolicy;
use self::table::{Hook, Policies, Table};
pub use self::validating::ValidatingAdmissionPolicy;
use super::{Equivalents, Kinds, Write};

/// Resources to which no policy applies: policies, which must stay repairable, and reviews, without which the cluster would not
/// work.
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

/// The policies of one kind, and the dependencies for evaluating them.
pub struct PolicyDeps {
    /// The policies and bindings.
    pub policies: Arc<Policies>,
    /// Finds served resources by kind.
    pub kinds: Kinds,
    /// Finds resources that serve the same objects.
    pub equivalents: Equivalents,
    /// Counts decisions.
    pub metrics: Arc<Metrics>,
}

impl PolicyDeps {
    /// Whether a policy may apply to a write.
    fn may_apply(&self, write: &Write<'_>) -> bool {
        let GroupResource { group, resource } = write.group_resource();
        // A table that is not up to date may lack a policy.
        let has_policies = || self.policies.fresh().is_none_or(|table| !table.is_idle());
        !EXEMPT.contains(&(group, resource)) && has_policies()
    }

    /// The policies that have bindings. An error if some cannot be read.
    async fn hooks(&self) -> Result<Arc<Vec<Hook>>> {
        let hooks = match self.policies.query(Table::readable_hooks) {
            Answer::Now(hooks) => hooks,
            Answer::Later(hooks) => hooks.await,
        };
        hooks.map_err(|_| Status::unavailable("the policies of the cluster cannot be read"))?
    }
}

/// What a trace tells about the evaluation of a policy.
fn policy_attributes(policy: &Policy, binding: &Binding) -> Vec<Attribute> {
    vec![Attribute::text("policy", policy.name.clone()), Attribute::text("binding", binding.name.clone())]
}

/// Counts that the conditions of a policy were evaluated.
fn count_conditions(metrics: &Metrics, policy: &Policy, operation: &str, errors: usize, seconds: f64) {
    if !policy.conditions.is_empty() {
        // Policies of both kinds are counted as validating.
        let labels = ConditionLabels { name: &policy.name, kind: "policy", sort: "validate", operation };
        metrics.hooks.conditions.count_evaluation(&labels, errors, seconds);
    }
}
