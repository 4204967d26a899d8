//! Admission rules: pure functions. The server calls them; see `src/admission/`.
//!
//! [`policies`] are ValidatingAdmissionPolicies and MutatingAdmissionPolicies, [`webhooks`] the configurations of admission
//! webhooks; [`matching`] decides which requests they apply to. [`auth_expressions`] are the CEL expressions of authentication and
//! authorization configuration, which are compiled in the same way.

pub mod auth_expressions;
pub mod limits;
pub mod matching;
pub mod policies;
pub mod webhooks;
