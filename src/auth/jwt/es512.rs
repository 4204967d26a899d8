//! Tokens that are signed on P-521.
//!
//! `jsonwebtoken` has no name for that algorithm, neither in the headers of tokens nor for keys: so the parts of such tokens
//! are put together here. What the parts say is still written in the same way.

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

/// A token that says `claims`, signed by a key of this name.
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
