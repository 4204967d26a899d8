//! Assembles OpenID Connect providers and anonymous access, from flags or from a configuration file that is reloaded while the
//! server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pilothouse_actors::authenticator::Verifier;
use pilothouse_types::clock::Clock;

use crate::auth::openid::ClaimMapping;
use crate::auth::openid::providers::Providers;
use crate::config::authentication_file::Anonymous;
use crate::config::{Config, ConfigError};
use crate::http::handler::worker::Shared;
use crate::limits::CONFIG_FILE_CHECK_INTERVAL;
use crate::metrics::Metrics;
use crate::server::application::StartContext;
use crate::server::application::StartError;

use super::watched_file::WatchedFile;

/// The authentication settings that flags or the file give: OpenID Connect providers and anonymous access.
pub(super) struct OpenIdSetup {
    config: Arc<Config>,
    /// The accepted providers; `None` if there can never be any.
    providers: Option<Arc<Providers>>,
    /// The file's anonymous settings at the start. A reload must not change them.
    anonymous: Option<Anonymous>,
    /// The path of the file, and its text at the start.
    file: Option<(PathBuf, Vec<u8>)>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

fn read_error(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("--authentication-config: {}: {error}", path.display())
}

impl OpenIdSetup {
    /// Reads the file, or else the flags, and starts to fetch the providers' keys. The start does not wait for them: a provider
    /// may come up after this server, or run on it.
    pub(super) fn open(context: &StartContext, metrics: &Arc<Metrics>) -> Result<OpenIdSetup, StartError> {
        let config_error = |error: String| StartError::from(ConfigError::new(error));
        let (config, clock) = (context.config.clone(), context.clock.clone());
        let providers = Providers::new(metrics.clone(), clock.clone(), context.pool.clone());
        let mut setup = OpenIdSetup {
            providers: None,
            anonymous: None,
            file: None,
            metrics: metrics.clone(),
            config,
            clock,
        };
        if let Some(path) = setup.config.authentication.authentication_config.clone() {
            let text = std::fs::read(&path).map_err(read_error(&path)).map_err(config_error)?;
            let file_error =
                |error| config_error(format!("--authentication-config: {}: {error}", path.display()));
            let file = setup.config.authentication_file(&text).map_err(file_error)?;
            providers.accept_all(&file.jwt).map_err(file_error)?;
            setup.anonymous = file.anonymous;
            setup.file = Some((path, text));
        } else {
            let flags = &setup.config.openid;
            let Some(rules) = ClaimMapping::new(flags) else { return Ok(setup) };
            let pem = flags.oidc_ca_file.as_ref().map(std::fs::read).transpose();
            let pem = pem.map_err(|error| config_error(format!("--oidc-ca-file: {error}")))?;
            providers.accept(rules, pem).map_err(|error| config_error(format!("OpenID Connect: {error}")))?;
        }
        setup.providers = Some(Arc::new(providers));
        Ok(setup)
    }

    /// The verifier of provider tokens.
    pub(super) fn verifier(&self) -> Option<Arc<dyn Verifier>> {
        self.providers.clone().map(|providers| providers as Arc<dyn Verifier>)
    }

    /// Whether requests without credentials are accepted anywhere.
    pub(super) fn admits_anonymous(&self) -> bool {
        self.anonymous.as_ref().map_or_else(|| self.config.admits_anonymous(), |settings| settings.enabled)
    }

    /// The paths where requests without credentials are accepted; `None` means everywhere.
    pub(super) fn anonymous_paths(&self) -> Option<Vec<String>> {
        self.anonymous.as_ref().map(|settings| settings.paths.clone()).filter(|paths| !paths.is_empty())
    }

    /// Checks the file periodically, until the server stops. A broken file is logged and not used.
    pub(super) async fn follow_file(self: Arc<Self>, shared: Arc<Shared>) {
        let Some((path, text)) = self.file.clone() else { return };
        let mut file = WatchedFile::new(path.clone(), text, self.clock.now());
        let mut ticks = tokio::time::interval(CONFIG_FILE_CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !shared.health.stopping.load(Ordering::Acquire) {
            ticks.tick().await;
            let Some(read) = file.read_if_changed(self.clock.now()) else { continue };
            let outcome = match read {
                Ok(text) => self.apply(text, &mut file).await,
                Err(error) => Err(read_error(&path)(error)),
            };
            match &outcome {
                Ok(()) => tracing::info!("the authentication configuration was replaced"),
                Err(error) => {
                    tracing::error!(%error, "the changed authentication configuration is invalid; the previous one stays in use");
                }
            }
            self.metrics.authentication.count_reload(outcome.is_ok(), self.clock.now());
        }
    }

    /// Uses the new text of the file if it is valid. An invalid text is remembered, so that it is not tried again.
    async fn apply(&self, text: Vec<u8>, file: &mut WatchedFile) -> Result<(), String> {
        let file_config = self.config.authentication_file(&text).and_then(|file_config| {
            match file_config.anonymous == self.anonymous {
                true => Ok(file_config),
                false => Err("anonymous: Forbidden: changed from initial configuration file".to_owned()),
            }
        });
        let file_config = match file_config {
            Ok(file_config) => file_config,
            Err(error) => {
                file.settle(text);
                return Err(error);
            }
        };
        let Some(providers) = &self.providers else { return Ok(()) };
        providers.replace(&file_config.jwt).await?;
        file.settle(text);
        Ok(())
    }
}
