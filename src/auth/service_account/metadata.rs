//! OpenID discovery for service account tokens, for verifiers that do not send TokenReviews.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::external_signer::ExternalKeys;
use super::keys::Keys;

/// The path of the discovery document.
pub const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// The path of the keys.
pub const KEYS_PATH: &str = "/openid/v1/jwks";

/// How long caches may keep the documents of keys that never change; the reference's value.
const METADATA_AGE: Duration = Duration::from_secs(3_600);

/// Both documents, made once for the same keys.
#[derive(Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The discovery document.
    pub configuration: String,
    /// The JSON Web Key Set.
    pub keys: String,
}

#[derive(Serialize)]
struct Configuration<'a> {
    issuer: &'a str,
    jwks_uri: &'a str,
    response_types_supported: [&'static str; 1],
    subject_types_supported: [&'static str; 1],
    id_token_signing_alg_values_supported: Vec<&'static str>,
}

/// What the documents state beside the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    issuer: String,
    keys_uri: String,
}

impl Discovery {
    /// The documents of an issuer. Fails if the issuer is not a plain https URL.
    pub fn new(issuer: &str, keys_uri: Option<&str>, address: &str) -> Result<Discovery, String> {
        let Some(rest) = issuer.strip_prefix("https://") else {
            return Err(format!("issuer URL must use https scheme, got: {issuer}"));
        };
        if rest.contains('?') {
            return Err(format!("issuer URL may not include a query, got: {issuer}"));
        }
        if rest.contains('#') {
            return Err(format!("issuer URL may not include a fragment, got: {issuer}"));
        }
        let keys_uri = keys_uri.map_or_else(|| format!("https://{address}{KEYS_PATH}"), str::to_owned);
        Ok(Discovery { issuer: issuer.to_owned(), keys_uri })
    }

    /// Both documents.
    pub fn documents(&self, keys: &Keys) -> Result<Metadata, String> {
        let configuration = Configuration {
            issuer: &self.issuer,
            jwks_uri: &self.keys_uri,
            response_types_supported: ["id_token"],
            subject_types_supported: ["public"],
            id_token_signing_alg_values_supported: keys.algorithms(),
        };
        Ok(Metadata {
            configuration: serde_json::to_string(&configuration).map_err(|error| error.to_string())?,
            keys: keys.document().map_err(|error| error.to_string())?,
        })
    }
}

/// The documents that are served.
pub enum PublishedMetadata {
    /// Of keys that never change.
    Fixed(Arc<Metadata>),
    /// Of the keys of an external signer.
    External(Arc<ExternalKeys>),
}

impl PublishedMetadata {
    /// The documents, and how long caches may keep them.
    pub fn current(&self) -> Option<(Arc<Metadata>, Duration)> {
        match self {
            PublishedMetadata::Fixed(metadata) => Some((metadata.clone(), METADATA_AGE)),
            PublishedMetadata::External(keys) => keys.metadata(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openid_configuration_names_issuer_and_jwks_uri() {
        let keys = Keys::new(&[]).unwrap();
        let metadata = Discovery::new("https://i", None, "10.0.0.1:6443").unwrap().documents(&keys).unwrap();
        assert_eq!(
            metadata.configuration,
            r#"{"issuer":"https://i","jwks_uri":"https://10.0.0.1:6443/openid/v1/jwks","response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":[]}"#
        );
        let metadata =
            Discovery::new("https://i", Some("https://keys"), "x").unwrap().documents(&keys).unwrap();
        assert!(metadata.configuration.contains(r#""jwks_uri":"https://keys""#));
        for issuer in ["kubernetes/serviceaccount", "http://i", "https://i?x", "https://i#x"] {
            assert!(Discovery::new(issuer, None, "x").is_err(), "{issuer}");
        }
    }
}
