//! Which key has encrypted a value, as a number that can be kept with each object.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use pilothouse_types::object::EncryptionKeyId;

/// The number of a key: `prefix` is that of its provider, `name` tells its keys apart, and `source_type` is for those of KMS v2 plugins.
pub(crate) fn key_id(prefix: &[u8], name: &[u8], source_type: i32) -> EncryptionKeyId {
    let mut hasher = DefaultHasher::new();
    (prefix, name, source_type).hash(&mut hasher);
    EncryptionKeyId(hasher.finish())
}

/// The encryption that a resource gets now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKey {
    /// None.
    Clear,
    /// By this key.
    Key(EncryptionKeyId),
    /// By a plugin that was not asked for its key yet.
    Unknown,
}

impl WriteKey {
    /// Whether a value that is stored like this would be stored in the same way now.
    pub fn is_current(self, stored: Option<EncryptionKeyId>) -> bool {
        match self {
            WriteKey::Clear => stored.is_none(),
            WriteKey::Key(key) => stored == Some(key),
            WriteKey::Unknown => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_current_with_the_write_key_alone() {
        let [one, two] = [1, 2].map(EncryptionKeyId);
        assert!(WriteKey::Clear.is_current(None) && !WriteKey::Clear.is_current(Some(one)));
        assert!(WriteKey::Key(one).is_current(Some(one)) && !WriteKey::Key(one).is_current(Some(two)));
        assert!(!WriteKey::Key(one).is_current(None));
        assert!(WriteKey::Unknown.is_current(None) && WriteKey::Unknown.is_current(Some(two)));
    }
}
