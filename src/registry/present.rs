//! From stored bytes to responses: version, encoding, and the table or metadata form.
//!
//! Expensive forms (converted versions and other encodings) are cached per object version and shared by all requests. Rows of
//! listed tables are cached without their ages; a watch event keeps its table.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use pilothouse_api::catalog::backing::Backing;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::print::{self, KeptRow};
use pilothouse_apimachinery::codec::{self, cbor, protobuf};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::response_format::{
    IncludeObject, MetaVersion, Representation, ResponseFormat, partial_metadata,
};
use pilothouse_apimachinery::schema::encode::EmptyLists;
use pilothouse_apimachinery::schema::{Registry, TypeId};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::{INITIAL_EVENTS_BLUEPRINT, INITIAL_EVENTS_END};
use pilothouse_kinds::CONVERSIONS;
use pilothouse_types::object::{Object, Revision, Variant};
use serde_json::value::RawValue;

use super::Call;
use super::objects::Objects;

/// A stored object: JSON of the stored version, and the offset of its fields after kind and apiVersion.
#[derive(Clone, Copy)]
struct StoredJson<'a> {
    /// For error messages.
    key: &'a str,
    bytes: &'a Bytes,
    fields_offset: usize,
}

impl<'a> StoredJson<'a> {
    fn from_object(object: &'a Object) -> StoredJson<'a> {
        StoredJson { key: object.key.as_str(), bytes: &object.bytes, fields_offset: object.item_offset() }
    }

    /// The bytes of the metadata, which comes right after kind and apiVersion.
    fn metadata(self) -> Result<&'a [u8]> {
        let no_metadata = || Status::internal(format!("the stored object {:?} has no metadata", self.key));
        let fields =
            self.bytes.get(self.fields_offset..).and_then(|fields| fields.strip_prefix(br#""metadata":"#));
        let mut stream =
            serde_json::Deserializer::from_slice(fields.ok_or_else(no_metadata)?).into_iter::<&RawValue>();
        match stream.next() {
            Some(Ok(metadata)) => Ok(metadata.get().as_bytes()),
            _ => Err(no_metadata()),
        }
    }

    fn unreadable(self) -> Box<Status> {
        Status::internal(format!("the stored object {:?} cannot be read", self.key))
    }
}

/// Tells whether a cached variant of an object is still valid: those from before a change of its definition are not.
pub(crate) fn is_current_variant(resource: &Resource) -> impl Fn(Variant) -> bool {
    let ordinals = resource.custom.as_ref().map(|custom| custom.ordinals.clone());
    move |variant: Variant| {
        ordinals.as_ref().is_none_or(|ordinals| ordinals.contains(&(variant.0 / ResponseFormat::NUMBERS)))
    }
}

/// The cache key of an object in this format.
pub(crate) fn variant(resource: &Resource, response_format: ResponseFormat) -> Variant {
    Variant(resource.ordinal * ResponseFormat::NUMBERS + response_format.number())
}

/// Whether objects in this format are sent as stored, without encoding.
pub(crate) fn is_sent_as_stored(resource: &Resource, response_format: ResponseFormat) -> bool {
    matches!(response_format.encoding, Encoding::Json | Encoding::Yaml)
        && response_format.shape == Representation::Whole
        && resource.is_storage_version()
}

impl Objects {
    /// Whether the response of the call is the object as stored. Then its size does not matter, because nothing is encoded.
    pub fn responds_as_stored(&self, call: &Call<'_>) -> bool {
        is_sent_as_stored(call.resource(), call.response_format)
            && call.subresource_strategy().is_ok_and(|strategy| !strategy.is_view())
    }

    /// Encodes an object as the response of the call.
    pub fn encode_object(&self, call: &Call<'_>, object: &Object) -> Result<Bytes> {
        let strategy = call.subresource_strategy()?;
        if !strategy.is_view() {
            return self.encode(call.resource(), call.response_format, object, true);
        }
        let value = self.load(call, object)?;
        let view = strategy.read(&value)?;
        self.encode_view(call, &view)
    }

    /// Encodes a subresource of another kind as the response of the call.
    pub fn encode_view(&self, call: &Call<'_>, view: &Value) -> Result<Bytes> {
        let (gv, kind) = call.body_kind();
        let columns = call.resource().custom.iter().flat_map(|_| print::custom_scale_columns()).collect();
        // Treated as an unstored resource of its own, so that it is encoded in its own version.
        let resource = Resource {
            gv: gv.clone(),
            api_version: gv.to_string().into(),
            kind: kind.into(),
            columns,
            backing: Backing::Unserved,
            custom: None,
            ..Resource::clone(call.resource())
        };
        self.encode_value(&resource, call.response_format, view, true)
    }

    /// Encodes a value that was not stored, such as the response of a dry run.
    pub fn encode_unstored(&self, call: &Call<'_>, value: &Value) -> Result<Bytes> {
        self.encode_value(call.resource(), call.response_format, value, true)
    }

    /// Encodes a value. It has the stored version, or the requested one if the kind is not stored.
    pub(crate) fn encode_value(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        value: &Value,
        columns: bool,
    ) -> Result<Bytes> {
        let version = resource.stored().map_or(&resource.gv, |stored| &stored.version);
        let bytes = codec::encode(&self.registry, self.type_in_version(resource, version)?, value);
        let bytes = Bytes::from(bytes);
        let fields_offset = memchr::memmem::find(&bytes, br#""metadata":"#).unwrap_or(0);
        let source = StoredJson { key: meta::name(value), bytes: &bytes, fields_offset };
        match response_format.encoding {
            Encoding::Protobuf => {
                let bytes = self.encode_message(resource, response_format, source)?;
                Ok(self.wrap_protobuf(resource, response_format, &bytes))
            }
            _ => self.encode_uncached(resource, response_format, source, columns),
        }
    }

    /// A bookmark: an object of the kind with nothing but a resourceVersion.
    pub fn bookmark(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        revision: Revision,
        initial_end: bool,
        columns: bool,
    ) -> Result<Bytes> {
        let version = resource.stored().map_or(&resource.gv, |stored| &stored.version);
        let mut value = Value::object();
        value.set("kind", &*resource.kind);
        value.set("apiVersion", version.to_string());
        value.entry("metadata").set("resourceVersion", revision.to_string());
        if initial_end {
            let blueprint =
                STANDARD.encode(super::list_envelope::blueprint(self, resource, response_format)?);
            let metadata = value.entry("metadata");
            metadata.entry("annotations").set(INITIAL_EVENTS_END, "true");
            metadata.entry("annotations").set(INITIAL_EVENTS_BLUEPRINT, blueprint);
        }
        let is_text = matches!(response_format.encoding, Encoding::Json | Encoding::Yaml)
            && response_format.shape == Representation::Whole;
        if resource.custom.is_some() && is_text {
            // Encoded without a schema: its defaults would be misleading in a bookmark.
            return Ok(Bytes::from(codec::encode(&self.registry, self.registry.free_object(), &value)));
        }
        self.encode_value(resource, response_format, &value, columns)
    }

    /// Encodes an object with its kind. `columns`: a table includes its column definitions.
    pub fn encode(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        object: &Object,
        columns: bool,
    ) -> Result<Bytes> {
        match (response_format.encoding, response_format.shape) {
            (Encoding::Protobuf, _) => {
                let bytes = self.protobuf_message(resource, response_format, object)?;
                Ok(self.wrap_protobuf(resource, response_format, &bytes))
            }
            (Encoding::Json | Encoding::Yaml, Representation::Whole) if resource.is_storage_version() => {
                Ok(object.bytes.clone())
            }
            (Encoding::Json | Encoding::Yaml, Representation::Whole) if resource.custom.is_some() => object
                .variant(
                    Some(&self.encodings),
                    variant(resource, ResponseFormat::PLAIN),
                    is_current_variant(resource),
                    |object| self.json(resource, StoredJson::from_object(object)),
                ),
            (_, Representation::Table(..))
            | (Encoding::Json | Encoding::Yaml, Representation::Metadata(_)) => {
                self.encode_uncached(resource, response_format, StoredJson::from_object(object), columns)
            }
            _ => object.variant(
                Some(&self.encodings),
                variant(resource, response_format),
                is_current_variant(resource),
                |object| {
                    self.encode_uncached(resource, response_format, StoredJson::from_object(object), columns)
                },
            ),
        }
    }

    /// The Protobuf message of an object without its envelope: an item of a list. Cached.
    pub fn protobuf_message(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        object: &Object,
    ) -> Result<Bytes> {
        object.variant(
            Some(&self.encodings),
            variant(resource, response_format),
            is_current_variant(resource),
            |object| self.encode_message(resource, response_format, StoredJson::from_object(object)),
        )
    }

    /// The Protobuf message of an object, from the cache if it is there, but without adding it.
    pub fn transient_message(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        object: &Object,
    ) -> Result<Bytes> {
        let cached = object.cached_variant(variant(resource, response_format));
        cached.map_or_else(
            || self.encode_message(resource, response_format, StoredJson::from_object(object)),
            Ok,
        )
    }

    fn encode_message(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        source: StoredJson<'_>,
    ) -> Result<Bytes> {
        // An object stored in the requested version is transcoded directly, without building a value.
        if response_format.shape == Representation::Whole && resource.is_storage_version() {
            let ty = self.type_of(&resource.gv, &resource.kind)?;
            let bytes = protobuf::transcode(&self.registry, ty, source.bytes);
            return bytes.map(Bytes::from).ok_or_else(|| source.unreadable());
        }
        let (ty, value) = self.value_in_representation(resource, response_format, source)?;
        Ok(Bytes::from(protobuf::message(&self.registry, ty, &value)))
    }

    fn wrap_protobuf(&self, resource: &Resource, response_format: ResponseFormat, bytes: &[u8]) -> Bytes {
        let (api_version, kind) = match response_format.shape {
            Representation::Metadata(version) => (version.api_version(), "PartialObjectMetadata"),
            _ => (&*resource.api_version, &*resource.kind),
        };
        Bytes::from(protobuf::envelope(api_version, kind, bytes))
    }

    /// Encodes everything but Protobuf, without the cache.
    fn encode_uncached(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        source: StoredJson<'_>,
        columns: bool,
    ) -> Result<Bytes> {
        if response_format.encoding == Encoding::Cbor {
            return self.cbor(resource, response_format, source, false);
        }
        let json = match response_format.shape {
            Representation::Whole => self.json(resource, source)?,
            Representation::Metadata(version) => partial_metadata_json(version, source)?,
            Representation::Table(version, include) => {
                let value = self.stored_value(resource, source)?;
                let revision = value.get_path(&["metadata", "resourceVersion"]).and_then(Value::as_str);
                let list_meta = match revision {
                    Some(revision) => format!(r#"{{"resourceVersion":"{revision}"}}"#),
                    None => "{}".to_owned(),
                };
                let definitions = columns.then(|| print::columns(resource));
                let mut table = Vec::new();
                print::head(&mut table, definitions.as_deref(), version, list_meta.as_bytes());
                let object = self.row_object(resource, version, include, source)?;
                let now = self.clock.now().unix_seconds();
                print::object_row(&mut table, resource, &value, object.as_deref(), now);
                print::tail(&mut table);
                Bytes::from(table)
            }
        };
        Ok(json)
    }

    /// Encodes an object in CBOR: whole, or as a list item without kind and apiVersion.
    fn cbor(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        source: StoredJson<'_>,
        item: bool,
    ) -> Result<Bytes> {
        let (ty, value) = self.value_in_representation(resource, response_format, source)?;
        // Items of custom resources state their kind, because clients may not know it.
        let whole = !item
            || matches!(response_format.shape, Representation::Metadata(_))
            || resource.custom.is_some();
        Ok(Bytes::from(match whole {
            true => cbor::encode_object(&self.registry, ty, &value, EmptyLists::AsStored),
            false => cbor::encode_item(&self.registry, ty, &value),
        }))
    }

    /// Encodes a list item in CBOR.
    pub fn cbor_item(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        object: &Object,
    ) -> Result<Bytes> {
        let bytes = self.cbor(resource, response_format, StoredJson::from_object(object), true)?;
        Ok(match bytes.strip_prefix(&cbor::PREFIX) {
            Some(item) => bytes.slice_ref(item),
            None => bytes,
        })
    }

    /// The object or its metadata as a value, and its type.
    fn value_in_representation(
        &self,
        resource: &Resource,
        response_format: ResponseFormat,
        source: StoredJson<'_>,
    ) -> Result<(TypeId, Value)> {
        match response_format.shape {
            Representation::Metadata(version) => {
                let ty = partial_type(&self.registry)?;
                Ok((ty, self.decode_json(ty, source, &partial_metadata_json(version, source)?)?))
            }
            _ => Ok((self.type_in_version(resource, &resource.gv)?, self.requested_value(resource, source)?)),
        }
    }

    /// Whether rows of this kind are sorted, which requires decoding all objects.
    pub fn sorts_rows(&self, resource: &Resource) -> bool {
        row_order(resource).is_some()
    }

    /// Sorts the objects of a page by the row order of their kind.
    pub fn sort_rows(&self, resource: &Resource, items: &mut Vec<Arc<Object>>) -> Result<()> {
        let Some(order) = row_order(resource) else { return Ok(()) };
        let values = items.iter().map(|object| self.stored_value(resource, StoredJson::from_object(object)));
        let values: Vec<Value> = values.collect::<Result<_>>()?;
        let mut rows: Vec<(Value, Arc<Object>)> = values.into_iter().zip(items.drain(..)).collect();
        rows.sort_by(|a, b| order(&a.0, &b.0));
        items.extend(rows.into_iter().map(|(_, object)| object));
        Ok(())
    }

    /// The row of an object in a table.
    pub fn encode_row(
        &self,
        resource: &Resource,
        version: MetaVersion,
        include: IncludeObject,
        object: &Object,
    ) -> Result<Vec<u8>> {
        let source = StoredJson::from_object(object);
        let whole = self.row_object(resource, version, include, source)?;
        let (mut row, now) = (Vec::new(), self.clock.now().unix_seconds());
        // All tables share its cells. Nothing else is cached under this format: `encode` never caches tables.
        let shape = Representation::Table(MetaVersion::V1, IncludeObject::None);
        let variant = variant(resource, ResponseFormat { encoding: Encoding::Json, shape });
        let kept = object.variant(Some(&self.encodings), variant, is_current_variant(resource), |_| {
            self.kept_row(resource, source)
        })?;
        if kept.is_empty() {
            print::object_row(
                &mut row,
                resource,
                &self.stored_value(resource, source)?,
                whole.as_deref(),
                now,
            );
        } else {
            KeptRow::from_bytes(kept).write(&mut row, whole.as_deref(), now);
        }
        Ok(row)
    }

    /// The row of an object without its ages; empty for one that cannot be kept.
    fn kept_row(&self, resource: &Resource, source: StoredJson<'_>) -> Result<Bytes> {
        let kept = KeptRow::new(resource, &self.stored_value(resource, source)?, source.bytes);
        Ok(kept.map_or_else(Bytes::new, |kept| kept.bytes().clone()))
    }

    /// The `object` of a table row.
    fn row_object(
        &self,
        resource: &Resource,
        version: MetaVersion,
        include: IncludeObject,
        source: StoredJson<'_>,
    ) -> Result<Option<Bytes>> {
        match include {
            IncludeObject::None => Ok(None),
            IncludeObject::Metadata => partial_metadata_json(version, source).map(Some),
            IncludeObject::Object => self.json(resource, source).map(Some),
        }
    }

    /// The object in JSON of the requested version.
    fn json(&self, resource: &Resource, source: StoredJson<'_>) -> Result<Bytes> {
        if resource.is_storage_version() {
            return Ok(source.bytes.clone());
        }
        let value = self.requested_value(resource, source)?;
        let encoded = codec::encode(&self.registry, self.type_in_version(resource, &resource.gv)?, &value);
        // If the result equals the stored bytes, share those.
        Ok(if *encoded == **source.bytes { source.bytes.clone() } else { Bytes::from(encoded) })
    }

    /// The schema type of a resource in one of its versions.
    fn type_in_version(&self, resource: &Resource, version: &GroupVersion) -> Result<TypeId> {
        match resource.custom {
            Some(_) => Ok(self.registry.free_object()),
            None => self.type_of(version, &resource.kind),
        }
    }

    /// The object as a value of the requested version.
    fn requested_value(&self, resource: &Resource, source: StoredJson<'_>) -> Result<Value> {
        let value = self.stored_value(resource, source)?;
        match resource.stored() {
            Some(stored) => self.convert(value, &stored.version, &resource.gv, &resource.kind),
            None => Ok(value),
        }
    }

    fn stored_value(&self, resource: &Resource, source: StoredJson<'_>) -> Result<Value> {
        if let Some(custom) = &resource.custom {
            return custom.read(source.bytes).ok_or_else(|| source.unreadable());
        }
        let version = resource.stored().map_or(&resource.gv, |stored| &stored.version);
        self.decode_json(self.type_of(version, &resource.kind)?, source, source.bytes)
    }

    /// Decodes JSON that stems from `source`.
    fn decode_json(&self, ty: TypeId, source: StoredJson<'_>, bytes: &[u8]) -> Result<Value> {
        codec::decode_stored(bytes, ty, &self.registry).ok_or_else(|| source.unreadable())
    }

    /// Converts a value between versions of a kind.
    pub(crate) fn convert(
        &self,
        value: Value,
        from: &GroupVersion,
        to: &GroupVersion,
        kind: &str,
    ) -> Result<Value> {
        CONVERSIONS.convert(value, from, to, kind).map_err(|error| Status::internal(error.to_string()))
    }
}

/// The PartialObjectMetadata of an object.
fn partial_metadata_json(version: MetaVersion, source: StoredJson<'_>) -> Result<Bytes> {
    let metadata = partial_metadata::metadata(source.bytes, source.metadata()?);
    let mut json = BytesMut::with_capacity(metadata.len() + 80);
    json.put_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":""#);
    json.put_slice(version.api_version().as_bytes());
    json.put_slice(br#"","metadata":"#);
    json.put_slice(&metadata);
    json.put_u8(b'}');
    Ok(json.freeze())
}

/// The row order of a kind, if it has one.
fn row_order(resource: &Resource) -> Option<fn(&Value, &Value) -> std::cmp::Ordering> {
    let group = resource.stored().map_or("", |stored| &stored.version.group);
    print::row_order(group, &resource.kind)
}

/// Both versions of PartialObjectMetadata share one type; the apiVersion tells them apart.
fn partial_type(registry: &Registry) -> Result<TypeId> {
    let ty = registry.meta("PartialObjectMetadata");
    ty.ok_or_else(|| Status::internal("no schema for PartialObjectMetadata".to_owned()))
}
