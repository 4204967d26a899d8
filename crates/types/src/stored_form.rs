//! How an object is stored: in clear text, encrypted, or in a form that cannot be read.

use std::fmt;

use bytes::Bytes;

/// Identifies what encrypted the stored form of an object: a hash of the provider and its key, the same as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncryptionKeyId(pub u64);

/// A draft as it is written to the log, where that is not the draft itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDraft {
    /// The stored form. In a log of this server, it is the encrypted draft, key and labels included; in a shared log, it is what all
    /// its servers understand.
    pub bytes: Bytes,
    /// What encrypted it, if it is encrypted. It always is in a log of this server.
    pub key_id: Option<EncryptionKeyId>,
}

/// How a version of an object is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredForm {
    /// In clear text.
    Clear,
    /// Encrypted with a key.
    Encrypted(EncryptionKeyId),
    /// In a form that cannot be read.
    Unreadable(Box<UnreadableReason>),
}

/// Why an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreadableReason {
    /// Its record is damaged.
    Damaged,
    /// It cannot be decrypted, or is in clear text although its resource must be encrypted.
    Undecryptable(String),
}

impl fmt::Display for UnreadableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnreadableReason::Damaged => f.write_str("the record has a wrong checksum"),
            UnreadableReason::Undecryptable(reason) => f.write_str(reason),
        }
    }
}
