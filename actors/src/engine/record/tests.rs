use proptest::prelude::*;

use super::*;
use crate::encryption::NoEncryption;
use crate::engine::masking::MaskingEncryption;

/// Decodes a record of the type `things`, which has number 7 where it is written.
fn decode(type_id: u32, revision: Revision, bytes: &[u8]) -> Result<Record, EngineError> {
    RecordDecoder::new(type_id, &TypeName::new("things"), &NoEncryption).decode(revision, bytes)
}

fn object(body: &str, labels: Vec<(String, String)>, revision: Revision) -> Arc<Object> {
    let text = format!(r#"{{"kind":"K","resourceVersion":"","data":"{body}"}}"#);
    let draft = Draft {
        key: Key::namespaced("n", "a"),
        revision_offset: text.find(r#"","data"#).unwrap(),
        item_offset: 12,
        bytes: Bytes::from(text),
        fields: labels.iter().map(|(key, value)| (value.as_str(), key.as_str())).collect(),
        labels: labels.into_iter().collect(),
    };
    Arc::new(Object::new(draft, revision))
}

fn records() -> impl Strategy<Value = (Record, Revision)> {
    let labels = prop::collection::vec(("[a-z]{0,8}", "[a-z]{0,8}"), 0..4);
    (0u8..4, "[a-z]{0,40}", labels, 3u64..u64::MAX, any::<(u64, u64)>()).prop_map(
        |(kind, body, labels, revision, (wall, log))| {
            let revision = Revision(revision);
            let operation = match kind {
                0 => Operation::Create(object(&body, labels, revision)),
                1 => Operation::Replace(object(&body, labels, revision), Revision(revision.0 - 1)),
                2 => Operation::Remove(Key::cluster("gone"), Revision(2)),
                _ => Operation::AdvanceRevision(Revision(revision.0 - 1)),
            };
            let accepted_at = WriteTime { wall: Timestamp(wall), log: LogTime(log) };
            (Record::clear(operation, accepted_at), revision)
        },
    )
}

/// Whether `read` has the head of the record and no content.
fn is_remnant(read: &Record, record: &Record) -> bool {
    let is_unreadable = |object: &Arc<Object>| !object.is_readable();
    (read.key(), read.accepted_at) == (record.key(), record.accepted_at)
        && match (&read.operation, &record.operation) {
            (Operation::Create(a), Operation::Create(b)) => is_unreadable(a) && a.revision == b.revision,
            (Operation::Replace(a, x), Operation::Replace(b, y)) => {
                is_unreadable(a) && a.revision == b.revision && x == y
            }
            (Operation::Remove(_, x), Operation::Remove(_, y)) => x == y,
            (Operation::AdvanceRevision(x), Operation::AdvanceRevision(y)) => x == y,
            _ => false,
        }
}

fn same(a: &Record, b: &Record) -> bool {
    let objects = |a: &Arc<Object>, b: &Arc<Object>| {
        a.key == b.key
            && a.revision == b.revision
            && a.bytes == b.bytes
            && a.labels == b.labels
            && a.fields == b.fields
            && (a.revision_offset(), a.item_offset()) == (b.revision_offset(), b.item_offset())
    };
    a.accepted_at == b.accepted_at
        && match (&a.operation, &b.operation) {
            (Operation::Create(a), Operation::Create(b)) => objects(a, b),
            (Operation::Replace(a, x), Operation::Replace(b, y)) => objects(a, b) && x == y,
            (Operation::Remove(a, x), Operation::Remove(b, y)) => (a, x) == (b, y),
            (Operation::AdvanceRevision(x), Operation::AdvanceRevision(y)) => x == y,
            _ => false,
        }
}

proptest! {
    #[test]
    fn record_round_trips((record, revision) in records()) {
        let mut bytes = Vec::new();
        record.encode(7, revision, &mut bytes);
        prop_assert!(same(&decode(7, revision, &bytes).unwrap(), &record));
    }

    #[test]
    fn damaged_record_is_detected((record, revision) in records(), flip: prop::sample::Index, bit in 0u8..8, cut: prop::sample::Index) {
        let mut bytes = Vec::new();
        record.encode(7, revision, &mut bytes);
        let whole = bytes.clone();
        let head = HEAD_OFFSET + 8 + 8 + 8 + 4 + record.key().len();
        let (flip, cut) = (flip.index(whole.len()), cut.index(whole.len()));
        bytes[flip] ^= 1 << bit;
        for (damaged, first) in [(&bytes[..], flip), (&whole[..cut], cut)] {
            let read = decode(7, revision, damaged);
            let in_head = first < head && !(CHECKSUM_OFFSET..CHECKSUM_END).contains(&first);
            prop_assert_eq!(read.is_err(), in_head || damaged.len() < head);
            // Only its key and operation are left.
            if let Ok(read) = read {
                prop_assert!(is_remnant(&read, &record));
            }
        }
        prop_assert!(decode(8, revision, &whole).is_err());
        prop_assert!(decode(7, Revision(revision.0 - 1), &whole).is_err());
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn encrypted_record(encryption: &MaskingEncryption) -> (Record, Vec<u8>) {
    let things = TypeName::new("things");
    let text = r#"{"kind":"K","resourceVersion":"","data":"secret"}"#;
    let draft = Draft {
        key: Key::namespaced("team", "password"),
        revision_offset: text.find(r#"","data"#).unwrap(),
        item_offset: 12,
        bytes: Bytes::from_static(text.as_bytes()),
        labels: [("label", "hush")].into_iter().collect(),
        fields: [("field", "quiet")].into_iter().collect(),
    };
    let encrypted = encryption.encrypt(&things, &draft).unwrap().unwrap();
    let hidden_key = encryption.hidden_key(&things, &draft.key);
    let record = Record {
        operation: Operation::Replace(Arc::new(Object::new(draft, Revision(9))), Revision(4)),
        accepted_at: WriteTime { wall: Timestamp(1), log: LogTime(2) },
        encrypted: Some(EncryptedRecord { hidden_key, content: encrypted.bytes }),
    };
    let mut bytes = Vec::new();
    record.encode(7, Revision(9), &mut bytes);
    (record, bytes)
}

#[test]
fn encrypted_record_round_trips_and_shows_nothing() {
    let (encryption, things) = (MaskingEncryption::default(), TypeName::new("things"));
    let (record, bytes) = encrypted_record(&encryption);
    let decoder = RecordDecoder::new(7, &things, &encryption);
    let decoded = decoder.decode(Revision(9), &bytes).unwrap();
    assert!(same(&decoded, &record), "{decoded:?}");
    let Operation::Replace(object, _) = &decoded.operation else { panic!() };
    assert!(object.encryption_key_id().is_some());
    for word in ["team", "password", "secret", "label", "hush", "field", "quiet", "kind"] {
        assert!(!holds(&bytes, word), "{word}");
    }
}

#[test]
fn record_that_cannot_be_decrypted_is_unreadable_under_its_hidden_key() {
    let (encryption, things) = (MaskingEncryption::default(), TypeName::new("things"));
    let (record, bytes) = encrypted_record(&encryption);
    let decoder = RecordDecoder::new(7, &things, &encryption);
    let reason = |bytes: &[u8]| match decoder.decode(Revision(9), bytes).unwrap().operation {
        Operation::Replace(object, Revision(4)) => {
            assert_eq!(object.key, record.encrypted.as_ref().unwrap().hidden_key);
            object.unreadable_reason().unwrap().to_string()
        }
        other => panic!("{other:?}"),
    };
    encryption.is_lost.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(reason(&bytes), "the key is lost");
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(reason(&damaged), "the record has a wrong checksum");
    encryption.is_lost.store(false, std::sync::atomic::Ordering::Relaxed);
    encryption.unavailable.store(1, std::sync::atomic::Ordering::Relaxed);
    let error = decoder.decode(Revision(9), &bytes).unwrap_err();
    assert!(matches!(error, EngineError::DecryptionUnavailable(_)), "{error}");
    // The content of another object in its place.
    let other = Record {
        encrypted: Some(EncryptedRecord {
            hidden_key: encryption.hidden_key(&things, &Key::cluster("other")),
            content: record.encrypted.clone().unwrap().content,
        }),
        ..record.clone()
    };
    let mut bytes = Vec::new();
    other.encode(7, Revision(9), &mut bytes);
    let Operation::Replace(object, _) = decoder.decode(Revision(9), &bytes).unwrap().operation else {
        panic!()
    };
    assert!(object.unreadable_reason().unwrap().to_string().contains("something else"), "{object:?}");
}

#[test]
fn removal_of_an_encrypted_object_hides_its_key() {
    let hidden_key = Key::hidden(&[3; pilothouse_types::object::HIDDEN_KEY_BYTES]);
    let encrypted = Some(EncryptedRecord { hidden_key: hidden_key.clone(), content: Bytes::new() });
    let operation = Operation::Remove(Key::namespaced("team", "password"), Revision(4));
    let record = Record { operation, accepted_at: WriteTime::default(), encrypted };
    let mut bytes = Vec::new();
    record.encode(7, Revision(9), &mut bytes);
    assert!(!holds(&bytes, "password"));
    let decoded = decode(7, Revision(9), &bytes).unwrap().operation;
    assert!(matches!(decoded, Operation::Remove(key, Revision(4)) if key == hidden_key));
}

#[test]
fn record_of_unknown_format_is_reported_as_such() {
    let operation = Operation::Remove(Key::cluster("a"), Revision(2));
    let record = Record::clear(operation, WriteTime::default());
    let mut bytes = Vec::new();
    record.encode(1, Revision(3), &mut bytes);
    bytes[0] = FORMAT + 1;
    let sum = checksum(1, Revision(3), &bytes).to_le_bytes();
    bytes[CHECKSUM_OFFSET..CHECKSUM_END].copy_from_slice(&sum);
    let error = decode(1, Revision(3), &bytes).unwrap_err();
    assert!(error.to_string().ends_with("is in the unknown format 5"), "{error}");
}
