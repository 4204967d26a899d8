//! How views decode stored objects.
//!
//! A record may be damaged, or intact but written by a later release, with an apiVersion, a type or an enum value that this one
//! does not know. Views treat both alike: the object is unreadable.

use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::field::ErrorType;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds as kinds;
use pilothouse_types::object::{Object, UnreadableReason};
use serde::Deserialize;

/// CustomResourceDefinitions, which both admission and the server of custom resources read.
pub const CUSTOM_RESOURCE_DEFINITIONS: StoredType =
    StoredType::v1("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition");

/// Why a stored object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nothing is known of it but its key.
    #[error("{0}")]
    Whole(String),
    /// A part of it is not supported by this server. The view has indexed the rest, and denies wherever that part would decide.
    #[error("{0}")]
    Part(String),
}

/// A stored object whose record is intact and whose kind is the expected one.
pub struct StoredObject<'a> {
    /// The object.
    pub object: &'a Object,
    followed: &'a StoredType,
    version: &'a str,
    registry: &'a Registry,
}

/// The type of an object.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TypeMeta<'a> {
    #[serde(borrow)]
    kind: &'a str,
    #[serde(borrow)]
    api_version: &'a str,
}

impl<'a> TypeMeta<'a> {
    /// Reads the prefix of the canonical form only: some objects are large and change often.
    fn from_canonical(json: &'a [u8]) -> Option<TypeMeta<'a>> {
        let rest = json.strip_prefix(br#"{"kind":""#)?;
        let (kind, rest) = until_quote(rest)?;
        let (api_version, _) = until_quote(rest.strip_prefix(br#","apiVersion":""#)?)?;
        Some(TypeMeta { kind, api_version })
    }
}

/// The text before the next quotation mark, and the rest after it. `None` for text with escapes.
fn until_quote(json: &[u8]) -> Option<(&str, &[u8])> {
    let end = json.iter().position(|byte| *byte == b'"')?;
    let text = std::str::from_utf8(json.get(..end)?).ok().filter(|text| !text.contains('\\'))?;
    Some((text, json.get(end + 1..)?))
}

impl<'a> StoredObject<'a> {
    /// Checks the record and the kind of an object.
    pub fn new(
        followed: &'a StoredType,
        object: &'a Object,
        registry: &'a Registry,
    ) -> Result<StoredObject<'a>, ReadError> {
        if let Some(reason) = object.unreadable_reason() {
            return Err(ReadError::Whole(match reason {
                UnreadableReason::Damaged => "its record is damaged".to_owned(),
                UnreadableReason::Undecryptable(reason) => format!("it cannot be decrypted: {reason}"),
            }));
        }
        let type_meta = match TypeMeta::from_canonical(&object.bytes) {
            Some(type_meta) => type_meta,
            None => serde_json::from_slice(&object.bytes)
                .map_err(|error| ReadError::Whole(format!("it is not an object: {error}")))?,
        };
        let version = match type_meta.api_version {
            "" => followed.version,
            api_version => {
                let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
                let is_known = (group, type_meta.kind) == (followed.group, followed.kind)
                    && registry.kind(group, version, followed.kind).is_some();
                if !is_known {
                    let reason = format!("this server does not know {} of {api_version}", type_meta.kind);
                    return Err(ReadError::Whole(reason));
                }
                version
            }
        };
        Ok(StoredObject { object, followed, version, registry })
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.object.key.name()
    }

    /// Its contents, decoded by the schema of its version.
    pub fn decode(&self) -> Result<Value, ReadError> {
        let StoredType { group, kind, .. } = *self.followed;
        let unknown = || ReadError::Whole(format!("this server does not know {kind} of {group}"));
        let ty = self.registry.kind(group, self.version, kind).ok_or_else(unknown)?;
        codec::decode_stored(&self.object.bytes, ty, self.registry)
            .ok_or_else(|| ReadError::Whole(format!("it does not have the form of a {kind}")))
    }

    /// Its contents, if all enum values are known to this server.
    pub fn value(&self) -> Result<Value, ReadError> {
        let value = self.decode()?;
        let mut errors = ErrorList::with_features(EnabledFeatures::EVERY);
        (kinds::rules(self.followed.group, self.followed.kind).validation.validate)(&value, &mut errors);
        // Other validation may have become stricter since it was stored. That does not change the meaning of the object.
        let unsupported = errors.iter().find(|error| error.problem == ErrorType::NotSupported);
        match unsupported {
            None => Ok(value),
            Some(error) => Err(ReadError::Whole(format!("{}: {}", error.path, error.message))),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_types::object::{Draft, Key, Pairs, Revision};

    use super::*;

    const POLICIES: StoredType = StoredType::v1(
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
    );

    fn draft(key: Key) -> Draft {
        let (labels, fields) = (Pairs::default(), Pairs::default());
        Draft { key, bytes: Bytes::from_static(b"1"), revision_offset: 0, item_offset: 0, labels, fields }
    }

    fn read(json: &str) -> Result<Value, ReadError> {
        let registry = Registry::builtin().unwrap();
        let (key, reason) = (Key::cluster("p"), UnreadableReason::Damaged);
        let mut object = match json {
            "" => Object::unreadable(key, Revision(1), reason),
            _ => Object::restored(draft(key), Revision(1)).unwrap(),
        };
        object.bytes = json.to_owned().into();
        StoredObject::new(&POLICIES, &object, &registry).and_then(|stored| stored.value())
    }

    #[test]
    fn stored_object_of_unknown_version_or_value_is_unreadable() {
        let policy = |kind: &str, version: &str, spec: &str| {
            format!(r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{{"name":"p"}},"spec":{spec}}}"#)
        };
        let (kind, v1) = ("ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1");
        read(&policy(kind, v1, r#"{"failurePolicy":"Fail"}"#)).unwrap();
        read(r#"{"metadata":{"name":"p"},"spec":{}}"#).unwrap();
        for (json, expected) in [
            (String::new(), "its record is damaged"),
            ("{".to_owned(), "it is not an object"),
            (
                policy(kind, "admissionregistration.k8s.io/v9", "{}"),
                "does not know ValidatingAdmissionPolicy of",
            ),
            (policy(kind, "v1", "{}"), "does not know"),
            (policy("Pod", v1, "{}"), "does not know Pod of"),
            (policy(kind, v1, "7"), "does not have the form"),
            (policy(kind, v1, r#"{"failurePolicy":"Perhaps"}"#), "spec.failurePolicy: Unsupported value"),
        ] {
            let error = read(&json).unwrap_err();
            assert!(
                matches!(&error, ReadError::Whole(reason) if reason.contains(expected)),
                "{json}: {error}"
            );
        }
    }
}
