//! Converts the object of a write to the version that a webhook or policy uses, and back to the stored version.

use std::sync::Arc;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom_resource::CustomResource;
use pilothouse_api::draft::check_size;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::patch::Coerce as _;
use pilothouse_apimachinery::schema::decode::Decoded;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry, TypeId, default};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_kinds as kinds;

use super::{Operation, Write, versioned};

/// The object of a write in the version of a webhook or policy.
pub struct View<'a> {
    /// The write.
    pub write: &'a Write<'a>,
    /// The resource in that version.
    pub resource: Arc<Resource>,
    /// Its kind, or that of the subresource.
    pub kind: GroupVersionKind,
}

impl<'a> View<'a> {
    /// The view in the version of a resource.
    pub fn new(write: &'a Write<'a>, resource: Arc<Resource>) -> View<'a> {
        let (gv, kind) = versioned::kind(&resource, write.call.subresource());
        let kind = GroupVersionKind::new(&gv.group, &gv.version, kind);
        View { write, kind, resource }
    }

    /// The new and the old object; see [`versioned::states`].
    pub async fn states(&self, object: &Value) -> Result<(Value, Value)> {
        versioned::states(self.write, object, &self.resource).await
    }

    /// The definition of the kind, if it is a custom one.
    fn custom(&self) -> Option<&CustomResource> {
        self.resource.custom.as_deref().filter(|_| *self.resource.kind == *self.kind.kind)
    }

    fn version(&self) -> GroupVersion {
        GroupVersion::new(&self.kind.group, &self.kind.version)
    }

    fn type_id(&self) -> Result<TypeId> {
        match self.custom() {
            Some(_) => Ok(self.write.backend.objects.registry.free_object()),
            None => self.write.backend.objects.type_of(&self.version(), &self.kind.kind),
        }
    }

    /// The schemas of the resource.
    pub fn registry(&self) -> &Registry {
        self.write.backend.objects.registry_of(&self.resource)
    }

    /// The schema type for apply configurations. There is none for connecting subresources, and for subresources with a kind of
    /// another group.
    pub fn configuration_type(&self) -> Option<TypeId> {
        if self.write.operation == Operation::Connect || self.version() != self.resource.gv {
            return None;
        }
        self.registry().described(&self.kind.group, &self.kind.version, &self.kind.kind)
    }

    /// Decodes an object in this version.
    pub fn decode(&self, text: &[u8]) -> Result<Decoded> {
        let decoded = codec::decode_object(text, &self.kind, self.registry());
        decoded.map_err(|error| Status::internal(error.detail))
    }

    /// Applies the defaults of the kind.
    pub fn apply_defaults(&self, mut value: Value) -> Result<Value> {
        if let Some(custom) = self.custom() {
            custom.coerce(&mut value).map_err(Status::internal)?;
            if !custom.set_defaults(&mut value) {
                return Err(Status::too_large("the defaults of the object are too large"));
            }
            return Ok(value);
        }
        check_size(&value)?;
        let backend = self.write.backend;
        kinds::apply_defaults(
            kinds::rules(&self.kind.group, &self.kind.kind),
            &mut value,
            backend.objects.features,
        );
        default::apply(&backend.objects.registry, self.type_id()?, &mut value);
        Ok(value)
    }

    /// Adds the fields that clients of this version see, to a value with defaults.
    pub fn complete(&self, value: &Value) -> Result<Value> {
        match self.custom() {
            Some(_) => Ok(versioned::with_kind(value.clone(), &self.version(), &self.kind.kind)),
            None => versioned::complete(self.write, value, &self.version(), &self.kind.kind),
        }
    }

    /// Converts a value with defaults to the stored version.
    pub async fn to_stored(&self, value: Value) -> Result<Value> {
        let (backend, call) = (self.write.backend, self.write.call);
        if self.custom().is_some() {
            let is_own_version = self.resource.gv == call.resource().gv;
            return Ok(match &call.resource().custom {
                Some(target) if !is_own_version => backend.convert_value(call, target, value).await?,
                _ => value,
            });
        }
        let kind = self.kind.kind.as_str();
        if *kind != *call.resource().kind {
            return Ok(value);
        }
        backend.objects.convert(value, &self.version(), &call.stored().version, kind)
    }
}
