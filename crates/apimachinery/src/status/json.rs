//! Encodes a Status.

use serde::Serialize;

use super::{Details, Status, is_zero};

impl Status {
    /// The Status as JSON, fields in the API's order.
    pub fn to_json(&self) -> Vec<u8> {
        let continue_token = self.details.as_ref().map_or("", |details| &details.continue_token);
        let json = StatusJson {
            kind: "Status",
            api_version: "v1",
            metadata: ListMeta { continue_token },
            status: if self.code < 400 { "Success" } else { "Failure" },
            message: &self.message,
            reason: self.foreign_reason.as_deref().unwrap_or(self.reason),
            details: self.details.as_ref().filter(|details| details.continue_token.is_empty()),
            // The reference omits the code of a plain success.
            code: if self.code == 200 { 0 } else { self.code },
        };
        // Strings and numbers only, so serialization cannot fail.
        escape_markup(serde_json::to_vec(&json).unwrap_or_default())
    }
}

/// Escapes what would be markup in a page, as the reference does in all its JSON. These characters occur within strings only.
fn escape_markup(json: Vec<u8>) -> Vec<u8> {
    if memchr::memchr3(b'<', b'>', b'&', &json).is_none() {
        return json;
    }
    let mut escaped = Vec::with_capacity(json.len() + 16);
    for byte in json {
        match byte {
            b'<' => escaped.extend_from_slice(b"\\u003c"),
            b'>' => escaped.extend_from_slice(b"\\u003e"),
            b'&' => escaped.extend_from_slice(b"\\u0026"),
            _ => escaped.push(byte),
        }
    }
    escaped
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusJson<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: ListMeta<'a>,
    status: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Details>,
    #[serde(skip_serializing_if = "is_zero")]
    code: u16,
}

#[derive(Serialize)]
struct ListMeta<'a> {
    #[serde(rename = "continue", skip_serializing_if = "str::is_empty")]
    continue_token: &'a str,
}
