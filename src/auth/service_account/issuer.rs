//! Issues service account tokens.

use std::sync::Arc;

use openssl::pkey::{PKey, Private};
use pilothouse_types::clock::Timestamp;

use super::claims::Grant;
use crate::auth::jwt::SigningKey;
use crate::limits::{POD_TOKEN_LIFE, TOKEN_EXTENDED_LIFE};

/// Issues service account tokens. Shared by all workers.
pub struct Issuer {
    key: Arc<SigningKey>,
    rules: IssuerSettings,
}

/// The settings for new tokens.
#[derive(Clone, Debug)]
pub struct IssuerSettings {
    /// The `iss` claim.
    pub issuer: String,
    /// The default audiences.
    pub audiences: Vec<String>,
    /// The maximum lifetime; 0 for no limit.
    pub longest_seconds: i64,
    /// Whether the default tokens of pods are extended to a year.
    pub extends: bool,
}

impl Issuer {
    /// An issuer that signs with this key.
    pub fn new(key: PKey<Private>, rules: IssuerSettings) -> Result<Issuer, String> {
        let key = SigningKey::new(key).map_err(|error| error.to_string())?;
        let key = key.ok_or("the signing key is of a kind that cannot sign tokens")?;
        Ok(Issuer { key: Arc::new(key), rules })
    }

    /// The settings for new tokens.
    pub fn rules(&self) -> &IssuerSettings {
        &self.rules
    }

    /// Signs claims in JSON; `None` if they are invalid. Slow: not for threads that serve requests.
    pub fn sign(&self, claims: &[u8]) -> Option<String> {
        let claims: serde_json::Value = serde_json::from_slice(claims).ok()?;
        self.key.sign(&claims).ok()
    }

    /// Issues a token. Signed on a blocking thread: with RSA it takes as long as a hundred small requests. The permits of the
    /// requests bound how many wait there.
    pub async fn issue(&self, grant: &Grant, id: &str, now: Timestamp) -> Result<String, String> {
        let claims = grant.claims(&self.rules.issuer, id, now);
        let key = Arc::clone(&self.key);
        let signed = tokio::task::spawn_blocking(move || key.sign(&claims)).await;
        signed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

impl IssuerSettings {
    /// The lifetime of a token for which `seconds` were requested, and the time until its warning. The usual tokens of pods are
    /// extended, if they are for this server alone.
    pub fn life(&self, seconds: i64, of_pod: bool, audiences: &[String]) -> (i64, Option<i64>) {
        let ours = audiences.iter().all(|audience| self.audiences.contains(audience));
        let usual = u64::try_from(seconds) == Ok(POD_TOKEN_LIFE.as_secs());
        if self.extends && of_pod && usual && ours {
            let extended = i64::try_from(TOKEN_EXTENDED_LIFE.as_secs()).unwrap_or(seconds);
            return (extended, Some(seconds));
        }
        (seconds, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_default_token_of_a_pod_holds_for_a_year() {
        let ours = vec!["us".to_owned()];
        let rules = IssuerSettings {
            issuer: "us".into(),
            audiences: ours.clone(),
            longest_seconds: 0,
            extends: true,
        };
        assert_eq!(rules.life(3_607, true, &ours), (31_536_000, Some(3_607)));
        assert_eq!(rules.life(3_607, false, &ours), (3_607, None));
        assert_eq!(rules.life(3_606, true, &ours), (3_606, None));
        assert_eq!(rules.life(3_607, true, &["us".into(), "them".into()]), (3_607, None));
        let rules = IssuerSettings { extends: false, ..rules };
        assert_eq!(rules.life(3_607, true, &ours), (3_607, None));
    }
}
