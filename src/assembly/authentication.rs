//! Assembles the authenticators.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use pilothouse_actors::authenticator::Verifier;

use super::{ServerParts, StartContext, StartError};
use crate::auth::bootstrap_token::BootstrapTokens;
use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::FrontProxy;
use crate::auth::token_file::TokenFile;
use crate::auth::token_objects::TokenObjects;
use crate::auth::token_webhook;
use crate::bootstrap;
use crate::kubeconfig::Access;
use crate::metrics::Metrics;
use crate::upstream::pool::Pool;
use crate::webhook::Service;

/// The authenticators in the order in which they are asked.
pub(super) fn verifiers(
    context: &StartContext,
    (front_proxy, certificates): (&Option<Arc<FrontProxy>>, &Arc<CertificateVerifier>),
    objects: &Arc<TokenObjects>,
    accounts: Arc<dyn Verifier>,
    providers: Option<Arc<dyn Verifier>>,
    metrics: &Arc<Metrics>,
) -> Result<Arc<[Arc<dyn Verifier>]>, StartError> {
    let StartContext { config, clock, .. } = context;
    let tokens = match &config.authentication.token_auth_file {
        None => TokenFile::default(),
        Some(path) => {
            let broken = in_file("--token-auth-file", path);
            let text = std::fs::read_to_string(path).map_err(|error| broken(&error))?;
            TokenFile::parse(&text).map_err(|error| broken(&error))?
        }
    };
    // In the reference's order: local checks first, remote calls last.
    let mut all: Vec<Arc<dyn Verifier>> = Vec::new();
    if let Some(proxy) = front_proxy {
        all.push(proxy.clone());
    }
    all.extend([certificates.clone() as Arc<dyn Verifier>, Arc::new(tokens), accounts]);
    if config.authentication.enable_bootstrap_token_auth {
        all.push(Arc::new(BootstrapTokens::new(objects.clone(), clock.clone())));
    }
    // After the verifiers of this server's own tokens: an unknown token may cause a fetch of provider keys.
    all.extend(providers);
    if let Some(path) = &config.token_webhook.authentication_token_webhook_config_file {
        let settings = token_webhook::Settings {
            version: config.token_webhook.authentication_token_webhook_version.clone(),
            kept_for: config.token_webhook.authentication_token_webhook_cache_ttl,
            audiences: config.audiences().into(),
        };
        let (service, metrics) = (service(path, &context.pool)?, metrics.clone());
        all.push(Arc::new(token_webhook::WebhookTokenVerifier::new(
            service,
            settings,
            metrics,
            clock.clone(),
        )));
    }
    Ok(all.into())
}

/// Makes errors that blame the file that a flag names.
fn in_file(flag: &'static str, path: &Path) -> impl Fn(&dyn Display) -> StartError {
    move |why| StartError::flag(flag)(&format_args!("{}: {why}", path.display()))
}

/// The webhook server to which a kubeconfig leads.
fn service(path: &Path, pool: &Arc<Pool>) -> Result<Service, StartError> {
    let broken = in_file("--authentication-token-webhook-config-file", path);
    let access = Access::read(path).map_err(|error| broken(&error))?;
    Service::new(&access, pool).map_err(|error| broken(&error))
}

/// The contents of the extension-apiserver-authentication ConfigMap.
pub(super) fn extension_authentication(
    parts: &ServerParts,
) -> bootstrap::system_config_maps::ExtensionAuthentication {
    let pki = parts.trusted.load();
    let text = |pem: &[u8]| String::from_utf8_lossy(pem).into_owned();
    bootstrap::system_config_maps::ExtensionAuthentication {
        client_authority: text(&pki.client_ca_pem),
        proxy_authority: pki.proxy_ca_pem.as_deref().map(text),
        proxy_lists: parts.context.config.front_proxy.lists(),
    }
}
