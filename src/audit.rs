//! Auditing of requests: the policy with its backends, and the trail of one request (`trail.rs`). Requests of clients begin their
//! trail in `http/handler/audit.rs`, those of the server and its controllers in `registry/loopback.rs`.

pub mod backends;
mod trail;

use std::sync::Arc;

use arc_swap::ArcSwap;
use pilothouse_api::audit::Level;
use pilothouse_api::audit::policy::{Decision, Policy};
use pilothouse_api::path::Request;
use pilothouse_types::identity::Identity;

use self::backends::AuditBackends;

pub use self::trail::{AuditedRequest, Trail, truncate_user_agent};

/// The audit policy and its backends.
pub struct Audit {
    /// Decides which requests are audited at which level. Replaced when its file changes: a request keeps the decision that it began
    /// with.
    pub policy: ArcSwap<Policy>,
    /// Writes the events.
    pub backends: Arc<AuditBackends>,
}

impl Audit {
    /// Applies the policy to a request, and counts the decision; `None` if the request is not audited. Without a user if
    /// authentication failed.
    pub fn decide(&self, user: Option<&Identity>, request: &Request<'_>) -> Option<Decision> {
        let decision = self.policy.load().decide(user, request);
        self.backends.counts().count_level(decision.level);
        (decision.level > Level::None).then_some(decision)
    }
}
