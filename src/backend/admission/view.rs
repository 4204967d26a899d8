//! The object of a write in the version in which somebody may change it, and the way back to what is stored.

use std::sync::Arc;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom_resource::CustomResource;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::patch::Coerce as _;
use pilothouse_apimachinery::schema::decode::Decoded;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry, TypeId, default};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_kinds as kinds;

use super::super::objects::check_size;
use super::{Operation, Write, versioned};

/// How somebody sees the object of a write.
pub struct View<'a> {
    /// The request.
    pub write: &'a Write<'a>,
    /// The resource in their version.
    pub resource: Arc<Resource>,
    /// The kind of what they see.
    pub kind: GroupVersionKind,
}

impl<'a> View<'a> {
    /// The view of somebody who speaks the version of a resource that shows the object.
    pub fn new(write: &'a Write<'a>, resource: Arc<Resource>) -> View<'a> {
        let (gv, kind) = versioned::kind(&resource, write.call.subresource);
        let kind = GroupVersionKind::new(&gv.group, &gv.version, kind);
        View { write, kind, resource }
    }

    /// Both states of the object that the write is about; see [`versioned::states`].
    pub async fn states(&self, object: &Value) -> Result<(Value, Value)> {
        versioned::states(self.write, object, &self.resource).await
    }

    /// What is known of the kind, if it is a custom one.
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

    /// The types among which that of the kind is.
    pub fn registry(&self) -> &Registry {
        self.write.backend.objects.registry_of(&self.resource)
    }

    /// The type of the kind, as those see it who change objects part by part. There is none for what connects, and for parts
    /// that look like a kind of another group: the documents of that group do not speak of them.
    pub fn described(&self) -> Option<TypeId> {
        if self.write.operation == Operation::Connect || self.version() != self.resource.gv {
            return None;
        }
        self.registry().described(&self.kind.group, &self.kind.version, &self.kind.kind)
    }

    /// Reads what somebody made of the object.
    pub fn decoded(&self, text: &[u8]) -> Result<Decoded> {
        let decoded = codec::decode_object(text, &self.kind, self.registry());
        decoded.map_err(|error| Status::internal(error.why))
    }

    /// Fills in what a value leaves out.
    pub fn filled(&self, mut value: Value) -> Result<Value> {
        if let Some(custom) = self.custom() {
            custom.coerce(&mut value).map_err(Status::internal)?;
            if !custom.fill(&mut value) {
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

    /// A value that is filled in, as clients of this version are shown it.
    pub fn shown(&self, value: &Value) -> Result<Value> {
        match self.custom() {
            Some(_) => Ok(versioned::named(value.clone(), &self.version(), &self.kind.kind)),
            None => versioned::whole(self.write, value, &self.version(), &self.kind.kind),
        }
    }

    /// A value that is filled in, in the version that is stored.
    pub async fn stored(&self, value: Value) -> Result<Value> {
        let (backend, call) = (self.write.backend, self.write.call);
        if self.custom().is_some() {
            let is_own_version = self.resource.gv == call.resource.gv;
            return Ok(match &call.resource.custom {
                Some(own) if !is_own_version => backend.value_in_version(call, own, value).await?,
                _ => value,
            });
        }
        let kind = self.kind.kind.as_str();
        if *kind != *call.resource.kind {
            return Ok(value);
        }
        backend.objects.convert(value, &self.version(), &call.stored.version, kind)
    }
}
