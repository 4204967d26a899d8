//! Every bound of this crate, by name, with its reason.

use std::time::Duration;

/// Bytes of the configuration file.
pub const CONFIGURATION_BYTES: usize = 1 << 20;
/// Bytes of a value that is encrypted. The stores refuse objects long before; OpenSSL counts in 32 bits.
pub const VALUE_BYTES: usize = 256 << 20;
/// The length of a call to a KMS plugin, unless the configuration sets another; the reference's value.
pub const KMS_DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);
/// Data keys of a KMS v1 provider that are remembered, unless the configuration sets another number; the reference's value.
pub const KMS_V1_DEFAULT_CACHED_KEYS: i32 = 1_000;
/// Data keys of a KMS v1 provider that are remembered at most, whatever the configuration says: about 16 MiB.
pub const KMS_V1_CACHED_KEYS: usize = 65_536;
/// Data keys of a KMS v2 provider that are remembered. There is one for each start of a server and each key id, as long as objects
/// that were written with it exist; the reference has no bound.
pub const KMS_V2_CACHED_SEEDS: usize = 16_384;
/// How long a data key is remembered that nothing is read with; the reference's value.
pub const KMS_UNUSED_KEY_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Decrypt calls to one plugin at a time. Plugins in front of a cloud service are slow and often limited themselves.
pub const KMS_DECRYPT_CALLS: usize = 32;
/// Bytes of a plugin's response.
pub const KMS_RESPONSE_BYTES: usize = 128 << 10;
/// Bytes of a key id; the reference's value.
pub const KMS_KEY_ID_BYTES: usize = 1 << 10;
/// Bytes of an encrypted data key or seed in KMS v2; the reference's value.
pub const KMS_ENCRYPTED_SEED_BYTES: usize = 1 << 10;
/// Bytes of all keys and values of annotations; the reference's value.
pub const KMS_ANNOTATION_BYTES: usize = 32 << 10;
/// Bytes of an encrypted data key in KMS v1: its length has sixteen bits.
pub const KMS_V1_ENCRYPTED_KEY_BYTES: usize = u16::MAX as usize;
/// How often a healthy plugin is checked; the reference's value.
pub const KMS_POLL_INTERVAL: Duration = Duration::from_secs(60);
/// How often a plugin is checked that is not healthy; the reference's value.
pub const KMS_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How long a seed may be used for writing after the last good check; the reference's value. A key id that the plugin has replaced
/// is not used for longer than this.
pub const KMS_WRITE_TTL: Duration = Duration::from_secs(3 * 60);
/// How long a health check answers with the last good result; the reference's value.
pub const KMS_HEALTHY_TTL: Duration = Duration::from_secs(20);
/// How long a health check answers with the last bad result; the reference's value.
pub const KMS_UNHEALTHY_TTL: Duration = Duration::from_secs(3);
/// How long a reload waits for new plugins at least; the reference's value.
pub const RELOAD_PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two checks of new plugins during a reload; the reference's value.
pub const RELOAD_PROBE_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of the name that is shown of a prefix that no provider knows.
pub const UNKNOWN_PREFIX_BYTES: usize = 128;
