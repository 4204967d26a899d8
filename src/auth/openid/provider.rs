//! Fetches the keys of a provider: the discovery document of the issuer names their URL.
//!
//! A task of its own: on the server's thread for a configured provider, on a worker for an issuer of distributed claims. Nothing
//! waits for it but tokens. A provider that is down is retried; its known keys
//! stay valid meanwhile.

use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use jsonwebtoken::jwk::Jwk;
use openssl::x509::X509;
use pilothouse_client::kubeconfig::Credentials;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_client::webhook::{Service, TrustAnchors};
use serde::Deserialize;

use super::keys::Keys;
use super::rules::ClaimMapping;
use crate::auth::jwt::{Algorithm, KeySet, VerifyingKey};
use crate::auth::service_account::metadata::CONFIGURATION_PATH;
use crate::limits::{
    OIDC_DOCUMENT_BYTES, OIDC_DOCUMENT_TIMEOUT, OIDC_FIRST_PAUSE, OIDC_KEYS, OIDC_KEYS_AGE, OIDC_LAST_PAUSE,
};

/// The relevant part of the discovery document.
#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

/// The published keys. Each is parsed separately, so that an unsupported one does not invalidate the others.
#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<serde_json::Value>,
}

/// A provider and its fetched keys.
pub struct Provider {
    issuer: String,
    algorithms: Vec<Algorithm>,
    /// The CAs to verify it with.
    anchors: TrustAnchors,
    /// Whether its keys must be where the issuer is.
    is_bound_to_host: bool,
    keys: Arc<Keys>,
    /// The connections of this server.
    pool: Arc<Pool>,
    metadata: Service,
    /// The endpoint of the key set, once discovered.
    jwks: Option<Service>,
    document_timeout: Duration,
}

impl Provider {
    /// A provider whose documents are fetched once it runs.
    pub fn new(
        rules: &ClaimMapping,
        anchors: TrustAnchors,
        keys: Arc<Keys>,
        pool: &Arc<Pool>,
    ) -> Result<Provider, String> {
        let issuer = rules.issuer.clone();
        let default_url = || format!("{}{CONFIGURATION_PATH}", issuer.strip_suffix('/').unwrap_or(&issuer));
        let url = rules.discovery.clone().unwrap_or_else(default_url);
        Ok(Provider {
            metadata: service(&url, &anchors, pool)?,
            pool: pool.clone(),
            issuer,
            algorithms: rules.algorithms.clone(),
            anchors,
            is_bound_to_host: false,
            keys,
            jwks: None,
            document_timeout: OIDC_DOCUMENT_TIMEOUT,
        })
    }

    /// Accepts only keys that are published where the issuer is: for an issuer that nobody has configured, whose document could
    /// otherwise have this server call any address.
    pub fn bound_to_host(self) -> Provider {
        Provider { is_bound_to_host: true, ..self }
    }

    /// Keeps the keys up to date until it is dropped.
    pub async fn run(mut self) {
        let mut pause = OIDC_FIRST_PAUSE;
        loop {
            let delay = match self.attempt().await {
                Ok(()) => {
                    pause = OIDC_FIRST_PAUSE;
                    OIDC_KEYS_AGE
                }
                Err(reason) => {
                    tracing::warn!(issuer = %self.issuer, %reason, retry_in = ?pause, "the keys of the OpenID provider cannot be fetched; retrying");
                    let delay = pause;
                    pause = (pause * 2).min(OIDC_LAST_PAUSE);
                    delay
                }
            };
            self.keys.wait_for_request(delay).await;
        }
    }

    async fn attempt(&mut self) -> Result<(), String> {
        self.keys.begin_attempt();
        match self.fetch().await {
            Ok(key_set) => {
                let (issuer, keys) = (&self.issuer, key_set.keys().len());
                if self.keys.key_set().is_none() {
                    tracing::info!(%issuer, keys, "the OpenID provider is ready");
                } else {
                    tracing::debug!(%issuer, keys, "the keys of the OpenID provider were refreshed");
                }
                self.keys.end_attempt(Some(key_set));
                Ok(())
            }
            Err(reason) => {
                self.keys.end_attempt(None);
                Err(reason)
            }
        }
    }

    async fn fetch(&mut self) -> Result<KeySet, String> {
        // After any failure the next attempt starts with discovery again.
        let jwks = match self.jwks.take() {
            Some(jwks) => jwks,
            None => self.discover().await?,
        };
        let key_set = key_set(&self.document(&jwks).await?, &self.algorithms)?;
        self.jwks = Some(jwks);
        Ok(key_set)
    }

    async fn discover(&self) -> Result<Service, String> {
        let metadata: Metadata = serde_json::from_slice(&self.document(&self.metadata).await?)
            .map_err(|error| format!("oidc: failed to decode provider discovery object: {error}"))?;
        if metadata.issuer != self.issuer {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {:?}",
                self.issuer, metadata.issuer
            ));
        }
        // Over plain HTTP an attacker on the path could replace the keys.
        if !metadata.jwks_uri.starts_with("https://") {
            return Err(format!(
                "oidc: the keys are not published over https but at {:?}",
                metadata.jwks_uri
            ));
        }
        if self.is_bound_to_host && !is_same_origin(&metadata.jwks_uri, &self.issuer) {
            return Err(format!(
                "oidc: the keys of {:?} are published elsewhere, at {:?}",
                self.issuer, metadata.jwks_uri
            ));
        }
        service(&metadata.jwks_uri, &self.anchors, &self.pool)
    }

    async fn document(&self, service: &Service) -> Result<Vec<u8>, String> {
        service.get(OIDC_DOCUMENT_BYTES, self.document_timeout).await.map_err(|failure| failure.to_string())
    }
}

/// The CAs of a provider, as PEM; `None` for those of the system.
pub fn trust_anchors(authority_pem: Option<Vec<u8>>) -> Result<TrustAnchors, String> {
    if let Some(pem) = &authority_pem {
        let certificates = X509::stack_from_pem(pem).map_err(|error| format!("--oidc-ca-file: {error}"))?;
        if certificates.is_empty() {
            return Err(
                "--oidc-ca-file: data does not contain any valid RSA or ECDSA certificates".to_owned()
            );
        }
    }
    TrustAnchors::load(authority_pem).map_err(|failure| failure.to_string())
}

fn service(url: &str, anchors: &TrustAnchors, pool: &Arc<Pool>) -> Result<Service, String> {
    Service::for_open_id(anchors, url, Credentials::None, pool).map_err(|failure| failure.to_string())
}

/// Whether two https URLs are about the same host and port.
pub(super) fn is_same_origin(url: &str, other: &str) -> bool {
    /// The port of https.
    const DEFAULT_PORT: u16 = 443;
    let origin = |url: &str| {
        let uri: Uri = url.parse().ok().filter(|uri: &Uri| uri.scheme_str() == Some("https"))?;
        Some((uri.host()?.to_ascii_lowercase(), uri.port_u16().unwrap_or(DEFAULT_PORT)))
    };
    origin(url).is_some_and(|url| Some(url) == origin(other))
}

/// The usable keys of a JSON Web Key Set.
fn key_set(document: &[u8], permitted: &[Algorithm]) -> Result<KeySet, String> {
    let jwks: JwkSet =
        serde_json::from_slice(document).map_err(|error| format!("oidc: failed to decode keys: {error}"))?;
    let parse_key = |key| {
        let jwk: Jwk = serde_json::from_value(key).ok()?;
        VerifyingKey::from_jwk(&jwk, permitted).ok().flatten()
    };
    let mut keys: Vec<_> = jwks.keys.into_iter().filter_map(parse_key).take(OIDC_KEYS + 1).collect();
    if keys.len() > OIDC_KEYS {
        tracing::warn!(limit = OIDC_KEYS, "the OpenID provider publishes too many keys; some are ignored");
        keys.truncate(OIDC_KEYS);
    }
    Ok(KeySet::new(keys))
}

#[cfg(test)]
mod tests;
