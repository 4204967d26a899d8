//! The header of a token that the signer has signed.

use base64::DecodeError;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::{Map, Value};

use crate::limits::SIGNER_KEY_ID_BYTES;

/// The algorithms that verifiers of service account tokens know.
const ALGORITHMS: [&str; 4] = ["RS256", "ES256", "ES384", "ES512"];

/// Checks a header, and returns its key ID.
pub fn check(header: &str) -> Result<String, String> {
    let json = BASE64.decode(header).map_err(|error| {
        let position = match error {
            DecodeError::InvalidByte(position, _) | DecodeError::InvalidLastSymbol(position, _) => position,
            DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => {
                header.find('=').unwrap_or(header.len())
            }
        };
        format!("while unwrapping header: illegal base64 data at input byte {position}")
    })?;
    let invalid = |reason: &str| format!("while parsing header JSON: {reason}");
    let fields: Map<String, Value> =
        serde_json::from_slice(&json).map_err(|error| invalid(&error.to_string()))?;
    if let Some(name) = fields.keys().find(|name| !["alg", "kid", "typ"].contains(&name.as_str())) {
        return Err(invalid(&format!("json: unknown field {name:?}")));
    }
    let text = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(invalid(&format!("json: the field {name:?} is not a string"))),
    };
    let (algorithm, key_id, token_type) = (text("alg")?, text("kid")?, text("typ")?);
    if token_type != "JWT" {
        return Err("bad type".to_owned());
    }
    if key_id.is_empty() {
        return Err("key id missing".to_owned());
    }
    if key_id.len() > SIGNER_KEY_ID_BYTES {
        return Err("key id longer than 1 kb".to_owned());
    }
    if !ALGORITHMS.contains(&algorithm) {
        return Err(format!("bad signing algorithm {algorithm:?}"));
    }
    Ok(key_id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_type_key_and_known_algorithm() {
        let long_id = "k".repeat(1_025);
        let too_long = format!(r#"{{"alg":"RS256","kid":"{long_id}","typ":"JWT"}}"#);
        for (json, expected) in [
            (r#"{"alg":"RS256","kid":"a","typ":"JWT"}"#, Ok("a")),
            (r#"{"alg":"ES512","kid":"b","typ":"JWT"}"#, Ok("b")),
            ("[]", Err("while parsing header JSON: ")),
            ("{", Err("while parsing header JSON: ")),
            (
                r#"{"alg":"RS256","kid":"a","typ":"JWT","x":1}"#,
                Err("while parsing header JSON: json: unknown field \"x\""),
            ),
            (r#"{"alg":7,"kid":"a","typ":"JWT"}"#, Err("while parsing header JSON: json: the field \"alg\"")),
            (r#"{"alg":"RS256","kid":"a"}"#, Err("bad type")),
            (r#"{"alg":"RS256","kid":"a","typ":"jwt"}"#, Err("bad type")),
            (r#"{"alg":"RS256","typ":"JWT"}"#, Err("key id missing")),
            (r#"{"alg":"none","kid":null,"typ":"JWT"}"#, Err("key id missing")),
            (&too_long, Err("key id longer than 1 kb")),
            (r#"{"alg":"none","kid":"a","typ":"JWT"}"#, Err("bad signing algorithm \"none\"")),
            (r#"{"alg":"PS256","kid":"a","typ":"JWT"}"#, Err("bad signing algorithm \"PS256\"")),
            (r#"{"kid":"a","typ":"JWT"}"#, Err("bad signing algorithm \"\"")),
        ] {
            let result = check(&BASE64.encode(json));
            match expected {
                Ok(key_id) => assert_eq!(result.as_deref(), Ok(key_id), "{json}"),
                Err(reason) => assert!(result.clone().unwrap_err().starts_with(reason), "{json}: {result:?}"),
            }
        }
    }

    #[test]
    fn header_must_be_base64url() {
        for (header, position) in [("e30.", 3), ("e30=", 3), ("e", 1), ("e+30", 1)] {
            let expected = format!("while unwrapping header: illegal base64 data at input byte {position}");
            assert_eq!(check(header), Err(expected), "{header}");
        }
    }
}
