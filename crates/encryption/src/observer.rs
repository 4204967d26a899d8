//! What the server counts. This crate has no metrics of its own: the server implements [`Observer`] with those of the reference.
//!
//! `*(start, factor, count)` are exponential buckets. `apiserver_id_hash` is the same for all, and added by the server:
//! `sha256:` and the hash of its id in hexadecimal, as [`key_id_hash`] has it.
//!
//! | metric | kind, labels | from |
//! |---|---|---|
//! | `apiserver_storage_transformation_operations_total` | counter: `resource`, `transformation_type`, `transformer_prefix`, `status` | [`Observer::transformation`]; the reference counts providers with several keys twice, with the prefix of the provider and with that of the key (`name:`) |
//! | `apiserver_storage_transformation_duration_seconds` | histogram *(5e-6, 2, 25): `transformation_type`, `transformer_prefix` | the same, if `status` is `OK` |
//! | `apiserver_storage_envelope_transformation_cache_misses_total` | counter | [`Observer::cache_miss`] |
//! | `apiserver_storage_data_key_generation_duration_seconds` | histogram *(5e-6, 2, 14) | [`Observer::data_key_generation`], if it succeeded |
//! | `apiserver_storage_data_key_generation_failures_total` | counter | the same, if it failed |
//! | `apiserver_envelope_encryption_dek_cache_fill_percent` | gauge | [`Observer::dek_cache_fill`] (KMS v1) |
//! | `apiserver_envelope_encryption_dek_cache_inter_arrival_time_seconds` | histogram *(60, 2, 10): `transformation_type` | [`Observer::dek_cache_arrival`] (KMS v1) |
//! | `apiserver_envelope_encryption_dek_source_cache_size` | gauge: `provider_name` | [`Observer::dek_source_cache_size`] (KMS v2, as all below) |
//! | `apiserver_envelope_encryption_kms_operations_latency_seconds` | histogram *(0.0001, 2, 20): `provider_name`, `method_name`, `grpc_status_code` | [`Observer::kms_call`] |
//! | `apiserver_envelope_encryption_key_id_hash_total` | counter: `transformation_type`, `provider_name`, `key_id_hash`, `apiserver_id_hash` | [`Observer::key_id_used`]; the reference keeps the last 100 label sets |
//! | `apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds` | gauge, the same labels | the same |
//! | `apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds` | gauge: `provider_name`, `key_id_hash`, `apiserver_id_hash` | [`Observer::key_id_from_status`]; the last 100 label sets |
//! | `apiserver_envelope_encryption_invalid_key_id_from_status_total` | counter: `provider_name`, `error` | [`Observer::invalid_key_id_from_status`] |
//! | `apiserver_encryption_config_controller_automatic_reloads_total` | counter: `status` (`success`, `failure`), `apiserver_id_hash` | [`Observer::reload`] |
//! | `apiserver_encryption_config_controller_automatic_reload_success_total`, `..._failures_total` | counters: `apiserver_id_hash`; deprecated | the same |
//! | `apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds` | gauge: `status`, `apiserver_id_hash` | the same |

use std::time::Duration;

use openssl::sha::sha256;

/// The way of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It was read and decrypted.
    FromStorage,
    /// It was encrypted, to be written.
    ToStorage,
}

impl Direction {
    /// The label `transformation_type`.
    pub fn label(self) -> &'static str {
        match self {
            Direction::FromStorage => "from_storage",
            Direction::ToStorage => "to_storage",
        }
    }
}

/// The status label of a success.
pub const OK: &str = "OK";
/// The status label of a failure that no plugin reported.
pub const NO_GRPC_STATUS: &str = "unknown-non-grpc";

/// One attempt of one provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transformation<'a> {
    /// The resource: `secrets`, `deployments.apps`.
    pub resource: &'a str,
    /// Whether it was written or read.
    pub direction: Direction,
    /// The prefix of the provider. `identity` has none, and this name when it reads; `unknown` if no provider was found.
    pub prefix: &'a str,
    /// The key, for providers that may have several.
    pub key: Option<&'a str>,
    /// `OK`, the name of a gRPC status, or `unknown-non-grpc`.
    pub status: &'a str,
    /// How long it took.
    pub elapsed: Duration,
}

/// Receives what happens. Every method is called on the thread that does the work, and must not wait.
pub trait Observer: Send + Sync {
    /// A value was encrypted or decrypted, or failed to be.
    fn transformation(&self, _transformation: &Transformation<'_>) {}
    /// A plugin has to decrypt a data key.
    fn cache_miss(&self) {}
    /// A data key was made; how long it took, or `None` if it failed.
    fn data_key_generation(&self, _elapsed: Option<Duration>) {}
    /// The share of the cache of a KMS v1 provider that is in use, from 0 to 1.
    fn dek_cache_fill(&self, _share: f64) {}
    /// A KMS v1 provider was used; how long ago it was used before.
    fn dek_cache_arrival(&self, _direction: Direction, _since_last: Duration) {}
    /// The number of data keys that a KMS v2 provider remembers.
    fn dek_source_cache_size(&self, _provider: &str, _size: usize) {}
    /// A KMS v2 plugin was called; `status` is the name of a gRPC status.
    fn kms_call(&self, _provider: &str, _method: &str, _status: &str, _elapsed: Duration) {}
    /// A key of a KMS v2 plugin was used.
    fn key_id_used(&self, _direction: Direction, _provider: &str, _key_id_hash: &str) {}
    /// A KMS v2 plugin said which key it uses.
    fn key_id_from_status(&self, _provider: &str, _key_id_hash: &str) {}
    /// A KMS v2 plugin named a key by an id that is not allowed: `empty` or `too_long`.
    fn invalid_key_id_from_status(&self, _provider: &str, _error: &str) {}
    /// A changed configuration was put into use, or not.
    fn reload(&self, _succeeded: bool) {}
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}

/// The form in which a key id appears in logs, errors and metrics; empty for an empty one.
pub fn key_id_hash(key_id: &str) -> String {
    if key_id.is_empty() {
        return String::new();
    }
    format!("sha256:{}", hexadecimal(&sha256(key_id.as_bytes())))
}

/// Bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| DIGITS[usize::from(digit)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_ids_are_shown_as_hashes() {
        assert_eq!(key_id_hash(""), "");
        assert_eq!(
            key_id_hash("abc"),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            (Direction::FromStorage.label(), Direction::ToStorage.label()),
            ("from_storage", "to_storage")
        );
    }
}
