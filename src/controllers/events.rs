//! Events of controllers.

use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Key;

use crate::pki::random;

use super::client::{Client, ObjectRef};

/// Writes events on behalf of one controller.
pub struct Recorder {
    client: Client,
    component: &'static str,
}

impl Recorder {
    /// A recorder for the controller of this name.
    pub fn new(client: Client, component: &'static str) -> Recorder {
        Recorder { client, component }
    }

    /// Writes a Warning event. A failed write is ignored, because events are only informative.
    pub async fn warn(&self, resource: &Resource, key: &Key, uid: &str, reason: &str, message: &str) {
        let Ok(events) = self.client.resource("events") else { return };
        let namespace = if key.namespace().is_empty() { "default" } else { key.namespace() };
        let suffix = random::uuid().replace('-', "");
        let name = format!("{}.{}", key.name(), suffix.get(..16).unwrap_or_default());
        let mut involved_object = Value::object();
        for (field, text) in [
            ("apiVersion", &*resource.api_version),
            ("kind", &*resource.kind),
            ("name", key.name()),
            ("namespace", key.namespace()),
            ("uid", uid),
        ] {
            if !text.is_empty() {
                involved_object.set(field, text);
            }
        }
        let (mut event, now) = (Value::object(), self.client.now());
        for (field, text) in [
            ("apiVersion", "v1"),
            ("kind", "Event"),
            ("type", "Warning"),
            ("reason", reason),
            ("message", message),
            ("firstTimestamp", &now),
            ("lastTimestamp", &now),
        ] {
            event.set(field, text);
        }
        event.set("count", 1);
        event.entry("metadata").set("name", name.as_str());
        event.entry("metadata").set("namespace", namespace);
        event.entry("source").set("component", self.component);
        event.set("involvedObject", involved_object);
        let target = ObjectRef { resource: &events, namespace, name: "" };
        if let Err(status) = self.client.create(target, &event).await {
            tracing::debug!(%status, "an Event could not be created");
        }
    }
}
