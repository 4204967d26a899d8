//! What is counted of tokens of service accounts that are shown: how many still live as long as a Secret does, and how many
//! should have been replaced by now. Each use counts, also of a token that is remembered.

use prometheus::IntCounter;

use super::registration::{MetricRegistry, Result};

/// Uses of tokens of service accounts, by what is to be said of the token.
pub struct Tokens {
    /// Those that say of no audience that they are meant for it.
    pub legacy: IntCounter,
    /// Those of Secrets that their account lists, because a controller made them.
    pub listed: IntCounter,
    /// Those of Secrets that somebody made by hand.
    pub manual: IntCounter,
    /// Those of Secrets that are marked invalid.
    pub invalidated: IntCounter,
    /// Those that hold longer than their bearer should use them, used in time.
    pub valid: IntCounter,
    /// The same, used after their bearer should have asked for another one.
    pub stale: IntCounter,
}

impl Tokens {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<Tokens> {
        let counter = |name: &str, help: &str| {
            page.counter(
                format!("serviceaccount_{name}_total"),
                format!("Uses of service account tokens that {help}"),
            )
        };
        Ok(Tokens {
            legacy: counter("legacy_tokens", "name no audience.")?,
            listed: counter("legacy_auto_token_uses", "lie in Secrets which a controller made.")?,
            manual: counter("legacy_manual_token_uses", "lie in Secrets which somebody made by hand.")?,
            invalidated: counter(
                "invalid_legacy_auto_token_uses",
                "lie in Secrets which are marked invalid; they are refused.",
            )?,
            valid: counter("valid_tokens", "hold longer than they should be used, used in time.")?,
            stale: counter("stale_tokens", "should have been replaced by then.")?,
        })
    }
}
