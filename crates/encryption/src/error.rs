//! Why a value cannot be encrypted or decrypted.

/// Why a value was not encrypted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncryptError {
    /// The plugin has not been healthy for too long, or never was. It is asked again in the background.
    #[error("kms provider {provider:?} cannot encrypt now: {reason}")]
    Unavailable {
        /// The name of the provider.
        provider: String,
        /// What is missing.
        reason: String,
    },
    /// The cipher refused the value.
    #[error("{provider}: {reason}")]
    Cipher {
        /// The provider and the name of its key.
        provider: String,
        /// What the cipher said.
        reason: String,
    },
    /// The entry of the resource has no provider. It is not stored in clear text instead.
    #[error("no provider is configured for {resource}")]
    NoProvider {
        /// The resource.
        resource: String,
    },
}

impl EncryptError {
    /// Whether the same value may be accepted later, without a change of the configuration.
    pub fn is_transient(&self) -> bool {
        matches!(self, EncryptError::Unavailable { .. })
    }
}

/// Why a value was not decrypted. It is never returned as it is stored instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecryptError {
    /// The configuration has no provider for this value.
    #[error("no matching prefix found: {0}")]
    NoMatchingPrefix(String),
    /// The value is encrypted, and the resource is not: no entry of the configuration names it.
    #[error("identity transformer tried to read encrypted data: {0}")]
    Encrypted(String),
    /// Providers know the prefix of the value, and none could decrypt it.
    #[error("{}", list(.0))]
    Failed(Vec<Attempt>),
}

/// What one provider said about a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{provider}: {reason}")]
pub struct Attempt {
    /// The provider and, if it has several, the name of the key.
    pub provider: String,
    /// Why it could not decrypt the value.
    pub reason: String,
    /// Whether the plugin behind the provider could not be asked.
    pub is_transient: bool,
    /// The status label of metrics.
    pub status: &'static str,
}

impl DecryptError {
    /// Whether the value may be readable later, without a change of the configuration: a KMS plugin could not be asked. Otherwise a
    /// key or a provider is missing, or it is another one than that of the same name with which the value was written, or the value
    /// was changed.
    pub fn is_transient(&self) -> bool {
        match self {
            DecryptError::NoMatchingPrefix(_) | DecryptError::Encrypted(_) => false,
            DecryptError::Failed(attempts) => attempts.iter().any(|attempt| attempt.is_transient),
        }
    }
}

/// Joins messages in the reference's form, without repetitions.
pub fn join(messages: impl IntoIterator<Item = String>) -> String {
    let mut different: Vec<String> = Vec::new();
    for message in messages {
        if !different.contains(&message) {
            different.push(message);
        }
    }
    match different.as_slice() {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

fn list(attempts: &[Attempt]) -> String {
    join(attempts.iter().map(ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(provider: &str, is_transient: bool) -> Attempt {
        let (provider, reason) = (provider.to_owned(), "bad".to_owned());
        Attempt { provider, reason, is_transient, status: "Unknown" }
    }

    #[test]
    fn one_unreachable_plugin_makes_the_failure_transient() {
        let permanent = DecryptError::Failed(vec![attempt("aescbc key \"a\"", false)]);
        assert_eq!(
            (permanent.is_transient(), permanent.to_string().as_str()),
            (false, "aescbc key \"a\": bad")
        );
        let attempts = vec![attempt("a", false), attempt("b", true), attempt("a", false)];
        let mixed = DecryptError::Failed(attempts);
        assert_eq!((mixed.is_transient(), mixed.to_string().as_str()), (true, "[a: bad, b: bad]"));
        assert!(!DecryptError::NoMatchingPrefix(String::new()).is_transient());
        assert!(!DecryptError::Encrypted(String::new()).is_transient());
    }
}
