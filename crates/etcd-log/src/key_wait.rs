//! Waits for the keys of objects that were read.
//!
//! A KMS plugin may not be there yet when a server starts. The objects whose keys it has would count as lost until somebody writes them
//! again, so the start waits, as it does with a log of its own.

use std::sync::Arc;

use pilothouse_actors::shared_log::{SharedEntry, SharedLogError};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::convert::unavailable;
use crate::limits::DECRYPTION_RETRY_PAUSE;
use crate::values::{Values, may_need_plugin};

/// Returns the entries once each of them can be decrypted, or certainly cannot.
pub(crate) async fn wait_for_keys(
    values: &Arc<Values>,
    mut entries: Vec<SharedEntry>,
) -> Result<Vec<SharedEntry>, SharedLogError> {
    if !may_need_plugin(&entries) {
        return Ok(entries);
    }
    let mut from = 0;
    loop {
        let values = Arc::clone(values);
        // A plugin may take seconds, and this thread has others to serve.
        let checked = spawn_blocking(move || {
            let undecided = values.first_undecided(&entries, from);
            (entries, undecided)
        });
        let (checked_entries, undecided) = checked.await.map_err(|error| unavailable(&error.to_string()))?;
        entries = checked_entries;
        let Some((position, reason)) = undecided else { return Ok(entries) };
        tracing::warn!(reason, "objects in etcd cannot be decrypted yet; trying again");
        from = position;
        sleep(DECRYPTION_RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use pilothouse_encryption::testing::{KeyFile, KmsPlugin, PluginState, kms_provider};
    use pilothouse_types::object::Revision;
    use tonic::Code;

    use super::*;
    use crate::values::testing::{draft, key, secrets, values};

    #[tokio::test]
    async fn objects_are_read_once_the_plugin_that_has_their_key_answers() {
        let name = format!("pilothouse-etcd-log-{}", std::process::id());
        let state = Arc::new(PluginState::new(KeyFile::in_memory("key")));
        let plugin = KmsPlugin::start_abstract(&name, Arc::clone(&state)).unwrap();
        let provider = kms_provider("v2", "kms", plugin.endpoint());
        let stored = values(Some(&provider)).encode(&secrets(), &draft()).unwrap().unwrap();
        let entry = SharedEntry {
            type_name: secrets(),
            key: key("a"),
            revision: Revision(2),
            created: Revision(2),
            value: stored.bytes,
        };
        let clear = SharedEntry { value: "{}".into(), ..entry.clone() };
        // Another server, which knows none of the data keys.
        state.fail_with(Some(Code::Unavailable));
        let reader = Arc::new(values(Some(&provider)));
        let entries = vec![clear, entry.clone()];
        let (position, reason) = reader.first_undecided(&entries, 0).unwrap();
        assert!(position == 1 && reason.contains("told to fail"), "{position}: {reason}");
        let calls = state.calls.decrypt.load(Ordering::SeqCst);
        let (waiting_reader, waiting_entries) = (Arc::clone(&reader), entries.clone());
        let waiting = tokio::spawn(async move { wait_for_keys(&waiting_reader, waiting_entries).await });
        while state.calls.decrypt.load(Ordering::SeqCst) == calls {
            sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!(!waiting.is_finished());
        state.fail_with(None);
        assert_eq!(waiting.await.unwrap().unwrap(), entries);
        let decoded = reader.decode(&secrets(), &key("a"), &entry.value).unwrap();
        assert_eq!((decoded.draft.bytes, decoded.key_id), (draft().bytes, stored.key_id));
    }
}
