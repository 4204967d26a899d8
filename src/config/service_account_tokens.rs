//! Validates the settings of service account tokens.

use std::time::Duration;

use super::ServiceAccounts;
use crate::limits::{POD_TOKEN_LIFE, TOKEN_EXTENDED_LIFE, TOKEN_LIFE};

/// The minimum of `--service-account-max-token-expiration`: the default lifetime of a token.
const SHORTEST_MAX: Duration = Duration::from_secs(3_600);

impl ServiceAccounts {
    /// Checks these settings.
    pub(super) fn validate(&self) -> Result<(), String> {
        for (at, issuer) in self.service_account_issuer.iter().enumerate() {
            if issuer.is_empty() {
                return Err("--service-account-issuer must not be empty".to_owned());
            }
            if issuer.contains(':') && !has_scheme(issuer) {
                return Err(format!("--service-account-issuer {issuer:?} contains a ':' but is no URL"));
            }
            if self.service_account_issuer.iter().take(at).any(|earlier| earlier == issuer) {
                return Err(format!("--service-account-issuer {issuer:?} is already specified"));
            }
        }
        let longest = self.service_account_max_token_expiration;
        if !longest.is_zero() && !(SHORTEST_MAX..=TOKEN_LIFE).contains(&longest) {
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

    /// A remark for the operator about contradicting settings.
    pub(super) fn remarks(&self) -> Option<String> {
        let longest = self.service_account_max_token_expiration;
        if !self.service_account_extend_token_expiration || longest.is_zero() {
            return None;
        }
        if longest < POD_TOKEN_LIFE {
            return Some(format!(
                "--service-account-extend-token-expiration has no effect: pods are recognised by a token life of {} \
                 seconds, more than --service-account-max-token-expiration allows",
                POD_TOKEN_LIFE.as_secs()
            ));
        }
        (longest < TOKEN_EXTENDED_LIFE).then(|| {
            format!(
                "--service-account-extend-token-expiration lets tokens of pods live for {} seconds, longer than \
                 --service-account-max-token-expiration",
                TOKEN_EXTENDED_LIFE.as_secs()
            )
        })
    }
}

/// Whether the text before the first colon is a valid URL scheme, and the rest has no blanks.
fn has_scheme(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn refused(line: &str) -> Option<String> {
        let config = Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace())).unwrap();
        config.validate().err().map(|error| error.to_string())
    }

    #[test]
    fn issuers_and_lives_are_checked() {
        for (line, part) in [
            ("--service-account-issuer=", "must not be empty"),
            ("--service-account-issuer=1:x", "is no URL"),
            ("--service-account-issuer=a --service-account-issuer=a", "already specified"),
            ("--service-account-max-token-expiration=30m", "between 1 hour"),
            ("--service-account-max-token-expiration=2000000h", "2^32 seconds"),
            ("--service-account-jwks-uri=http://x", "https URL"),
        ] {
            let said = refused(line).unwrap_or_default();
            assert!(said.contains(part), "{line}: {said}");
        }
        for line in [
            "--service-account-issuer=plain --service-account-issuer=https://x.example:6443/y",
            "--service-account-max-token-expiration=1h --service-account-jwks-uri=https://x/keys",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
    }

    #[test]
    fn a_limit_that_the_extension_passes_is_named() {
        let remarks = |line: &str| {
            Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace())).unwrap().remarks.len()
        };
        assert_eq!(remarks("--service-account-max-token-expiration=1h"), 1);
        assert_eq!(remarks("--service-account-max-token-expiration=24h"), 1);
        assert_eq!(remarks("--service-account-max-token-expiration=9000h"), 0);
        assert_eq!(
            remarks(
                "--service-account-max-token-expiration=1h --service-account-extend-token-expiration=false"
            ),
            0
        );
    }
}
