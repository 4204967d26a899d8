//! OpenID discovery for service account tokens, for verifiers that do not send TokenReviews.

use serde::Serialize;

use super::keys::Keys;

/// The path of the discovery document.
pub const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// The path of the keys.
pub const KEYS_PATH: &str = "/openid/v1/jwks";

/// Both documents, made once.
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

impl Metadata {
    /// The documents of an issuer. Fails if the issuer is not a plain https URL.
    pub fn new(issuer: &str, keys_uri: Option<&str>, address: &str, keys: &Keys) -> Result<Metadata, String> {
        let Some(rest) = issuer.strip_prefix("https://") else {
            return Err(format!("issuer URL must use https scheme, got: {issuer}"));
        };
        if rest.contains('?') {
            return Err(format!("issuer URL may not include a query, got: {issuer}"));
        }
        if rest.contains('#') {
            return Err(format!("issuer URL may not include a fragment, got: {issuer}"));
        }
        let own_uri = format!("https://{address}{KEYS_PATH}");
        let configuration = Configuration {
            issuer,
            jwks_uri: keys_uri.unwrap_or(&own_uri),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openid_configuration_names_issuer_and_jwks_uri() {
        let keys = Keys::new(&[]).unwrap();
        let metadata = Metadata::new("https://i", None, "10.0.0.1:6443", &keys).unwrap();
        assert_eq!(
            metadata.configuration,
            r#"{"issuer":"https://i","jwks_uri":"https://10.0.0.1:6443/openid/v1/jwks","response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":[]}"#
        );
        let metadata = Metadata::new("https://i", Some("https://keys"), "x", &keys).unwrap();
        assert!(metadata.configuration.contains(r#""jwks_uri":"https://keys""#));
        for issuer in ["kubernetes/serviceaccount", "http://i", "https://i?x", "https://i#x"] {
            assert!(Metadata::new(issuer, None, "x", &keys).is_err(), "{issuer}");
        }
    }
}
