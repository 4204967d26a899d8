//! The accepted providers: one from flags, or those of a file that can change at run time. Then all are replaced at once; an
//! unchanged one keeps its fetched keys.

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::join_all;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::Credentials;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::rules::Claims;
use super::{ClaimMapping, Keys, OpenIdTokens, Provider};
use crate::auth::jwt::Token;
use crate::config::authentication_file::Jwt;
use crate::limits::{JWT_RELOAD_TIMEOUT, OIDC_TOKEN_BYTES};
use crate::metrics::Metrics;

/// All accepted providers.
pub struct Providers {
    all: ArcSwap<Vec<Arc<Running>>>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// A provider, with the task that fetches its keys. The task ends on drop.
struct Running {
    /// Its configuration, if it is from a file.
    jwt: Option<Jwt>,
    tokens: OpenIdTokens,
    keys: Arc<Keys>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Providers {
    /// No providers yet.
    pub fn new(metrics: Arc<Metrics>, clock: Clock) -> Providers {
        Providers { all: ArcSwap::default(), metrics, clock }
    }

    /// Accepts the provider from the flags. The start does not wait for it: it may come up later than this server.
    pub fn accept(&self, rules: ClaimMapping, authority_pem: Option<Vec<u8>>) -> Result<(), String> {
        let running = self.begin(rules, authority_pem, None)?;
        self.all.store(Arc::new(vec![Arc::new(running)]));
        Ok(())
    }

    /// Accepts the providers from a file. The start does not wait for them.
    pub fn accept_all(&self, jwts: &[Jwt]) -> Result<(), String> {
        self.all.store(Arc::new(self.next(jwts)?));
        Ok(())
    }

    /// Replaces all providers as soon as the keys of the new ones are known. If that takes too long, nothing changes.
    pub async fn replace(&self, jwts: &[Jwt]) -> Result<(), String> {
        let next = self.next(jwts)?;
        let known = join_all(next.iter().map(|one| one.keys.known()));
        if timeout(JWT_RELOAD_TIMEOUT, known).await.is_err() {
            let silent = next.iter().filter(|one| one.keys.ring().is_none());
            let silent: Vec<&str> = silent.map(|one| one.tokens.issuer()).collect();
            return Err(format!("no keys within {JWT_RELOAD_TIMEOUT:?} of {}", silent.join(", ")));
        }
        self.all.store(Arc::new(next));
        Ok(())
    }

    fn next(&self, jwts: &[Jwt]) -> Result<Vec<Arc<Running>>, String> {
        let now = self.all.load();
        let same = |jwt: &Jwt| now.iter().find(|one| one.jwt.as_ref() == Some(jwt)).cloned();
        let one = |jwt: &Jwt| match same(jwt) {
            Some(running) => Ok(running),
            None => {
                self.begin(ClaimMapping::of(jwt), jwt.authority_pem.clone(), Some(jwt.clone())).map(Arc::new)
            }
        };
        jwts.iter().map(one).collect()
    }

    fn begin(
        &self,
        rules: ClaimMapping,
        authority_pem: Option<Vec<u8>>,
        jwt: Option<Jwt>,
    ) -> Result<Running, String> {
        let keys = Arc::new(Keys::new(self.clock.clone()));
        let provider = Provider::new(&rules, authority_pem, keys.clone())?;
        let latency = self.metrics.authentication.latency(&rules.issuer);
        Ok(Running {
            jwt,
            tokens: OpenIdTokens::timed(rules, keys.clone(), self.clock.clone(), latency),
            keys,
            task: actix::spawn(provider.keep()),
        })
    }
}

impl Verifier for Providers {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let all = self.all.load();
        let of_issuer = |several: &[Arc<Running>]| {
            let text = credentials.bearer.as_deref().filter(|token| token.len() <= OIDC_TOKEN_BYTES)?;
            let claims = Claims::of(&Token::parse(text)?)?;
            several.iter().find(|one| one.tokens.is_by(claims.issuer())).cloned()
        };
        let one = match all.as_slice() {
            [] => None,
            [one] => Some(Arc::clone(one)),
            several => of_issuer(several),
        };
        let Some(one) = one else { return Answer::Now(Verification::NoOpinion) };
        match one.tokens.verify(credentials) {
            Answer::Now(verdict) => Answer::Now(verdict),
            // A waiting verification keeps the fetching task alive, even if the provider is replaced meanwhile.
            Answer::Later(verdict) => Answer::Later(Box::pin(async move {
                let verdict = verdict.await;
                drop(one);
                verdict
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::clock::Timestamp;
    use serde_json::json;

    use super::super::test_provider::{NOW, Signer, TestProvider, claims};
    use super::*;
    use crate::config::authentication_file::{Mapping, Source};

    fn claim(claim: &str, prefix: &str) -> Source {
        Source::Claim(Mapping { claim: claim.into(), prefix: prefix.into() })
    }

    fn jwt(stage: &TestProvider, audience: &str) -> Jwt {
        Jwt {
            issuer: stage.issuer.clone(),
            authority_pem: Some(stage.authority_pem.clone()),
            audiences: vec!["x".into(), audience.into()],
            username: claim("sub", "p:"),
            uid: Some(claim("jti", "")),
            ..Jwt::default()
        }
    }

    async fn said(providers: &Providers, token: &str) -> Verification {
        let credentials = Credentials { bearer: Some(token.to_owned()), ..Credentials::default() };
        match providers.verify(&credentials) {
            Answer::Now(verdict) => verdict,
            Answer::Later(verdict) => verdict.await,
        }
    }

    async fn who(providers: &Providers, token: &str) -> Option<(String, String)> {
        match said(providers, token).await {
            Verification::Known(identity) => Some((identity.name.clone(), identity.uid.clone())),
            _ => None,
        }
    }

    #[actix::test]
    async fn each_token_is_for_the_provider_that_it_names() {
        let (one, other) = (Signer::fresh(), Signer::fresh());
        let (first, second) = (TestProvider::open(&[&one]).await, TestProvider::open(&[&other]).await);
        let clock = Clock::manual(Timestamp(NOW * 1_000_000));
        let metrics = Arc::new(Metrics::new(clock.now()).unwrap());
        let providers = Providers::new(metrics, clock);
        let by = |signer: &Signer, stage: &TestProvider| signer.sign(&claims(&stage.issuer, &json!({})));
        let known = Some(("p:ann".to_owned(), "7".to_owned()));
        assert_eq!(said(&providers, &by(&one, &first)).await, Verification::NoOpinion);
        providers.accept_all(&[jwt(&first, "c"), jwt(&second, "c")]).unwrap();
        assert_eq!(who(&providers, &by(&one, &first)).await, known);
        assert_eq!(who(&providers, &by(&other, &second)).await, known);
        assert!(
            matches!(said(&providers, &by(&one, &second)).await, Verification::Refused(_)),
            "of another key"
        );
        let stranger = one.sign(&claims("https://stranger.test", &json!({})));
        assert_eq!(said(&providers, &stranger).await, Verification::NoOpinion);
        assert_eq!(said(&providers, "no.token").await, Verification::NoOpinion);

        // A changed file: one provider stays the same, one has another audience.
        let asked = first.asked.get();
        providers.replace(&[jwt(&first, "c"), jwt(&second, "d")]).await.unwrap();
        assert_eq!(who(&providers, &by(&one, &first)).await, known);
        assert_eq!(first.asked.get(), asked, "its keys were kept");
        let why = format!("oidc: verify token: oidc: expected audience in {:?} got {:?}", "[..]", "c");
        let Verification::Refused(said) = said(&providers, &by(&other, &second)).await else {
            panic!("refused")
        };
        assert_eq!(said, why.replace("\"[..]\"", "[\"x\" \"d\"]").replace("got \"c\"", "got [\"c\"]"));
        providers.replace(&[]).await.unwrap();
        assert_eq!(who(&providers, &by(&one, &first)).await, None);
    }
}
