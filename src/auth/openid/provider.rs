//! Fetches the keys of a provider: the discovery document of the issuer says where they are.
//!
//! A task of its own on the server's thread. The server does not wait for it. A provider that is down is retried; its known keys
//! stay valid meanwhile.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::jwk::Jwk;
use openssl::x509::X509;
use serde::Deserialize;

use super::keys::Keys;
use super::rules::ClaimMapping;
use crate::auth::jwt::{Algorithm, KeySet, VerifyingKey};
use crate::auth::service_account::metadata::CONFIGURATION_PATH;
use crate::kubeconfig::Access;
use crate::limits::{
    OIDC_DOCUMENT_BYTES, OIDC_DOCUMENT_TIMEOUT, OIDC_FIRST_PAUSE, OIDC_KEYS, OIDC_KEYS_AGE, OIDC_LAST_PAUSE,
};
use crate::webhook::Service;

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
struct Published {
    keys: Vec<serde_json::Value>,
}

/// A provider, and where its keys are put.
pub struct Provider {
    issuer: String,
    algorithms: Vec<Algorithm>,
    /// The CAs to verify it with, as PEM; `None` for those of the system.
    authority_pem: Option<Vec<u8>>,
    keys: Arc<Keys>,
    metadata: Service,
    /// The address of the keys, if known.
    published: Option<Service>,
    document_within: Duration,
}

impl Provider {
    /// Makes no request yet.
    pub fn new(
        rules: &ClaimMapping,
        authority_pem: Option<Vec<u8>>,
        keys: Arc<Keys>,
    ) -> Result<Provider, String> {
        if let Some(pem) = &authority_pem {
            let certificates =
                X509::stack_from_pem(pem).map_err(|error| format!("--oidc-ca-file: {error}"))?;
            if certificates.is_empty() {
                return Err(
                    "--oidc-ca-file: data does not contain any valid RSA or ECDSA certificates".to_owned()
                );
            }
        }
        let issuer = rules.issuer.clone();
        let usual = || format!("{}{CONFIGURATION_PATH}", issuer.strip_suffix('/').unwrap_or(&issuer));
        let place = rules.discovery.clone().unwrap_or_else(usual);
        Ok(Provider {
            metadata: service(&place, authority_pem.as_ref())?,
            issuer,
            algorithms: rules.algorithms.clone(),
            authority_pem,
            keys,
            published: None,
            document_within: OIDC_DOCUMENT_TIMEOUT,
        })
    }

    /// Keeps the keys up to date, for ever.
    pub async fn keep(mut self) {
        let mut pause = OIDC_FIRST_PAUSE;
        loop {
            let rest = match self.attempt().await {
                Ok(()) => {
                    pause = OIDC_FIRST_PAUSE;
                    OIDC_KEYS_AGE
                }
                Err(why) => {
                    tracing::warn!(issuer = %self.issuer, %why, again_in = ?pause, "the keys of the OpenID provider cannot be fetched; retrying");
                    let rest = pause;
                    pause = (pause * 2).min(OIDC_LAST_PAUSE);
                    rest
                }
            };
            self.keys.until_wanted(rest).await;
        }
    }

    async fn attempt(&mut self) -> Result<(), String> {
        self.keys.begin();
        match self.fetch().await {
            Ok(ring) => {
                let (issuer, keys) = (&self.issuer, ring.keys().len());
                if self.keys.ring().is_none() {
                    tracing::info!(%issuer, keys, "the OpenID provider is ready");
                } else {
                    tracing::debug!(%issuer, keys, "the keys of the OpenID provider were refreshed");
                }
                self.keys.end(Some(ring));
                Ok(())
            }
            Err(why) => {
                self.keys.end(None);
                Err(why)
            }
        }
    }

    async fn fetch(&mut self) -> Result<KeySet, String> {
        // After any failure the next attempt starts with discovery again.
        let published = match self.published.take() {
            Some(published) => published,
            None => self.discover().await?,
        };
        let ring = ring(&self.document(&published).await?, &self.algorithms)?;
        self.published = Some(published);
        Ok(ring)
    }

    async fn discover(&self) -> Result<Service, String> {
        let said: Metadata = serde_json::from_slice(&self.document(&self.metadata).await?)
            .map_err(|error| format!("oidc: failed to decode provider discovery object: {error}"))?;
        if said.issuer != self.issuer {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {:?}",
                self.issuer, said.issuer
            ));
        }
        // Over plain HTTP anybody on the way could replace the keys.
        if !said.jwks_uri.starts_with("https://") {
            return Err(format!("oidc: the keys are not published over https but at {:?}", said.jwks_uri));
        }
        service(&said.jwks_uri, self.authority_pem.as_ref())
    }

    async fn document(&self, from: &Service) -> Result<Vec<u8>, String> {
        from.get(OIDC_DOCUMENT_BYTES, self.document_within).await.map_err(|failure| failure.to_string())
    }
}

fn service(place: &str, authority_pem: Option<&Vec<u8>>) -> Result<Service, String> {
    let access = Access { authority_pem: authority_pem.cloned(), ..Access::to(place) };
    Service::alone(&access).map_err(|failure| failure.to_string())
}

/// The usable keys of a JSON Web Key Set.
fn ring(document: &[u8], permitted: &[Algorithm]) -> Result<KeySet, String> {
    let published: Published =
        serde_json::from_slice(document).map_err(|error| format!("oidc: failed to decode keys: {error}"))?;
    let usable = |key| {
        let jwk: Jwk = serde_json::from_value(key).ok()?;
        VerifyingKey::from_jwk(&jwk, permitted).ok().flatten()
    };
    let mut keys: Vec<_> = published.keys.into_iter().filter_map(usable).take(OIDC_KEYS + 1).collect();
    if keys.len() > OIDC_KEYS {
        tracing::warn!(kept = OIDC_KEYS, "the OpenID provider publishes too many keys; some are ignored");
        keys.truncate(OIDC_KEYS);
    }
    Ok(KeySet::new(keys))
}

#[cfg(test)]
mod tests;
