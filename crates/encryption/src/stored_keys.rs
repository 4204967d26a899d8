//! Which keys stored values need, so that none of them is taken away.

use pilothouse_types::object::EncryptionKeyId;

use crate::transformers::{ResourceNames, Transformers};

/// Values of one resource that are stored in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    /// The group of the resource.
    pub group: String,
    /// The name of the resource.
    pub resource: String,
    /// What has encrypted them; `None` if they are in clear text.
    pub key_id: Option<EncryptionKeyId>,
    /// How many they are.
    pub values: usize,
}

impl StoredKey {
    /// Says that the values can be read with `current` and not with `next`.
    pub(crate) fn loss(&self, current: &Transformers, next: &Transformers) -> Option<String> {
        let names = ResourceNames::new(&self.group, &self.resource);
        let provider = match self.key_id {
            None if next.check_clear(&names).is_ok() => return None,
            None => "the identity provider",
            Some(key) if next.has_key(&names, key) => return None,
            // Whose key the plugin used, only the values say. One plugin of before is enough.
            Some(key) if !current.has_key(&names, key) && next.shares_plugin(&names, current) => return None,
            Some(_) => "a key or KMS plugin",
        };
        Some(format!("{} of {} need {provider} that it does not have", self.values, names.resource()))
    }
}
