//! Assembles authentication and authorization.

use std::net::SocketAddr;
use std::sync::Arc;

use pilothouse_actors::authenticator::{House, Verifier};
use pilothouse_actors::directory::Stores as Storage;
use pilothouse_actors::identity::Identity;

use crate::api::well_known::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED};
use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::FrontProxy;
use crate::auth::rbac::{self, Roles};
use crate::auth::service_account::Tokens;
use crate::auth::service_account::issuer::Issuer;
use crate::auth::service_account::legacy_use::LegacyUseSender;
use crate::auth::service_account::metadata::Metadata;
use crate::auth::token_objects::TokenObjects;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::pki::host;
use crate::wiring::{Boot, StartError};

use super::authentication::verifiers;
use super::authorization::Deciding;
use super::openid::Callers;

/// The shared state from which each worker's authenticator and authorizer are made.
pub(super) struct Guards {
    /// Authenticators, in the order in which they are asked.
    pub verifiers: Arc<[Arc<dyn Verifier>]>,
    /// The verifier of client certificates: a reload replaces its CAs.
    pub certificates: Arc<CertificateVerifier>,
    /// The verifier of request headers from a front proxy, if configured: a reload replaces its CAs, too.
    pub front_proxy: Option<Arc<FrontProxy>>,
    /// Settings of all authentication: the anonymous user, default audiences, the group of authenticated users.
    pub house: Arc<House>,
    /// The OpenID Connect providers whose tokens are accepted.
    pub callers: Arc<Callers>,
    /// The authorizers, which a changed configuration file replaces.
    pub deciding: Arc<Deciding>,
    /// The RBAC index.
    pub roles: Arc<Roles>,
    /// Issues the tokens of service accounts.
    pub tokens: Arc<Issuer>,
}

impl Guards {
    /// Reads the files and opens the stores that authenticators and authorizers follow. `uses` records the use of token Secrets.
    /// Also returns the issuer metadata that other servers verify tokens with.
    pub(super) async fn open(
        boot: &Boot,
        storage: &Storage,
        metrics: &Arc<Metrics>,
        uses: LegacyUseSender,
    ) -> Result<(Guards, Option<Metadata>), StartError> {
        let config = &boot.config;
        let objects = Arc::new(TokenObjects::new(storage.directory.clone()));
        let callers = Callers::open(boot, metrics)?;
        let tokens = tokens(boot, &objects, metrics)
            .map_err(|error| StartError::part("tokens of service accounts")(&error))?;
        tokens.verifier.tell(uses);
        let certificates = certificates(boot, metrics)?;
        let front_proxy = front_proxy(boot)?;
        let roles = rbac::open(storage.directory.clone()).await.map_err(|error| StartError::store(&error))?;
        let roles = Arc::new(roles);
        let deciding = Deciding::open(config, &roles, storage, metrics, (&boot.clock, &boot.pool)).await?;
        let verifiers = verifiers(
            boot,
            (&front_proxy, &certificates),
            &objects,
            Arc::new(tokens.verifier),
            callers.verifier(),
            metrics,
        )?;
        let guards = Guards {
            verifiers,
            certificates,
            front_proxy,
            house: Arc::new(house(config, &callers)),
            callers: Arc::new(callers),
            deciding: Arc::new(deciding),
            roles,
            tokens: tokens.issuer,
        };
        Ok((guards, tokens.metadata))
    }
}

/// Makes the issuer and the verifier of service account tokens.
fn tokens(boot: &Boot, objects: &Arc<TokenObjects>, metrics: &Arc<Metrics>) -> Result<Tokens, String> {
    let (config, port) = (&boot.config, boot.address.port());
    let address = match &config.serving.external_hostname {
        Some(host) => format!("{host}:{port}"),
        None => {
            let host = host::reachable_address(config).unwrap_or(boot.address.ip());
            SocketAddr::new(host, port).to_string()
        }
    };
    Tokens::new(config, &boot.pki.tokens, &address, objects.clone(), metrics.clone(), boot.clock.clone())
}

/// Makes the verifier of front proxy headers, if one is configured.
fn front_proxy(boot: &Boot) -> Result<Option<Arc<FrontProxy>>, StartError> {
    let Some(pem) = &boot.pki.proxy_ca_pem else { return Ok(None) };
    let verifier = FrontProxy::new(pem, boot.config.front_proxy.allowed(), boot.clock.clone());
    let broken = StartError::flag("--requestheader-client-ca-file");
    verifier.map(|verifier| Some(Arc::new(verifier))).map_err(|error| broken(&error))
}

fn certificates(boot: &Boot, metrics: &Metrics) -> Result<Arc<CertificateVerifier>, StartError> {
    let reads_uid = boot.config.gates().enabled("AllowParsingUserUIDFromCertAuth");
    let left = metrics.authentication.certificate_left.clone();
    let verifier = CertificateVerifier::new(&boot.pki.client_ca_pem, reads_uid, left, boot.clock.clone());
    let broken = StartError::part("the authority of client certificates");
    verifier.map(Arc::new).map_err(|error| broken(&error))
}

fn house(config: &Config, callers: &Callers) -> House {
    let anonymous = Identity {
        name: ANONYMOUS.to_owned(),
        groups: vec![UNAUTHENTICATED.to_owned()],
        ..Identity::default()
    };
    House {
        anonymous: Arc::new(anonymous),
        admits_anonymous: callers.admits_anonymous(),
        authenticated_group: AUTHENTICATED.to_owned(),
        audiences: config.audiences().into(),
    }
}
