//! What goes wrong with a call.

use tonic::{Code, Status};

use crate::limits::PLUGIN_TEXT_BYTES;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*.code))]
pub struct CallError {
    /// The status.
    pub code: Code,
    /// What the plugin, or the connection, said.
    pub message: String,
}

impl CallError {
    /// An error with a shortened message.
    pub fn new(code: Code, message: &str) -> CallError {
        CallError { code, message: clipped(message).to_owned() }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        use std::error::Error as _;
        // A status with a source was made on this side: the connection broke during the response.
        match status.source() {
            Some(source) if status.code() == Code::Unknown => {
                CallError::new(Code::Unavailable, &format!("{}: {source}", status.message()))
            }
            _ => CallError::new(status.code(), status.message()),
        }
    }
}

/// The beginning of a text of a plugin.
pub fn clipped(text: &str) -> &str {
    let mut end = text.len().min(PLUGIN_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The name of a status in the reference's metrics and messages.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_plugins_are_clipped_between_characters() {
        let text = "é".repeat(PLUGIN_TEXT_BYTES);
        assert_eq!(clipped(&text).len(), PLUGIN_TEXT_BYTES);
        assert_eq!(clipped(&format!("a{text}")).len(), PLUGIN_TEXT_BYTES - 1);
        assert_eq!(clipped("short"), "short");
    }
}
