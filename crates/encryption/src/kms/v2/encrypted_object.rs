//! What is stored of an object: its rules, and the identity of its data key.

use std::collections::BTreeMap;

use openssl::sha::Sha256;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::names;
use prost::Message as _;

use crate::error::join;
use crate::kms::key_cache::CacheKey;
use crate::kms::messages::v2::{AES_GCM_KEY, EncryptedObject, HKDF_SHA256_XNONCE_AES_GCM_SEED};
use crate::limits::{KMS_ANNOTATION_BYTES, KMS_ENCRYPTED_SEED_BYTES, KMS_KEY_ID_BYTES};

/// Decodes and checks a stored object.
pub fn decode(data: &[u8]) -> Result<EncryptedObject, String> {
    let object = EncryptedObject::decode(data).map_err(|error| error.to_string())?;
    if object.encrypted_data.is_empty() {
        return Err("encrypted data is empty".to_owned());
    }
    check_source(&object)?;
    Ok(object)
}

/// Checks everything but the encrypted data.
pub fn check_source(object: &EncryptedObject) -> Result<(), String> {
    let source_type = object.encrypted_dek_source_type;
    if ![AES_GCM_KEY, HKDF_SHA256_XNONCE_AES_GCM_SEED].contains(&source_type) {
        return Err(format!("unknown encryptedDEKSourceType: {source_type}"));
    }
    let invalid_source = |reason: &str| format!("failed to validate encrypted DEK source: {reason}");
    match object.encrypted_dek_source.len() {
        0 => return Err(invalid_source("encrypted DEK source is empty")),
        length if length > KMS_ENCRYPTED_SEED_BYTES => {
            return Err(invalid_source(&format!(
                "encrypted DEK source is {length} bytes, which exceeds the max size of {KMS_ENCRYPTED_SEED_BYTES}"
            )));
        }
        _ => {}
    }
    check_key_id(&object.key_id).map_err(|error| format!("failed to validate key id: {error}"))?;
    check_annotations(&object.annotations).map_err(|error| format!("failed to validate annotations: {error}"))
}

/// Why an id is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyIdError {
    /// There is none.
    #[error("keyID is empty")]
    Empty,
    /// It has more bytes than allowed.
    #[error("keyID is {0} bytes, which exceeds the max size of {KMS_KEY_ID_BYTES}")]
    TooLong(usize),
}

/// Checks the id of a key.
pub fn check_key_id(key_id: &str) -> Result<(), KeyIdError> {
    match key_id.len() {
        0 => Err(KeyIdError::Empty),
        length if length > KMS_KEY_ID_BYTES => Err(KeyIdError::TooLong(length)),
        _ => Ok(()),
    }
}

fn check_annotations(annotations: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    let mut errors: Vec<String> = annotations.keys().filter_map(|key| domain_error(key)).collect();
    let total: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if total > KMS_ANNOTATION_BYTES {
        errors.push(format!(
            "total size of annotations is {total}, which exceeds the max size of {KMS_ANNOTATION_BYTES}"
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(join(errors)) }
}

/// Why a key of an annotation is no domain name with a dot.
fn domain_error(key: &str) -> Option<String> {
    let path = FieldPath::new("annotations");
    if key.is_empty() {
        return Some(FieldError::required(&path, "").to_string());
    }
    let name = key.strip_suffix('.').unwrap_or(key);
    let invalid = |text: &str, errors: &[String]| {
        Some(FieldError::invalid(&path, &quoted(text), &errors.join(",")).to_string())
    };
    let errors = names::dns_subdomain(name);
    if !errors.is_empty() {
        return invalid(name, &errors);
    }
    if !name.contains('.') {
        return invalid(
            name,
            &["should be a domain with at least two segments separated by dots".to_owned()],
        );
    }
    name.split('.').find_map(|label| match names::dns_label(label) {
        errors if errors.is_empty() => None,
        errors => invalid(label, &errors),
    })
}

/// The identity of the data key: everything that the plugin needs to decrypt it. Each part is preceded by its length.
pub fn cache_key(object: &EncryptedObject) -> CacheKey {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    add(&object.encrypted_dek_source_type.to_be_bytes());
    add(&object.encrypted_dek_source);
    add(object.key_id.as_bytes());
    for (key, value) in &object.annotations {
        add(key.as_bytes());
        add(value);
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> EncryptedObject {
        EncryptedObject {
            encrypted_data: vec![1],
            key_id: "key".to_owned(),
            encrypted_dek_source: vec![2],
            annotations: BTreeMap::from([("a.example.com".to_owned(), vec![3])]),
            encrypted_dek_source_type: HKDF_SHA256_XNONCE_AES_GCM_SEED,
        }
    }

    #[test]
    fn stored_object_must_follow_the_rules() {
        assert_eq!(decode(&valid().encode_to_vec()), Ok(valid()));
        assert!(decode(b"\xff").is_err(), "no Protobuf");
        let annotated = |key: &str, length: usize| {
            let annotations = BTreeMap::from([(key.to_owned(), vec![0; length])]);
            EncryptedObject { annotations, ..valid() }
        };
        let table = [
            (EncryptedObject { encrypted_data: Vec::new(), ..valid() }, "encrypted data is empty"),
            (
                EncryptedObject { encrypted_dek_source_type: 2, ..valid() },
                "unknown encryptedDEKSourceType: 2",
            ),
            (
                EncryptedObject { encrypted_dek_source: Vec::new(), ..valid() },
                "failed to validate encrypted DEK source: encrypted DEK source is empty",
            ),
            (
                EncryptedObject { encrypted_dek_source: vec![0; 1_025], ..valid() },
                "failed to validate encrypted DEK source: encrypted DEK source is 1025 bytes, which exceeds the max size \
                 of 1024",
            ),
            (
                EncryptedObject { key_id: String::new(), ..valid() },
                "failed to validate key id: keyID is empty",
            ),
            (
                EncryptedObject { key_id: "k".repeat(1_025), ..valid() },
                "failed to validate key id: keyID is 1025 bytes, which exceeds the max size of 1024",
            ),
            (
                annotated("plain", 1),
                "failed to validate annotations: annotations: Invalid value: \"plain\": should be a domain with at least \
                 two segments separated by dots",
            ),
            (annotated("", 1), "failed to validate annotations: annotations: Required value"),
            (
                annotated("a.example.com", 32 << 10),
                "failed to validate annotations: total size of annotations is 32781, which exceeds the max size of 32768",
            ),
        ];
        for (object, error) in table {
            assert_eq!(decode(&object.encode_to_vec()), Err(error.to_owned()));
        }
        let error = decode(&annotated("Capital.example.com", 1).encode_to_vec()).unwrap_err();
        assert!(error.contains("\"Capital.example.com\": a lowercase RFC 1123 subdomain"), "{error}");
        let limits = EncryptedObject {
            key_id: "k".repeat(1_024),
            encrypted_dek_source: vec![0; 1_024],
            ..annotated("a.example.com.", (32 << 10) - 14)
        };
        assert_eq!(decode(&limits.encode_to_vec()), Ok(limits));
    }

    #[test]
    fn data_keys_are_told_apart_by_everything_that_the_plugin_is_given() {
        let annotation = |key: &str, value: &[u8]| BTreeMap::from([(key.to_owned(), value.to_vec())]);
        let objects = [
            valid(),
            EncryptedObject { encrypted_dek_source_type: AES_GCM_KEY, ..valid() },
            EncryptedObject { encrypted_dek_source: vec![3], ..valid() },
            EncryptedObject { key_id: "other".to_owned(), ..valid() },
            EncryptedObject { annotations: BTreeMap::new(), ..valid() },
            EncryptedObject { annotations: annotation("a.example.co", &[b'm', 3]), ..valid() },
            EncryptedObject { annotations: annotation("a.example.com", &[4]), ..valid() },
        ];
        let keys: std::collections::HashSet<CacheKey> = objects.iter().map(cache_key).collect();
        assert_eq!(keys.len(), objects.len());
        assert_eq!(cache_key(&EncryptedObject { encrypted_data: vec![9], ..valid() }), cache_key(&valid()));
    }
}
