//! Validates the flags of service account tokens.

use std::time::Duration;

use pilothouse_api::gates::EXTERNAL_SERVICE_ACCOUNT_TOKEN_SIGNER;

use super::{FeatureGates, ServiceAccounts};
use crate::limits::{EXTENDED_TOKEN_LIFETIME, MAX_TOKEN_LIFETIME, POD_TOKEN_LIFETIME};

/// The minimum of `--service-account-max-token-expiration`: the default lifetime of a token.
const MIN_MAX_EXPIRATION: Duration = Duration::from_secs(3_600);

impl ServiceAccounts {
    /// Checks the flags.
    pub(super) fn validate(&self) -> Result<(), String> {
        for (index, issuer) in self.service_account_issuer.iter().enumerate() {
            if issuer.is_empty() {
                return Err("--service-account-issuer must not be empty".to_owned());
            }
            if issuer.contains(':') && !has_scheme(issuer) {
                return Err(format!("--service-account-issuer {issuer:?} contains a ':' but is not a URL"));
            }
            if self.service_account_issuer.iter().take(index).any(|earlier| earlier == issuer) {
                return Err(format!("--service-account-issuer {issuer:?} is already specified"));
            }
        }
        let max_expiration = self.service_account_max_token_expiration;
        if !max_expiration.is_zero() && !(MIN_MAX_EXPIRATION..=MAX_TOKEN_LIFETIME).contains(&max_expiration) {
            return Err(
                "--service-account-max-token-expiration must be between 1 hour and 2^32 seconds".into()
            );
        }
        match &self.service_account_jwks_uri {
            Some(uri) if !uri.starts_with("https://") => {
                Err(format!("--service-account-jwks-uri must be an https URL, not {uri:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Where the external signer listens, if there is one.
    pub fn signing_endpoint(&self) -> Option<&str> {
        self.service_account_signing_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty())
    }

    /// Checks the flags about an external signer. The messages are the reference's.
    pub(super) fn validate_signing_endpoint(&self, gates: &FeatureGates) -> Result<(), String> {
        let Some(endpoint) = self.signing_endpoint() else { return Ok(()) };
        if self.service_account_signing_key_file.is_some() {
            return Err("service-account-signing-key-file and service-account-signing-endpoint are mutually exclusive and \
                        cannot be set at the same time"
                .to_owned());
        }
        let mut errors = Vec::new();
        if !self.service_account_key_file.is_empty() {
            errors.push(
                "can't set `--service-account-signing-key-file` and/or `--service-account-key-file` with \
                 `--service-account-signing-endpoint` (They are mutually exclusive)"
                    .to_owned(),
            );
        }
        if !gates.enabled(EXTERNAL_SERVICE_ACCOUNT_TOKEN_SIGNER) {
            errors.push(format!(
                "setting `--service-account-signing-endpoint` requires enabling {EXTERNAL_SERVICE_ACCOUNT_TOKEN_SIGNER} \
                 feature gate"
            ));
        }
        if !is_socket(endpoint) {
            errors.push(format!(
                "invalid value {endpoint:?} passed for `--service-account-signing-endpoint`, should be a valid location on \
                 the filesystem or must be prefixed with @ to name UDS in abstract namespace"
            ));
        }
        match errors.as_slice() {
            [] => Ok(()),
            [error] => Err(error.clone()),
            errors => Err(format!("[{}]", errors.join(", "))),
        }
    }

    /// A warning about contradicting flags.
    pub(super) fn warning(&self) -> Option<String> {
        let max_expiration = self.service_account_max_token_expiration;
        if !self.service_account_extend_token_expiration || max_expiration.is_zero() {
            return None;
        }
        if max_expiration < POD_TOKEN_LIFETIME {
            return Some(format!(
                "--service-account-extend-token-expiration has no effect: the tokens of pods are recognized by a lifetime of {} \
                 seconds, more than --service-account-max-token-expiration allows",
                POD_TOKEN_LIFETIME.as_secs()
            ));
        }
        (max_expiration < EXTENDED_TOKEN_LIFETIME).then(|| {
            format!(
                "--service-account-extend-token-expiration extends the tokens of pods to {} seconds, longer than \
                 --service-account-max-token-expiration",
                EXTENDED_TOKEN_LIFETIME.as_secs()
            )
        })
    }
}

/// Whether an endpoint is an absolute path without spaces, or `@` and the name of an abstract socket: labels between dots.
fn is_socket(endpoint: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    match endpoint.strip_prefix('@') {
        Some(name) => name.split('.').all(is_label),
        None => endpoint.starts_with('/') && !endpoint.contains(' '),
    }
}

/// Whether the text before the first colon is a valid URL scheme, and the rest has no whitespace.
fn has_scheme(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn validation_error(line: &str) -> Option<String> {
        let config = Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace())).unwrap();
        config.validate().err().map(|error| error.to_string())
    }

    #[test]
    fn service_account_token_flags_are_validated() {
        for (line, expected) in [
            ("--service-account-issuer=", "must not be empty"),
            ("--service-account-issuer=1:x", "is not a URL"),
            ("--service-account-issuer=a --service-account-issuer=a", "already specified"),
            ("--service-account-max-token-expiration=30m", "between 1 hour"),
            ("--service-account-max-token-expiration=2000000h", "2^32 seconds"),
            ("--service-account-jwks-uri=http://x", "https URL"),
        ] {
            let error = validation_error(line).unwrap_or_default();
            assert!(error.contains(expected), "{line}: {error}");
        }
        for line in [
            "--service-account-issuer=plain --service-account-issuer=https://x.example:6443/y",
            "--service-account-max-token-expiration=1h --service-account-jwks-uri=https://x/keys",
        ] {
            assert_eq!(validation_error(line), None, "{line}");
        }
    }

    #[test]
    fn signing_endpoint_needs_gate_and_socket_and_excludes_key_files() {
        const GATE: &str = "--feature-gates=ExternalServiceAccountTokenSigner=true";
        let endpoint = |text: &str| format!("--service-account-signing-endpoint={text}");
        let needs_gate = "setting `--service-account-signing-endpoint` requires enabling ExternalServiceAccountTokenSigner feature gate";
        assert_eq!(validation_error(&endpoint("")), None);
        assert_eq!(validation_error(&endpoint("/run/signer.sock")), Some(needs_gate.to_owned()));
        let both = validation_error(&endpoint("signer")).unwrap();
        assert!(both.starts_with(&format!("[{needs_gate}, invalid value \"signer\" passed")), "{both}");
        for (text, is_valid) in [
            ("/run/signer.sock", true),
            ("/run//signer/", true),
            ("/", true),
            ("@signer", true),
            ("@a-b.c_d", true),
            ("@", false),
            ("@a..b", false),
            ("@a/b", false),
            ("run/signer.sock", false),
            ("unix:///run/signer.sock", false),
        ] {
            let error = validation_error(&format!("{GATE} {}", endpoint(text)));
            assert_eq!(error.is_none(), is_valid, "{text}: {error:?}");
        }
        for (flag, expected) in [
            (
                "--service-account-signing-key-file=k",
                "and service-account-signing-endpoint are mutually exclusive",
            ),
            ("--service-account-key-file=k", "can't set `--service-account-signing-key-file` and/or"),
        ] {
            let error = validation_error(&format!("{GATE} {flag} {}", endpoint("/s"))).unwrap();
            assert!(error.contains(expected), "{flag}: {error}");
        }
    }

    #[test]
    fn token_extension_beyond_max_expiration_is_logged() {
        let warnings = |line: &str| {
            Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace()))
                .unwrap()
                .warnings
                .len()
        };
        assert_eq!(warnings("--service-account-max-token-expiration=1h"), 1);
        assert_eq!(warnings("--service-account-max-token-expiration=24h"), 1);
        assert_eq!(warnings("--service-account-max-token-expiration=9000h"), 0);
        assert_eq!(
            warnings(
                "--service-account-max-token-expiration=1h --service-account-extend-token-expiration=false"
            ),
            0
        );
    }
}
