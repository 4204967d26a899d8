//! Authentication and authorization: the verifiers and policies of the `Authenticator` and `Authorizer` actors.

pub mod abac;
pub mod bootstrap_token;
pub mod certificate;
pub mod chain_verifier;
pub mod counted;
#[cfg(test)]
mod empty_values_tests;
pub mod front_proxy;
pub mod impersonation;
pub mod jwt;
pub mod modes;
pub mod node;
pub mod openid;
pub mod rbac;
pub mod refetches;
pub mod service_account;
pub mod token_file;
pub mod token_objects;
pub mod token_webhook;
pub mod webhook;

/// The SHA-256 digest of a text. OpenSSL's one-shot function looks up an implementation each time, which takes as long as the
/// digest of a token.
pub(crate) fn digest(text: &[u8]) -> [u8; 32] {
    let mut digest = openssl::sha::Sha256::new();
    digest.update(text);
    digest.finish()
}
