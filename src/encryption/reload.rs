//! Follows changes of the file of `--encryption-provider-config`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilothouse_encryption::{Encryption, content_hash};
use tokio::task::spawn_blocking;

/// Why the file cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| {
        format!("error opening encryption provider configuration file \"{}\": {error}", path.display())
    })
}

/// Checks the file again and again, and puts changes into use. It ends with the server.
pub async fn follow_file(encryption: Arc<Encryption>, path: PathBuf, interval: Duration) {
    let mut last_error = String::new();
    loop {
        tokio::time::sleep(interval).await;
        let (encryption, path) = (encryption.clone(), path.clone());
        // Reading the file and asking new KMS plugins takes a while.
        let result = spawn_blocking(move || reload(&encryption, &path)).await;
        let error = result.unwrap_or_else(|error| Err(error.to_string())).err().unwrap_or_default();
        if !error.is_empty() && error != last_error {
            tracing::error!(
                error,
                "the changed encryption configuration is not used; the previous one stays in use"
            );
        }
        last_error = error;
    }
}

fn reload(encryption: &Encryption, path: &Path) -> Result<(), String> {
    let text = read_file(path)?;
    if content_hash(&text) == encryption.content_hash() {
        return Ok(());
    }
    encryption.reload(&text).map(drop).map_err(|error| error.to_string())
}
