//! What goes wrong with a plugin.

use pilothouse_plugins::{CallError, Code, code_name};

use crate::ciphers::CipherError;
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
}
