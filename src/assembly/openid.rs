//! Assembles OpenID Connect providers and anonymous access, from flags or from a configuration file that is reloaded while the
//! server runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use pilothouse_actors::authenticator::Verifier;
use pilothouse_types::clock::{Clock, Timestamp};

use crate::application::StartContext;
use crate::application::StartError;
use crate::auth::openid::ClaimMapping;
use crate::auth::openid::providers::Providers;
use crate::config::authentication_file::Anonymous;
use crate::config::{Config, ConfigError};
use crate::http::handler::worker::Shared;
use crate::limits::{AUTHORIZATION_LOOK_EVERY, AUTHORIZATION_READ_EVERY};
use crate::metrics::Metrics;

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

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("--authentication-config: {}: {error}", path.display()))
}

impl OpenIdSetup {
    /// Reads the file, or else the flags, and starts to fetch the providers' keys. The start does not wait for them: a provider
    /// may come up after this server, or run on it.
    pub(super) fn open(context: &StartContext, metrics: &Arc<Metrics>) -> Result<OpenIdSetup, StartError> {
        let broken = |why: String| StartError::from(ConfigError::new(why));
        let (config, clock) = (context.config.clone(), context.clock.clone());
        let providers = Providers::new(metrics.clone(), clock.clone());
        let mut callers = OpenIdSetup {
            providers: None,
            anonymous: None,
            file: None,
            metrics: metrics.clone(),
            config,
            clock,
        };
        if let Some(path) = callers.config.authentication.authentication_config.clone() {
            let text = read(&path).map_err(broken)?;
            let wrong = |why| broken(format!("--authentication-config: {}: {why}", path.display()));
            let said = callers.config.authentication_file(&text).map_err(wrong)?;
            providers.accept_all(&said.jwt).map_err(wrong)?;
            callers.anonymous = said.anonymous;
            callers.file = Some((path, text));
        } else {
            let flags = &callers.config.openid;
            let Some(rules) = ClaimMapping::new(flags) else { return Ok(callers) };
            let pem = flags.oidc_ca_file.as_ref().map(std::fs::read).transpose();
            let pem = pem.map_err(|error| broken(format!("--oidc-ca-file: {error}")))?;
            providers.accept(rules, pem).map_err(|why| broken(format!("OpenID Connect: {why}")))?;
        }
        callers.providers = Some(Arc::new(providers));
        Ok(callers)
    }

    /// The verifier of provider tokens.
    pub(super) fn verifier(&self) -> Option<Arc<dyn Verifier>> {
        self.providers.clone().map(|providers| providers as Arc<dyn Verifier>)
    }

    /// Whether requests without credentials are accepted anywhere.
    pub(super) fn admits_anonymous(&self) -> bool {
        self.anonymous.as_ref().map_or_else(|| self.config.admits_anonymous(), |said| said.enabled)
    }

    /// The paths where requests without credentials are accepted; `None` means everywhere.
    pub(super) fn anonymous_paths(&self) -> Option<Vec<String>> {
        self.anonymous.as_ref().map(|said| said.paths.clone()).filter(|paths| !paths.is_empty())
    }

    /// Checks the file periodically, until the server stops. A broken file is logged and not used.
    pub(super) async fn follow_file(self: Arc<Self>, shared: Arc<Shared>) {
        let Some((path, text)) = self.file.clone() else { return };
        let mut watched = Watched { path, text, seen: None, read_at: self.clock.now() };
        let mut turns = tokio::time::interval(AUTHORIZATION_LOOK_EVERY);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !shared.health.stopping.load(Ordering::Acquire) {
            turns.tick().await;
            let Some(found) = watched.look(self.clock.now()) else { continue };
            let outcome = match found {
                Ok(text) => self.take(text, &mut watched).await,
                Err(why) => Err(why),
            };
            match &outcome {
                Ok(()) => tracing::info!("the authentication configuration was replaced"),
                Err(why) => {
                    tracing::error!(%why, "the changed authentication configuration is invalid; the previous one stays in use");
                }
            }
            self.metrics.authentication.count_reload(outcome.is_ok(), self.clock.now());
        }
    }

    /// Uses the new text of the file if it is valid. An invalid text is remembered, so that it is not tried again.
    async fn take(&self, text: Vec<u8>, watched: &mut Watched) -> Result<(), String> {
        let said =
            self.config.authentication_file(&text).and_then(|said| match said.anonymous == self.anonymous {
                true => Ok(said),
                false => Err("anonymous: Forbidden: changed from initial configuration file".to_owned()),
            });
        let said = match said {
            Ok(said) => said,
            Err(why) => {
                watched.text = text;
                return Err(why);
            }
        };
        let Some(providers) = &self.providers else { return Ok(()) };
        providers.replace(&said.jwt).await?;
        watched.text = text;
        Ok(())
    }
}

/// A file that is checked periodically.
struct Watched {
    path: PathBuf,
    /// The text that was used or rejected last.
    text: Vec<u8>,
    /// Modification time and size at the last check. `None` at first, so that the first check finds changes since the start.
    seen: Option<(SystemTime, u64)>,
    read_at: Timestamp,
}

impl Watched {
    /// The text of the file, if it differs from the last one. Reads only if the file looks changed, or was not read for a while.
    fn look(&mut self, now: Timestamp) -> Option<Result<Vec<u8>, String>> {
        let known = std::fs::metadata(&self.path).ok();
        let marks = known.and_then(|known| Some((known.modified().ok()?, known.len())));
        if marks == self.seen && now < self.read_at.plus(AUTHORIZATION_READ_EVERY) {
            return None;
        }
        (self.seen, self.read_at) = (marks, now);
        match read(&self.path) {
            Ok(text) if text == self.text => None,
            found => Some(found),
        }
    }
}
