//! Built-in objects.

use pilothouse_api::catalog::backing::Stored;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::draft::{builtin_draft, check_size};
use pilothouse_apimachinery::codec::{self, protobuf};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::schema::{GroupVersionKind, TypeId, default};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::{API_EXTENSIONS_GROUP, API_REGISTRATION_GROUP};
use pilothouse_kinds::{self as kinds, CONVERSIONS};
use pilothouse_types::object::{Draft, Key};

use super::{
    Body, ValueCodec, ValueError, ValueErrorReason, encode_typed, from_canonical_json, without_revision,
};
use crate::earlier::definitions;

/// Whether the objects of a group are always stored as JSON.
fn is_always_json(group: &str) -> bool {
    matches!(group, API_EXTENSIONS_GROUP | API_REGISTRATION_GROUP)
}

impl ValueCodec {
    fn encoding_of(&self, group: &str) -> Encoding {
        if is_always_json(group) { Encoding::Json } else { self.options.media_type.encoding() }
    }

    fn type_of(&self, version: &GroupVersion, kind: &str) -> Result<TypeId, ValueError> {
        let ty = self.registry.kind(&version.group, &version.version, kind);
        ty.ok_or_else(|| unknown(version, kind))
    }

    pub(super) fn encode_builtin(&self, resource: &Resource, draft: &Draft) -> Result<Vec<u8>, ValueError> {
        let stored = stored(resource)?;
        let (kind, encoding) = (&*resource.kind, self.encoding_of(&stored.version.group));
        let corrupt = || ValueError::new(ValueErrorReason::CorruptDraft);
        if stored.version != stored.reference_version {
            return self.encode_converted(stored, kind, encoding, draft);
        }
        if encoding != Encoding::Protobuf {
            return without_revision(draft)
                .map(|text| from_canonical_json(encoding, text))
                .ok_or_else(corrupt);
        }
        // The gap for the revision is an empty text, which is how a message has a resourceVersion that is not set.
        let ty = self.type_of(&stored.version, kind)?;
        let message = protobuf::transcode(&self.registry, ty, &draft.bytes).ok_or_else(corrupt)?;
        Ok(protobuf::envelope(&stored.version.to_string(), kind, &message))
    }

    /// The value of an object that the reference stores in another version.
    fn encode_converted(
        &self,
        stored: &Stored,
        kind: &str,
        encoding: Encoding,
        draft: &Draft,
    ) -> Result<Vec<u8>, ValueError> {
        let ty = self.type_of(&stored.version, kind)?;
        let value = codec::decode_stored(&draft.bytes, ty, &self.registry);
        let value = value.ok_or_else(|| ValueError::new(ValueErrorReason::CorruptDraft))?;
        let target = &stored.reference_version;
        if let Some(ty) = self.registry.kind(&target.group, &target.version, kind) {
            let converted = CONVERSIONS.convert(value, &stored.version, target, kind);
            let converted = converted.map_err(|_| unknown(target, kind))?;
            return Ok(encode_typed(encoding, &self.registry, ty, &converted));
        }
        let (registry, ty) = self
            .earlier
            .definitions()
            .filter(|_| *target.group == *API_EXTENSIONS_GROUP)
            .ok_or_else(|| unknown(target, kind))?;
        Ok(encode_typed(encoding, registry, ty, &definitions::to_v1beta1(value)))
    }

    pub(super) fn decode_builtin(
        &self,
        resource: &Resource,
        key: &Key,
        value: &[u8],
    ) -> Result<Draft, ValueError> {
        let (stored, kind) = (stored(resource)?, &*resource.kind);
        let body = Body::read(value, &self.registry)?;
        if body.kind != kind {
            return Err(body.of_other_kind(kind));
        }
        let mut object = self.decode_in_any_version(stored, kind, &body)?;
        meta::drop_self_link(&mut object);
        let ty = self.type_of(&stored.version, kind)?;
        Ok(builtin_draft(&self.registry, ty, (&stored.version.group, kind), key.clone(), &object))
    }

    /// The object in the stored version, with defaults.
    fn decode_in_any_version(
        &self,
        stored: &Stored,
        kind: &str,
        body: &Body<'_>,
    ) -> Result<Value, ValueError> {
        let from = &body.version;
        // The schemas have some versions that are not served, whose shape CONVERSIONS does not know: those are earlier versions.
        let mut object = match self.earlier.find(from, kind, &stored.version) {
            Some((registry, convert)) => {
                let mut object = convert(body.decode(registry)?);
                object.set("apiVersion", stored.version.to_string());
                self.set_defaults(&stored.version, kind, &mut object)?;
                object
            }
            None => {
                self.type_of(from, kind)?;
                let mut object = body.decode(&self.registry)?;
                self.set_defaults(from, kind, &mut object)?;
                let converted = CONVERSIONS.convert(object, from, &stored.version, kind);
                converted.map_err(|_| unknown(from, kind))?
            }
        };
        // Their mark is that the value lacks them: it is stale.
        kinds::rules(&stored.version.group, kind).defaulting.apply_stored_defaults(&mut object);
        Ok(object)
    }

    /// Sets the defaults of a version.
    fn set_defaults(&self, version: &GroupVersion, kind: &str, object: &mut Value) -> Result<(), ValueError> {
        check_size(object).map_err(|status| ValueError::malformed(&status.message))?;
        kinds::apply_defaults(kinds::rules(&version.group, kind), object, self.features);
        default::apply(&self.registry, self.type_of(version, kind)?, object);
        Ok(())
    }
}

fn stored(resource: &Resource) -> Result<&Stored, ValueError> {
    resource.stored().ok_or_else(|| unknown(&resource.gv, &resource.kind))
}

fn unknown(version: &GroupVersion, kind: &str) -> ValueError {
    ValueError::unknown(&GroupVersionKind::new(&version.group, &version.version, kind))
}
