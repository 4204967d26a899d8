//! The accepted providers: one from flags, or those of a file that can change at run time. Then all are replaced at once; an
//! unchanged one keeps its fetched keys.

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::join_all;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_client::upstream::pool::Pool;
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::Credentials;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::distributed::ClaimResolver;
use super::provider::trust_anchors;
use super::rules::Claims;
use super::{ClaimMapping, Keys, OpenIdTokens, Provider};
use crate::auth::jwt::Token;
use crate::config::authentication_file::Jwt;
use crate::limits::{JWT_RELOAD_TIMEOUT, OIDC_TOKEN_BYTES};
use crate::metrics::Metrics;

/// All accepted providers.
pub struct Providers {
    all: ArcSwap<Vec<Arc<RunningProvider>>>,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// The connections of this server.
    pool: Arc<Pool>,
}

/// A provider, with the task that fetches its keys. The task ends on drop.
struct RunningProvider {
    /// Its configuration, if it is from a file.
    jwt: Option<Jwt>,
    tokens: OpenIdTokens,
    keys: Arc<Keys>,
    _task: AbortOnDropHandle<()>,
}

impl Providers {
    /// No providers yet.
    pub fn new(metrics: Arc<Metrics>, clock: Clock, pool: Arc<Pool>) -> Providers {
        Providers { all: ArcSwap::default(), metrics, clock, pool }
    }

    /// Accepts the provider from the flags. The start does not wait for it: it may come up later than this server.
    pub fn accept(&self, rules: ClaimMapping, authority_pem: Option<Vec<u8>>) -> Result<(), String> {
        let running = self.start(rules, authority_pem, None)?;
        self.all.store(Arc::new(vec![Arc::new(running)]));
        Ok(())
    }

    /// Accepts the providers from a file. The start does not wait for them.
    pub fn accept_all(&self, jwts: &[Jwt]) -> Result<(), String> {
        self.all.store(Arc::new(self.running_for(jwts)?));
        Ok(())
    }

    /// Replaces all providers as soon as the keys of the new ones are known. If that takes too long, nothing changes.
    pub async fn replace(&self, jwts: &[Jwt]) -> Result<(), String> {
        let next = self.running_for(jwts)?;
        let available = join_all(next.iter().map(|provider| provider.keys.wait_until_available()));
        if timeout(JWT_RELOAD_TIMEOUT, available).await.is_err() {
            let unavailable = next.iter().filter(|provider| provider.keys.key_set().is_none());
            let unavailable: Vec<&str> = unavailable.map(|provider| provider.tokens.issuer()).collect();
            return Err(format!("no keys within {JWT_RELOAD_TIMEOUT:?} of {}", unavailable.join(", ")));
        }
        self.all.store(Arc::new(next));
        Ok(())
    }

    /// The providers of a file; those with an unchanged configuration keep running.
    fn running_for(&self, jwts: &[Jwt]) -> Result<Vec<Arc<RunningProvider>>, String> {
        let current = self.all.load();
        let unchanged =
            |jwt: &Jwt| current.iter().find(|provider| provider.jwt.as_ref() == Some(jwt)).cloned();
        let provider = |jwt: &Jwt| match unchanged(jwt) {
            Some(running) => Ok(running),
            None => self
                .start(ClaimMapping::from_jwt(jwt), jwt.authority_pem.clone(), Some(jwt.clone()))
                .map(Arc::new),
        };
        jwts.iter().map(provider).collect()
    }

    fn start(
        &self,
        rules: ClaimMapping,
        authority_pem: Option<Vec<u8>>,
        jwt: Option<Jwt>,
    ) -> Result<RunningProvider, String> {
        let keys = Arc::new(Keys::new(self.clock.clone()));
        let anchors = trust_anchors(authority_pem)?;
        let provider = Provider::new(&rules, anchors.clone(), keys.clone(), &self.pool)?;
        let latency = Some(self.metrics.authentication.latency(&rules.issuer));
        let resolver = ClaimResolver::new(keys.clone(), anchors, self.clock.clone(), self.pool.clone());
        Ok(RunningProvider {
            jwt,
            tokens: OpenIdTokens::new(rules, keys.clone(), resolver, self.clock.clone(), latency),
            keys,
            _task: AbortOnDropHandle::new(actix::spawn(provider.run())),
        })
    }
}

impl Verifier for Providers {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let all = self.all.load();
        let select_by_issuer = |providers: &[Arc<RunningProvider>]| {
            let text = credentials.bearer.as_deref().filter(|token| token.len() <= OIDC_TOKEN_BYTES)?;
            let claims = Claims::parse(&Token::parse(text)?)?;
            providers.iter().find(|provider| provider.tokens.is_issuer(claims.issuer())).cloned()
        };
        let provider = match all.as_slice() {
            [] => None,
            [provider] => Some(Arc::clone(provider)),
            providers => select_by_issuer(providers),
        };
        let Some(provider) = provider else { return Answer::Now(Verification::NoOpinion) };
        match provider.tokens.verify(credentials) {
            Answer::Now(verdict) => Answer::Now(verdict),
            // A waiting verification keeps the fetching task alive, even if the provider is replaced meanwhile.
            Answer::Later(verdict) => Answer::Later(Box::pin(async move {
                let verdict = verdict.await;
                drop(provider);
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

    fn jwt(provider: &TestProvider, audience: &str) -> Jwt {
        Jwt {
            issuer: provider.issuer.clone(),
            authority_pem: Some(provider.authority_pem.clone()),
            audiences: vec!["x".into(), audience.into()],
            username: claim("sub", "p:"),
            uid: Some(claim("jti", "")),
            ..Jwt::default()
        }
    }

    async fn verify(providers: &Providers, token: &str) -> Verification {
        let credentials = Credentials { bearer: Some(token.to_owned()), ..Credentials::default() };
        match providers.verify(&credentials) {
            Answer::Now(verdict) => verdict,
            Answer::Later(verdict) => verdict.await,
        }
    }

    async fn authenticate(providers: &Providers, token: &str) -> Option<(String, String)> {
        match verify(providers, token).await {
            Verification::Known(identity) => Some((identity.name.clone(), identity.uid.clone())),
            _ => None,
        }
    }

    #[actix::test]
    async fn token_is_verified_by_the_provider_of_its_issuer() {
        let (signer, other) = (Signer::fresh(), Signer::fresh());
        let (first, second) = (TestProvider::open(&[&signer]).await, TestProvider::open(&[&other]).await);
        let clock = Clock::manual(Timestamp(NOW * 1_000_000));
        let metrics = Arc::new(Metrics::new(clock.now()).unwrap());
        let providers = Providers::new(metrics, clock.clone(), Pool::new(clock));
        let signed_token =
            |signer: &Signer, provider: &TestProvider| signer.sign(&claims(&provider.issuer, &json!({})));
        let identity = Some(("p:ann".to_owned(), "7".to_owned()));
        assert_eq!(verify(&providers, &signed_token(&signer, &first)).await, Verification::NoOpinion);
        providers.accept_all(&[jwt(&first, "c"), jwt(&second, "c")]).unwrap();
        assert_eq!(authenticate(&providers, &signed_token(&signer, &first)).await, identity);
        assert_eq!(authenticate(&providers, &signed_token(&other, &second)).await, identity);
        assert!(
            matches!(verify(&providers, &signed_token(&signer, &second)).await, Verification::Refused(_)),
            "of another key"
        );
        let stranger = signer.sign(&claims("https://stranger.test", &json!({})));
        assert_eq!(verify(&providers, &stranger).await, Verification::NoOpinion);
        assert_eq!(verify(&providers, "no.token").await, Verification::NoOpinion);

        // A changed file: one provider stays the same, one has another audience.
        let requests = first.key_requests.get();
        providers.replace(&[jwt(&first, "c"), jwt(&second, "d")]).await.unwrap();
        assert_eq!(authenticate(&providers, &signed_token(&signer, &first)).await, identity);
        assert_eq!(first.key_requests.get(), requests, "its keys were not fetched again");
        let expected = format!("oidc: verify token: oidc: expected audience in {:?} got {:?}", "[..]", "c");
        let Verification::Refused(reason) = verify(&providers, &signed_token(&other, &second)).await else {
            panic!("refused")
        };
        assert_eq!(reason, expected.replace("\"[..]\"", "[\"x\" \"d\"]").replace("got \"c\"", "got [\"c\"]"));
        providers.replace(&[]).await.unwrap();
        assert_eq!(authenticate(&providers, &signed_token(&signer, &first)).await, None);
    }
}
