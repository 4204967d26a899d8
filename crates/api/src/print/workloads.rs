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
    let all = |field: &str| containers.iter().map(|one| one.str(field)).collect::<Vec<_>>().join(",");
    (all("name"), all("image"))
}

fn deployment(it: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(it.at("spec.template.spec"));
    let selector = label_selector::to_text(it.at("spec.selector")).unwrap_or_else(|| "<invalid>".to_owned());
    cells![
        it.name(),
        ready_of_desired(it),
        it.int("status.updatedReplicas"),
        it.int("status.availableReplicas"),
        it.age(),
        names,
        images,
        selector
    ]
}

fn stateful_set(it: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(it.at("spec.template.spec"));
    cells![it.name(), ready_of_desired(it), it.age(), names, images]
}

fn ready_of_desired(it: &PrintedObject<'_>) -> String {
    format!("{}/{}", it.int("status.readyReplicas"), it.int("spec.replicas"))
}

fn replica_set(it: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(it.at("spec.template.spec"));
    let mut cells = replicas(it);
    cells.extend(cells![names, images, selector(it.at("spec.selector"))]);
    cells
}

/// Cells of a replication controller.
pub fn replication_controller(it: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(it.at("spec.template.spec"));
    let mut cells = replicas(it);
    cells.extend(cells![names, images, labels(it.at("spec.selector"))]);
    cells
}

fn replicas(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        it.name(),
        it.int("spec.replicas"),
        it.int("status.replicas"),
        it.int("status.readyReplicas"),
        it.age()
    ]
}

fn daemon_set(it: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(it.at("spec.template.spec"));
    cells![
        it.name(),
        it.int("status.desiredNumberScheduled"),
        it.int("status.currentNumberScheduled"),
        it.int("status.numberReady"),
        it.int("status.updatedNumberScheduled"),
        it.int("status.numberAvailable"),
        labels(it.at("spec.template.spec.nodeSelector")),
        it.age(),
        names,
        images,
        selector(it.at("spec.selector"))
    ]
}

fn controller_revision(it: &PrintedObject<'_>) -> Vec<Value> {
    let owners = it.items("metadata.ownerReferences");
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
    cells![it.name(), controller, it.int("revision"), it.age()]
}

/// Cells of a pod template.
pub fn pod_template(it: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(it.at("template.spec"));
    cells![it.name(), names, images, labels(it.at("template.metadata.labels"))]
}

/// Cells of a disruption budget.
pub fn disruption_budget(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        it.name(),
        number_or_percent(it.at("spec.minAvailable")),
        number_or_percent(it.at("spec.maxUnavailable")),
        it.int("status.disruptionsAllowed"),
        it.age()
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
    use crate::print::testing::shows;

    const POD: &str = r#"{"metadata":{"labels":{"app":"a"}},"spec":{"nodeSelector":{"zone":"z"},
        "containers":[{"name":"c","image":"i:1"},{"name":"d","image":"j"}]}}"#;

    #[test]
    fn workloads_count_their_pods() {
        let object = |spec: &str, status: &str| {
            format!(
                r#"{{"metadata":{{"name":"x","creationTimestamp":"2024-05-01T12:00:00Z"}},
                    "spec":{{"replicas":3,{spec}"template":{POD}}},"status":{{{status}}}}}"#
            )
        };
        let selector = r#""selector":{"matchLabels":{"app":"a"}},"#;
        let status = r#""replicas":2,"readyReplicas":1,"updatedReplicas":2,"availableReplicas":1"#;
        let all = object(selector, status);
        shows("apps", "Deployment", &all, r#"["x","1/3",2,1,"10m","c,d","i:1,j","app=a"]"#);
        shows("apps", "ReplicaSet", &all, r#"["x",3,2,1,"10m","c,d","i:1,j","app=a"]"#);
        shows("apps", "StatefulSet", &all, r#"["x","1/3","10m","c,d","i:1,j"]"#);
        let plain = object(r#""selector":{"app":"a","b":"c"},"#, status);
        shows("", "ReplicationController", &plain, r#"["x",3,2,1,"10m","c,d","i:1,j","app=a,b=c"]"#);
        let daemons = r#""desiredNumberScheduled":5,"currentNumberScheduled":4,"numberReady":3,
            "updatedNumberScheduled":2,"numberAvailable":1"#;
        shows(
            "apps",
            "DaemonSet",
            &object(selector, daemons),
            r#"["x",5,4,3,2,1,"zone=z","10m","c,d","i:1,j","app=a"]"#,
        );
    }

    #[test]
    fn selectors_that_say_nothing_or_nonsense() {
        let nonsense = r#"{"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}"#;
        shows("apps", "Deployment", nonsense, r#"["","0/0",0,0,"<unknown>","","","<invalid>"]"#);
        shows("apps", "ReplicaSet", nonsense, r#"["",0,0,0,"<unknown>","","","<error>"]"#);
        shows("apps", "Deployment", "{}", r#"["","0/0",0,0,"<unknown>","","",""]"#);
        shows("apps", "ReplicaSet", "{}", r#"["",0,0,0,"<unknown>","","","<none>"]"#);
    }

    #[test]
    fn revisions_name_their_controller() {
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
            shows("apps", "ControllerRevision", &object(owner), &format!(r#"["r","{cell}",7,"1s"]"#));
        }
    }

    #[test]
    fn templates_show_their_pods() {
        let object = format!(r#"{{"metadata":{{"name":"t"}},"template":{POD}}}"#);
        shows("", "PodTemplate", &object, r#"["t","c,d","i:1,j","app=a"]"#);
    }

    #[test]
    fn budgets_are_numbers_or_percents() {
        let object = |spec: &str| {
            format!(r#"{{"metadata":{{"name":"b"}},"spec":{{{spec}}},"status":{{"disruptionsAllowed":2}}}}"#)
        };
        let kind = ("policy", "PodDisruptionBudget");
        shows(kind.0, kind.1, &object(r#""minAvailable":1"#), r#"["b","1","N/A",2,"<unknown>"]"#);
        shows(kind.0, kind.1, &object(r#""maxUnavailable":"50%""#), r#"["b","N/A","50%",2,"<unknown>"]"#);
    }
}
