//! Assembles the authenticators.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use pilothouse_actors::authenticator::Verifier;
use pilothouse_client::kubeconfig::Access;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_client::webhook::Service;

use super::{ServerParts, StartContext, StartError};
use crate::auth::bootstrap_token::BootstrapTokens;
use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::FrontProxy;
use crate::auth::token_file::TokenFile;
use crate::auth::token_objects::TokenObjects;
use crate::auth::token_webhook;
use crate::bootstrap;
use crate::metrics::Metrics;

/// The authenticators that are made before the others.
pub(super) struct VerifierParts<'a> {
    /// The front proxy, if there is one.
    pub front_proxy: Option<&'a Arc<FrontProxy>>,
    /// Verifies client certificates.
    pub certificates: &'a Arc<CertificateVerifier>,
    /// The objects that tokens are bound to or kept in.
    pub objects: &'a Arc<TokenObjects>,
    /// Verifies service account tokens.
    pub accounts: Arc<dyn Verifier>,
    /// Verifies tokens of OpenID Connect providers.
    pub providers: Option<Arc<dyn Verifier>>,
}

/// The authenticators, in the order in which they are tried.
pub(super) fn verifiers(
    context: &StartContext,
    parts: VerifierParts<'_>,
    metrics: &Arc<Metrics>,
) -> Result<Arc<[Arc<dyn Verifier>]>, StartError> {
    let StartContext { config, clock, .. } = context;
    let VerifierParts { front_proxy, certificates, objects, accounts, providers } = parts;
    let tokens = match &config.authentication.token_auth_file {
        None => TokenFile::default(),
        Some(path) => {
            let invalid = file_error("--token-auth-file", path);
            let text = std::fs::read_to_string(path).map_err(|error| invalid(&error))?;
            TokenFile::parse(&text).map_err(|error| invalid(&error))?
        }
    };
    // In the reference's order: local checks first, remote calls last.
    let mut verifiers: Vec<Arc<dyn Verifier>> = Vec::new();
    if let Some(proxy) = front_proxy {
        verifiers.push(proxy.clone());
    }
    verifiers.extend([certificates.clone() as Arc<dyn Verifier>, Arc::new(tokens), accounts]);
    if config.authentication.enable_bootstrap_token_auth {
        verifiers.push(Arc::new(BootstrapTokens::new(objects.clone(), clock.clone())));
    }
    // After the verifiers of this server's own tokens: an unknown token may cause a fetch of provider keys.
    verifiers.extend(providers);
    if let Some(path) = &config.token_webhook.authentication_token_webhook_config_file {
        let settings = token_webhook::Settings {
            version: config.token_webhook.authentication_token_webhook_version.clone(),
            cache_ttl: config.token_webhook.authentication_token_webhook_cache_ttl,
            audiences: config.audiences().into(),
        };
        let (service, metrics) = (service(path, &context.pool)?, metrics.clone());
        verifiers.push(Arc::new(token_webhook::WebhookTokenVerifier::new(
            service,
            settings,
            metrics,
            clock.clone(),
        )));
    }
    Ok(verifiers.into())
}

/// Makes errors that blame the file that a flag names.
fn file_error(flag: &'static str, path: &Path) -> impl Fn(&dyn Display) -> StartError {
    move |error| StartError::flag(flag)(&format_args!("{}: {error}", path.display()))
}

/// The webhook server to which a kubeconfig leads.
fn service(path: &Path, pool: &Arc<Pool>) -> Result<Service, StartError> {
    let invalid = file_error("--authentication-token-webhook-config-file", path);
    let access = Access::read(path).map_err(|error| invalid(&error))?;
    Service::new(&access, pool).map_err(|error| invalid(&error))
}

/// The contents of the extension-apiserver-authentication ConfigMap.
pub(super) fn extension_authentication(
    parts: &ServerParts,
) -> bootstrap::system_config_maps::ExtensionAuthentication {
    let pki = parts.current_pki.load();
    let text = |pem: &[u8]| String::from_utf8_lossy(pem).into_owned();
    bootstrap::system_config_maps::ExtensionAuthentication {
        client_authority: text(&pki.client_ca_pem),
        proxy_authority: pki.proxy_ca_pem.as_deref().map(text),
        proxy_lists: parts.context.config.front_proxy.lists(),
    }
}
