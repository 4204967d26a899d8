//! The results of authentication.

use std::sync::Arc;

use crate::identity::Identity;

/// An authenticated user, and the requested audiences for which the credentials are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// The user.
    pub identity: Arc<Identity>,
    /// The audiences; empty if none were requested.
    pub audiences: Vec<String>,
    /// Warnings and annotations about the credentials.
    pub remarks: Vec<Remark>,
}

/// A remark about valid credentials that should be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// A warning for the client.
    Warning(&'static str),
    /// An audit annotation: key and value.
    Annotation(&'static str, String),
}

/// The reason for a token that no verifier knows; the reference's words.
pub const UNKNOWN_TOKEN: &str = "invalid bearer token";

/// Why authentication failed. The caller answers 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Verifiers rejected the credentials, for these reasons.
    #[error("the credentials are not accepted: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// There are no credentials, and anonymous requests are not allowed.
    #[error("no credentials were given")]
    Anonymous,
}
