use bytes::Bytes;
use pilothouse_types::object::{Pairs, Revision};

use super::*;

const CONFIGURATION: &str = r#"{"kind":"EncryptionConfiguration","apiVersion":"apiserver.config.k8s.io/v1","resources":[
    {"resources":["secrets","kites.toys.example"],"providers":[
        {"aesgcm":{"keys":[{"name":"one","secret":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}]}}]},
    {"resources":["configmaps"],"providers":[
        {"identity":{}},
        {"aesgcm":{"keys":[{"name":"one","secret":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}]}}]}]}"#;

fn encryption() -> StoredEncryption {
    let configured = Encryption::load(CONFIGURATION.as_bytes(), Settings::default()).unwrap();
    StoredEncryption::new(Some(Arc::new(configured)))
}

fn draft(key: Key) -> Draft {
    Draft {
        key,
        bytes: Bytes::from_static(br#"{"resourceVersion":""}"#),
        revision_offset: 20,
        item_offset: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    }
}

#[test]
fn types_are_encrypted_as_configured() {
    let encryption = encryption();
    let encrypts = |type_name: &str| {
        let draft = draft(Key::namespaced("n", "a"));
        encryption.encrypt(&TypeName::new(type_name), &draft).unwrap().is_some()
    };
    assert!(encrypts("secrets") && encrypts("custom/kites.toys.example"));
    assert!(!encrypts("configmaps") && !encrypts("pods") && !encrypts("secrets.other.example"));
    let (secrets, plain) = (TypeName::new("secrets"), StoredEncryption::new(None));
    assert!(plain.encrypt(&secrets, &draft(Key::cluster("a"))).unwrap().is_none());
}

#[test]
fn content_is_bound_to_type_and_key() {
    let encryption = encryption();
    let (secrets, key) = (TypeName::new("secrets"), Key::namespaced("n", "a"));
    let stored = encryption.encrypt(&secrets, &draft(key.clone())).unwrap().unwrap();
    let hidden = |type_name: &TypeName, key: &Key| encryption.hidden_key(type_name, key);
    let read =
        |type_name: &TypeName, hidden_key: &Key| encryption.decrypt(type_name, hidden_key, &stored.bytes);
    let decrypted = read(&secrets, &hidden(&secrets, &key)).unwrap();
    assert_eq!(decrypted.content, encode_content(&draft(key.clone())));
    assert_eq!(Some(decrypted.key_id), stored.key_id);
    let other = Key::namespaced("n", "b");
    assert!(read(&secrets, &hidden(&secrets, &other)).is_err(), "moved to another key");
    let kites = TypeName::new("custom/kites.toys.example");
    assert!(read(&kites, &hidden(&kites, &key)).is_err(), "moved to another type");
    assert_ne!(hidden(&secrets, &key), hidden(&kites, &key));
}

/// The configuration allows it: each key is tried.
#[test]
fn keys_of_the_same_name_are_told_apart_by_their_secrets() {
    let secrets = TypeName::new("secrets");
    let key = |secret: &str| format!(r#"{{"name":"one","secret":"{secret}"}}"#);
    let (old, new) = (key("MDEyMzQ1Njc4OWFiY2RlZg=="), key("ZmVkY2JhOTg3NjU0MzIxMA=="));
    let with_keys = |keys: &str| {
        let file = format!(
            r#"{{"kind":"EncryptionConfiguration","apiVersion":"apiserver.config.k8s.io/v1","resources":[
            {{"resources":["secrets"],"providers":[{{"aesgcm":{{"keys":[{keys}]}}}}]}}]}}"#
        );
        let configured = Encryption::load(file.as_bytes(), Settings::default()).unwrap();
        StoredEncryption::new(Some(Arc::new(configured)))
    };
    let (before, after) = (with_keys(&old), with_keys(&format!("{new},{old}")));
    let draft = draft(Key::namespaced("n", "a"));
    let stored = before.encrypt(&secrets, &draft).unwrap().unwrap();
    let hidden_key = after.hidden_key(&secrets, &draft.key);
    let decrypted = after.decrypt(&secrets, &hidden_key, &stored.bytes).unwrap();
    assert_eq!(Some(decrypted.key_id), stored.key_id);
    let object = |key_id| Object::new(draft.clone(), Revision(2)).with_encryption(key_id);
    assert!(!after.is_current(&secrets, &object(Some(decrypted.key_id))), "it has the old secret");
    let rewritten = after.encrypt(&secrets, &draft).unwrap().unwrap();
    assert!(after.is_current(&secrets, &object(rewritten.key_id)));
}

#[test]
fn clear_records_are_read_only_with_an_identity_provider() {
    let encryption = encryption();
    let check = |type_name: &str| encryption.check_clear(&TypeName::new(type_name));
    assert_eq!(check("configmaps"), Ok(()));
    assert_eq!(check("pods"), Ok(()));
    assert!(check("secrets").unwrap_err().contains("no identity provider"));
    let plain = StoredEncryption::new(None);
    assert_eq!(plain.check_clear(&TypeName::new("secrets")), Ok(()));
}

#[test]
fn encrypted_record_without_a_configuration_is_not_decrypted() {
    let (secrets, key) = (TypeName::new("secrets"), Key::namespaced("n", "a"));
    let stored = encryption().encrypt(&secrets, &draft(key.clone())).unwrap().unwrap();
    let plain = StoredEncryption::new(None);
    let error = plain.decrypt(&secrets, &plain.hidden_key(&secrets, &key), &stored.bytes).unwrap_err();
    assert!(error.to_string().contains("--encryption-provider-config is not set"), "{error}");
}

#[test]
fn object_is_current_if_it_is_stored_as_it_would_be_now() {
    let (secrets, maps) = (TypeName::new("secrets"), TypeName::new("configmaps"));
    let encryption = encryption();
    let object = || Object::new(draft(Key::namespaced("n", "a")), Revision(2));
    let stored = encryption.encrypt(&secrets, &draft(Key::namespaced("n", "a"))).unwrap().unwrap();
    assert!(!encryption.is_current(&secrets, &object()), "it was stored before encryption was turned on");
    assert!(encryption.is_current(&secrets, &object().with_encryption(stored.key_id)));
    assert!(encryption.is_current(&maps, &object()));
    assert!(!encryption.is_current(&maps, &object().with_encryption(stored.key_id)));
}
