//! Service account tokens: issuing, claims, verification.

mod bound_objects;
pub mod claims;
pub mod external_signer;
pub mod issuer;
pub mod keys;
pub mod legacy_use;
mod lifetimes;
pub mod metadata;
pub mod verifier;

use std::sync::Arc;

use pilothouse_types::clock::Clock;

use self::external_signer::{ExternalSigner, SignerSettings, socket_path};
use self::issuer::{Issuer, IssuerSettings};
use self::keys::Keys;
use self::lifetimes::Lifetimes;
use self::metadata::{Discovery, PublishedMetadata};
use self::verifier::{ServiceAccountTokens, TrustedKeys, VerifierSettings};
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
    pub metadata: Option<PublishedMetadata>,
}

/// What all parts need.
pub struct TokenParts {
    /// The objects of tokens.
    pub objects: Arc<TokenObjects>,
    /// Counts uses of tokens and calls to a signer.
    pub metrics: Arc<Metrics>,
    /// The source of time.
    pub clock: Clock,
}

impl Tokens {
    /// Makes all parts. `keys` are those of this server; without them it waits for the external signer. `address` is the host and port
    /// that clients reach this server at.
    pub async fn new(
        config: &Config,
        keys: Option<&TokenKeys>,
        address: &str,
        parts: TokenParts,
    ) -> Result<Tokens, String> {
        let accounts = &config.service_accounts;
        let issuer = accounts.service_account_issuer.first().cloned().unwrap_or_default();
        let discovery = Discovery::new(&issuer, accounts.service_account_jwks_uri.as_deref(), address)
            .inspect_err(|error| tracing::warn!(%error, "cannot publish service account keys"))
            .ok();
        let settings = |lifetimes: Lifetimes| IssuerSettings {
            issuer,
            audiences: config.audiences().to_vec(),
            max_seconds: lifetimes.max_seconds,
            extends: accounts.service_account_extend_token_expiration,
            extended_seconds: lifetimes.extended_seconds,
        };
        let requested = accounts.service_account_max_token_expiration;
        let (issuer, trusted, metadata) = match (accounts.signing_endpoint(), keys) {
            (Some(endpoint), _) => {
                let signer = ExternalSigner::connect(SignerSettings {
                    socket: socket_path(endpoint),
                    sign_timeout: config.limits.request_timeout,
                    discovery: discovery.clone(),
                    metrics: parts.metrics.external_signer.clone(),
                    clock: parts.clock.clone(),
                });
                let signer = signer.await?;
                let lifetimes = Lifetimes::of_signer(requested, signer.max_lifetime())?;
                lifetimes::warn(accounts.service_account_extend_token_expiration, signer.max_lifetime());
                let keys = signer.keys().clone();
                let metadata = discovery.map(|_| PublishedMetadata::External(keys.clone()));
                (Issuer::external(signer, settings(lifetimes)), TrustedKeys::External(keys), metadata)
            }
            (None, Some(own)) => {
                let keys = Arc::new(Keys::new(&own.verifying).map_err(|error| error.to_string())?);
                let metadata = discovery.map(|discovery| discovery.documents(&keys)).transpose()?;
                let metadata = metadata.map(|metadata| PublishedMetadata::Fixed(Arc::new(metadata)));
                let issuer = Issuer::new(own.signing.clone(), settings(Lifetimes::own(requested)))?;
                (issuer, TrustedKeys::Own(keys), metadata)
            }
            (None, None) => return Err("there is no key that signs tokens".to_owned()),
        };
        let verifier_settings = VerifierSettings {
            issuers: accounts.service_account_issuer.clone(),
            audiences: config.audiences().to_vec(),
            lookup: accounts.service_account_lookup,
        };
        let TokenParts { objects, metrics, clock } = parts;
        Ok(Tokens {
            issuer: Arc::new(issuer),
            verifier: ServiceAccountTokens::new(trusted, verifier_settings, objects, metrics, clock),
            metadata,
        })
    }
}
