//! Tokens signed on P-521.
//!
//! `jsonwebtoken` does not support this algorithm, neither in headers nor for keys. So such tokens are assembled here, with the
//! same encoding of their parts.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use openssl::pkey::{PKeyRef, Private};
use serde::Serialize;

use super::{Algorithm, Error};

#[derive(Serialize)]
struct Header<'a> {
    alg: &'static str,
    kid: &'a str,
}

/// A token with `claims`, signed by the key with this id.
pub(super) fn sign<T: Serialize>(key: &PKeyRef<Private>, id: &str, claims: &T) -> Result<String, Error> {
    let header = serde_json::to_vec(&Header { alg: Algorithm::Es512.name(), kid: id })?;
    let mut token = BASE64.encode(header);
    token.push('.');
    BASE64.encode_string(serde_json::to_vec(claims)?, &mut token);
    let signature = Algorithm::Es512.sign(key, token.as_bytes())?;
    token.push('.');
    BASE64.encode_string(signature, &mut token);
    Ok(token)
}
