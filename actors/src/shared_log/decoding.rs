//! Values that are decoded before a store gets them.
//!
//! A store decodes the values of single changes itself, except where that may have to wait for a service such as a KMS plugin, and except
//! for all objects of a type at once: then its readers and writers would wait, too.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::available_parallelism;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use pilothouse_types::object::{Key, Object, Revision, TypeName, UnreadableReason};

use super::{Decoded, SharedEntry, SharedLog};
use crate::limits::DECODED_TOGETHER;

/// What values mean that were decoded before: by key, and by the revision of the object.
#[derive(Debug, Default)]
pub struct DecodedValues(HashMap<(Key, Revision), Result<Decoded, UnreadableReason>>);

impl DecodedValues {
    /// Decodes values of a type, on other threads than that of the caller.
    pub(crate) async fn decode(
        log: &dyn SharedLog,
        type_name: &TypeName,
        values: Vec<(Key, Revision, Bytes)>,
    ) -> DecodedValues {
        let places = values.iter().map(|(key, revision, _)| (key.clone(), *revision)).collect::<Vec<_>>();
        let values = values.into_iter().map(|(key, _, value)| (key, value)).collect();
        let decoded = log.decode_all(type_name, values).await;
        DecodedValues(places.into_iter().zip(decoded).collect())
    }

    /// The object of a value, which is decoded now if it was not before.
    pub(crate) fn object(
        &mut self,
        log: &dyn SharedLog,
        type_name: &TypeName,
        (key, revision): (Key, Revision),
        value: &Bytes,
    ) -> Object {
        let place = (key, revision);
        let decoded = self.0.remove(&place).unwrap_or_else(|| log.decode(type_name, &place.0, value));
        object(place.0, revision, decoded)
    }
}

/// Decodes objects on as many threads as there are processors.
pub async fn decode_entries(log: &dyn SharedLog, entries: Vec<SharedEntry>) -> Vec<(TypeName, Arc<Object>)> {
    let mut by_type: BTreeMap<TypeName, Vec<SharedEntry>> = BTreeMap::new();
    for entry in entries {
        by_type.entry(entry.type_name.clone()).or_default().push(entry);
    }
    let parts = by_type.iter().flat_map(|(type_name, entries)| {
        entries.chunks(DECODED_TOGETHER).map(move |entries| (type_name, entries))
    });
    let decode = async |(type_name, entries): (&TypeName, &[SharedEntry])| {
        let values = entries.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect();
        let decoded = log.decode_all(type_name, values).await;
        let objects = entries.iter().zip(decoded).map(|(entry, decoded)| {
            (type_name.clone(), Arc::new(object(entry.key.clone(), entry.revision, decoded)))
        });
        objects.collect::<Vec<_>>()
    };
    let threads = available_parallelism().map_or(1, usize::from);
    let parts: Vec<Vec<_>> = stream::iter(parts).map(decode).buffered(threads).collect().await;
    parts.into_iter().flatten().collect()
}

/// The object of a value.
pub(super) fn object(key: Key, revision: Revision, decoded: Result<Decoded, UnreadableReason>) -> Object {
    match decoded {
        Ok(Decoded { draft, key_id }) => Object::new(draft, revision).with_encryption(key_id),
        Err(reason) => Object::unreadable(key, revision, reason),
    }
}
