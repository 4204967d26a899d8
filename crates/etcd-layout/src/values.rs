//! The bytes of stored objects, as the reference writes and reads them.
//!
//! A built-in object is stored in the reference's storage version, which for a few types is not ours, and in the encoding of
//! `--storage-media-type`. Definitions and APIServices are always stored as JSON, because the servers inside the reference that have
//! them know nothing else, and custom objects as JSON or CBOR. No value contains a resourceVersion: that is the revision of its key.
//!
//! Whatever a server of any release may have written is read: each encoding, and each version that can be converted. As in the
//! reference, defaults are set on reading, so that an object of an earlier release has the fields that were added since.

mod builtin;
mod custom;
#[cfg(test)]
mod earlier_versions;
mod error;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::stored_defaults::StoredDefaults;
use pilothouse_apimachinery::codec::{self, cbor, protobuf, yaml};
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry, TypeId, decode};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::object::{Draft, Key};

use crate::earlier::EarlierKinds;
use crate::limits::{DECODED_BYTES, VALUE_BYTES};
use crate::media::{MediaType, recognize};

pub use error::{ValueError, ValueErrorReason};

/// What precedes the digits of the revision in a draft.
const REVISION_FIELD: &[u8] = br#""resourceVersion":""#;

/// How values are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueOptions {
    /// The encoding of built-in objects.
    pub media_type: MediaType,
    /// Whether custom objects are written as CBOR: the feature gate CBORServingAndStorage.
    pub custom_cbor: bool,
}

/// Encodes and decodes values. It has no state but the schemas, and any thread may use it.
#[derive(Debug)]
pub struct ValueCodec {
    registry: Arc<Registry>,
    earlier: EarlierKinds,
    options: ValueOptions,
    features: EnabledFeatures,
}

/// An object as it was decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedObject {
    /// What a store holds, except for the revision, which is that of the key. If the value is stale, the draft has the mark of
    /// pending defaults.
    pub draft: Draft,
    /// Whether the object would have other bytes if it were written now: another version or encoding, defaults that the value
    /// lacks, or without fields that are gone. Then an update is written even if it changes nothing, as by the reference. A custom
    /// object is not converted, so its version does not count here.
    pub is_stale: bool,
}

/// A value whose kind is known.
struct Body<'a> {
    /// The encoding of the value.
    source: Encoding,
    /// The encoding of `bytes`: never YAML.
    encoding: Encoding,
    bytes: Cow<'a, [u8]>,
    version: GroupVersion,
    kind: String,
}

impl ValueCodec {
    /// A codec for the built-in kinds of this registry. The features decide about defaults.
    pub fn new(registry: Arc<Registry>, options: ValueOptions, features: EnabledFeatures) -> ValueCodec {
        ValueCodec { registry, earlier: EarlierKinds::default(), options, features }
    }

    /// The value of an object. The resource may be that of any version of its type.
    pub fn encode(&self, resource: &Resource, draft: &Draft) -> Result<Vec<u8>, ValueError> {
        let encoded = match &resource.custom {
            Some(_) => custom::encode(self.options, draft),
            None => self.encode_builtin(resource, draft),
        };
        encoded.map_err(|error| error.of_object(resource, &draft.key))
    }

    /// Decodes the value of an object, which has this key.
    pub fn decode(&self, resource: &Resource, key: &Key, value: &[u8]) -> Result<DecodedObject, ValueError> {
        let decoded = match &resource.custom {
            Some(custom) => custom::decode(resource, custom, key, value),
            None => self.decode_builtin(resource, key, value),
        };
        let mut draft = decoded.map_err(|error| error.of_object(resource, key))?;
        let is_stale = self.encode(resource, &draft)? != value;
        StoredDefaults::new(is_stale).write(&mut draft);
        Ok(DecodedObject { draft, is_stale })
    }

    /// The bytes of a record of a built-in kind that is no object of a store.
    pub(crate) fn encode_record(
        &self,
        kind: &GroupVersionKind,
        mut value: Value,
    ) -> Result<Vec<u8>, ValueError> {
        let ty = self.registry.lookup(kind).ok_or_else(|| ValueError::unknown(kind))?;
        value.set("kind", kind.kind.as_str());
        value.set("apiVersion", kind.api_version());
        Ok(encode_typed(self.options.media_type.encoding(), &self.registry, ty, &value))
    }

    /// Reads such bytes.
    pub(crate) fn decode_record(&self, kind: &GroupVersionKind, bytes: &[u8]) -> Result<Value, ValueError> {
        let body = Body::read(bytes, &self.registry)?;
        if body.kind != kind.kind || !body.version.is(&kind.group, &kind.version) {
            return Err(body.of_other_kind(&kind.kind));
        }
        body.decode(&self.registry)
    }
}

impl<'a> Body<'a> {
    /// Recognizes the encoding and reads the kind. YAML is converted to JSON, so that everything else is read in one way.
    fn read(value: &'a [u8], registry: &Registry) -> Result<Body<'a>, ValueError> {
        let source = recognize(value);
        check_size(source, value)?;
        let mut encoding = source;
        let mut bytes = Cow::Borrowed(value);
        if encoding == Encoding::Yaml {
            let tree = yaml::read(value).map_err(|message| ValueError::malformed(&message))?;
            encoding = Encoding::Json;
            bytes = json::to_json(&tree).into();
        }
        let kind = match encoding {
            Encoding::Protobuf => {
                protobuf::peek(&bytes).ok_or_else(|| ValueError::malformed("bad envelope"))?
            }
            Encoding::Cbor => {
                cbor::peek(&bytes, registry).map_err(|message| ValueError::malformed(&message))?
            }
            Encoding::Json | Encoding::Yaml => json_kind(&bytes, registry)?,
        };
        if kind.kind.is_empty() || kind.version.is_empty() {
            return Err(ValueError::malformed("kind or apiVersion is missing"));
        }
        let version = GroupVersion::new(&kind.group, &kind.version);
        Ok(Body { source, encoding, bytes, version, kind: kind.kind })
    }

    /// The object, by the schema of the version that it names.
    fn decode(&self, registry: &Registry) -> Result<Value, ValueError> {
        let kind = GroupVersionKind::new(&self.version.group, &self.version.version, &self.kind);
        let decoded = match self.encoding {
            Encoding::Protobuf => protobuf::decode_object(&self.bytes, &kind, registry),
            Encoding::Cbor => cbor::decode_object(&self.bytes, &kind, registry),
            Encoding::Json | Encoding::Yaml => codec::decode_object(&self.bytes, &kind, registry),
        };
        decoded.map(|decoded| decoded.value).map_err(|error| ValueError::malformed(&error.detail))
    }

    fn of_other_kind(&self, expected: &str) -> ValueError {
        ValueError::new(ValueErrorReason::OtherKind {
            expected: expected.to_owned(),
            actual: error::cut(&format!("{} {}", self.version, self.kind)),
        })
    }
}

/// Refuses values that are too large, or that could take too much memory when they are decoded.
fn check_size(encoding: Encoding, value: &[u8]) -> Result<(), ValueError> {
    if value.len() > VALUE_BYTES || codec::decoded_bytes_bound(encoding, value) > DECODED_BYTES {
        return Err(ValueError::new(ValueErrorReason::TooLarge { bytes: value.len() }));
    }
    Ok(())
}

/// The kind that a JSON text names.
fn json_kind(text: &[u8], registry: &Registry) -> Result<GroupVersionKind, ValueError> {
    let type_meta = decode::decode(registry, registry.type_meta(), text);
    let type_meta = type_meta.map_err(|_| ValueError::malformed("it is no JSON object"))?.value;
    let api_version = GroupVersion::parse(type_meta.str("apiVersion"));
    let api_version = api_version.unwrap_or_else(|| GroupVersion::new("", ""));
    Ok(GroupVersionKind::new(&api_version.group, &api_version.version, type_meta.str("kind")))
}

/// Encodes a typed object for storage.
fn encode_typed(encoding: Encoding, registry: &Registry, ty: TypeId, value: &Value) -> Vec<u8> {
    match encoding {
        Encoding::Protobuf => protobuf::encode_object(registry, ty, value),
        Encoding::Json | Encoding::Yaml | Encoding::Cbor => {
            from_canonical_json(encoding, codec::encode(registry, ty, value))
        }
    }
}

/// The stored form of a canonical JSON text without a revision.
fn from_canonical_json(encoding: Encoding, mut text: Vec<u8>) -> Vec<u8> {
    if encoding == Encoding::Yaml
        && let Ok(tree) = json::read(&text)
    {
        return yaml::to_yaml(tree);
    }
    text.push(b'\n');
    text
}

/// The JSON of a draft without the field for the revision. `None` if the draft has no such field where it says.
fn without_revision(draft: &Draft) -> Option<Vec<u8>> {
    let (before, after) = draft.bytes.split_at_checked(draft.revision_offset)?;
    let before = before.strip_suffix(REVISION_FIELD)?;
    // The time of creation is always printed, and follows.
    let after = after.strip_prefix(b"\",")?;
    Some([before, after].concat())
}

/// The bytes in a field of a decoded object; `None` if they are no base64.
pub(crate) fn bytes_field(value: &Value, field: &str) -> Option<Vec<u8>> {
    STANDARD.decode(value.str(field)).ok()
}

/// Sets a field of a decoded object to bytes.
pub(crate) fn set_bytes_field(value: &mut Value, field: &str, bytes: &[u8]) {
    value.set(field, STANDARD.encode(bytes));
}
