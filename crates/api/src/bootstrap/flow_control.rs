//! The flow schemas and priority levels of a fresh cluster.
//!
//! An annotation tells whether a server may update their spec: it does so as long as the value is `true`, and always for `exempt`
//! and `catch-all`.

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::flows::{CATCH_ALL, EXEMPT};
use pilothouse_apimachinery::well_known::{
    ALL_ACCOUNTS, AUTHENTICATED, MASTERS, NODES, SYSTEM_NAMESPACE, UNAUTHENTICATED,
};

use super::{BootstrapObject, named};

/// The group of both kinds.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// The field manager of the objects' spec.
pub const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
/// The field manager of their status.
pub const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";

/// A level of limited concurrency: its share, the percentage that others may borrow, and its queues (how many, how many of
/// them one flow may use, how long each); without queues what is too much is rejected.
struct Level(&'static str, i64, i64, Option<(i64, i64, i64)>);

const LEVELS: [Level; 7] = [
    Level(CATCH_ALL, 5, 0, None),
    Level("global-default", 20, 50, Some((128, 6, 50))),
    Level("leader-election", 10, 0, Some((16, 4, 50))),
    Level("node-high", 40, 25, Some((64, 6, 50))),
    Level("system", 30, 33, Some((64, 6, 50))),
    Level("workload-high", 40, 50, Some((128, 6, 50))),
    Level("workload-low", 100, 90, Some((128, 6, 50))),
];

/// The subject of a FlowSchema.
#[derive(Clone, Copy)]
enum Subject {
    User(&'static str),
    Group(&'static str),
    /// A service account of kube-system.
    Account(&'static str),
}
use Subject::{Account, Group, User};

/// A resource rule: verbs, API group, resources, and whether cluster-scoped objects match too.
struct Rule(&'static [&'static str], &'static str, &'static [&'static str], bool);

const EVERY_RESOURCE: Rule = Rule(&["*"], "*", &["*"], true);
const LEASES: Rule = Rule(&["get", "create", "update"], "coordination.k8s.io", &["leases"], false);
const EVERY_PATH: &[&str] = &["*"];

/// A FlowSchema of the table.
struct Schema {
    name: &'static str,
    level: &'static str,
    precedence: i64,
    /// The flow distinguisher; empty: all requests are one flow.
    by: &'static str,
    subjects: &'static [Subject],
    resources: &'static [Rule],
    /// Non-resource paths and their verbs; none: the FlowSchema matches resource requests only.
    paths: Option<(&'static str, &'static [&'static str])>,
}

const SCHEMAS: [Schema; 13] = [
    Schema { by: "", ..everything(EXEMPT, EXEMPT, 1, &[Group(MASTERS)]) },
    Schema {
        by: "",
        resources: &[],
        paths: Some(("get", &["/healthz", "/readyz", "/livez"])),
        ..everything("probes", EXEMPT, 2, &[Group(UNAUTHENTICATED), Group(AUTHENTICATED)])
    },
    Schema {
        resources: &[LEASES],
        paths: None,
        ..everything(
            "system-leader-election",
            "leader-election",
            100,
            &[User("system:kube-controller-manager"), User("system:kube-scheduler"), Account("*")],
        )
    },
    Schema {
        resources: &[Rule(&["get", "create", "update"], "", &["endpoints"], false)],
        paths: None,
        ..everything(
            "endpoint-controller",
            "workload-high",
            150,
            &[
                User("system:kube-controller-manager"),
                Account("endpoint-controller"),
                Account("endpointslicemirroring-controller"),
            ],
        )
    },
    Schema {
        resources: &[Rule(&["get", "create", "update"], "", &["endpoints", "configmaps"], false), LEASES],
        paths: None,
        ..everything("workload-leader-election", "leader-election", 200, &[Account("*")])
    },
    Schema {
        resources: &[
            Rule(&["*"], "", &["nodes", "nodes/status"], true),
            Rule(&["*"], "coordination.k8s.io", &["leases"], false),
        ],
        paths: None,
        ..everything("system-node-high", "node-high", 400, &[Group(NODES)])
    },
    everything("system-nodes", "system", 500, &[Group(NODES)]),
    Schema {
        by: "ByNamespace",
        ..everything(
            "kube-controller-manager",
            "workload-high",
            800,
            &[User("system:kube-controller-manager")],
        )
    },
    Schema {
        by: "ByNamespace",
        ..everything("kube-scheduler", "workload-high", 800, &[User("system:kube-scheduler")])
    },
    Schema {
        by: "ByNamespace",
        ..everything("kube-system-service-accounts", "workload-high", 900, &[Account("*")])
    },
    everything("service-accounts", "workload-low", 9_000, &[Group(ALL_ACCOUNTS)]),
    everything("global-default", "global-default", 9_900, &[Group(UNAUTHENTICATED), Group(AUTHENTICATED)]),
    everything(CATCH_ALL, CATCH_ALL, 10_000, &[Group(UNAUTHENTICATED), Group(AUTHENTICATED)]),
];

/// A FlowSchema for all requests of these subjects, with one flow per user.
const fn everything(
    name: &'static str,
    level: &'static str,
    precedence: i64,
    subjects: &'static [Subject],
) -> Schema {
    let paths = Some(("*", EVERY_PATH));
    Schema { name, level, precedence, by: "ByUser", subjects, resources: &[EVERY_RESOURCE], paths }
}

/// The PriorityLevelConfigurations.
pub fn levels() -> Vec<BootstrapObject> {
    let mut exempt = base("PriorityLevelConfiguration", EXEMPT);
    let spec = exempt.entry("spec");
    spec.set("type", "Exempt");
    spec.entry("exempt").set("nominalConcurrencyShares", 0);
    spec.entry("exempt").set("lendablePercent", 0);
    let all = std::iter::once(exempt).chain(LEVELS.iter().map(level));
    all.map(|object| BootstrapObject { group: GROUP, resource: "prioritylevelconfigurations", object })
        .collect()
}

/// The FlowSchemas.
pub fn schemas() -> Vec<BootstrapObject> {
    let schemas = SCHEMAS.iter().map(schema);
    schemas.map(|object| BootstrapObject { group: GROUP, resource: "flowschemas", object }).collect()
}

/// The name of the priority level that a FlowSchema refers to.
pub fn level_of(schema: &Value) -> &str {
    schema.at(&["spec", "priorityLevelConfiguration", "name"]).and_then(Value::as_str).unwrap_or_default()
}

/// The status of a FlowSchema whose priority level exists.
pub fn found(schema: &Value, now: &str) -> Value {
    dangling(level_of(schema), true, now)
}

/// The apply configuration that sets only the status of a FlowSchema.
pub fn stated(schema: &Value, status: Value) -> Value {
    let mut config = named(API_VERSION, "FlowSchema", meta::name(schema));
    config.set("status", status);
    config
}

/// The `Dangling` condition: whether the priority level exists.
pub fn dangling(level: &str, is_there: bool, now: &str) -> Value {
    let mut condition = Value::object();
    condition.set("type", "Dangling");
    condition.set("status", if is_there { "False" } else { "True" });
    condition.set("lastTransitionTime", now);
    condition.set("reason", if is_there { "Found" } else { "NotFound" });
    let what = if is_there { "and it exists" } else { "but there is no such object" };
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {} {what}",
        quoted(level)
    );
    condition.set("message", message);
    let mut status = Value::object();
    status.set("conditions", vec![condition]);
    status
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The value of the auto-update annotation, if it is a boolean.
fn auto_update(object: &Value) -> Option<bool> {
    let annotations = meta::of(object).get("annotations")?;
    annotations.get(AUTO_UPDATE).and_then(Value::as_str).and_then(truth)
}

/// Whether an object outside the defaults comes from an earlier release, and nobody has opted out of updates.
pub fn is_left_over(object: &Value) -> bool {
    auto_update(object) == Some(true)
}

/// The updated form of a default object; `None` if it is up to date, or must not be updated.
pub fn revised(current: &Value, wanted: &Value) -> Option<Value> {
    let is_mandatory = [EXEMPT, CATCH_ALL].contains(&meta::name(wanted));
    let said = auto_update(current);
    // Without the annotation, generation 1 means that nobody has changed the spec.
    let updates = is_mandatory || said.unwrap_or(meta::generation(current) == 1);
    let mut spec = wanted.get("spec").cloned().unwrap_or_default();
    if let Some(theirs) = current.at(&["spec", "exempt"]).filter(|_| spec.get("exempt").is_some()) {
        // These two fields of `exempt` belong to the administrator.
        for field in ["nominalConcurrencyShares", "lendablePercent"] {
            let number = theirs.get(field).cloned().unwrap_or_default();
            spec.entry("exempt").set(field, number);
        }
    }
    let differs = updates && current.get("spec") != Some(&spec);
    if !differs && said == Some(updates) {
        return None;
    }
    let mut revised = current.clone();
    if differs {
        revised.set("spec", spec);
    }
    let annotations = revised.entry("metadata").entry("annotations");
    annotations.set(AUTO_UPDATE, if updates { "true" } else { "false" });
    Some(revised)
}

fn base(kind: &str, name: &str) -> Value {
    let mut object = named(API_VERSION, kind, name);
    object.entry("metadata").entry("annotations").set(AUTO_UPDATE, "true");
    object
}

fn level(Level(name, shares, lendable, queues): &Level) -> Value {
    let mut object = base("PriorityLevelConfiguration", name);
    let spec = object.entry("spec");
    spec.set("type", "Limited");
    let limited = spec.entry("limited");
    limited.set("nominalConcurrencyShares", *shares);
    limited.set("lendablePercent", *lendable);
    let response = limited.entry("limitResponse");
    response.set("type", if queues.is_some() { "Queue" } else { "Reject" });
    if let Some((queues, hand, length)) = queues {
        let queuing = response.entry("queuing");
        queuing.set("queues", *queues);
        queuing.set("handSize", *hand);
        queuing.set("queueLengthLimit", *length);
    }
    object
}

fn schema(schema: &Schema) -> Value {
    let mut object = base("FlowSchema", schema.name);
    let spec = object.entry("spec");
    spec.entry("priorityLevelConfiguration").set("name", schema.level);
    spec.set("matchingPrecedence", schema.precedence);
    if !schema.by.is_empty() {
        spec.entry("distinguisherMethod").set("type", schema.by);
    }
    let mut rule = Value::object();
    rule.set("subjects", schema.subjects.iter().map(subject).collect::<Vec<_>>());
    if !schema.resources.is_empty() {
        rule.set("resourceRules", schema.resources.iter().map(resources).collect::<Vec<_>>());
    }
    if let Some((verb, paths)) = schema.paths {
        let mut part = Value::object();
        part.set("verbs", vec![verb]);
        part.set("nonResourceURLs", paths.to_vec());
        rule.set("nonResourceRules", vec![part]);
    }
    spec.set("rules", vec![rule]);
    object
}

fn subject(subject: &Subject) -> Value {
    let (kind, field, name) = match subject {
        User(name) => ("User", "user", name),
        Group(name) => ("Group", "group", name),
        Account(name) => ("ServiceAccount", "serviceAccount", name),
    };
    let mut object = Value::object();
    object.set("kind", kind);
    object.entry(field).set("name", *name);
    if matches!(subject, Account(_)) {
        object.entry(field).set("namespace", SYSTEM_NAMESPACE);
    }
    object
}

fn resources(Rule(verbs, group, resources, cluster): &Rule) -> Value {
    let mut object = Value::object();
    object.set("verbs", verbs.to_vec());
    object.set("apiGroups", vec![*group]);
    object.set("resources", resources.to_vec());
    object.set("namespaces", vec!["*"]);
    if *cluster {
        object.set("clusterScope", true);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_wants_otherwise_stays_and_what_must_be_there_does_not() {
        let of = |name: &str| {
            let all = levels().into_iter().map(|wanted| wanted.object);
            all.into_iter().find(|level| meta::name(level) == name).unwrap()
        };
        let (system, rest) = (of("system"), of(CATCH_ALL));
        let mut stored = system.clone();
        stored.entry("metadata").set("generation", 1);
        assert_eq!(revised(&stored, &system), None);
        stored.entry("spec").entry("limited").set("nominalConcurrencyShares", 31);
        stored.entry("metadata").set("generation", 2);
        let back = revised(&stored, &system).unwrap();
        assert_eq!(back.get("spec"), system.get("spec"));
        stored.entry("metadata").entry("annotations").set(AUTO_UPDATE, "false");
        assert_eq!(revised(&stored, &system), None, "somebody means it");
        stored.entry("metadata").entry("annotations").set(AUTO_UPDATE, "maybe");
        let marked = revised(&stored, &system).unwrap();
        assert_eq!(marked.get("spec"), stored.get("spec"));
        assert_eq!(auto_update(&marked), Some(false));
        let mut stored = rest.clone();
        stored.entry("metadata").entry("annotations").set(AUTO_UPDATE, "false");
        assert_eq!(revised(&stored, &rest).as_ref().and_then(auto_update), Some(true));
        let exempt = of(EXEMPT);
        let mut stored = exempt.clone();
        stored.entry("spec").entry("exempt").set("nominalConcurrencyShares", 7);
        assert_eq!(revised(&stored, &exempt), None, "that is for others to say");
        assert!(is_left_over(&stored));
    }

    #[test]
    fn every_schema_has_its_level_and_they_come_in_order() {
        let levels = levels();
        let names: Vec<&str> = levels.iter().map(|level| meta::name(&level.object)).collect();
        let mut before = 0;
        for BootstrapObject { object, .. } in schemas() {
            let level = object.at(&["spec", "priorityLevelConfiguration", "name"]).and_then(Value::as_str);
            assert!(level.is_some_and(|level| names.contains(&level)), "{object:?}");
            let precedence = object.at(&["spec", "matchingPrecedence"]).and_then(Value::as_int).unwrap();
            assert!(precedence >= before, "{object:?}");
            before = precedence;
        }
        assert_eq!((levels.len(), before), (8, 10_000));
    }

    #[test]
    fn probes_are_about_paths_alone() {
        let probes = schemas().swap_remove(1).object;
        assert_eq!(meta::name(&probes), "probes");
        let rules = probes.at(&["spec", "rules"]).map(Value::items).unwrap();
        assert_eq!(rules[0].get("resourceRules"), None);
        assert_eq!(probes.at(&["spec", "distinguisherMethod"]), None);
    }
}
