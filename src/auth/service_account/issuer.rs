//! Making tokens.

use std::sync::Arc;

use openssl::pkey::{PKey, Private};
use pilothouse_actors::clock::Timestamp;

use super::claims::Grant;
use crate::auth::jwt::SigningKey;
use crate::limits::{POD_TOKEN_LIFE, TOKEN_EXTENDED_LIFE};

/// What makes the tokens of service accounts. Shared by all workers.
pub struct Issuer {
    key: Arc<SigningKey>,
    rules: Rules,
}

/// How tokens are made.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Who they say has made them.
    pub issuer: String,
    /// Whom they are meant for when nobody says.
    pub audiences: Vec<String>,
    /// How long they may hold; 0 for any time.
    pub longest_seconds: i64,
    /// Whether the default tokens of pods hold for a year.
    pub extends: bool,
}

impl Issuer {
    /// An issuer that signs with this key.
    pub fn new(key: PKey<Private>, rules: Rules) -> Result<Issuer, String> {
        let key = SigningKey::new(key).map_err(|error| error.to_string())?;
        let key = key.ok_or("the signing key is of a kind that cannot sign tokens")?;
        Ok(Issuer { key: Arc::new(key), rules })
    }

    /// How tokens are made.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// A token of claims that are JSON already; `None` if they are not. It takes its time: not for threads that serve.
    pub fn sign(&self, claims: &[u8]) -> Option<String> {
        let claims: serde_json::Value = serde_json::from_slice(claims).ok()?;
        self.key.sign(&claims).ok()
    }

    /// A token that says what is granted. Signed on a thread for slow work: with RSA it takes as long as a hundred small
    /// requests. The permit of the request bounds how many wait there.
    pub async fn issue(&self, grant: &Grant, id: &str, now: Timestamp) -> Result<String, String> {
        let claims = grant.claims(&self.rules.issuer, id, now);
        let key = Arc::clone(&self.key);
        let signed = tokio::task::spawn_blocking(move || key.sign(&claims)).await;
        signed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

impl Rules {
    /// How long a token holds that was asked for `seconds`, and after how long its bearer is warned. A token of a pod that is
    /// asked for as the cluster asks for it holds longer, if it is for this server alone.
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
        let rules = Rules { issuer: "us".into(), audiences: ours.clone(), longest_seconds: 0, extends: true };
        assert_eq!(rules.life(3_607, true, &ours), (31_536_000, Some(3_607)));
        assert_eq!(rules.life(3_607, false, &ours), (3_607, None));
        assert_eq!(rules.life(3_606, true, &ours), (3_606, None));
        assert_eq!(rules.life(3_607, true, &["us".into(), "them".into()]), (3_607, None));
        let rules = Rules { extends: false, ..rules };
        assert_eq!(rules.life(3_607, true, &ours), (3_607, None));
    }
}
