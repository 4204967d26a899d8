//! Issues service account tokens.

use std::sync::Arc;

use openssl::pkey::{PKey, Private};
use pilothouse_types::clock::Timestamp;

use super::claims::Grant;
use super::external_signer::ExternalSigner;
use crate::auth::jwt::SigningKey;
use crate::limits::POD_TOKEN_LIFETIME;

/// Issues service account tokens. Shared by all workers.
pub struct Issuer {
    signer: Signer,
    settings: IssuerSettings,
}

/// Who signs.
enum Signer {
    /// This server, with a key of its own.
    Own(Arc<SigningKey>),
    /// A signer outside of this process.
    External(Box<ExternalSigner>),
}

/// The settings for new tokens.
#[derive(Clone, Debug)]
pub struct IssuerSettings {
    /// The `iss` claim.
    pub issuer: String,
    /// The default audiences.
    pub audiences: Vec<String>,
    /// The maximum lifetime; 0 for no limit.
    pub max_seconds: i64,
    /// Whether the default tokens of pods are extended.
    pub extends: bool,
    /// The lifetime of extended tokens.
    pub extended_seconds: i64,
}

impl Issuer {
    /// An issuer that signs with this key.
    pub fn new(key: PKey<Private>, settings: IssuerSettings) -> Result<Issuer, String> {
        let key = SigningKey::new(key).map_err(|error| error.to_string())?;
        let key = key.ok_or("tokens cannot be signed with a key of this type")?;
        Ok(Issuer { signer: Signer::Own(Arc::new(key)), settings })
    }

    /// An issuer whose tokens an external signer signs.
    pub fn external(signer: ExternalSigner, settings: IssuerSettings) -> Issuer {
        Issuer { signer: Signer::External(Box::new(signer)), settings }
    }

    /// The settings for new tokens.
    pub fn settings(&self) -> &IssuerSettings {
        &self.settings
    }

    /// Signs claims in JSON with the own key; `None` if they are invalid, or if there is no such key. Slow: not for threads that serve
    /// requests.
    pub fn sign(&self, claims: &[u8]) -> Option<String> {
        let Signer::Own(key) = &self.signer else { return None };
        let claims: serde_json::Value = serde_json::from_slice(claims).ok()?;
        key.sign(&claims).ok()
    }

    /// Issues a token. With an own key it is signed on a blocking thread: with RSA it takes as long as a hundred small requests. The
    /// permits of the requests bound how many wait there, or for an external signer.
    pub async fn issue(&self, grant: &Grant, id: &str, now: Timestamp) -> Result<String, String> {
        let claims = grant.claims(&self.settings.issuer, id, now);
        let key = match &self.signer {
            Signer::Own(key) => Arc::clone(key),
            Signer::External(signer) => return signer.sign(&claims).await,
        };
        let signed = tokio::task::spawn_blocking(move || key.sign(&claims)).await;
        signed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

impl IssuerSettings {
    /// The lifetime of a token for which `seconds` were requested, and the time until its warning. The default tokens of pods are
    /// extended, if all audiences are this server's.
    pub fn lifetime(&self, seconds: i64, is_for_pod: bool, audiences: &[String]) -> (i64, Option<i64>) {
        let is_own_audience = audiences.iter().all(|audience| self.audiences.contains(audience));
        let is_default = u64::try_from(seconds) == Ok(POD_TOKEN_LIFETIME.as_secs());
        if self.extends && is_for_pod && is_default && is_own_audience {
            return (self.extended_seconds, Some(seconds));
        }
        (seconds, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_default_pod_token_is_extended_to_a_year() {
        let own_audience = vec!["us".to_owned()];
        let settings = IssuerSettings {
            issuer: "us".into(),
            audiences: own_audience.clone(),
            max_seconds: 0,
            extends: true,
            extended_seconds: 31_536_000,
        };
        assert_eq!(settings.lifetime(3_607, true, &own_audience), (31_536_000, Some(3_607)));
        assert_eq!(settings.lifetime(3_607, false, &own_audience), (3_607, None));
        assert_eq!(settings.lifetime(3_606, true, &own_audience), (3_606, None));
        assert_eq!(settings.lifetime(3_607, true, &["us".into(), "them".into()]), (3_607, None));
        let settings = IssuerSettings { extends: false, ..settings };
        assert_eq!(settings.lifetime(3_607, true, &own_audience), (3_607, None));
    }
}
