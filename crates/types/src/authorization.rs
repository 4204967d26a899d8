//! Requests to authorization, and its decisions.

use std::fmt;
use std::sync::Arc;

use crate::filter::{FieldRule, LabelRule};

/// An action to authorize.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// The verb: `get`, `create`; for a path the HTTP method in lower case.
    pub verb: String,
    /// The target of the action.
    pub target: Target,
}

/// The target of an action.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Objects of a resource. Parts that do not apply are empty.
    Resource {
        /// The API group; empty for the core group.
        group: String,
        /// The version of the group.
        version: String,
        /// The resource, in the plural.
        resource: String,
        /// The subresource.
        subresource: String,
        /// The namespace; empty for cluster-scoped resources and for all namespaces.
        namespace: String,
        /// The name of the object; empty for all of them.
        name: String,
    },
    /// A non-resource path.
    Path(String),
}

/// The decision of a policy, or of all policies together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The action is allowed.
    Allowed,
    /// The action is denied, whatever other policies say.
    Denied(String),
    /// No policy allows it. The caller answers as if it were denied.
    NoOpinion(String),
}

/// The selectors of a list, watch or deletecollection. All of them must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// The field selector.
    pub fields: Vec<FieldRule>,
    /// The label selector.
    pub labels: Vec<LabelRule>,
}

/// Why an action is allowed. Formatted only when it is read.
pub type AllowReason = Arc<dyn fmt::Display + Send + Sync>;

/// A decision with its reasons and errors.
#[derive(Clone)]
pub struct ExplainedDecision {
    /// The decision. A denial contains its reason.
    pub decision: Decision,
    /// The reason for which the action is allowed, if the policy gives one.
    pub allow_reason: Option<AllowReason>,
    /// An error on the way to the decision.
    pub error: Option<String>,
}

impl ExplainedDecision {
    /// The reason as text, empty if there is none.
    pub fn reason(&self) -> String {
        match &self.decision {
            Decision::Allowed => self.allow_reason.as_ref().map(ToString::to_string).unwrap_or_default(),
            Decision::Denied(reason) | Decision::NoOpinion(reason) => reason.clone(),
        }
    }
}

impl From<Decision> for ExplainedDecision {
    fn from(decision: Decision) -> ExplainedDecision {
        ExplainedDecision { decision, allow_reason: None, error: None }
    }
}

/// A right: on resources or, if it has paths, on non-resource paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The allowed verbs.
    pub verbs: Vec<String>,
    /// The API groups.
    pub groups: Vec<String>,
    /// The resources.
    pub resources: Vec<String>,
    /// The names of objects; empty for all.
    pub names: Vec<String>,
    /// The non-resource paths.
    pub paths: Vec<String>,
}

/// The rights of a user in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// All rights that are known.
    pub grants: Vec<Grant>,
    /// Whether there may be more rights that a policy cannot list.
    pub incomplete: bool,
    /// Errors, each once.
    pub errors: Vec<String>,
}
