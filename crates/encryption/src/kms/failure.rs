//! What goes wrong with a plugin.

use tonic::{Code, Status};

use crate::ciphers::CipherError;
use crate::limits::KMS_TEXT_BYTES;
use crate::observer::NO_GRPC_STATUS;

/// Why a provider could not decrypt a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KmsFailure {
    /// The plugin was called and failed, or was not reached.
    #[error("failed to decrypt DEK, error: {0}")]
    Call(CallError),
    /// What is stored is not what this provider writes.
    #[error("{0}")]
    Malformed(String),
    /// The cipher refused the value, or the data key.
    #[error("{0}")]
    Cipher(#[from] CipherError),
}

impl KmsFailure {
    /// Whether another attempt may succeed: only the plugin's word that the data key is wrong is taken as final. Many plugins have
    /// one status for everything, and an object must not be given up because a service is down.
    pub fn is_transient(&self) -> bool {
        // NotFound and FailedPrecondition are also what a plugin says of a key that is disabled for now, and Unimplemented what a
        // proxy says before the plugin is behind it.
        const FINAL: [Code; 2] = [Code::InvalidArgument, Code::DataLoss];
        match self {
            KmsFailure::Call(error) => !FINAL.contains(&error.code),
            KmsFailure::Malformed(_) | KmsFailure::Cipher(_) => false,
        }
    }

    /// The status label of metrics.
    pub fn status(&self) -> &'static str {
        match self {
            KmsFailure::Call(error) => code_name(error.code),
            KmsFailure::Malformed(_) | KmsFailure::Cipher(_) => NO_GRPC_STATUS,
        }
    }
}

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
    let mut end = text.len().min(KMS_TEXT_BYTES);
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
    fn only_statuses_about_the_data_key_are_final() {
        let failure = |code| KmsFailure::Call(CallError::new(code, "text"));
        for code in 1..=16 {
            let code = Code::from_i32(code);
            let is_final = matches!(code, Code::InvalidArgument | Code::DataLoss);
            assert_eq!(failure(code).is_transient(), !is_final, "{code:?}");
        }
        assert!(!KmsFailure::Cipher(CipherError::NotAuthentic).is_transient());
        assert_eq!(
            failure(Code::Cancelled).to_string(),
            "failed to decrypt DEK, error: rpc error: code = Canceled desc = text"
        );
        assert_eq!(
            (failure(Code::Aborted).status(), KmsFailure::Malformed(String::new()).status()),
            ("Aborted", NO_GRPC_STATUS)
        );
    }

    #[test]
    fn texts_of_plugins_are_clipped_between_characters() {
        let text = "é".repeat(KMS_TEXT_BYTES);
        assert_eq!(clipped(&text).len(), KMS_TEXT_BYTES);
        assert_eq!(clipped(&format!("a{text}")).len(), KMS_TEXT_BYTES - 1);
        assert_eq!(clipped("short"), "short");
    }
}
