//! Service account tokens: issuing, claims, verification.

mod bound_objects;
pub mod claims;
pub mod issuer;
pub mod keys;
pub mod legacy_use;
pub mod metadata;
pub mod verifier;

use std::sync::Arc;

use pilothouse_types::clock::Clock;

use self::issuer::Issuer;
use self::keys::Keys;
use self::metadata::Metadata;
use self::verifier::ServiceAccountTokens;
use super::token_objects::TokenObjects;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::pki::TokenKeys;

/// All parts for service account tokens.
pub struct Tokens {
    /// Issues tokens.
    pub issuer: Arc<Issuer>,
    /// Verifies tokens.
    pub verifier: ServiceAccountTokens,
    /// The discovery documents; `None` if the issuer URL does not allow them.
    pub metadata: Option<Metadata>,
}

impl Tokens {
    /// Makes all parts. `address` is the host and port that clients reach this server at.
    pub fn new(
        config: &Config,
        pki: &TokenKeys,
        address: &str,
        objects: Arc<TokenObjects>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Result<Tokens, String> {
        let accounts = &config.service_accounts;
        let issuers = accounts.service_account_issuer.clone();
        let audiences = config.audiences().to_vec();
        let keys = Arc::new(Keys::new(&pki.verifying).map_err(|error| error.to_string())?);
        let issuer_url = issuers.first().cloned().unwrap_or_default();
        let max_seconds = accounts.service_account_max_token_expiration.as_secs();
        let uri = accounts.service_account_jwks_uri.as_deref();
        let metadata = Metadata::new(&issuer_url, uri, address, &keys);
        let issuer_settings = issuer::IssuerSettings {
            issuer: issuer_url,
            audiences: audiences.clone(),
            max_seconds: i64::try_from(max_seconds).unwrap_or(i64::MAX),
            extends: accounts.service_account_extend_token_expiration,
        };
        let verifier_settings =
            verifier::VerifierSettings { issuers, audiences, lookup: accounts.service_account_lookup };
        Ok(Tokens {
            issuer: Arc::new(Issuer::new(pki.signing.clone(), issuer_settings)?),
            verifier: ServiceAccountTokens::new(keys, verifier_settings, objects, metrics, clock),
            metadata: metadata
                .inspect_err(|error| tracing::warn!(%error, "cannot publish service account keys"))
                .ok(),
        })
    }
}
