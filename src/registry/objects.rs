//! Decodes and encodes objects: request bodies, values, and stored objects.

use std::sync::Arc;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom_resource;
use pilothouse_api::draft::{build_draft, builtin_draft, check_size};
use pilothouse_api::subresources;
use pilothouse_apimachinery::codec::{self, Decoded};
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::options::{DeleteOptions, FieldValidation};
use pilothouse_apimachinery::patch::Coerce as _;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry, TypeId, default};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::META_GROUP;
use pilothouse_kinds as kinds;
use pilothouse_types::clock::Clock;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::{Draft, Key, Object};

use super::Call;
use super::declarative_validation::DeclarativeValidation;

/// Decodes, defaults, converts, validates and encodes objects, and records field ownership. Synchronous, without access to stores
/// or other servers. One per worker.
pub struct Objects {
    /// The schemas of all built-in kinds.
    pub registry: Arc<Registry>,
    /// Feature gates and settings that change the rules of kinds.
    pub features: EnabledFeatures,
    /// Whether DeleteOptions may ask to delete an object that cannot be read.
    pub allows_unsafe_deletion: bool,
    /// Settings of declarative validation.
    pub validation: DeclarativeValidation,
    /// The clock. Tests replace it.
    pub clock: Clock,
    /// The memory of encodings that are cached with their objects.
    pub encodings: MemoryBudget,
}

/// Checks a body of a custom resource with another apiVersion for unknown fields: their error takes precedence.
fn unknown_fields_in_other_version(
    call: &Call<'_>,
    kind: &GroupVersionKind,
    validation: FieldValidation,
) -> Option<Box<Status>> {
    let custom = call.custom().filter(|_| call.body.encoding == Encoding::Json)?;
    let mut value = json::read(&call.body.bytes).ok()?;
    let api_version = value.str("apiVersion").to_owned();
    if value.str("kind").is_empty() || api_version == kind.api_version() {
        return None;
    }
    let unknown = custom.unknown_fields_in(&api_version, &mut value);
    match validation {
        FieldValidation::Ignore => None,
        FieldValidation::Warn => {
            warn(call, &unknown);
            None
        }
        FieldValidation::Strict => {
            let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
            let kind = GroupVersionKind::new(group, version, &kind.kind);
            (!unknown.is_empty()).then(|| Status::bad_request(codec::strict_refusal(&kind, &unknown).message))
        }
    }
}

impl Objects {
    /// The schemas for a resource, its own and all built-in ones.
    pub fn registry_of<'a>(&'a self, resource: &'a Resource) -> &'a Registry {
        resource.custom.as_ref().map_or(&*self.registry, |custom| &*custom.registry)
    }

    /// The current time in the format of objects.
    pub fn now(&self) -> String {
        time::format_seconds(self.clock.now().unix_seconds())
    }

    /// Decodes the body as [`Call::body_kind`], applies defaults and converts it to the stored version. Adds warnings about
    /// unknown and duplicate fields.
    pub fn decode_body(&self, call: &Call<'_>, validation: FieldValidation) -> Result<Value> {
        let decoded = self.decode_strict(call, validation);
        // The reference has only one message for an invalid scale of a custom resource.
        let value = match decoded {
            Err(status) if call.is_custom_scale() && status.code == 400 => {
                return Err(Status::bad_request(codec::NO_CUSTOM_SCALE));
            }
            decoded => decoded?,
        };
        let stored = self.to_stored(call, value)?;
        self.record_body(call, &stored);
        Ok(stored)
    }

    /// Decodes the body as [`Call::body_kind`] without defaulting, and handles unknown fields as requested.
    fn decode_strict(&self, call: &Call<'_>, validation: FieldValidation) -> Result<Value> {
        let (gv, name) = call.body_kind();
        let kind = GroupVersionKind::new(&gv.group, &gv.version, name);
        let decoded = self.decode(call, &kind).or_else(|error| {
            let older = subresources::eviction::older_version(&kind).ok_or_else(|| error.clone())?;
            let decoded = self.decode_any_version(call, &kind).ok();
            decoded.filter(|decoded| decoded.value.str("apiVersion") == older).ok_or(error)
        });
        let Decoded { mut value, mut strict } = decoded
            .map_err(|error| unknown_fields_in_other_version(call, &kind, validation).unwrap_or(error))?;
        if let Some(custom) = call.custom() {
            let coerced = custom.coerce(&mut value);
            strict.extend(coerced.map_err(|reason| Status::bad_request(codec::not_handled(&kind, &reason)))?);
        }
        match validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => warn(call, &strict),
            FieldValidation::Strict if strict.is_empty() => {}
            FieldValidation::Strict => {
                return Err(Status::bad_request(codec::strict_refusal(&kind, &strict).message));
            }
        }
        Ok(value)
    }

    /// Applies defaults to a value in the version of the request and converts it to the stored version.
    pub fn to_stored(&self, call: &Call<'_>, mut value: Value) -> Result<Value> {
        check_size(&value)?;
        if let Some(custom) = call.custom() {
            if !custom.set_defaults(&mut value) {
                return Err(Status::too_large("the defaults of the object are too large"));
            }
            return Ok(value);
        }
        // The kind's own defaulting comes first: it can still see which fields the client omitted.
        let (gv, name) = call.body_kind();
        kinds::apply_defaults(kinds::rules(&gv.group, name), &mut value, self.features);
        default::apply(&self.registry, self.type_of(gv, name)?, &mut value);
        // A subresource of another kind is not stored in that form.
        if *name != *call.resource().kind {
            return Ok(value);
        }
        self.convert(value, gv, &call.stored().version, name)
    }

    /// Converts a value from the stored version to the version of the request.
    pub fn to_requested(&self, call: &Call<'_>, value: Value) -> Result<Value> {
        let (gv, name) = call.body_kind();
        if *name != *call.resource().kind {
            return Ok(value);
        }
        self.convert(value, &call.stored().version, gv, name)
    }

    fn decode(&self, call: &Call<'_>, kind: &GroupVersionKind) -> Result<Decoded> {
        let registry = self.registry_of(call.resource());
        let decoded = match call.body.encoding {
            Encoding::Json => codec::decode_object(&call.body.bytes, kind, registry),
            Encoding::Yaml => codec::yaml::decode_object(&call.body.bytes, kind, registry),
            Encoding::Protobuf if call.custom().is_some() => {
                return Err(Status::bad_request(codec::not_handled(kind, codec::NO_PROTOBUF)));
            }
            Encoding::Protobuf => codec::protobuf::decode_object(&call.body.bytes, kind, registry),
            Encoding::Cbor => codec::cbor::decode_object(&call.body.bytes, kind, registry),
        };
        decoded.map_err(|error| Status::bad_request(error.message))
    }

    /// Decodes a body that may have any version of its kind.
    fn decode_any_version(&self, call: &Call<'_>, kind: &GroupVersionKind) -> Result<Decoded> {
        let decoded = match call.body.encoding {
            Encoding::Json => codec::decode_any_version(&call.body.bytes, kind, &self.registry),
            Encoding::Yaml => codec::yaml::decode_object(&call.body.bytes, kind, &self.registry),
            Encoding::Protobuf => codec::protobuf::decode_any_version(&call.body.bytes, kind, &self.registry),
            Encoding::Cbor => codec::cbor::decode_any_version(&call.body.bytes, kind, &self.registry),
        };
        decoded.map_err(|error| Status::bad_request(error.message))
    }

    /// The options of a deletion: from the body if there is one, else from the query.
    pub fn delete_options(&self, call: &Call<'_>) -> Result<DeleteOptions> {
        let force = self.allows_unsafe_deletion;
        if call.body.bytes.is_empty() {
            return DeleteOptions::parse(call.query, None, force);
        }
        // Every group version has its own DeleteOptions: the body may name any of them.
        let kind = GroupVersionKind::new(META_GROUP, "v1", "DeleteOptions");
        let options = self.decode_any_version(call, &kind)?;
        self.record_options(call, &options.value);
        DeleteOptions::parse(call.query, Some(&options.value), force)
    }

    /// The schema type of a built-in kind.
    pub(crate) fn type_of(&self, gv: &GroupVersion, kind: &str) -> Result<TypeId> {
        let ty = self.registry.kind(&gv.group, &gv.version, kind);
        ty.ok_or_else(|| Status::internal(format!("no schema for {kind} of {gv}")))
    }

    /// Decodes a stored object in the stored version.
    pub fn load(&self, call: &Call<'_>, object: &Object) -> Result<Value> {
        self.load_one(call.resource(), object).ok_or_else(|| call.unreadable(object))
    }

    /// Decodes a stored object in the stored version; `None` if it is corrupt.
    fn load_one(&self, resource: &Resource, object: &Object) -> Option<Value> {
        if let Some(custom) = &resource.custom {
            return custom.read(&object.bytes);
        }
        let version = resource.stored().map_or(&resource.gv, |stored| &stored.version);
        codec::decode_stored(&object.bytes, self.type_of(version, &resource.kind).ok()?, &self.registry)
    }

    /// Decodes a stored object of any resource in the stored version.
    pub fn load_resource(&self, resource: &Resource, object: &Object) -> Result<Value> {
        let unreadable = || Status::internal(format!("the stored object {:?} cannot be read", object.key));
        self.load_one(resource, object).ok_or_else(unreadable)
    }

    /// Decodes a stored object of another kind than the call's, in its stored version.
    pub fn load_kind(&self, version: &GroupVersion, kind: &str, object: &Object) -> Result<Value> {
        self.load_as(self.type_of(version, kind)?, object)
    }

    fn load_as(&self, ty: TypeId, object: &Object) -> Result<Value> {
        codec::decode_stored(&object.bytes, ty, &self.registry)
            .ok_or_else(|| Status::internal(format!("the stored object {:?} cannot be read", object.key)))
    }

    /// Encodes a value of the stored version for the store.
    pub fn draft(&self, call: &Call<'_>, key: Key, value: &Value) -> Result<Draft> {
        if let Some(custom) = &call.resource().custom {
            return Ok(build_draft(
                custom_resource::encode_stored(custom, value),
                key,
                value,
                custom.stored_fields(value),
            ));
        }
        self.draft_kind(&call.stored().version, &call.resource().kind, key, value)
    }

    /// Encodes a value of another kind than the call's, in its stored version.
    pub fn draft_kind(&self, version: &GroupVersion, kind: &str, key: Key, value: &Value) -> Result<Draft> {
        let ty = self.type_of(version, kind)?;
        Ok(builtin_draft(&self.registry, ty, (&version.group, kind), key, value))
    }
}

/// Reports strict decoding errors as warnings. The first line of a list of errors only announces them.
fn warn(call: &Call<'_>, strict: &[String]) {
    for error in strict {
        match error.split_once('\n') {
            Some((_, errors)) => errors.lines().for_each(|error| call.warnings.add(error.trim())),
            None => call.warnings.add(error.as_str()),
        }
    }
}
