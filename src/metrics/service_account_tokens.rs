//! Metrics of the use of service account tokens: legacy tokens of Secrets, and tokens that should have been replaced. Each use
//! counts, also of a cached token.

use prometheus::IntCounter;

use super::registration::{MetricRegistry, Result};

/// Uses of service account tokens, by kind of token.
pub struct Tokens {
    /// Tokens without an audience.
    pub legacy: IntCounter,
    /// Tokens of auto-generated Secrets, which their account lists.
    pub listed: IntCounter,
    /// Tokens of manually created Secrets.
    pub manual: IntCounter,
    /// Tokens of Secrets that are labelled invalid.
    pub invalidated: IntCounter,
    /// Tokens with an extended lifetime, used before they should be replaced.
    pub valid: IntCounter,
    /// The same, used after they should have been replaced.
    pub stale: IntCounter,
}

impl Tokens {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<Tokens> {
        let counter = |name: &str, help: &str| {
            registry.counter(
                format!("serviceaccount_{name}_total"),
                format!("Uses of service account tokens that {help}"),
            )
        };
        Ok(Tokens {
            legacy: counter("legacy_tokens", "have no audience.")?,
            listed: counter("legacy_auto_token_uses", "are in auto-generated Secrets.")?,
            manual: counter("legacy_manual_token_uses", "are in manually created Secrets.")?,
            invalidated: counter(
                "invalid_legacy_auto_token_uses",
                "are in Secrets labelled invalid; they are refused.",
            )?,
            valid: counter("valid_tokens", "have an extended lifetime, used in time.")?,
            stale: counter("stale_tokens", "should have been replaced.")?,
        })
    }
}
