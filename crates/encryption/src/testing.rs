//! For tests, of this crate and of others: a KMS plugin, and ready configurations.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected fails")]

mod key_file;
mod kms_plugin;

pub use key_file::KeyFile;
pub use kms_plugin::{Calls, KmsPlugin, PluginState};

/// A configuration with one entry: resources and providers in YAML flow style, such as `[secrets]` and `[{identity: {}}]`.
pub fn configuration(resources: &str, providers: &str) -> Vec<u8> {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: {resources}\n  \
         providers: {providers}\n"
    )
    .into_bytes()
}

/// A provider with one key of 32 bytes that are all the same, in YAML flow style.
pub fn keyed_provider(kind: &str, name: &str, byte: u8) -> String {
    use base64::Engine as _;
    let secret = base64::engine::general_purpose::STANDARD.encode([byte; 32]);
    format!("{{{kind}: {{keys: [{{name: {name}, secret: {secret}}}]}}}}")
}

/// A provider with a KMS plugin, in YAML flow style.
pub fn kms_provider(version: &str, name: &str, endpoint: &str) -> String {
    format!("{{kms: {{apiVersion: {version}, name: {name}, endpoint: '{endpoint}', timeout: 10s}}}}")
}
