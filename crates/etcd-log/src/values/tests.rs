use pilothouse_encryption::testing::keyed_provider;

use super::testing::{CLEAR, draft, key, secrets, values};
use super::*;

const IDENTITY: &str = "{identity: {}}";

/// Why a value cannot be decrypted.
fn undecryptable(decoded: Result<Decoded, DecodeError>) -> String {
    match decoded {
        Err(DecodeError::Impossible(UnreadableReason::Undecryptable(reason))) => reason,
        other => panic!("{other:?}"),
    }
}

fn encode(values: &Values) -> StoredDraft {
    values.encode(&secrets(), &draft()).unwrap().unwrap()
}

#[test]
fn values_are_encrypted_and_read_again() {
    for (cipher, prefix) in [
        ("aescbc", "k8s:enc:aescbc:v1:one:"),
        ("aesgcm", "k8s:enc:aesgcm:v1:one:"),
        ("secretbox", "k8s:enc:secretbox:v1:one:"),
    ] {
        let values = values(Some(&format!("{}, {IDENTITY}", keyed_provider(cipher, "one", 1))));
        let stored = encode(&values);
        assert!(stored.bytes.starts_with(prefix.as_bytes()) && stored.key_id.is_some());
        let decoded = values.decode(&secrets(), &key("a"), &stored.bytes).unwrap();
        assert_eq!((decoded.draft.bytes, decoded.key_id), (draft().bytes, stored.key_id));
        // What was written before encryption was turned on.
        let decoded = values.decode(&secrets(), &key("a"), CLEAR).unwrap();
        assert_eq!((decoded.draft.bytes, decoded.key_id), (draft().bytes, None));
    }
}

#[test]
fn values_of_the_first_provider_identity_stay_in_clear_text() {
    let values = values(Some(&format!("{IDENTITY}, {}", keyed_provider("aescbc", "one", 1))));
    let stored = encode(&values);
    assert!(stored.bytes.starts_with(b"k8s\0") && stored.key_id.is_none());
    assert_eq!(values.write_key(&secrets()), WriteKey::Clear);
}

#[test]
fn other_types_are_not_encrypted() {
    let values = values(Some(&keyed_provider("aesgcm", "one", 1)));
    let maps = TypeName::new("configmaps");
    let map = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}"#;
    let draft = values.decode(&maps, &key("a"), map).unwrap().draft;
    assert_eq!(values.encode(&maps, &draft).unwrap().unwrap().key_id, None);
    let reason = undecryptable(values.decode(&maps, &key("a"), &encode(&values).bytes));
    assert!(reason.contains("no provider is configured for configmaps"), "{reason}");
    // A configuration names the resource of a definition without what our store has before it.
    let kites = TypeName::new("custom/secrets.toys.example");
    assert_eq!(values.write_key(&kites), WriteKey::Clear);
}

#[test]
fn wrong_and_missing_keys_make_values_unreadable() {
    let read = |providers: Option<&str>, value: &[u8]| {
        undecryptable(values(providers).decode(&secrets(), &key("a"), value))
    };
    let gcm = encode(&values(Some(&keyed_provider("aesgcm", "one", 1)))).bytes;
    let cbc = encode(&values(Some(&keyed_provider("aescbc", "one", 1)))).bytes;
    for (providers, value, part) in [
        (Some(keyed_provider("aesgcm", "one", 2)), &gcm, "aesgcm key \"one\""),
        (Some(format!("{}, {IDENTITY}", keyed_provider("aescbc", "two", 1))), &cbc, "no matching key"),
        (Some(IDENTITY.to_owned()), &cbc, "k8s:enc:aescbc:v1:one:"),
        (None, &cbc, "--encryption-provider-config is not set"),
    ] {
        let reason = read(providers.as_deref(), value);
        assert!(reason.contains(part), "{reason}");
    }
    // By chance another key can make noise of it that looks decrypted, and then that is no object.
    read(Some(keyed_provider("aescbc", "one", 2).as_str()), &cbc);
}

#[test]
fn value_under_another_etcd_key_is_unreadable() {
    let values = values(Some(&keyed_provider("aesgcm", "one", 1)));
    let stored = encode(&values);
    let plain = values.encryption.decrypt(&secrets(), "/registry/secrets/default/a", &stored.bytes);
    assert!(plain.unwrap().bytes.starts_with(b"k8s\0"), "the whole etcd key is the associated data");
    undecryptable(values.decode(&secrets(), &key("b"), &stored.bytes));
}

#[test]
fn clear_text_is_read_only_with_an_identity_provider() {
    let reason =
        undecryptable(values(Some(&keyed_provider("aescbc", "one", 1))).decode(&secrets(), &key("a"), CLEAR));
    assert!(reason.contains("secrets has no identity provider"), "{reason}");
    for providers in [None, Some(IDENTITY)] {
        assert!(values(providers).decode(&secrets(), &key("a"), CLEAR).is_ok(), "{providers:?}");
    }
}

#[test]
fn noise_is_told_apart_from_objects_that_cannot_be_read() {
    let values = values(Some(&keyed_provider("aesgcm", "one", 1)));
    let decode = |plain: &[u8]| {
        let encrypted = values.encryption.encrypt(&secrets(), "/registry/secrets/default/a", plain);
        values.decode(&secrets(), &key("a"), &encrypted.unwrap().unwrap().0)
    };
    let reason = undecryptable(decode(b"\x80noise"));
    assert_eq!(reason, "it was decrypted to something else than an object");
    let other_kind = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#;
    assert_eq!(decode(other_kind).unwrap_err(), DecodeError::DAMAGED);
}

#[test]
fn unknown_types_and_keys_have_no_value() {
    let values = values(None);
    let unknown = TypeName::new("custom/kites.toys.example");
    assert_eq!(values.encode(&unknown, &draft()), Ok(None));
    assert_eq!(values.decode(&unknown, &key("a"), CLEAR).unwrap_err(), DecodeError::DAMAGED);
    let of_other_scope = Draft { key: Key::cluster("a"), ..draft() };
    assert_eq!(values.encode(&secrets(), &of_other_scope), Ok(None));
}
