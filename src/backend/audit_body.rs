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
const OWNERS: &str = "managedFields";
/// The apiVersion that the reference records for options without a group of their own.
const OPTIONS_VERSION: &str = "meta.k8s.io/__internal";

/// What auditing wants of a body, and what was recorded.
#[derive(Debug, Default)]
pub struct AuditBody {
    level: Cell<Level>,
    drops_owners: Cell<bool>,
    named: RefCell<Option<BodyIdentity>>,
    body: RefCell<Option<Bytes>>,
}

impl AuditBody {
    /// Enables recording at a level.
    pub fn want(&self, level: Level, drops_owners: bool) {
        self.level.set(level);
        self.drops_owners.set(drops_owners);
    }

    /// The level and whether field owners are left out, as given to [`AuditBody::want`].
    pub fn wanted(&self) -> (Level, bool) {
        (self.level.get(), self.drops_owners.get())
    }

    /// Takes what another thread recorded of the same body.
    pub fn absorb(&self, other: &AuditBody) {
        if let Some(named) = other.named.take() {
            self.named.replace(Some(named));
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
    pub fn is_wanted(&self) -> bool {
        self.level() > Level::None
    }

    /// The identity of the object in the body, if it was read.
    pub fn named(&self) -> Option<BodyIdentity> {
        self.named.borrow().clone()
    }

    /// The body as JSON on one line, if it is wanted.
    pub fn body(&self) -> Option<Bytes> {
        self.body.borrow().clone()
    }

    fn name(&self, object: &Value) {
        let of = meta::of(object);
        let text = |field| of.str(field).to_owned();
        self.named.replace(Some(BodyIdentity {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }));
    }

    /// Records the object of a write as far as the level asks for it. `encode` makes the body that a client would send.
    pub(crate) fn note_object(&self, object: &Value, encode: impl FnOnce(Value) -> Option<Vec<u8>>) {
        if self.level() < Level::Metadata {
            return;
        }
        self.name(object);
        if self.level() < Level::Request {
            return;
        }
        let mut value = object.clone();
        if self.drops_owners.get()
            && let Some(metadata) = value.get_mut("metadata")
        {
            metadata.remove(OWNERS);
        }
        if let Some(body) = encode(value) {
            self.keep(body);
        }
    }

    fn keep(&self, body: Vec<u8>) {
        self.body.replace(Some(Bytes::from(body)));
    }
}

impl Objects {
    /// Records the body of a write as the client would see it.
    pub(crate) fn note_body(&self, call: &Call<'_>, stored: &Value) {
        call.warnings.received.note_object(stored, |value| {
            let (gv, kind) = call.shown_kind();
            let (ty, value) = match call.custom() {
                Some(_) => (Ok(self.registry.free_object()), Ok(value)),
                None => (self.type_of(gv, kind), self.to_shown(call, value)),
            };
            Some(codec::encode(&self.registry, ty.ok()?, &value.ok()?))
        });
    }

    /// Records the options of a deletion.
    pub(crate) fn note_options(&self, call: &Call<'_>, options: &Value) {
        let received = &call.warnings.received;
        if received.level() < Level::Request {
            return;
        }
        let mut options = options.clone();
        if matches!(options.str("apiVersion"), "" | "v1" | "meta.k8s.io/v1") {
            options.set("apiVersion", OPTIONS_VERSION);
        }
        if let Some(ty) = self.registry.kind(META_GROUP, "v1", "DeleteOptions") {
            received.keep(codec::encode(&self.registry, ty, &options));
        }
    }
}

/// Records a change that the server made to an object as the JSON merge patch that a client would have sent.
pub(crate) fn note_difference(call: &Call<'_>, old: &Value, new: &Value) {
    let received = &call.warnings.received;
    if received.level() >= Level::Request {
        received.keep(json::to_json(&merge_patch(old, new)));
    }
}

/// The JSON merge patch that leads from one value to another.
fn merge_patch(old: &Value, new: &Value) -> Value {
    let (Some(before), Some(after)) = (old.fields(), new.fields()) else { return new.clone() };
    let mut patch = Value::object();
    for name in before.keys().filter(|name| !after.contains_key(name)) {
        patch.set(name, Value::Null);
    }
    for (name, value) in after {
        match before.get(name) {
            Some(same) if same == value => {}
            Some(other) => patch.set(name, merge_patch(other, value)),
            None => patch.set(name, value.clone()),
        }
    }
    patch
}

/// Records a patch as it came; one in YAML or CBOR as JSON.
pub(crate) fn note_patch(call: &Call<'_>, language: PatchType) {
    let received = &call.warnings.received;
    if received.level() < Level::Request {
        return;
    }
    let body = compact(&call.body).or_else(|| {
        let read = (language == PatchType::Apply).then(|| codec::yaml::read(&call.body).ok()).flatten()?;
        Some(json::to_json(&read))
    });
    if let Some(body) = body {
        received.keep(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_recorded_as_a_merge_patch() {
        let read = |text: &str| json::read(text.as_bytes()).unwrap();
        let old = read(
            r#"{"kind":"A","metadata":{"name":"a","finalizers":["x","y"],"labels":{"k":"v"}},"gone":1}"#,
        );
        let new =
            read(r#"{"kind":"A","metadata":{"name":"a","finalizers":["y"],"labels":{"k":"w"}},"new":[]}"#);
        let patch = merge_patch(&old, &new);
        let wanted = r#"{"gone":null,"metadata":{"finalizers":["y"],"labels":{"k":"w"}},"new":[]}"#;
        assert_eq!(String::from_utf8(json::to_json(&patch)).unwrap(), wanted);
        assert_eq!(merge_patch(&old, &old), Value::object());
    }
}
