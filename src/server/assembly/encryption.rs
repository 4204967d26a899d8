//! Loads the configuration of encryption at rest, and follows its changes.

use std::sync::Arc;

use actix::Addr;
use pilothouse_actors::directory::Directory;
use pilothouse_api::gates::KMS_V1;
use pilothouse_encryption::{Encryption, Settings};

use crate::config::flag_groups::Engine;
use crate::encryption::reload::{self, FileFollower};
use crate::limits::ENCRYPTION_RELOAD_INTERVAL;
use crate::metrics::Metrics;
use crate::server::application::{StartContext, StartError};

/// The configuration that the flags name, if they name one. KMS plugins are asked once, and those that do not answer later.
pub(super) fn load(context: &StartContext, metrics: &Metrics) -> Result<Option<Arc<Encryption>>, StartError> {
    let storage = &context.config.storage;
    let Some(path) = &storage.encryption_provider_config else { return Ok(None) };
    let failed = StartError::flag("--encryption-provider-config");
    let text = reload::read_file(path).map_err(|error| failed(&error))?;
    let settings = Settings {
        is_reloaded: storage.encryption_provider_config_automatic_reload,
        allows_kms_v1: context.config.gates().enabled(KMS_V1),
        clock: context.clock.clone(),
        observer: Arc::new(metrics.encryption.observer(context.clock.clone())),
        ..Settings::default()
    };
    let encryption = Encryption::load(&text, settings).map_err(|error| failed(&error))?;
    Ok(Some(Arc::new(encryption)))
}

/// Puts changes of the configuration into use, if the flags say so.
pub(super) fn follow_changes(
    context: &StartContext,
    encryption: Option<&Arc<Encryption>>,
    directory: &Addr<Directory>,
) {
    let storage = &context.config.storage;
    if let (true, Some(encryption), Some(path)) =
        (storage.encryption_provider_config_automatic_reload, encryption, &storage.encryption_provider_config)
    {
        // What is in memory alone is not encrypted.
        let keeps_objects = storage.engine == Engine::Redb || context.config.etcd().is_some();
        let follower = FileFollower {
            encryption: encryption.clone(),
            path: path.clone(),
            directory: keeps_objects.then(|| directory.clone()),
            interval: ENCRYPTION_RELOAD_INTERVAL,
        };
        actix::spawn(follower.run());
    }
}
