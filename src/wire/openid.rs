//! The verifier of OpenID Connect tokens, if the flags name a provider.

use std::sync::Arc;

use pilothouse_actors::authenticator::Verifier;

use crate::auth::openid::{Keys, OpenIdTokens, Provider, Rules};
use crate::server::StartError;
use crate::server::wiring::Boot;

/// Starts to look for the keys of the provider and does not wait for them: it may come up after this server, or run on it.
pub fn verifier(boot: &Boot) -> Result<Option<Arc<dyn Verifier>>, StartError> {
    let flags = &boot.config.openid;
    let Some(rules) = Rules::new(flags) else { return Ok(None) };
    let broken = |what: &str, error: &dyn std::fmt::Display| StartError::Store(format!("{what}: {error}"));
    let read = flags.oidc_ca_file.as_ref().map(std::fs::read).transpose();
    let authority_pem = read.map_err(|error| broken("--oidc-ca-file", &error))?;
    let keys = Arc::new(Keys::new(boot.clock.clone()));
    let provider = Provider::new(&rules, authority_pem, keys.clone());
    let provider = provider.map_err(|error| broken("OpenID Connect", &error))?;
    actix::spawn(provider.keep());
    Ok(Some(Arc::new(OpenIdTokens::new(rules, keys, boot.clock.clone()))))
}
