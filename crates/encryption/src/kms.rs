//! Providers whose keys never leave a key management service: a plugin, reached by gRPC over a Unix socket, encrypts the keys with
//! which this server encrypts objects.
//!
//! - [`messages`] is the protocol, versions `v2` and `v1beta1`;
//! - `endpoint` and `client` make calls, with `pilothouse_plugins`. They run on a thread of their own;
//! - `v2` and `v1` are the providers. `probe` remembers the last check of a plugin, `poll` repeats it;
//! - `key_cache` and `flights` see to it that each data key is decrypted once.
//!
//! Nothing here is called while an object is encrypted: the data key for writing is made by the checks, in the background.

mod client;
mod endpoint;
mod failure;
mod flights;
mod key_cache;
pub mod messages;
mod plugin;
mod probe;
mod v1;
mod v2;

pub(crate) use failure::KmsFailure;
pub(crate) use plugin::{Plugin, PluginSettings};
pub(crate) use v1::KmsV1;
pub(crate) use v2::{KmsV2, encrypted_object};

#[cfg(test)]
mod tests;
