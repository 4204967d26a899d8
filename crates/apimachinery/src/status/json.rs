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
        serde_json::to_vec(&json).unwrap_or_default()
    }
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
