//! ComponentStatus: a deprecated health check of control plane components.

use bytes::Bytes;
use pilothouse_actors::storage_health::StorageHealth;
use pilothouse_api::age::Ages;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::print;
use pilothouse_api::select;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::options::ListOptions;
use pilothouse_apimachinery::response_format::{IncludeObject, MetaVersion, Representation, ResponseFormat};
use pilothouse_apimachinery::status::{GroupResource, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision};

use super::{Reply, Success, VerbResult};
use crate::limits::STORAGE_PROBE_TIMEOUT;
use crate::registry::objects::Objects;
use crate::registry::{Backend, Call};

/// The components that clients expect. `etcd-0` is this server's own storage.
const COMPONENTS: [&str; 3] = ["controller-manager", "etcd-0", "scheduler"];
/// The component that represents the storage.
const STORAGE: &str = "etcd-0";
/// The resource in error messages: not the plural, as in the reference.
const RESOURCE: GroupResource<'_> = GroupResource { group: "", resource: "componentstatus" };

/// Returns the component that the path names.
pub async fn get(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let resource = call.resource();
    if !COMPONENTS.contains(&call.name()) {
        return Err(Status::not_found(RESOURCE, call.name()));
    }
    let mut component = probe(&backend.health, call.name()).await;
    component.set("kind", &*resource.kind);
    component.set("apiVersion", &*resource.api_version);
    Ok(Reply::Object(
        Success::Ok,
        backend.objects.encode_value(resource, call.response_format, &component, true)?,
    ))
}

/// Returns all components that match.
pub async fn list(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let (objects, resource) = (&backend.objects, call.resource());
    let options = ListOptions::parse(call.query)?;
    options.validate(false)?;
    let filter = select::filter(resource, &options, "", "")?;
    let mut items = Vec::new();
    for name in COMPONENTS {
        let draft = Draft {
            key: Key::cluster(name),
            bytes: Bytes::new(),
            revision_offset: 0,
            item_offset: 0,
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        if filter.matches(&Object::new(draft, Revision::FIRST)) {
            items.push(probe(&backend.health, name).await);
        }
    }
    let json = match call.response_format.shape {
        Representation::Table(version, include) => table(objects, resource, version, include, &items)?,
        Representation::Metadata(version) => {
            let partial = items.iter().map(|item| print::metadata_only(item, version)).collect();
            codec::to_json(&list_value("PartialObjectMetadataList", version.api_version(), partial))
        }
        Representation::Whole => {
            codec::to_json(&list_value(&resource.list_kind, &resource.api_version, items))
        }
    };
    let encoding = match call.response_format.encoding {
        // YAML is made from JSON when the response is rendered.
        Encoding::Yaml => Encoding::Json,
        other => other,
    };
    let bytes = codec::encode_document(&objects.registry, encoding, &json);
    let bytes = bytes.map_err(|error| Status::internal(error.to_string()))?;
    Ok(Reply::Object(Success::Ok, Bytes::from(bytes)))
}

fn list_value(kind: &str, api_version: &str, items: Vec<Value>) -> Value {
    let mut list = Value::object();
    list.set("kind", kind);
    list.set("apiVersion", api_version);
    list.set("metadata", Value::object());
    list.set("items", items);
    list
}

fn table(
    objects: &Objects,
    resource: &Resource,
    version: MetaVersion,
    include: IncludeObject,
    items: &[Value],
) -> Result<Vec<u8>, Box<Status>> {
    let (columns, mut table) = (print::columns(resource), Vec::new());
    print::head(&mut table, Some(&columns), version, b"{}");
    for (index, item) in items.iter().enumerate() {
        let object = match include {
            IncludeObject::None => None,
            IncludeObject::Metadata => {
                Some(Bytes::from(codec::to_json(&print::metadata_only(item, version))))
            }
            IncludeObject::Object => {
                Some(objects.encode_value(resource, ResponseFormat::PLAIN, item, false)?)
            }
        };
        let cells = print::cells(&resource.gv.group, &resource.kind, item, Ages::At(0));
        print::row(&mut table, index == 0, &cells, None, object.as_deref());
    }
    print::tail(&mut table);
    Ok(table)
}

/// The status of a component. Only the storage is probed.
async fn probe(storage: &StorageHealth, name: &str) -> Value {
    let health = match name {
        STORAGE => storage.check(STORAGE_PROBE_TIMEOUT).await.map_err(|error| ("False", error)),
        _ => Err(("Unknown", "not a part of this server".to_owned())),
    };
    status_object(name, &health)
}

fn status_object(name: &str, health: &Result<(), (&str, String)>) -> Value {
    let mut condition = Value::object();
    condition.set("type", "Healthy");
    match health {
        Ok(()) => {
            condition.set("status", "True");
            condition.set("message", "ok");
        }
        Err((status, error)) => {
            condition.set("status", *status);
            condition.set("error", error.as_str());
        }
    }
    let mut component = Value::object();
    component.entry("metadata").set("name", name);
    // The object was never created, so it has no creation time.
    component.entry("metadata").set("creationTimestamp", Value::Null);
    component.set("conditions", vec![condition]);
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unhealthy_component_reports_error() {
        let unhealthy = status_object("a", &Err(("False", "broken".to_owned())));
        let condition = &unhealthy.get("conditions").unwrap().items()[0];
        assert_eq!((condition.str("status"), condition.str("error")), ("False", "broken"));
        assert_eq!(condition.get("message"), None);
        assert_eq!(
            codec::to_json(&unhealthy.get("metadata").cloned().unwrap()),
            br#"{"creationTimestamp":null,"name":"a"}"#
        );
    }
}
