//! What those who find out who is asking are made from.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use pilothouse_actors::authenticator::Verifier;

use super::{Boot, Parts, StartError};
use crate::auth::bootstrap_token::BootstrapTokens;
use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::FrontProxy;
use crate::auth::objects::Objects;
use crate::auth::token_webhook;
use crate::auth::tokens::TokenFile;
use crate::kubeconfig::Access;
use crate::metrics::Metrics;
use crate::upstream::pool::Pool;
use crate::verbs::bootstrap;
use crate::webhook::Service;

/// Those who are asked, in order.
pub(super) fn verifiers(
    boot: &Boot,
    (front_proxy, certificates): (&Option<Arc<FrontProxy>>, &Arc<CertificateVerifier>),
    objects: &Arc<Objects>,
    accounts: Arc<dyn Verifier>,
    providers: Option<Arc<dyn Verifier>>,
    metrics: &Arc<Metrics>,
) -> Result<Arc<[Arc<dyn Verifier>]>, StartError> {
    let Boot { config, clock, .. } = boot;
    let tokens = match &config.authentication.token_auth_file {
        None => TokenFile::default(),
        Some(path) => {
            let broken = in_file("--token-auth-file", path);
            let text = std::fs::read_to_string(path).map_err(|error| broken(&error))?;
            TokenFile::parse(&text).map_err(|error| broken(&error))?
        }
    };
    // In the reference's order: those who know best first, those who must ask others last.
    let mut all: Vec<Arc<dyn Verifier>> = Vec::new();
    if let Some(proxy) = front_proxy {
        all.push(proxy.clone());
    }
    all.extend([certificates.clone() as Arc<dyn Verifier>, Arc::new(tokens), accounts]);
    if config.authentication.enable_bootstrap_token_auth {
        all.push(Arc::new(BootstrapTokens::new(objects.clone(), clock.clone())));
    }
    // After those that know their tokens themselves: a token that nobody knows may have keys fetched.
    all.extend(providers);
    if let Some(path) = &config.token_webhook.authentication_token_webhook_config_file {
        let settings = token_webhook::Settings {
            version: config.token_webhook.authentication_token_webhook_version.clone(),
            kept_for: config.token_webhook.authentication_token_webhook_cache_ttl,
            audiences: config.audiences().into(),
        };
        let (service, metrics) = (service(path, &boot.pool)?, metrics.clone());
        all.push(Arc::new(token_webhook::AskedElsewhere::new(service, settings, metrics, clock.clone())));
    }
    Ok(all.into())
}

/// What is wrong with the file that a flag names.
fn in_file(flag: &'static str, path: &Path) -> impl Fn(&dyn Display) -> StartError {
    move |why| StartError::flag(flag)(&format_args!("{}: {why}", path.display()))
}

/// Another server that a kubeconfig leads to.
fn service(path: &Path, pool: &Arc<Pool>) -> Result<Service, StartError> {
    let broken = in_file("--authentication-token-webhook-config-file", path);
    let access = Access::read(path).map_err(|error| broken(&error))?;
    Service::new(&access, pool).map_err(|error| broken(&error))
}

/// What extensions are told of whom to trust.
pub(super) fn told(parts: &Parts) -> bootstrap::trust::Told {
    let pki = parts.trusted.load();
    let text = |pem: &[u8]| String::from_utf8_lossy(pem).into_owned();
    bootstrap::trust::Told {
        client_authority: text(&pki.client_ca_pem),
        proxy_authority: pki.proxy_ca_pem.as_deref().map(text),
        proxy_lists: parts.boot.config.front_proxy.lists(),
    }
}
