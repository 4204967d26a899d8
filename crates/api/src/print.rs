//! Table rows of objects.
//!
//! A row has one cell per column of its resource. How ages are written is an argument: as they are now, or left open in a row that is
//! kept. Any field of an object may be missing.

mod admission;
mod autoscaling;
mod batch;
mod cells;
mod columns;
mod devices;
mod flowcontrol;
mod kept_row;
mod labels;
mod misc;
mod network;
mod nodes;
mod pods;
mod rbac;
mod storage;
mod table;
mod workloads;

#[cfg(test)]
mod testing;

pub use columns::{ColumnDefinition, columns, custom_scale_columns, scale_columns};
pub use kept_row::KeptRow;
pub use table::{head, metadata_only, row, tail, without_rows};

use std::cmp::Ordering;

use cells::{PrintedObject, cells};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;

use self::pods::Completion;
use crate::age::Ages;
use crate::catalog::resource::Resource;

/// Returns the cells of an object of one kind.
type Printer = fn(&PrintedObject<'_>) -> Vec<Value>;

/// The cells of an object, in the order of its resource's columns. `object` is in the stored version.
pub fn cells(group: &str, kind: &str, object: &Value, ages: Ages) -> Vec<Value> {
    let printed = PrintedObject { value: object, ages };
    printer(group, kind).unwrap_or(any_object)(&printed)
}

/// The cells of an object of this resource.
fn resource_cells(resource: &Resource, object: &Value, ages: Ages) -> Vec<Value> {
    if let Some(custom) = &resource.custom {
        return custom.row(object, ages);
    }
    cells(stored_group(resource), &resource.kind, object, ages)
}

/// The group in which its objects are stored.
fn stored_group(resource: &Resource) -> &str {
    resource.stored().map_or(&resource.gv.group, |stored| &stored.version.group)
}

/// The completion of a pod, if it has finished: clients may show such rows differently.
fn completion(resource: &Resource, object: &Value) -> Option<Completion> {
    if (stored_group(resource), &*resource.kind) == ("", "Pod") { pods::completion(object) } else { None }
}

/// Writes the row of an object of this resource, without a comma before it. `whole`: what the row says about the object itself.
pub fn object_row(
    out: &mut Vec<u8>,
    resource: &Resource,
    object: &Value,
    whole: Option<&[u8]>,
    now_seconds: i64,
) {
    let cells = resource_cells(resource, object, Ages::At(now_seconds));
    row(out, true, &cells, completion(resource, object), whole);
}

/// The order of rows, if it differs from that of the list. Each page is sorted separately.
pub fn row_order(group: &str, kind: &str) -> Option<fn(&Value, &Value) -> Ordering> {
    ((group, kind) == ("flowcontrol.apiserver.k8s.io", "FlowSchema")).then_some(flowcontrol::by_precedence)
}

/// Whether every watch event repeats the column definitions, and not only the first.
pub fn describes_every_event(resource: &Resource) -> bool {
    (&*resource.gv.group, &*resource.kind) == ("apiregistration.k8s.io", "APIService")
}

/// The default cells: name and creation time.
fn any_object(object: &PrintedObject<'_>) -> Vec<Value> {
    let created = object.instant("metadata.creationTimestamp").unwrap_or(time::ZERO_SECONDS);
    cells![object.name(), time::format_seconds(created)]
}

fn printer(group: &str, kind: &str) -> Option<Printer> {
    Some(match (group, kind) {
        ("", _) => return core_printer(kind),
        ("admissionregistration.k8s.io", _) => return admission::printer(kind),
        ("apiregistration.k8s.io", "APIService") => misc::api_service,
        ("apps", _) => return workloads::printer(kind),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::autoscaler,
        ("autoscaling", "Scale") => autoscaling::scale,
        ("batch", "CronJob") => batch::cron_job,
        ("batch", "Job") => batch::job,
        ("certificates.k8s.io", "CertificateSigningRequest") => misc::signing_request,
        ("certificates.k8s.io", "ClusterTrustBundle") => misc::trust_bundle,
        ("coordination.k8s.io", "Lease") => misc::lease,
        ("coordination.k8s.io", "LeaseCandidate") => misc::lease_candidate,
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice,
        ("events.k8s.io", "Event") => misc::event,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flowcontrol::flow_schema,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => flowcontrol::priority_level,
        ("internal.apiserver.k8s.io", "StorageVersion") => misc::storage_version,
        ("networking.k8s.io", _) => return network::printer(kind),
        ("node.k8s.io", "RuntimeClass") => nodes::runtime_class,
        ("policy", "PodDisruptionBudget") => workloads::disruption_budget,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding" | "RoleBinding") => rbac::binding,
        ("resource.k8s.io", _) => return devices::printer(kind),
        ("scheduling.k8s.io", "PriorityClass") => misc::priority_class,
        ("storage.k8s.io", _) => return storage::printer(kind),
        ("storagemigration.k8s.io", "StorageVersionMigration") => misc::storage_migration,
        _ => return None,
    })
}

fn core_printer(kind: &str) -> Option<Printer> {
    Some(match kind {
        "ComponentStatus" => misc::component_status,
        "ConfigMap" => misc::config_map,
        "Endpoints" => network::endpoints,
        "Event" => misc::event,
        "Namespace" => misc::namespace,
        "Node" => nodes::node,
        "PersistentVolume" => storage::volume,
        "PersistentVolumeClaim" => storage::claim,
        "Pod" => pods::pod,
        "PodTemplate" => workloads::pod_template,
        "ReplicationController" => workloads::replication_controller,
        "ResourceQuota" => misc::quota,
        "Secret" => misc::secret,
        "Service" => network::service,
        "ServiceAccount" => misc::service_account,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::catalog::Catalog;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;
    use crate::print::testing::assert_cells;

    static EVERYTHING: LazyLock<Catalog> = LazyLock::new(|| {
        let config = RuntimeConfig::parse("api/all=true").unwrap();
        Builtin::load().unwrap().serve(&config).unwrap()
    });

    /// Field names that lead deep into the kinds.
    const KEYS: [&str; 24] = [
        "metadata",
        "spec",
        "status",
        "name",
        "conditions",
        "type",
        "template",
        "containers",
        "state",
        "terminated",
        "initContainerStatuses",
        "containerStatuses",
        "phase",
        "selector",
        "matchExpressions",
        "values",
        "ports",
        "subsets",
        "addresses",
        "metrics",
        "target",
        "capacity",
        "hard",
        "creationTimestamp",
    ];

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-zA-Zé:/0-9-]{0,12}".prop_map(Value::from),
            Just(Value::from("0001-01-01T00:00:00Z")),
            Just(Value::from("9999-12-31T23:59:59Z")),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            let key = prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned);
            prop_oneof![
                1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                3 => prop::collection::btree_map(key, inner, 0..8).prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_object_has_cells(object in any_value(), now in any::<i64>()) {
            for resource in EVERYTHING.resources() {
                let cells = cells(&resource.gv.group, &resource.kind, &object, Ages::At(now));
                prop_assert!(cells.len() >= 2);
            }
        }
    }

    /// Its rows have one cell more than columns, an age, as in the reference; clients ignore it.
    const EXTRA_CELL_KIND: &str = "IPAddress";

    #[test]
    fn every_kind_has_one_cell_per_column() {
        let (mut kinds, mut with_printer) = (0, 0);
        for resource in EVERYTHING.resources() {
            for object in [Value::object(), Value::Null] {
                let cells = cells(&resource.gv.group, &resource.kind, &object, Ages::At(0));
                let extra = usize::from(&*resource.kind == EXTRA_CELL_KIND);
                assert_eq!(cells.len(), columns(resource).len() + extra, "{}", resource.name());
            }
            let has_printer = printer(&resource.gv.group, &resource.kind).is_some();
            assert_eq!(has_printer, !resource.columns.is_empty(), "{}", resource.name());
            kinds += 1;
            with_printer += usize::from(has_printer);
        }
        assert!(kinds > 80 && with_printer > 60, "{kinds} {with_printer}");
    }

    #[test]
    fn kinds_without_printer_have_name_and_creation_cells() {
        let role = r#"{"metadata":{"name":"r","creationTimestamp":"2024-05-01T00:00:00Z"}}"#;
        assert_cells("rbac.authorization.k8s.io", "Role", role, r#"["r","2024-05-01T00:00:00Z"]"#);
        assert_cells("example.com", "Widget", "{}", r#"["","0001-01-01T00:00:00Z"]"#);
    }
}
