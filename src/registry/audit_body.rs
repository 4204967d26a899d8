//! The request body for the audit log. Verbs record it when they have read the body. Nothing is recorded unless the request is
//! audited.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use pilothouse_api::audit::Level;
use pilothouse_api::audit::bodies::{BodyIdentity, compact};
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::media::PatchType;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::META_GROUP;

use super::Call;
use super::objects::Objects;

/// The field of metadata that records field ownership.
const MANAGED_FIELDS: &str = "managedFields";
/// The apiVersion that the reference records for options without a group of their own.
const OPTIONS_VERSION: &str = "meta.k8s.io/__internal";

/// The audit options of a request, and the body recorded for it.
#[derive(Debug, Default)]
pub struct AuditBody {
    level: Cell<Level>,
    omits_managed_fields: Cell<bool>,
    identity: RefCell<Option<BodyIdentity>>,
    body: RefCell<Option<Bytes>>,
}

impl AuditBody {
    /// Enables recording at a level.
    pub fn enable(&self, level: Level, omits_managed_fields: bool) {
        self.level.set(level);
        self.omits_managed_fields.set(omits_managed_fields);
    }

    /// The level and whether field owners are left out, as given to [`AuditBody::enable`].
    pub fn options(&self) -> (Level, bool) {
        (self.level.get(), self.omits_managed_fields.get())
    }

    /// Takes over what another thread recorded of the same body.
    pub fn absorb(&self, other: &AuditBody) {
        if let Some(identity) = other.identity.take() {
            self.identity.replace(Some(identity));
        }
        if let Some(body) = other.body.take() {
            self.body.replace(Some(body));
        }
    }

    /// The audit level of the request.
    pub fn level(&self) -> Level {
        self.level.get()
    }

    /// Whether the request is audited.
    pub fn is_enabled(&self) -> bool {
        self.level() > Level::None
    }

    /// The identity of the object in the body, if it was read.
    pub fn identity(&self) -> Option<BodyIdentity> {
        self.identity.borrow().clone()
    }

    /// The body as JSON on one line, if it was recorded.
    pub fn body(&self) -> Option<Bytes> {
        self.body.borrow().clone()
    }

    fn record_identity(&self, object: &Value) {
        let metadata = meta::metadata(object);
        let text = |field| metadata.str(field).to_owned();
        self.identity.replace(Some(BodyIdentity {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }));
    }

    /// Records the object of a write as the audit level requires. `encode` makes the body that a client would send.
    pub(crate) fn record_object(&self, object: &Value, encode: impl FnOnce(Value) -> Option<Vec<u8>>) {
        if self.level() < Level::Metadata {
            return;
        }
        self.record_identity(object);
        if self.level() < Level::Request {
            return;
        }
        let mut value = object.clone();
        if self.omits_managed_fields.get()
            && let Some(metadata) = value.get_mut("metadata")
        {
            metadata.remove(MANAGED_FIELDS);
        }
        if let Some(body) = encode(value) {
            self.set_body(body);
        }
    }

    fn set_body(&self, body: Vec<u8>) {
        self.body.replace(Some(Bytes::from(body)));
    }
}

impl Objects {
    /// Records the body of a write in the version of the request.
    pub(crate) fn record_body(&self, call: &Call<'_>, stored: &Value) {
        call.warnings.audit_body.record_object(stored, |value| {
            let (gv, kind) = call.body_kind();
            let (ty, value) = match call.custom() {
                Some(_) => (Ok(self.registry.free_object()), Ok(value)),
                None => (self.type_of(gv, kind), self.to_requested(call, value)),
            };
            Some(codec::encode(&self.registry, ty.ok()?, &value.ok()?))
        });
    }

    /// Records the options of a deletion.
    pub(crate) fn record_options(&self, call: &Call<'_>, options: &Value) {
        let audit_body = &call.warnings.audit_body;
        if audit_body.level() < Level::Request {
            return;
        }
        let mut options = options.clone();
        if matches!(options.str("apiVersion"), "" | "v1" | "meta.k8s.io/v1") {
            options.set("apiVersion", OPTIONS_VERSION);
        }
        if let Some(ty) = self.registry.kind(META_GROUP, "v1", "DeleteOptions") {
            audit_body.set_body(codec::encode(&self.registry, ty, &options));
        }
    }
}

/// Records a change that the server made to an object as the JSON merge patch that a client would have sent.
pub(crate) fn record_difference(call: &Call<'_>, old: &Value, new: &Value) {
    let audit_body = &call.warnings.audit_body;
    if audit_body.level() >= Level::Request {
        audit_body.set_body(json::to_json(&merge_patch(old, new)));
    }
}

/// The JSON merge patch that leads from one value to another.
fn merge_patch(old: &Value, new: &Value) -> Value {
    let (Some(before), Some(after)) = (old.fields(), new.fields()) else { return new.clone() };
    let mut patch = Value::object();
    for field in before.keys().filter(|field| !after.contains_key(field)) {
        patch.set(field, Value::Null);
    }
    for (field, value) in after {
        match before.get(field) {
            Some(same) if same == value => {}
            Some(other) => patch.set(field, merge_patch(other, value)),
            None => patch.set(field, value.clone()),
        }
    }
    patch
}

/// Records a patch as it came; one in YAML or CBOR as JSON.
pub(crate) fn record_patch(call: &Call<'_>, language: PatchType) {
    let audit_body = &call.warnings.audit_body;
    if audit_body.level() < Level::Request {
        return;
    }
    let body = compact(&call.body.bytes).or_else(|| {
        let value =
            (language == PatchType::Apply).then(|| codec::yaml::read(&call.body.bytes).ok()).flatten()?;
        Some(json::to_json(&value))
    });
    if let Some(body) = body {
        audit_body.set_body(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_body_of_server_change_is_merge_patch() {
        let read = |text: &str| json::read(text.as_bytes()).unwrap();
        let old = read(
            r#"{"kind":"A","metadata":{"name":"a","finalizers":["x","y"],"labels":{"k":"v"}},"gone":1}"#,
        );
        let new =
            read(r#"{"kind":"A","metadata":{"name":"a","finalizers":["y"],"labels":{"k":"w"}},"new":[]}"#);
        let patch = merge_patch(&old, &new);
        let expected = r#"{"gone":null,"metadata":{"finalizers":["y"],"labels":{"k":"w"}},"new":[]}"#;
        assert_eq!(String::from_utf8(json::to_json(&patch)).unwrap(), expected);
        assert_eq!(merge_patch(&old, &old), Value::object());
    }
}
