//! Assembles authentication and authorization.

use std::net::SocketAddr;
use std::sync::Arc;

use pilothouse_actors::authenticator::{AuthenticatorConfig, Verifier};
use pilothouse_actors::directory::Stores as Storage;
use pilothouse_api::gates::ALLOW_PARSING_USER_UID_FROM_CERT_AUTH;
use pilothouse_apimachinery::well_known::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED};
use pilothouse_types::identity::Identity;

use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::FrontProxy;
use crate::auth::rbac::{self, Roles};
use crate::auth::service_account::issuer::Issuer;
use crate::auth::service_account::legacy_use::LegacyUseSender;
use crate::auth::service_account::metadata::PublishedMetadata;
use crate::auth::service_account::{TokenParts, Tokens};
use crate::auth::token_objects::TokenObjects;
use crate::config::Config;
use crate::live_index::LiveIndexes;
use crate::metrics::Metrics;
use crate::pki::host;
use crate::server::application::{StartContext, StartError};

use super::authentication::{VerifierParts, verifiers};
use super::authorization::AuthorizerSet;
use super::openid::OpenIdSetup;

/// The shared state from which each worker's authenticator and authorizer are made.
pub(super) struct AuthSetup {
    /// Authenticators, in the order in which they are tried.
    pub verifiers: Arc<[Arc<dyn Verifier>]>,
    /// The verifier of client certificates: a reload replaces its CAs.
    pub certificates: Arc<CertificateVerifier>,
    /// The verifier of request headers from a front proxy, if configured: a reload replaces its CAs, too.
    pub front_proxy: Option<Arc<FrontProxy>>,
    /// Settings of all authentication: the anonymous user, default audiences, the group of authenticated users.
    pub authenticator_config: Arc<AuthenticatorConfig>,
    /// The OpenID Connect providers whose tokens are accepted.
    pub openid: Arc<OpenIdSetup>,
    /// The authorizers, which a changed configuration file replaces.
    pub authorizers: Arc<AuthorizerSet>,
    /// The RBAC index.
    pub roles: Arc<Roles>,
    /// Issues the tokens of service accounts.
    pub tokens: Arc<Issuer>,
}

impl AuthSetup {
    /// Reads the files and opens the stores that authenticators and authorizers follow. `uses` records the use of token Secrets.
    /// Also returns the issuer metadata that other servers verify tokens with.
    pub(super) async fn open(
        context: &StartContext,
        storage: &Storage,
        indexes: &LiveIndexes,
        metrics: &Arc<Metrics>,
        uses: LegacyUseSender,
    ) -> Result<(AuthSetup, Option<PublishedMetadata>), StartError> {
        let config = &context.config;
        let objects = Arc::new(TokenObjects::new(storage));
        let openid = OpenIdSetup::open(context, metrics)?;
        let tokens = tokens(context, &objects, metrics)
            .await
            .map_err(|error| StartError::part("tokens of service accounts")(&error))?;
        tokens.verifier.report_uses_to(uses);
        let certificates = certificates(context, metrics)?;
        let front_proxy = front_proxy(context)?;
        let roles = rbac::open(indexes).await.map_err(|error| StartError::store(&error))?;
        let authorizers = AuthorizerSet::open(context, &roles, indexes, metrics).await?;
        let parts = VerifierParts {
            front_proxy: front_proxy.as_ref(),
            certificates: &certificates,
            objects: &objects,
            accounts: Arc::new(tokens.verifier),
            providers: openid.verifier(),
        };
        let verifiers = verifiers(context, parts, metrics)?;
        let auth = AuthSetup {
            verifiers,
            certificates,
            front_proxy,
            authenticator_config: Arc::new(authenticator_config(config, &openid)),
            openid: Arc::new(openid),
            authorizers: Arc::new(authorizers),
            roles,
            tokens: tokens.issuer,
        };
        Ok((auth, tokens.metadata))
    }
}

/// Makes the issuer and the verifier of service account tokens.
async fn tokens(
    context: &StartContext,
    objects: &Arc<TokenObjects>,
    metrics: &Arc<Metrics>,
) -> Result<Tokens, String> {
    let (config, port) = (&context.config, context.address.port());
    let address = match &config.serving.external_hostname {
        Some(host) => format!("{host}:{port}"),
        None => {
            let host = host::reachable_address(config).unwrap_or(context.address.ip());
            SocketAddr::new(host, port).to_string()
        }
    };
    let parts =
        TokenParts { objects: objects.clone(), metrics: metrics.clone(), clock: context.clock.clone() };
    Tokens::new(config, context.pki.tokens.as_ref(), &address, parts).await
}

/// Makes the verifier of front proxy headers, if one is configured.
fn front_proxy(context: &StartContext) -> Result<Option<Arc<FrontProxy>>, StartError> {
    let Some(pem) = &context.pki.proxy_ca_pem else { return Ok(None) };
    let verifier = FrontProxy::new(pem, context.config.front_proxy.allowed(), context.clock.clone());
    let invalid = StartError::flag("--requestheader-client-ca-file");
    verifier.map(|verifier| Some(Arc::new(verifier))).map_err(|error| invalid(&error))
}

fn certificates(context: &StartContext, metrics: &Metrics) -> Result<Arc<CertificateVerifier>, StartError> {
    let reads_uid = context.config.gates().enabled(ALLOW_PARSING_USER_UID_FROM_CERT_AUTH);
    let seconds_left = metrics.authentication.certificate_left.clone();
    let verifier =
        CertificateVerifier::new(&context.pki.client_ca_pem, reads_uid, seconds_left, context.clock.clone());
    let invalid = StartError::part("the authority of client certificates");
    verifier.map(Arc::new).map_err(|error| invalid(&error))
}

fn authenticator_config(config: &Config, openid: &OpenIdSetup) -> AuthenticatorConfig {
    let anonymous = Identity {
        name: ANONYMOUS.to_owned(),
        groups: vec![UNAUTHENTICATED.to_owned()],
        ..Identity::default()
    };
    AuthenticatorConfig {
        anonymous: Arc::new(anonymous),
        admits_anonymous: openid.admits_anonymous(),
        authenticated_group: AUTHENTICATED.to_owned(),
        audiences: config.audiences().into(),
    }
}
