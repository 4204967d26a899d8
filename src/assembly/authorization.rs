//! Assembles the authorizers, from flags or from a configuration file that is reloaded while the server runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use pilothouse_actors::authorizer::{Policies, Policy, PolicySource};
use pilothouse_apimachinery::well_known::MASTERS;
use pilothouse_types::clock::Clock;

use crate::application::StartError;
use crate::auth::abac::Abac;
use crate::auth::counted::CountedAuthorizer;
use crate::auth::live_index::LiveIndexes;
use crate::auth::modes::{AlwaysAllow, AlwaysDeny, Privileged};
use crate::auth::node::Nodes;
use crate::auth::rbac::{Rbac, Roles};
use crate::auth::webhook::{self, WebhookAuthorizer};
use crate::config::authorization_file::{AuthorizerConfig, Webhook};
use crate::config::{AuthorizationMode, Config};
use crate::http::handler::worker::Shared;
use crate::kubeconfig::Access;
use crate::limits::{AUTHORIZATION_LOOK_EVERY, AUTHORIZATION_READ_EVERY};
use crate::metrics::Metrics;
use crate::upstream::pool::Pool;
use crate::webhook::Service;

/// The authorizers in use, and everything that is needed to make new ones when the file changes.
pub(super) struct AuthorizerSet {
    config: Config,
    first: Vec<AuthorizerConfig>,
    /// The text of the file at the start.
    first_text: Vec<u8>,
    roles: Arc<Roles>,
    nodes: Option<Arc<Nodes>>,
    abac: Option<Arc<Abac>>,
    metrics: Arc<Metrics>,
    clock: Clock,
    pool: Arc<Pool>,
    now: Arc<ArcSwap<Vec<Arc<dyn Policy>>>>,
}

/// The authorizers that are configured, and the text of the file if there is one.
fn deciders(config: &Config) -> Result<(Vec<AuthorizerConfig>, Vec<u8>), String> {
    let Some(path) = &config.authorization.authorization_config else {
        return Ok((AuthorizerConfig::of_flags(&config.authorization)?, Vec::new()));
    };
    let text = read(path)?;
    let deciders = AuthorizerConfig::parse(&text)
        .map_err(|why| format!("failed to load {} from --authorization-config: {why}", path.display()))?;
    Ok((deciders, text))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("--authorization-config: {}: {error}", path.display()))
}

impl AuthorizerSet {
    /// Reads the file, opens the stores that authorizers follow, and makes the authorizers.
    pub(super) async fn open(
        config: &Config,
        roles: &Arc<Roles>,
        indexes: &LiveIndexes,
        metrics: &Arc<Metrics>,
        (clock, pool): (&Clock, &Arc<Pool>),
    ) -> Result<AuthorizerSet, StartError> {
        let broken = |why: String| StartError::from(crate::config::ConfigError::new(why));
        let (first, first_text) = deciders(config).map_err(broken)?;
        let has = |mode: AuthorizationMode| first.iter().any(|one| one.mode == mode);
        let nodes = if has(AuthorizationMode::Node) {
            let gates = config.gates();
            let opened = Nodes::open(indexes, |gate| gates.enabled(gate)).await;
            Some(Arc::new(opened.map_err(|error| broken(format!("the authorizer of nodes: {error}")))?))
        } else {
            None
        };
        let abac =
            if has(AuthorizationMode::Abac) { Some(Arc::new(abac(config).map_err(broken)?)) } else { None };
        let deciding = AuthorizerSet {
            config: config.clone(),
            first,
            first_text,
            roles: roles.clone(),
            nodes,
            abac,
            metrics: metrics.clone(),
            clock: clock.clone(),
            pool: pool.clone(),
            now: Arc::default(),
        };
        let policies = deciding.policies(&deciding.first).map_err(broken)?;
        deciding.now.store(Arc::new(policies));
        Ok(deciding)
    }

    /// Gives workers the authorizers that are current at the time of the call.
    pub(super) fn panel(&self) -> PolicySource {
        let now = self.now.clone();
        Arc::new(move || -> Policies { now.load_full() })
    }

    fn policies(&self, deciders: &[AuthorizerConfig]) -> Result<Vec<Arc<dyn Policy>>, String> {
        let mut all: Vec<Arc<dyn Policy>> = vec![Arc::new(Privileged(MASTERS))];
        for AuthorizerConfig { mode, name, webhook } in deciders {
            let absent = || format!("authorizer type {mode} was not enabled at the start");
            let policy: Arc<dyn Policy> = match mode {
                AuthorizationMode::AlwaysAllow => Arc::new(AlwaysAllow),
                AuthorizationMode::AlwaysDeny => Arc::new(AlwaysDeny),
                AuthorizationMode::Rbac => Arc::new(Rbac(self.roles.clone())),
                AuthorizationMode::Abac => self.abac.clone().ok_or_else(absent)?,
                AuthorizationMode::Node => self.nodes.clone().ok_or_else(absent)?,
                AuthorizationMode::Webhook => {
                    let settings = webhook.as_ref().ok_or_else(|| format!("{name} says not whom to ask"))?;
                    Arc::new(self.asked_elsewhere(name, settings)?)
                }
            };
            all.push(Arc::new(CountedAuthorizer::new(policy, &mode.to_string(), name, &self.metrics)));
        }
        Ok(all)
    }

    fn asked_elsewhere(&self, name: &str, settings: &Webhook) -> Result<WebhookAuthorizer, String> {
        let path = settings.kubeconfig.display();
        let access =
            Access::read(&settings.kubeconfig).map_err(|why| format!("the webhook {name}: {why}"))?;
        let service =
            Service::new(&access, &self.pool).map_err(|why| format!("the webhook {name}: {path}: {why}"))?;
        let settings = webhook::Settings {
            version: settings.version.clone(),
            allowed_for: settings.allowed_for,
            refused_for: settings.refused_for,
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
        let mark =
            || std::fs::metadata(&path).ok().and_then(|known| Some((known.modified().ok()?, known.len())));
        // The file may have changed since the start: the first check finds that.
        let (mut seen, mut text) = (None, self.first_text.clone());
        let mut used = self.first.clone();
        self.metrics.authorization.count_reload(true, self.clock.now());
        let mut turns = tokio::time::interval(AUTHORIZATION_LOOK_EVERY);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut read_at = self.clock.now();
        while !shared.health.stopping.load(Ordering::Acquire) {
            turns.tick().await;
            let (marks, due) = (mark(), read_at.plus(AUTHORIZATION_READ_EVERY) <= self.clock.now());
            if marks == seen && !due {
                continue;
            }
            (seen, read_at) = (marks, self.clock.now());
            if let Some(outcome) = self.look_again(&path, &mut text, &mut used).transpose() {
                if let Err(why) = &outcome {
                    tracing::error!(%why, "the changed authorization configuration is invalid; the previous one stays in use");
                }
                self.metrics.authorization.count_reload(outcome.is_ok(), self.clock.now());
            }
        }
    }

    /// Reads the file again. Answers nothing if its text is the same as before.
    fn look_again(
        &self,
        path: &Path,
        text: &mut Vec<u8>,
        used: &mut Vec<AuthorizerConfig>,
    ) -> Result<Option<()>, String> {
        let found = read(path)?;
        if found == *text {
            return Ok(None);
        }
        *text = found;
        let deciders = AuthorizerConfig::parse(text)?;
        if deciders == *used {
            return Ok(None);
        }
        AuthorizerConfig::may_follow(&self.first, &deciders)?;
        let policies = self.policies(&deciders)?;
        self.now.store(Arc::new(policies));
        *used = deciders;
        tracing::info!("the authorization configuration was replaced");
        Ok(Some(()))
    }
}

fn abac(config: &Config) -> Result<Abac, String> {
    let path = config.authorization.authorization_policy_file.as_ref();
    let path = path.ok_or("the authorizer type ABAC needs --authorization-policy-file")?;
    let broken = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| broken(&error))?;
    Abac::parse(&text).map_err(|error| broken(&error))
}
