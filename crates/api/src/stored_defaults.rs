//! Defaults that the reference sets when it decodes a stored object, and not when it stores it.
//!
//! The reference returns such defaults from a create or update, but its etcd has them only after the next update, which is
//! therefore written even if the client changes nothing. This server stores them at once. To increase the resourceVersion at the
//! same writes as the reference, it marks the object as one whose defaults the reference would not have stored yet.
//!
//! The mark is an entry among the selectable fields of the record. A record has no other place for it, and stored objects have it
//! there: another place would need another format on disk. Selectors cannot name it.

use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::DefaultingRules;
use pilothouse_types::object::{Draft, Object};

/// The mark in the selectable fields. Stored objects have it: it must not change.
const MARK: &str = "~filled-in";

/// Whether the reference would store such defaults of an object only with its next update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredDefaults {
    is_pending: bool,
}

impl StoredDefaults {
    /// Sets such defaults of a valid object. They are pending if there were any.
    pub fn set(rules: &DefaultingRules, object: &mut Value) -> StoredDefaults {
        StoredDefaults { is_pending: rules.apply_stored_defaults(object) }
    }

    /// Whether defaults are pending, for an object that comes from the reference's storage.
    pub fn new(is_pending: bool) -> StoredDefaults {
        StoredDefaults { is_pending }
    }

    /// Reads the mark of a stored object.
    pub fn read(object: &Object) -> StoredDefaults {
        StoredDefaults { is_pending: object.fields.get(MARK).is_some() }
    }

    /// Writes the mark of an object that is about to be stored.
    pub fn write(self, draft: &mut Draft) {
        if self.is_pending {
            draft.fields = draft.fields.iter().chain([(MARK, "")]).collect();
        }
    }

    /// Whether the next update is written even if it changes nothing.
    pub fn is_pending(self) -> bool {
        self.is_pending
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_types::object::{Key, Pairs, Revision};

    use super::*;

    #[test]
    fn mark_is_stored_beside_the_selectable_fields() {
        for is_pending in [false, true] {
            let mut draft = Draft {
                key: Key::namespaced("n", "x"),
                bytes: Bytes::from_static(b"{}"),
                revision_offset: 1,
                item_offset: 1,
                labels: Pairs::default(),
                fields: [("status.phase", "Pending")].into_iter().collect(),
            };
            let stored_defaults = StoredDefaults { is_pending };
            stored_defaults.write(&mut draft);
            let object = Object::new(draft, Revision::FIRST);
            assert_eq!(StoredDefaults::read(&object), stored_defaults);
            assert_eq!(object.fields.get("status.phase"), Some("Pending"));
        }
    }
}
