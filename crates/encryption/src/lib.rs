//! Encryption at rest, with the configuration and the bytes of the reference.
//!
//! - [`Encryption`] is what the server holds: it loads a configuration, replaces it while the server runs, and gives each resource
//!   its [`ResourceEncryption`];
//! - [`configuration`] is the file: its fields, defaults and rules;
//! - [`Transformers`] are the providers of one configuration, by resource. The first provider of a resource encrypts, all of them
//!   decrypt;
//! - [`ciphers`] are the algorithms, [`kms`] are the providers whose keys a plugin protects;
//! - [`HealthCheck`] and [`Observer`] are for the health endpoints and the metrics of the server.
//!
//! Encrypting and decrypting are computation and never wait, with one exception: a data key that is met for the first time is
//! decrypted by the KMS plugin, and the calling thread waits for it. Calls to plugins run on a thread of their own ([`kms`]).
//!
//! No error, log line or debug output contains key material.

pub mod ciphers;
pub mod configuration;
mod encryption;
mod error;
mod health;
mod key_id;
pub mod kms;
pub mod limits;
pub mod observer;
mod providers;
mod random;
mod secret_key;
mod stored_keys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transformers;

pub use encryption::{
    Encryption, LoadError, Reload, ReloadProbe, ResourceEncryption, Settings, content_hash,
};
pub use error::{Attempt, DecryptError, EncryptError};
pub use health::HealthCheck;
pub use key_id::WriteKey;
pub use observer::{Direction, NoObserver, OK, Observer, Transformation};
pub use providers::ENCRYPTED_PREFIX;
pub use secret_key::SecretKey;
pub use stored_keys::StoredKey;
pub use transformers::{Decrypted, Encrypted, ResourceTransformer, Transformers};
