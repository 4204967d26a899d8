//! Rows of workload resources.

use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;

use super::Printer;
use super::cells::{NONE, PrintedObject, cells, items};
use super::labels::{labels, selector};

/// The printer of a kind of group `apps`.
pub fn printer(kind: &str) -> Option<Printer> {
    Some(match kind {
        "ControllerRevision" => controller_revision,
        "DaemonSet" => daemon_set,
        "Deployment" => deployment,
        "ReplicaSet" => replica_set,
        "StatefulSet" => stateful_set,
        _ => return None,
    })
}

/// The names of the containers of a pod's spec, and their images.
pub fn containers(pod_spec: Option<&Value>) -> (String, String) {
    let containers = pod_spec.map(|spec| items(spec, "containers")).unwrap_or_default();
    let join =
        |field: &str| containers.iter().map(|container| container.str(field)).collect::<Vec<_>>().join(",");
    (join("name"), join("image"))
}

fn deployment(object: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(object.field("spec.template.spec"));
    let selector =
        label_selector::to_text(object.field("spec.selector")).unwrap_or_else(|| "<invalid>".to_owned());
    cells![
        object.name(),
        ready_of_desired(object),
        object.int("status.updatedReplicas"),
        object.int("status.availableReplicas"),
        object.age(),
        names,
        images,
        selector
    ]
}

fn stateful_set(object: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(object.field("spec.template.spec"));
    cells![object.name(), ready_of_desired(object), object.age(), names, images]
}

fn ready_of_desired(object: &PrintedObject<'_>) -> String {
    format!("{}/{}", object.int("status.readyReplicas"), object.int("spec.replicas"))
}

fn replica_set(object: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(object.field("spec.template.spec"));
    let mut cells = replicas(object);
    cells.extend(cells![names, images, selector(object.field("spec.selector"))]);
    cells
}

/// Cells of a replication controller.
pub fn replication_controller(object: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(object.field("spec.template.spec"));
    let mut cells = replicas(object);
    cells.extend(cells![names, images, labels(object.field("spec.selector"))]);
    cells
}

fn replicas(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        object.name(),
        object.int("spec.replicas"),
        object.int("status.replicas"),
        object.int("status.readyReplicas"),
        object.age()
    ]
}

fn daemon_set(object: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(object.field("spec.template.spec"));
    cells![
        object.name(),
        object.int("status.desiredNumberScheduled"),
        object.int("status.currentNumberScheduled"),
        object.int("status.numberReady"),
        object.int("status.updatedNumberScheduled"),
        object.int("status.numberAvailable"),
        labels(object.field("spec.template.spec.nodeSelector")),
        object.age(),
        names,
        images,
        selector(object.field("spec.selector"))
    ]
}

fn controller_revision(object: &PrintedObject<'_>) -> Vec<Value> {
    let owners = object.items("metadata.ownerReferences");
    let controller =
        owners.iter().find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true));
    let controller = controller.map_or_else(
        || NONE.to_owned(),
        |owner| {
            let group = owner.str("apiVersion").split_once('/').map_or("", |(group, _)| group);
            let name = owner.str("name");
            match (owner.str("kind").to_lowercase(), group) {
                (kind, "") if kind.is_empty() => name.to_owned(),
                (kind, "") => format!("{kind}/{name}"),
                (kind, group) => format!("{kind}.{}/{name}", group.to_lowercase()),
            }
        },
    );
    cells![object.name(), controller, object.int("revision"), object.age()]
}

/// Cells of a pod template.
pub fn pod_template(object: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(object.field("template.spec"));
    cells![object.name(), names, images, labels(object.field("template.metadata.labels"))]
}

/// Cells of a disruption budget.
pub fn disruption_budget(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        object.name(),
        number_or_percent(object.field("spec.minAvailable")),
        number_or_percent(object.field("spec.maxUnavailable")),
        object.int("status.disruptionsAllowed"),
        object.age()
    ]
}

fn number_or_percent(value: Option<&Value>) -> String {
    match value {
        Some(Value::Int(number)) => number.to_string(),
        Some(Value::String(percent)) => percent.clone(),
        _ => "N/A".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    const POD: &str = r#"{"metadata":{"labels":{"app":"a"}},"spec":{"nodeSelector":{"zone":"z"},
        "containers":[{"name":"c","image":"i:1"},{"name":"d","image":"j"}]}}"#;

    #[test]
    fn workload_cells_show_replica_counts() {
        let object = |spec: &str, status: &str| {
            format!(
                r#"{{"metadata":{{"name":"x","creationTimestamp":"2024-05-01T12:00:00Z"}},
                    "spec":{{"replicas":3,{spec}"template":{POD}}},"status":{{{status}}}}}"#
            )
        };
        let selector = r#""selector":{"matchLabels":{"app":"a"}},"#;
        let status = r#""replicas":2,"readyReplicas":1,"updatedReplicas":2,"availableReplicas":1"#;
        let all = object(selector, status);
        assert_cells("apps", "Deployment", &all, r#"["x","1/3",2,1,"10m","c,d","i:1,j","app=a"]"#);
        assert_cells("apps", "ReplicaSet", &all, r#"["x",3,2,1,"10m","c,d","i:1,j","app=a"]"#);
        assert_cells("apps", "StatefulSet", &all, r#"["x","1/3","10m","c,d","i:1,j"]"#);
        let plain = object(r#""selector":{"app":"a","b":"c"},"#, status);
        assert_cells("", "ReplicationController", &plain, r#"["x",3,2,1,"10m","c,d","i:1,j","app=a,b=c"]"#);
        let daemons = r#""desiredNumberScheduled":5,"currentNumberScheduled":4,"numberReady":3,
            "updatedNumberScheduled":2,"numberAvailable":1"#;
        assert_cells(
            "apps",
            "DaemonSet",
            &object(selector, daemons),
            r#"["x",5,4,3,2,1,"zone=z","10m","c,d","i:1,j","app=a"]"#,
        );
    }

    #[test]
    fn workload_cells_with_empty_or_invalid_selector() {
        let invalid = r#"{"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}"#;
        assert_cells("apps", "Deployment", invalid, r#"["","0/0",0,0,"<unknown>","","","<invalid>"]"#);
        assert_cells("apps", "ReplicaSet", invalid, r#"["",0,0,0,"<unknown>","","","<error>"]"#);
        assert_cells("apps", "Deployment", "{}", r#"["","0/0",0,0,"<unknown>","","",""]"#);
        assert_cells("apps", "ReplicaSet", "{}", r#"["",0,0,0,"<unknown>","","","<none>"]"#);
    }

    #[test]
    fn controller_revision_cells_show_the_controller() {
        let object = |owner: &str| {
            format!(
                r#"{{"metadata":{{"name":"r","creationTimestamp":"2024-05-01T12:09:59Z",
                    "ownerReferences":[{{"name":"other"}},{owner}]}},"revision":7}}"#
            )
        };
        for (owner, cell) in [
            (
                r#"{"apiVersion":"apps/v1","kind":"DaemonSet","name":"d","controller":true}"#,
                "daemonset.apps/d",
            ),
            (r#"{"apiVersion":"v1","kind":"Pod","name":"p","controller":true}"#, "pod/p"),
            (r#"{"apiVersion":"v1","kind":"Pod","name":"p","controller":false}"#, "<none>"),
        ] {
            assert_cells("apps", "ControllerRevision", &object(owner), &format!(r#"["r","{cell}",7,"1s"]"#));
        }
    }

    #[test]
    fn pod_template_cells_show_containers_and_labels() {
        let object = format!(r#"{{"metadata":{{"name":"t"}},"template":{POD}}}"#);
        assert_cells("", "PodTemplate", &object, r#"["t","c,d","i:1,j","app=a"]"#);
    }

    #[test]
    fn disruption_budget_cells_are_numbers_or_percents() {
        let object = |spec: &str| {
            format!(r#"{{"metadata":{{"name":"b"}},"spec":{{{spec}}},"status":{{"disruptionsAllowed":2}}}}"#)
        };
        let kind = ("policy", "PodDisruptionBudget");
        assert_cells(kind.0, kind.1, &object(r#""minAvailable":1"#), r#"["b","1","N/A",2,"<unknown>"]"#);
        assert_cells(
            kind.0,
            kind.1,
            &object(r#""maxUnavailable":"50%""#),
            r#"["b","N/A","50%",2,"<unknown>"]"#,
        );
    }
}
