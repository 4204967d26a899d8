//! The selectable fields of each kind, and their values in objects.

use std::sync::Arc;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::response_format::ResponseFormat;
use pilothouse_apimachinery::selectors::fields::FieldSelector;
use pilothouse_apimachinery::status::{self, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::filter::{FieldReader, NAME_FIELD as NAME, NAMESPACE_FIELD as NAMESPACE};
use pilothouse_types::object::{Pairs, Variant};

use crate::catalog::resource::Resource;
use crate::custom_resource::CustomResource;

/// The error message for an unsupported field.
#[derive(Clone, Copy)]
enum Refusal {
    /// The message of most kinds with selectable fields.
    Plain,
    /// The message of jobs.
    Job,
    /// The message that contains the full kind.
    WithKind,
}

/// A selectable field, and how its value is read.
struct Indexed {
    field: &'static str,
    read: fn(&Value) -> String,
}

/// The selectable fields of one kind.
struct Fields {
    group: &'static str,
    kind: &'static str,
    /// Whether metadata.namespace is selectable. Most cluster-scoped kinds with fields of their own do not support it.
    namespace: bool,
    indexed: &'static [Indexed],
    /// Other names of the fields.
    aliases: &'static [(&'static str, &'static str)],
    refusal: Refusal,
}

/// The defaults of the rows below.
const DEFAULT: Fields =
    Fields { group: "", kind: "", namespace: true, indexed: &[], aliases: &[], refusal: Refusal::Plain };

macro_rules! text {
    ($field:literal, $($key:literal),+) => {
        Indexed { field: $field, read: |object| text(object, &[$($key),+]) }
    };
}

const TABLE: [Fields; 12] = [
    Fields {
        kind: "Pod",
        indexed: &[
            text!("spec.nodeName", "spec", "nodeName"),
            text!("spec.restartPolicy", "spec", "restartPolicy"),
            text!("spec.schedulerName", "spec", "schedulerName"),
            text!("spec.serviceAccountName", "spec", "serviceAccountName"),
            Indexed { field: "spec.hostNetwork", read: |pod| boolean(pod, &["spec", "hostNetwork"]) },
            text!("status.phase", "status", "phase"),
            Indexed { field: "status.podIP", read: pod_ip },
            text!("status.nominatedNodeName", "status", "nominatedNodeName"),
        ],
        // status.podIPs is accepted, but no pod has a value there: only the empty one matches.
        aliases: &[("spec.host", "spec.nodeName"), ("status.podIPs", "status.podIPs")],
        ..DEFAULT
    },
    Fields {
        kind: "Node",
        namespace: false,
        indexed: &[Indexed {
            field: "spec.unschedulable",
            read: |node| boolean(node, &["spec", "unschedulable"]),
        }],
        ..DEFAULT
    },
    Fields {
        kind: "ReplicationController",
        indexed: &[Indexed { field: "status.replicas", read: |rc| count(rc, &["status", "replicas"]) }],
        ..DEFAULT
    },
    Fields {
        kind: "Event",
        indexed: &[
            text!("involvedObject.kind", "involvedObject", "kind"),
            text!("involvedObject.namespace", "involvedObject", "namespace"),
            text!("involvedObject.name", "involvedObject", "name"),
            text!("involvedObject.uid", "involvedObject", "uid"),
            text!("involvedObject.apiVersion", "involvedObject", "apiVersion"),
            text!("involvedObject.resourceVersion", "involvedObject", "resourceVersion"),
            text!("involvedObject.fieldPath", "involvedObject", "fieldPath"),
            text!("reason", "reason"),
            text!("reportingComponent", "reportingComponent"),
            Indexed { field: "source", read: event_source },
            text!("type", "type"),
        ],
        ..DEFAULT
    },
    Fields {
        // The same objects under other names: they are stored and indexed by the row above.
        group: "events.k8s.io",
        kind: "Event",
        aliases: &[
            ("reason", "reason"),
            ("regarding.kind", "involvedObject.kind"),
            ("regarding.namespace", "involvedObject.namespace"),
            ("regarding.name", "involvedObject.name"),
            ("regarding.uid", "involvedObject.uid"),
            ("regarding.apiVersion", "involvedObject.apiVersion"),
            ("regarding.resourceVersion", "involvedObject.resourceVersion"),
            ("regarding.fieldPath", "involvedObject.fieldPath"),
            ("reportingController", "reportingComponent"),
            ("type", "type"),
        ],
        ..DEFAULT
    },
    Fields {
        kind: "Namespace",
        namespace: false,
        indexed: &[text!("status.phase", "status", "phase")],
        ..DEFAULT
    },
    Fields { kind: "Secret", indexed: &[text!("type", "type")], ..DEFAULT },
    Fields {
        kind: "Service",
        indexed: &[text!("spec.clusterIP", "spec", "clusterIP"), text!("spec.type", "spec", "type")],
        ..DEFAULT
    },
    Fields {
        group: "batch",
        kind: "Job",
        indexed: &[Indexed { field: "status.successful", read: |job| count(job, &["status", "succeeded"]) }],
        refusal: Refusal::Job,
        ..DEFAULT
    },
    Fields {
        group: "certificates.k8s.io",
        kind: "CertificateSigningRequest",
        namespace: false,
        indexed: &[text!("spec.signerName", "spec", "signerName")],
        ..DEFAULT
    },
    Fields {
        group: "certificates.k8s.io",
        kind: "ClusterTrustBundle",
        namespace: false,
        indexed: &[text!("spec.signerName", "spec", "signerName")],
        ..DEFAULT
    },
    Fields {
        group: "resource.k8s.io",
        kind: "ResourceSlice",
        namespace: false,
        indexed: &[text!("spec.nodeName", "spec", "nodeName"), text!("spec.driver", "spec", "driver")],
        refusal: Refusal::WithKind,
        ..DEFAULT
    },
];

fn fields_of_kind(group: &str, kind: &str) -> Option<&'static Fields> {
    TABLE.iter().find(|fields| fields.group == group && fields.kind == kind)
}

/// A selector in terms of indexed fields, or an error if the kind does not support one.
pub(super) fn resolve(selector: &FieldSelector, resource: &Resource) -> status::Result<FieldSelector> {
    selector.rename(|field| indexed_field(resource, field)).map_err(Status::bad_request)
}

/// The indexed field of a label, or the error.
pub(super) fn indexed_field(resource: &Resource, label: &str) -> Result<String, String> {
    if let Some(custom) = &resource.custom {
        let is_known = label == NAME
            || (label == NAMESPACE && resource.namespaced)
            || custom.selectable.iter().any(|(name, _)| name == label);
        return if is_known {
            Ok(label.to_owned())
        } else {
            Err(format!("field label not supported: {label}"))
        };
    }
    let Some(fields) = fields_of_kind(&resource.gv.group, &resource.kind) else {
        if label == NAME || label == NAMESPACE {
            return Ok(label.to_owned());
        }
        let label = quoted(label);
        return Err(format!("{label} is not a known field selector: only \"{NAME}\", \"{NAMESPACE}\""));
    };
    if label == NAME || (label == NAMESPACE && fields.namespace) {
        return Ok(label.to_owned());
    }
    if let Some((_, field)) = fields.aliases.iter().find(|(alias, _)| *alias == label) {
        return Ok((*field).to_owned());
    }
    if fields.indexed.iter().any(|indexed| indexed.field == label) {
        return Ok(label.to_owned());
    }
    Err(match fields.refusal {
        Refusal::Plain => format!("field label not supported: {label}"),
        Refusal::Job => format!("field label {} not supported for Job", quoted(label)),
        Refusal::WithKind => {
            format!("field label not supported for {}, Kind={}: {label}", resource.api_version, resource.kind)
        }
    })
}

/// The indexed fields of an object in its storage version, besides name and namespace.
pub fn selectable_fields(group: &str, kind: &str, object: &Value) -> Pairs {
    let indexed = fields_of_kind(group, kind).map(|fields| fields.indexed).unwrap_or_default();
    // An absent field counts as empty, so empty values are not stored.
    let pairs = indexed.iter().map(|indexed| (indexed.field, (indexed.read)(object)));
    pairs.filter(|(_, value)| !value.is_empty()).collect()
}

/// Reads the selectable fields of custom objects under the current definition. The result is cached with the object.
pub(super) fn reader(custom: &Arc<CustomResource>, ordinal: u32) -> FieldReader {
    let custom = Arc::clone(custom);
    let mark = custom.mark.clone();
    FieldReader::new(&mark, move |object| {
        let is_current = |variant: Variant| custom.ordinals.contains(&(variant.0 / ResponseFormat::NUMBERS));
        let encoded = object.variant(
            None,
            Variant(ordinal * ResponseFormat::NUMBERS + ResponseFormat::FIELDS),
            is_current,
            |object| {
                let value = custom.read(&object.bytes).ok_or(())?;
                let mut fields = Value::object();
                for (name, value) in custom.selectable_values(&value).iter() {
                    fields.set(name, value);
                }
                Ok::<_, ()>(json::to_json(&fields).into())
            },
        );
        let fields = encoded.ok().and_then(|encoded| json::read(&encoded).ok()).unwrap_or_default();
        let fields = fields.fields().into_iter().flatten();
        fields.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))).collect()
    })
}

fn text(object: &Value, path: &[&str]) -> String {
    object.get_path(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn boolean(object: &Value, path: &[&str]) -> String {
    object.get_path(path).and_then(Value::as_bool).unwrap_or(false).to_string()
}

fn count(object: &Value, path: &[&str]) -> String {
    object.get_path(path).and_then(Value::as_int).unwrap_or(0).to_string()
}

fn pod_ip(pod: &Value) -> String {
    let first = pod.get_path(&["status", "podIPs"]).and_then(|addresses| addresses.items().first());
    // Older clients set only the single address.
    first.map_or_else(|| text(pod, &["status", "podIP"]), |address| address.str("ip").to_owned())
}

fn event_source(event: &Value) -> String {
    let component = text(event, &["source", "component"]);
    if component.is_empty() { text(event, &["reportingComponent"]) } else { component }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;

    fn resolve_first(group: &str, version: &str, plural: &str, selector: &str) -> Result<String, String> {
        let config = RuntimeConfig::parse("api/all=true").unwrap();
        let catalog = Builtin::load().unwrap().serve(&config).unwrap();
        let resource = catalog.find(group, version, plural).unwrap();
        let selector = FieldSelector::parse(selector).unwrap();
        let selector = resolve(&selector, resource).map_err(|error| error.message)?;
        Ok(selector.terms()[0].field.clone())
    }

    #[test]
    fn field_selectors_accept_only_selectable_fields() {
        let unknown = |label: &str| {
            Err(format!("\"{label}\" is not a known field selector: only \"{NAME}\", \"{NAMESPACE}\""))
        };
        let refused = |label: &str| Err(format!("field label not supported: {label}"));
        let ok = |label: &str| Ok(label.to_owned());
        let table = [
            ("", "v1", "pods", "spec.host=n", ok("spec.nodeName")),
            ("", "v1", "pods", "status.podIPs=x", ok("status.podIPs")),
            ("", "v1", "pods", "status.hostIP=1", refused("status.hostIP")),
            ("", "v1", "nodes", "spec.podCIDR=x", refused("spec.podCIDR")),
            ("", "v1", "nodes", "metadata.namespace=x", refused(NAMESPACE)),
            ("", "v1", "configmaps", "metadata.uid=x", unknown("metadata.uid")),
            ("", "v1", "persistentvolumes", "metadata.namespace=x", ok(NAMESPACE)),
            ("apps", "v1", "replicasets", "status.replicas=0", unknown("status.replicas")),
            ("events.k8s.io", "v1", "events", "regarding.name=p", ok("involvedObject.name")),
            ("events.k8s.io", "v1", "events", "involvedObject.name=p", refused("involvedObject.name")),
            ("events.k8s.io", "v1", "events", "reportingController=x", ok("reportingComponent")),
            ("batch", "v1", "jobs", "status.successful=1", ok("status.successful")),
            (
                "batch",
                "v1",
                "jobs",
                "status.active=1",
                Err("field label \"status.active\" not supported for Job".to_owned()),
            ),
            (
                "resource.k8s.io",
                "v1beta1",
                "resourceslices",
                "x=1",
                Err("field label not supported for resource.k8s.io/v1beta1, Kind=ResourceSlice: x".to_owned()),
            ),
        ];
        for (group, version, plural, selector, expected) in table {
            assert_eq!(resolve_first(group, version, plural, selector), expected, "{plural} {selector}");
        }
    }

    #[test]
    fn selectable_fields_table_has_only_known_kinds() {
        let config = RuntimeConfig::parse("api/all=true").unwrap();
        let catalog = Builtin::load().unwrap().serve(&config).unwrap();
        for fields in &TABLE {
            let is_kind =
                |resource: &Resource| *resource.gv.group == *fields.group && *resource.kind == *fields.kind;
            assert!(
                catalog.resources().any(|resource| is_kind(resource)),
                "{} {}",
                fields.group,
                fields.kind
            );
        }
    }

    #[test]
    fn selectable_fields_are_extracted_from_objects() {
        let mut pod = Value::object();
        pod.entry("spec").set("nodeName", "n1");
        pod.entry("status").set("phase", "Running");
        let mut address = Value::object();
        address.set("ip", "10.0.0.1");
        pod.entry("status").set("podIPs", vec![address]);
        let expected = [
            ("spec.hostNetwork", "false"),
            ("spec.nodeName", "n1"),
            ("status.phase", "Running"),
            ("status.podIP", "10.0.0.1"),
        ];
        assert_eq!(selectable_fields("", "Pod", &pod), Pairs::from_iter(expected));
        assert_eq!(selectable_fields("", "ConfigMap", &pod), Pairs::default());
        assert_eq!(selectable_fields("apps", "Pod", &pod), Pairs::default());
        let mut event = Value::object();
        event.set("reportingComponent", "c");
        let pairs = selectable_fields("", "Event", &event);
        assert_eq!((pairs.get("source"), pairs.get("reportingComponent")), (Some("c"), Some("c")));
        assert_eq!(selectable_fields("batch", "Job", &Value::object()).get("status.successful"), Some("0"));
    }
}
