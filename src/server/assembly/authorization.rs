//! Assembles the authorizers, from flags or from a configuration file that is reloaded while the server runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use pilothouse_actors::authorizer::{Policies, Policy, PolicySource};
use pilothouse_apimachinery::well_known::MASTERS;
use pilothouse_client::kubeconfig::Access;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_client::webhook::Service;
use pilothouse_types::clock::Clock;

use crate::auth::abac::Abac;
use crate::auth::counted::CountedAuthorizer;
use crate::auth::modes::{AlwaysAllow, AlwaysDeny, Privileged};
use crate::auth::node::Nodes;
use crate::auth::rbac::{Rbac, Roles};
use crate::auth::webhook::{self, WebhookAuthorizer};
use crate::config::authorization_file::{AuthorizerConfig, Webhook};
use crate::config::{AuthorizationMode, Config};
use crate::http::handler::worker::Shared;
use crate::limits::{CONFIG_FILE_CHECK_INTERVAL, CONFIG_FILE_READ_INTERVAL};
use crate::live_index::LiveIndexes;
use crate::metrics::Metrics;
use crate::server::application::{StartContext, StartError};

/// The authorizers in use, and everything that is needed to make new ones when the file changes.
pub(super) struct AuthorizerSet {
    config: Config,
    initial: Vec<AuthorizerConfig>,
    /// The text of the file at the start.
    initial_text: Vec<u8>,
    roles: Arc<Roles>,
    nodes: Option<Arc<Nodes>>,
    abac: Option<Arc<Abac>>,
    metrics: Arc<Metrics>,
    clock: Clock,
    pool: Arc<Pool>,
    current: Arc<ArcSwap<Vec<Arc<dyn Policy>>>>,
}

/// The authorizers that are configured, and the text of the file if there is one.
fn configured_authorizers(config: &Config) -> Result<(Vec<AuthorizerConfig>, Vec<u8>), String> {
    let Some(path) = &config.authorization.authorization_config else {
        return Ok((AuthorizerConfig::from_flags(&config.authorization)?, Vec::new()));
    };
    let text = read(path)?;
    let authorizers = AuthorizerConfig::parse(&text)
        .map_err(|error| format!("failed to load {} from --authorization-config: {error}", path.display()))?;
    Ok((authorizers, text))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("--authorization-config: {}: {error}", path.display()))
}

impl AuthorizerSet {
    /// Reads the file, opens the stores that authorizers follow, and makes the authorizers.
    pub(super) async fn open(
        context: &StartContext,
        roles: &Arc<Roles>,
        indexes: &LiveIndexes,
        metrics: &Arc<Metrics>,
    ) -> Result<AuthorizerSet, StartError> {
        let (config, clock, pool) = (&*context.config, &context.clock, &context.pool);
        let config_error = |error: String| StartError::from(crate::config::ConfigError::new(error));
        let (initial, initial_text) = configured_authorizers(config).map_err(config_error)?;
        let is_configured =
            |mode: AuthorizationMode| initial.iter().any(|authorizer| authorizer.mode == mode);
        let nodes = if is_configured(AuthorizationMode::Node) {
            let gates = config.gates();
            let opened = Nodes::open(indexes, |gate| gates.enabled(gate)).await;
            Some(Arc::new(opened.map_err(|error| config_error(format!("the node authorizer: {error}")))?))
        } else {
            None
        };
        let abac = if is_configured(AuthorizationMode::Abac) {
            Some(Arc::new(abac(config).map_err(config_error)?))
        } else {
            None
        };
        let set = AuthorizerSet {
            config: config.clone(),
            initial,
            initial_text,
            roles: roles.clone(),
            nodes,
            abac,
            metrics: metrics.clone(),
            clock: clock.clone(),
            pool: pool.clone(),
            current: Arc::default(),
        };
        let policies = set.policies(&set.initial).map_err(config_error)?;
        set.current.store(Arc::new(policies));
        Ok(set)
    }

    /// Gives workers the authorizers that are current at the time of the call.
    pub(super) fn source(&self) -> PolicySource {
        let current = self.current.clone();
        Arc::new(move || -> Policies { current.load_full() })
    }

    fn policies(&self, authorizers: &[AuthorizerConfig]) -> Result<Vec<Arc<dyn Policy>>, String> {
        let mut policies: Vec<Arc<dyn Policy>> = vec![Arc::new(Privileged(MASTERS))];
        for AuthorizerConfig { mode, name, webhook } in authorizers {
            let not_enabled = || format!("authorizer type {mode} was not enabled at the start");
            let policy: Arc<dyn Policy> = match mode {
                AuthorizationMode::AlwaysAllow => Arc::new(AlwaysAllow),
                AuthorizationMode::AlwaysDeny => Arc::new(AlwaysDeny),
                AuthorizationMode::Rbac => Arc::new(Rbac(self.roles.clone())),
                AuthorizationMode::Abac => self.abac.clone().ok_or_else(not_enabled)?,
                AuthorizationMode::Node => self.nodes.clone().ok_or_else(not_enabled)?,
                AuthorizationMode::Webhook => {
                    let settings = webhook
                        .as_ref()
                        .ok_or_else(|| format!("the webhook {name} has no connection information"))?;
                    Arc::new(self.webhook_authorizer(name, settings)?)
                }
            };
            policies.push(Arc::new(CountedAuthorizer::new(policy, &mode.to_string(), name, &self.metrics)));
        }
        Ok(policies)
    }

    fn webhook_authorizer(&self, name: &str, settings: &Webhook) -> Result<WebhookAuthorizer, String> {
        let path = settings.kubeconfig.display();
        let access =
            Access::read(&settings.kubeconfig).map_err(|error| format!("the webhook {name}: {error}"))?;
        let service = Service::new(&access, &self.pool)
            .map_err(|error| format!("the webhook {name}: {path}: {error}"))?;
        let settings = webhook::Settings {
            version: settings.version.clone(),
            authorized_ttl: settings.authorized_ttl,
            unauthorized_ttl: settings.unauthorized_ttl,
            timeout: settings.timeout,
            denies_on_failure: settings.denies_on_failure,
            conditions: settings.conditions.clone(),
        };
        Ok(WebhookAuthorizer::new(
            service,
            settings,
            self.clock.clone(),
            self.metrics.authorization.webhook(name),
        ))
    }

    /// Checks the file periodically, until the server stops. A broken file is logged and not used.
    pub(super) async fn follow_file(self: Arc<Self>, shared: Arc<Shared>) {
        let Some(path) = self.config.authorization.authorization_config.clone() else { return };
        let file_stamp = || {
            std::fs::metadata(&path)
                .ok()
                .and_then(|metadata| Some((metadata.modified().ok()?, metadata.len())))
        };
        // The file may have changed since the start: the first check finds that.
        let (mut last_stamp, mut text) = (None, self.initial_text.clone());
        let mut used = self.initial.clone();
        self.metrics.authorization.count_reload(true, self.clock.now());
        let mut ticks = tokio::time::interval(CONFIG_FILE_CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut read_at = self.clock.now();
        while !shared.health.stopping.load(Ordering::Acquire) {
            ticks.tick().await;
            let (stamp, is_due) = (file_stamp(), read_at.plus(CONFIG_FILE_READ_INTERVAL) <= self.clock.now());
            if stamp == last_stamp && !is_due {
                continue;
            }
            (last_stamp, read_at) = (stamp, self.clock.now());
            if let Some(outcome) = self.reload_if_changed(&path, &mut text, &mut used).transpose() {
                if let Err(error) = &outcome {
                    tracing::error!(%error, "the changed authorization configuration is invalid; the previous one stays in use");
                }
                self.metrics.authorization.count_reload(outcome.is_ok(), self.clock.now());
            }
        }
    }

    /// Reads the file again. Returns `None` if its text is the same as before.
    fn reload_if_changed(
        &self,
        path: &Path,
        text: &mut Vec<u8>,
        used: &mut Vec<AuthorizerConfig>,
    ) -> Result<Option<()>, String> {
        let new_text = read(path)?;
        if new_text == *text {
            return Ok(None);
        }
        *text = new_text;
        let authorizers = AuthorizerConfig::parse(text)?;
        if authorizers == *used {
            return Ok(None);
        }
        AuthorizerConfig::check_reload(&self.initial, &authorizers)?;
        let policies = self.policies(&authorizers)?;
        self.current.store(Arc::new(policies));
        *used = authorizers;
        tracing::info!("the authorization configuration was replaced");
        Ok(Some(()))
    }
}

fn abac(config: &Config) -> Result<Abac, String> {
    let path = config.authorization.authorization_policy_file.as_ref();
    let path = path.ok_or("the authorizer type ABAC needs --authorization-policy-file")?;
    let file_error = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| file_error(&error))?;
    Abac::parse(&text).map_err(|error| file_error(&error))
}
