//! Decodes many values, or such as need a KMS plugin.
//!
//! A plugin may not be there when a server starts, or not be there for a moment. An object whose key it has would count as lost until
//! somebody writes it again, so it is asked until it answers.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::shared_log::Decoded;
use pilothouse_types::object::{Key, TypeName, UnreadableReason};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::limits::DECRYPTION_RETRY_PAUSE;
use crate::values::{DecodeError, Values};

/// What these values mean, in their order. Returns once each of them is decoded, or certainly cannot be.
pub(crate) async fn decode_all(
    values: Arc<Values>,
    type_name: TypeName,
    mut encoded: Vec<(Key, Bytes)>,
) -> Vec<Result<Decoded, UnreadableReason>> {
    let mut decoded = Vec::with_capacity(encoded.len());
    while decoded.len() < encoded.len() {
        let (values, type_name) = (Arc::clone(&values), type_name.clone());
        let count = encoded.len();
        // It takes long, and the thread waits for a plugin.
        let attempt = spawn_blocking(move || {
            let unavailable = decode_next(&values, &type_name, &encoded, &mut decoded);
            (encoded, decoded, unavailable)
        });
        let unavailable;
        (encoded, decoded, unavailable) = match attempt.await {
            Ok(attempt) => attempt,
            Err(error) => {
                tracing::error!(%error, "values of etcd were not decoded");
                return vec![Err(UnreadableReason::Damaged); count];
            }
        };
        if let Some(reason) = unavailable {
            tracing::warn!(reason, "an object in etcd cannot be decrypted yet; trying again");
            sleep(DECRYPTION_RETRY_PAUSE).await;
        }
    }
    decoded
}

/// Goes on with decoding, up to a value whose key is not available. Returns why.
fn decode_next(
    values: &Values,
    type_name: &TypeName,
    encoded: &[(Key, Bytes)],
    decoded: &mut Vec<Result<Decoded, UnreadableReason>>,
) -> Option<String> {
    for (key, value) in encoded.iter().skip(decoded.len()) {
        match values.decode(type_name, key, value) {
            Err(DecodeError::Unavailable(reason)) => return Some(reason),
            result => decoded.push(result.map_err(UnreadableReason::from)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use pilothouse_encryption::testing::{KeyFile, KmsPlugin, PluginState, kms_provider};
    use tonic::Code;

    use super::*;
    use crate::values::testing::{draft, key, secrets, values};

    #[tokio::test]
    async fn values_are_decoded_once_the_plugin_that_has_their_key_answers() {
        let name = format!("pilothouse-etcd-log-{}", std::process::id());
        let state = Arc::new(PluginState::new(KeyFile::in_memory("key")));
        let plugin = KmsPlugin::start_abstract(&name, Arc::clone(&state)).unwrap();
        let provider = kms_provider("v2", "kms", plugin.endpoint());
        let stored = values(Some(&provider)).encode(&secrets(), &draft()).unwrap().unwrap();
        let damaged = Bytes::from_static(b"k8s:enc:kms:v2:kms:{}");
        let encoded = vec![(key("b"), damaged), (key("a"), stored.bytes.clone())];
        // Another server, which knows none of the data keys.
        state.fail_with(Some(Code::Unavailable));
        let reader = Arc::new(values(Some(&provider)));
        let mut decoded = Vec::new();
        let reason = decode_next(&reader, &secrets(), &encoded, &mut decoded).unwrap();
        assert!(decoded.len() == 1 && reason.contains("told to fail"), "{decoded:?}: {reason}");
        let calls = state.calls.decrypt.load(Ordering::SeqCst);
        let waiting = tokio::spawn(decode_all(Arc::clone(&reader), secrets(), encoded));
        while state.calls.decrypt.load(Ordering::SeqCst) == calls {
            sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!(!waiting.is_finished());
        state.fail_with(None);
        let decoded = waiting.await.unwrap();
        assert!(matches!(&decoded[0], Err(UnreadableReason::Undecryptable(_))), "{decoded:?}");
        let object = decoded[1].as_ref().unwrap();
        assert_eq!((&object.draft.bytes, &object.key_id), (&draft().bytes, &stored.key_id));
    }
}
