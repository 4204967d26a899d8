//! Follows changes of the file of `--encryption-provider-config`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use pilothouse_actors::directory::{Directory, Find, Types};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::{Freshness, TakeSnapshot};
use pilothouse_api::custom::definition::group_resource_of_store;
use pilothouse_apimachinery::status::GroupResource;
use pilothouse_encryption::{Encryption, StoredKey, content_hash};
use pilothouse_types::object::TypeName;
use tokio::task::spawn_blocking;

/// Why the file cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| {
        format!("error opening encryption provider configuration file \"{}\": {error}", path.display())
    })
}

/// Follows the file of a configuration.
pub struct FileFollower {
    /// The configuration in use.
    pub encryption: Arc<Encryption>,
    /// The file.
    pub path: PathBuf,
    /// Whose objects need keys; `None` if nothing is stored encrypted.
    pub directory: Option<Addr<Directory>>,
    /// How often it looks.
    pub interval: Duration,
}

impl FileFollower {
    /// Checks the file again and again, and puts changes into use. It ends with the server.
    pub async fn run(self) {
        let mut last_error = String::new();
        loop {
            tokio::time::sleep(self.interval).await;
            let error = self.reload().await.err().unwrap_or_default();
            if !error.is_empty() && error != last_error {
                tracing::error!(
                    error,
                    "the changed encryption configuration is not used; the previous one stays in use"
                );
            }
            last_error = error;
        }
    }

    async fn reload(&self) -> Result<(), String> {
        let path = self.path.clone();
        let text = spawn_blocking(move || read_file(&path)).await.map_err(|error| error.to_string())??;
        if content_hash(&text) == self.encryption.content_hash() {
            return Ok(());
        }
        let snapshots = self.snapshots().await?;
        let encryption = self.encryption.clone();
        // Counting, and asking new KMS plugins, takes a while.
        let reloaded = spawn_blocking(move || {
            let stored: Vec<StoredKey> =
                snapshots.iter().flat_map(|(name, state)| stored_keys(name, state)).collect();
            encryption.reload(&text, &stored)
        });
        let reloaded = reloaded.await.map_err(|error| error.to_string())?;
        reloaded.map(drop).map_err(|error| error.to_string())
    }

    /// The objects of all types.
    async fn snapshots(&self) -> Result<Vec<(TypeName, Snapshot)>, String> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let mut snapshots = Vec::new();
        let types = directory.send(Types).await.map_err(|error| error.to_string())?;
        for type_name in types {
            let found = directory.send(Find { type_name: type_name.clone() }).await;
            let store = found.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            let snapshot =
                store.send(TakeSnapshot { freshness: Freshness::Latest, permit: Permit::none() }).await;
            let snapshot = snapshot.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            snapshots.push((type_name, snapshot));
        }
        Ok(snapshots)
    }
}

/// How the readable objects of a type are stored.
fn stored_keys(type_name: &TypeName, snapshot: &Snapshot) -> Vec<StoredKey> {
    let mut values = HashMap::new();
    for object in snapshot.iter().filter(|object| object.is_readable()) {
        *values.entry(object.encryption_key_id()).or_default() += 1;
    }
    let GroupResource { group, resource } = group_resource_of_store(type_name);
    let stored = |(key_id, values)| StoredKey {
        group: group.to_owned(),
        resource: resource.to_owned(),
        key_id,
        values,
    };
    values.into_iter().map(stored).collect()
}
