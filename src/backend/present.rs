//! From stored bytes to responses: version, encoding, and the table or metadata form.
//!
//! Expensive forms (converted versions and other encodings) are cached per object version and shared by all requests. Tables are
//! made every time, because they show ages; a watch event keeps its table.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::print;
use pilothouse_apimachinery::codec::{self, cbor, protobuf};
use pilothouse_apimachinery::convert::convert;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::response_format::{
    IncludeObject, MetaVersion, Representation, ResponseFormat, partial_metadata,
};
use pilothouse_apimachinery::schema::encode::EmptyLists as Telling;
use pilothouse_apimachinery::schema::{Registry, TypeId};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::{INITIAL_EVENTS_BLUEPRINT, INITIAL_EVENTS_END};
use pilothouse_types::object::{Object, Revision, Variant};
use serde_json::value::RawValue;

use super::Call;
use super::objects::Objects;

/// A stored object: JSON of the stored version, and the offset of its fields after kind and apiVersion.
#[derive(Clone, Copy)]
struct Kept<'a> {
    /// What to call it when something is wrong with it.
    key: &'a str,
    bytes: &'a Bytes,
    item_at: usize,
}

impl<'a> Kept<'a> {
    fn of(object: &'a Object) -> Kept<'a> {
        Kept { key: object.key.as_str(), bytes: &object.bytes, item_at: object.item_at() }
    }

    /// The bytes of the metadata, which comes right after kind and apiVersion.
    fn metadata(self) -> Result<&'a [u8]> {
        let broken = || Status::internal(format!("the stored object {:?} has no metadata", self.key));
        let fields = self.bytes.get(self.item_at..).and_then(|fields| fields.strip_prefix(br#""metadata":"#));
        let mut stream =
            serde_json::Deserializer::from_slice(fields.ok_or_else(broken)?).into_iter::<&RawValue>();
        match stream.next() {
            Some(Ok(metadata)) => Ok(metadata.get().as_bytes()),
            _ => Err(broken()),
        }
    }

    fn unreadable(self) -> Box<Status> {
        Status::internal(format!("the stored object {:?} cannot be read", self.key))
    }
}

/// Tells whether a cached form of an object is still useful: those from before a change of the custom definition are not.
pub(crate) fn is_living(resource: &Resource) -> impl Fn(Variant) -> bool {
    let living = resource.custom.as_ref().map(|custom| custom.ordinals.clone());
    move |variant: Variant| {
        living.as_ref().is_none_or(|living| living.contains(&(variant.0 / ResponseFormat::NUMBERS)))
    }
}

/// The cache key of a form of an object.
pub(crate) fn variant(resource: &Resource, form: ResponseFormat) -> Variant {
    Variant(resource.ordinal * ResponseFormat::NUMBERS + form.number())
}

/// Whether objects are sent in this form as they are stored, so that nothing has to be encoded.
pub(crate) fn is_sent_as_stored(resource: &Resource, form: ResponseFormat) -> bool {
    matches!(form.encoding, Encoding::Json | Encoding::Yaml)
        && form.shape == Representation::Whole
        && resource.is_storage_version()
}

impl Objects {
    /// Whether the response of the call is the object as it is stored, so that its size does not matter.
    pub fn shows_verbatim(&self, call: &Call<'_>) -> bool {
        is_sent_as_stored(call.resource, call.form) && call.part().is_ok_and(|part| !part.is_view())
    }

    /// Encodes an object as the response of the call.
    pub fn show(&self, call: &Call<'_>, object: &Object) -> Result<Bytes> {
        let part = call.part()?;
        if !part.is_view() {
            return self.present(call.resource, call.form, object, true);
        }
        let value = self.load(call, object)?;
        let shown = part.read(&value)?;
        self.show_body(call, &shown)
    }

    /// Encodes a subresource of another kind as the response of the call.
    pub fn show_body(&self, call: &Call<'_>, shown: &Value) -> Result<Bytes> {
        let (gv, kind) = call.shown_kind();
        let columns = call.resource.custom.iter().flat_map(|_| print::custom_scale_columns()).collect();
        // Treated as an unstored resource of its own, so that it is shown in its own version.
        let looks = Resource {
            gv: gv.clone(),
            api_version: gv.to_string().into(),
            kind: kind.into(),
            columns,
            stored: None,
            custom: None,
            ..Resource::clone(call.resource)
        };
        self.presented(&looks, call.form, shown, true)
    }

    /// Encodes a value that was never stored: the response of a dry run.
    pub fn show_value(&self, call: &Call<'_>, value: &Value) -> Result<Bytes> {
        self.presented(call.resource, call.form, value, true)
    }

    /// Encodes a value of the stored version in this form. Of an unstored kind, the value has the requested version.
    pub(crate) fn presented(
        &self,
        resource: &Resource,
        form: ResponseFormat,
        value: &Value,
        columns: bool,
    ) -> Result<Bytes> {
        let version = resource.stored.as_ref().map_or(&resource.gv, |stored| &stored.version);
        let bytes = codec::encode(&self.registry, self.type_in(resource, version)?, value);
        let bytes = Bytes::from(bytes);
        let item_at = memchr::memmem::find(&bytes, br#""metadata":"#).unwrap_or(0);
        let kept = Kept { key: meta::name(value), bytes: &bytes, item_at };
        match form.encoding {
            Encoding::Protobuf => {
                let message = self.message(resource, form, kept)?;
                Ok(self.enveloped(resource, form, &message))
            }
            _ => self.made(resource, form, kept, columns),
        }
    }

    /// A bookmark: an object of the kind with nothing but a resourceVersion.
    pub fn bookmark(
        &self,
        resource: &Resource,
        form: ResponseFormat,
        at: Revision,
        initial_end: bool,
        columns: bool,
    ) -> Result<Bytes> {
        let version = resource.stored.as_ref().map_or(&resource.gv, |stored| &stored.version);
        let mut value = Value::object();
        value.set("kind", &*resource.kind);
        value.set("apiVersion", version.to_string());
        value.entry("metadata").set("resourceVersion", at.to_string());
        if initial_end {
            let blueprint = STANDARD.encode(super::list_envelope::blueprint(self, resource, form)?);
            let metadata = value.entry("metadata");
            metadata.entry("annotations").set(INITIAL_EVENTS_END, "true");
            metadata.entry("annotations").set(INITIAL_EVENTS_BLUEPRINT, blueprint);
        }
        let text =
            matches!(form.encoding, Encoding::Json | Encoding::Yaml) && form.shape == Representation::Whole;
        if resource.custom.is_some() && text {
            // Encoded as it is: defaults would be misleading in a bookmark.
            return Ok(Bytes::from(codec::encode(&self.registry, self.registry.free_object(), &value)));
        }
        self.presented(resource, form, &value, columns)
    }

    /// Encodes an object in this form, with its kind. `columns`: a table includes its column definitions.
    pub fn present(
        &self,
        resource: &Resource,
        form: ResponseFormat,
        object: &Object,
        columns: bool,
    ) -> Result<Bytes> {
        match (form.encoding, form.shape) {
            (Encoding::Protobuf, _) => {
                let message = self.protobuf_message(resource, form, object)?;
                Ok(self.enveloped(resource, form, &message))
            }
            (Encoding::Json | Encoding::Yaml, Representation::Whole) if resource.is_storage_version() => {
                Ok(object.bytes.clone())
            }
            (Encoding::Json | Encoding::Yaml, Representation::Whole) if resource.custom.is_some() => object
                .variant(
                    Some(&self.encodings),
                    variant(resource, ResponseFormat::PLAIN),
                    is_living(resource),
                    |object| self.json(resource, Kept::of(object)),
                ),
            (_, Representation::Table(..))
            | (Encoding::Json | Encoding::Yaml, Representation::Metadata(_)) => {
                self.made(resource, form, Kept::of(object), columns)
            }
            _ => object.variant(
                Some(&self.encodings),
                variant(resource, form),
                is_living(resource),
                |object| self.made(resource, form, Kept::of(object), columns),
            ),
        }
    }

    /// The Protobuf message of an object without its envelope: an item of a list. Cached.
    pub fn protobuf_message(
        &self,
        resource: &Resource,
        form: ResponseFormat,
        object: &Object,
    ) -> Result<Bytes> {
        object.variant(Some(&self.encodings), variant(resource, form), is_living(resource), |object| {
            self.message(resource, form, Kept::of(object))
        })
    }

    /// The Protobuf message of an object, for one use: it is not cached, unless it is already.
    pub fn transient_message(
        &self,
        resource: &Resource,
        form: ResponseFormat,
        object: &Object,
    ) -> Result<Bytes> {
        let cached = object.cached_variant(variant(resource, form));
        cached.map_or_else(|| self.message(resource, form, Kept::of(object)), Ok)
    }

    fn message(&self, resource: &Resource, form: ResponseFormat, kept: Kept<'_>) -> Result<Bytes> {
        // An object stored in the requested version is transcoded directly, without building a value.
        if form.shape == Representation::Whole && resource.is_storage_version() {
            let ty = self.type_of(&resource.gv, &resource.kind)?;
            let message = protobuf::transcode(&self.registry, ty, kept.bytes);
            return message.map(Bytes::from).ok_or_else(|| kept.unreadable());
        }
        let (ty, value) = self.shaped(resource, form, kept)?;
        Ok(Bytes::from(protobuf::message(&self.registry, ty, &value)))
    }

    fn enveloped(&self, resource: &Resource, form: ResponseFormat, message: &[u8]) -> Bytes {
        let (api_version, kind) = match form.shape {
            Representation::Metadata(version) => (version.api_version(), "PartialObjectMetadata"),
            _ => (&*resource.api_version, &*resource.kind),
        };
        Bytes::from(protobuf::envelope(api_version, kind, message))
    }

    /// Encodes everything but Protobuf, without the cache.
    fn made(
        &self,
        resource: &Resource,
        form: ResponseFormat,
        kept: Kept<'_>,
        columns: bool,
    ) -> Result<Bytes> {
        if form.encoding == Encoding::Cbor {
            return self.cbor(resource, form, kept, false);
        }
        let json = match form.shape {
            Representation::Whole => self.json(resource, kept)?,
            Representation::Metadata(version) => partial(version, kept)?,
            Representation::Table(version, include) => {
                let value = self.stored_value(resource, kept)?;
                let revision = value.at(&["metadata", "resourceVersion"]).and_then(Value::as_str);
                let list_meta = match revision {
                    Some(revision) => format!(r#"{{"resourceVersion":"{revision}"}}"#),
                    None => "{}".to_owned(),
                };
                let definitions = columns.then(|| print::columns(resource));
                let mut table = Vec::new();
                print::head(&mut table, definitions.as_deref(), version, list_meta.as_bytes());
                let object = self.included(resource, version, include, kept)?;
                self.put_row(resource, &value, object.as_deref(), true, &mut table);
                print::tail(&mut table);
                Bytes::from(table)
            }
        };
        Ok(json)
    }

    /// Encodes an object in CBOR: whole, or as a list item without kind and apiVersion.
    fn cbor(&self, resource: &Resource, form: ResponseFormat, kept: Kept<'_>, item: bool) -> Result<Bytes> {
        let (ty, value) = self.shaped(resource, form, kept)?;
        // Items of custom resources state their kind, because clients may not know it.
        let whole = !item || matches!(form.shape, Representation::Metadata(_)) || resource.custom.is_some();
        Ok(Bytes::from(match whole {
            true => cbor::encode_object(&self.registry, ty, &value, Telling::Kept),
            false => cbor::encode_item(&self.registry, ty, &value),
        }))
    }

    /// Encodes a list item in CBOR.
    pub fn cbor_item(&self, resource: &Resource, form: ResponseFormat, object: &Object) -> Result<Bytes> {
        let bytes = self.cbor(resource, form, Kept::of(object), true)?;
        Ok(match bytes.strip_prefix(&cbor::PREFIX) {
            Some(item) => bytes.slice_ref(item),
            None => bytes,
        })
    }

    /// The object as a value in the requested form, and its type.
    fn shaped(&self, resource: &Resource, form: ResponseFormat, kept: Kept<'_>) -> Result<(TypeId, Value)> {
        match form.shape {
            Representation::Metadata(version) => {
                let ty = partial_type(&self.registry)?;
                Ok((ty, self.value_of(ty, kept, &partial(version, kept)?)?))
            }
            _ => Ok((self.type_in(resource, &resource.gv)?, self.converted(resource, kept)?)),
        }
    }

    /// Whether tables of this kind have an order of their own, for which all objects are decoded.
    pub fn sorts_rows(&self, resource: &Resource) -> bool {
        row_order(resource).is_some()
    }

    /// Sorts the objects of a page in the order of their kind's tables.
    pub fn sort_rows(&self, resource: &Resource, items: &mut Vec<Arc<Object>>) -> Result<()> {
        let Some(order) = row_order(resource) else { return Ok(()) };
        let values = items.iter().map(|object| self.stored_value(resource, Kept::of(object)));
        let values: Vec<Value> = values.collect::<Result<_>>()?;
        let mut rows: Vec<(Value, Arc<Object>)> = values.into_iter().zip(items.drain(..)).collect();
        rows.sort_by(|a, b| order(&a.0, &b.0));
        items.extend(rows.into_iter().map(|(_, object)| object));
        Ok(())
    }

    /// Appends one row to a table.
    pub fn put_table_row(
        &self,
        resource: &Resource,
        (version, include): (MetaVersion, IncludeObject),
        object: &Object,
        is_first: bool,
        table: &mut Vec<u8>,
    ) -> Result<()> {
        let kept = Kept::of(object);
        let value = self.stored_value(resource, kept)?;
        let object = self.included(resource, version, include, kept)?;
        self.put_row(resource, &value, object.as_deref(), is_first, table);
        Ok(())
    }

    /// The `object` of a table row.
    fn included(
        &self,
        resource: &Resource,
        version: MetaVersion,
        include: IncludeObject,
        kept: Kept<'_>,
    ) -> Result<Option<Bytes>> {
        match include {
            IncludeObject::None => Ok(None),
            IncludeObject::Metadata => partial(version, kept).map(Some),
            IncludeObject::Object => self.json(resource, kept).map(Some),
        }
    }

    fn put_row(
        &self,
        resource: &Resource,
        value: &Value,
        object: Option<&[u8]>,
        is_first: bool,
        table: &mut Vec<u8>,
    ) {
        let group = resource.stored.as_ref().map_or(&resource.gv.group, |stored| &stored.version.group);
        let now = self.clock.now().unix_seconds();
        let cells = print::cells_of(resource, value, now);
        let completion = print::completion(group, &resource.kind, value);
        print::row(table, is_first, &cells, completion, object);
    }

    /// The object in JSON of the requested version.
    fn json(&self, resource: &Resource, kept: Kept<'_>) -> Result<Bytes> {
        if resource.is_storage_version() {
            return Ok(kept.bytes.clone());
        }
        let value = self.converted(resource, kept)?;
        let made = codec::encode(&self.registry, self.type_in(resource, &resource.gv)?, &value);
        // If the result equals the stored bytes, share those.
        Ok(if *made == **kept.bytes { kept.bytes.clone() } else { Bytes::from(made) })
    }

    /// The schema type of a resource in one of its versions.
    fn type_in(&self, resource: &Resource, version: &GroupVersion) -> Result<TypeId> {
        match resource.custom {
            Some(_) => Ok(self.registry.free_object()),
            None => self.type_of(version, &resource.kind),
        }
    }

    /// The object as a value of the requested version.
    fn converted(&self, resource: &Resource, kept: Kept<'_>) -> Result<Value> {
        let value = self.stored_value(resource, kept)?;
        match &resource.stored {
            Some(stored) => self.convert(value, &stored.version, &resource.gv, &resource.kind),
            None => Ok(value),
        }
    }

    fn stored_value(&self, resource: &Resource, kept: Kept<'_>) -> Result<Value> {
        if let Some(custom) = &resource.custom {
            return custom.read(kept.bytes).ok_or_else(|| kept.unreadable());
        }
        let version = resource.stored.as_ref().map_or(&resource.gv, |stored| &stored.version);
        self.value_of(self.type_of(version, &resource.kind)?, kept, kept.bytes)
    }

    /// The bytes of an object, or what was made of them, as a value.
    fn value_of(&self, ty: TypeId, kept: Kept<'_>, bytes: &[u8]) -> Result<Value> {
        codec::decode_stored(bytes, ty, &self.registry).ok_or_else(|| kept.unreadable())
    }

    /// Converts a value between versions of a kind.
    pub(crate) fn convert(
        &self,
        value: Value,
        from: &GroupVersion,
        to: &GroupVersion,
        kind: &str,
    ) -> Result<Value> {
        convert(value, from, to, kind).map_err(|error| Status::internal(error.to_string()))
    }
}

/// The PartialObjectMetadata of an object.
fn partial(version: MetaVersion, kept: Kept<'_>) -> Result<Bytes> {
    let metadata = partial_metadata::metadata(kept.bytes, kept.metadata()?);
    let mut json = BytesMut::with_capacity(metadata.len() + 80);
    json.put_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":""#);
    json.put_slice(version.api_version().as_bytes());
    json.put_slice(br#"","metadata":"#);
    json.put_slice(&metadata);
    json.put_u8(b'}');
    Ok(json.freeze())
}

/// The order of the tables of a kind, if they have one of their own.
fn row_order(resource: &Resource) -> Option<fn(&Value, &Value) -> std::cmp::Ordering> {
    let group = resource.stored.as_ref().map_or("", |stored| &stored.version.group);
    print::row_order(group, &resource.kind)
}

/// Both versions of PartialObjectMetadata share one type; the apiVersion tells them apart.
fn partial_type(registry: &Registry) -> Result<TypeId> {
    let found = registry.meta("PartialObjectMetadata");
    found.ok_or_else(|| Status::internal("no schema for PartialObjectMetadata".to_owned()))
}
