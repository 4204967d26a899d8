//! The forms in which stores get drafts for etcd.

use std::sync::Arc;

use pilothouse_actors::encryption::{Decrypted, DecryptionError, Encryption};
use pilothouse_types::object::{Draft, Key, Object, StoredDraft, TypeName};

use crate::convert::UNKNOWN_TYPE;
use crate::log::EtcdLog;
use crate::values::Values;

/// Makes the stored form of every draft, encrypted or not, on the thread of the writer. Cheap to clone.
///
/// Nothing is hidden: keys are legible in etcd, so an object that cannot be read lies under its own key. Reading is the matter of the
/// log, which decodes what arrives.
#[derive(Clone)]
pub struct EtcdForms(Arc<Values>);

impl EtcdForms {
    /// The forms of the objects in this log.
    pub fn new(log: EtcdLog) -> EtcdForms {
        EtcdForms(log.into_values())
    }
}

impl Encryption for EtcdForms {
    fn encrypt(&self, type_name: &TypeName, draft: &Draft) -> Result<Option<StoredDraft>, String> {
        match self.0.encode(type_name, draft) {
            Ok(Some(stored)) => Ok(Some(stored)),
            // Without a stored form there would be nothing to propose.
            Ok(None) => Err(UNKNOWN_TYPE.to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn is_current(&self, type_name: &TypeName, object: &Object) -> bool {
        !object.is_readable() || self.0.write_key(type_name).is_current(object.encryption_key_id())
    }

    fn hidden_key(&self, _: &TypeName, key: &Key) -> Key {
        key.clone()
    }

    fn decrypt(&self, _: &TypeName, _: &Key, _: &[u8]) -> Result<Decrypted, DecryptionError> {
        Err(DecryptionError::Impossible("values of etcd are decrypted where they arrive".to_owned()))
    }

    fn check_clear(&self, _: &TypeName) -> Result<(), String> {
        Ok(())
    }

    fn may_be_unreadable(&self, _: &TypeName) -> bool {
        true
    }

    fn wait(&self, _: &str) {}
}

#[cfg(test)]
mod tests {
    use pilothouse_encryption::testing::keyed_provider;
    use pilothouse_types::object::{Revision, UnreadableReason};

    use super::*;
    use crate::values::testing::{draft, key, secrets, values};

    fn forms(providers: Option<&str>) -> EtcdForms {
        EtcdForms(Arc::new(values(providers)))
    }

    #[test]
    fn every_draft_of_a_known_type_has_a_stored_form() {
        let clear = forms(None).encrypt(&secrets(), &draft()).unwrap().unwrap();
        assert!(clear.bytes.starts_with(b"k8s\0") && clear.key_id.is_none());
        let encrypted =
            forms(Some(&keyed_provider("aesgcm", "one", 1))).encrypt(&secrets(), &draft()).unwrap().unwrap();
        assert!(encrypted.bytes.starts_with(b"k8s:enc:aesgcm:v1:one:") && encrypted.key_id.is_some());
        let error = forms(None).encrypt(&TypeName::new("custom/kites.toys.example"), &draft()).unwrap_err();
        assert_eq!(error, "nothing is known of this type");
    }

    #[test]
    fn object_is_current_if_it_is_stored_as_it_would_be_now() {
        let [old, new] = [1, 2].map(|byte| keyed_provider("aesgcm", "one", byte));
        let object = |key_id| Object::new(draft(), Revision(2)).with_encryption(key_id);
        let old_key = forms(Some(&old)).encrypt(&secrets(), &draft()).unwrap().unwrap().key_id;
        let forms = forms(Some(&format!("{new}, {old}")));
        let new_key = forms.encrypt(&secrets(), &draft()).unwrap().unwrap().key_id;
        for (key_id, is_current) in [(None, false), (old_key, false), (new_key, true)] {
            assert_eq!(forms.is_current(&secrets(), &object(key_id)), is_current, "{key_id:?}");
        }
        // Writing it again cannot mend it.
        let unreadable = Object::unreadable(key("a"), Revision(2), UnreadableReason::Damaged);
        assert!(forms.is_current(&secrets(), &unreadable));
        assert!(forms.is_current(&TypeName::new("configmaps"), &object(None)));
        assert_eq!(forms.hidden_key(&secrets(), &key("a")), key("a"));
    }
}
