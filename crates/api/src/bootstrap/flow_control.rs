//! The flow schemas and priority levels of a fresh cluster.
//!
//! An annotation tells whether a server may update their spec: it does so as long as the value is `true`, and always for `exempt`
//! and `catch-all`.

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::FLOW_AUTO_UPDATE as AUTO_UPDATE;
use pilothouse_apimachinery::well_known::flows::{CATCH_ALL, EXEMPT};
use pilothouse_apimachinery::well_known::{
    ALL_ACCOUNTS, AUTHENTICATED, MASTERS, NODES, SYSTEM_NAMESPACE, UNAUTHENTICATED,
};

use super::{BootstrapObject, object_with_name};

/// The group of both kinds.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
/// The field manager of the objects' spec.
pub const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
/// The field manager of their status.
pub const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";

/// A limited priority level: name, nominalConcurrencyShares, lendablePercent, and (queues, handSize, queueLengthLimit). Without
/// queues, excess requests are rejected.
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
    /// The flow distinguisher method; empty: all requests are one flow.
    distinguisher: &'static str,
    subjects: &'static [Subject],
    resources: &'static [Rule],
    /// Non-resource paths and their verbs; none: the FlowSchema matches resource requests only.
    paths: Option<(&'static str, &'static [&'static str])>,
}

const SCHEMAS: [Schema; 13] = [
    Schema { distinguisher: "", ..schema_for(EXEMPT, EXEMPT, 1, &[Group(MASTERS)]) },
    Schema {
        distinguisher: "",
        resources: &[],
        paths: Some(("get", &["/healthz", "/readyz", "/livez"])),
        ..schema_for("probes", EXEMPT, 2, &[Group(UNAUTHENTICATED), Group(AUTHENTICATED)])
    },
    Schema {
        resources: &[LEASES],
        paths: None,
        ..schema_for(
            "system-leader-election",
            "leader-election",
            100,
            &[User("system:kube-controller-manager"), User("system:kube-scheduler"), Account("*")],
        )
    },
    Schema {
        resources: &[Rule(&["get", "create", "update"], "", &["endpoints"], false)],
        paths: None,
        ..schema_for(
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
        ..schema_for("workload-leader-election", "leader-election", 200, &[Account("*")])
    },
    Schema {
        resources: &[
            Rule(&["*"], "", &["nodes", "nodes/status"], true),
            Rule(&["*"], "coordination.k8s.io", &["leases"], false),
        ],
        paths: None,
        ..schema_for("system-node-high", "node-high", 400, &[Group(NODES)])
    },
    schema_for("system-nodes", "system", 500, &[Group(NODES)]),
    Schema {
        distinguisher: "ByNamespace",
        ..schema_for(
            "kube-controller-manager",
            "workload-high",
            800,
            &[User("system:kube-controller-manager")],
        )
    },
    Schema {
        distinguisher: "ByNamespace",
        ..schema_for("kube-scheduler", "workload-high", 800, &[User("system:kube-scheduler")])
    },
    Schema {
        distinguisher: "ByNamespace",
        ..schema_for("kube-system-service-accounts", "workload-high", 900, &[Account("*")])
    },
    schema_for("service-accounts", "workload-low", 9_000, &[Group(ALL_ACCOUNTS)]),
    schema_for("global-default", "global-default", 9_900, &[Group(UNAUTHENTICATED), Group(AUTHENTICATED)]),
    schema_for(CATCH_ALL, CATCH_ALL, 10_000, &[Group(UNAUTHENTICATED), Group(AUTHENTICATED)]),
];

/// A FlowSchema for all requests of these subjects, with one flow per user.
const fn schema_for(
    name: &'static str,
    level: &'static str,
    precedence: i64,
    subjects: &'static [Subject],
) -> Schema {
    let paths = Some(("*", EVERY_PATH));
    Schema { name, level, precedence, distinguisher: "ByUser", subjects, resources: &[EVERY_RESOURCE], paths }
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
pub fn level_name(schema: &Value) -> &str {
    schema
        .get_path(&["spec", "priorityLevelConfiguration", "name"])
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The status of a FlowSchema whose priority level exists.
pub fn resolved_status(schema: &Value, now: &str) -> Value {
    dangling(level_name(schema), true, now)
}

/// The apply configuration that sets only the status of a FlowSchema.
pub fn status_configuration(schema: &Value, status: Value) -> Value {
    let mut config = object_with_name(API_VERSION, "FlowSchema", meta::name(schema));
    config.set("status", status);
    config
}

/// The `Dangling` condition: whether the priority level exists.
pub fn dangling(level: &str, exists: bool, now: &str) -> Value {
    let mut condition = Value::object();
    condition.set("type", "Dangling");
    condition.set("status", if exists { "False" } else { "True" });
    condition.set("lastTransitionTime", now);
    condition.set("reason", if exists { "Found" } else { "NotFound" });
    let outcome = if exists { "and it exists" } else { "but there is no such object" };
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {} {outcome}",
        quoted(level)
    );
    condition.set("message", message);
    let mut status = Value::object();
    status.set("conditions", vec![condition]);
    status
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The value of the auto-update annotation, if it is a boolean.
fn auto_update(object: &Value) -> Option<bool> {
    let annotations = meta::metadata(object).get("annotations")?;
    annotations.get(AUTO_UPDATE).and_then(Value::as_str).and_then(parse_bool)
}

/// Whether an object outside the defaults comes from an earlier release, and nobody has opted out of updates.
pub fn is_obsolete(object: &Value) -> bool {
    auto_update(object) == Some(true)
}

/// The updated form of a default object; `None` if it is up to date, or must not be updated.
pub fn compute_update(current: &Value, expected: &Value) -> Option<Value> {
    let is_mandatory = [EXEMPT, CATCH_ALL].contains(&meta::name(expected));
    let auto_updates = auto_update(current);
    // Without the annotation, generation 1 means that nobody has changed the spec.
    let may_update = is_mandatory || auto_updates.unwrap_or(meta::generation(current) == 1);
    let mut spec = expected.get("spec").cloned().unwrap_or_default();
    if let Some(theirs) = current.get_path(&["spec", "exempt"]).filter(|_| spec.get("exempt").is_some()) {
        // These two fields of `exempt` belong to the administrator.
        for field in ["nominalConcurrencyShares", "lendablePercent"] {
            let number = theirs.get(field).cloned().unwrap_or_default();
            spec.entry("exempt").set(field, number);
        }
    }
    let differs = may_update && current.get("spec") != Some(&spec);
    if !differs && auto_updates == Some(may_update) {
        return None;
    }
    let mut updated = current.clone();
    if differs {
        updated.set("spec", spec);
    }
    let annotations = updated.entry("metadata").entry("annotations");
    annotations.set(AUTO_UPDATE, if may_update { "true" } else { "false" });
    Some(updated)
}

fn base(kind: &str, name: &str) -> Value {
    let mut object = object_with_name(API_VERSION, kind, name);
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
    if !schema.distinguisher.is_empty() {
        spec.entry("distinguisherMethod").set("type", schema.distinguisher);
    }
    let mut rule = Value::object();
    rule.set("subjects", schema.subjects.iter().map(subject).collect::<Vec<_>>());
    if !schema.resources.is_empty() {
        rule.set("resourceRules", schema.resources.iter().map(resources).collect::<Vec<_>>());
    }
    if let Some((verb, paths)) = schema.paths {
        let mut paths_rule = Value::object();
        paths_rule.set("verbs", vec![verb]);
        paths_rule.set("nonResourceURLs", paths.to_vec());
        rule.set("nonResourceRules", vec![paths_rule]);
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
    fn flow_control_keeps_opted_out_levels_and_restores_mandatory_ones() {
        let default_level = |name: &str| {
            let all = levels().into_iter().map(|level| level.object);
            all.into_iter().find(|level| meta::name(level) == name).unwrap()
        };
        let (system, catch_all) = (default_level("system"), default_level(CATCH_ALL));
        let mut stored = system.clone();
        stored.entry("metadata").set("generation", 1);
        assert_eq!(compute_update(&stored, &system), None);
        stored.entry("spec").entry("limited").set("nominalConcurrencyShares", 31);
        stored.entry("metadata").set("generation", 2);
        let restored = compute_update(&stored, &system).unwrap();
        assert_eq!(restored.get("spec"), system.get("spec"));
        stored.entry("metadata").entry("annotations").set(AUTO_UPDATE, "false");
        assert_eq!(compute_update(&stored, &system), None, "opted out of updates");
        stored.entry("metadata").entry("annotations").set(AUTO_UPDATE, "maybe");
        let marked = compute_update(&stored, &system).unwrap();
        assert_eq!(marked.get("spec"), stored.get("spec"));
        assert_eq!(auto_update(&marked), Some(false));
        let mut stored = catch_all.clone();
        stored.entry("metadata").entry("annotations").set(AUTO_UPDATE, "false");
        assert_eq!(compute_update(&stored, &catch_all).as_ref().and_then(auto_update), Some(true));
        let exempt = default_level(EXEMPT);
        let mut stored = exempt.clone();
        stored.entry("spec").entry("exempt").set("nominalConcurrencyShares", 7);
        assert_eq!(compute_update(&stored, &exempt), None, "shares of exempt belong to the administrator");
        assert!(is_obsolete(&stored));
    }

    #[test]
    fn flow_schemas_refer_to_levels_and_are_ordered_by_precedence() {
        let levels = levels();
        let names: Vec<&str> = levels.iter().map(|level| meta::name(&level.object)).collect();
        let mut previous = 0;
        for BootstrapObject { object, .. } in schemas() {
            let level =
                object.get_path(&["spec", "priorityLevelConfiguration", "name"]).and_then(Value::as_str);
            assert!(level.is_some_and(|level| names.contains(&level)), "{object:?}");
            let precedence =
                object.get_path(&["spec", "matchingPrecedence"]).and_then(Value::as_int).unwrap();
            assert!(precedence >= previous, "{object:?}");
            previous = precedence;
        }
        assert_eq!((levels.len(), previous), (8, 10_000));
    }

    #[test]
    fn probes_schema_matches_only_paths() {
        let probes = schemas().swap_remove(1).object;
        assert_eq!(meta::name(&probes), "probes");
        let rules = probes.get_path(&["spec", "rules"]).map(Value::items).unwrap();
        assert_eq!(rules[0].get("resourceRules"), None);
        assert_eq!(probes.get_path(&["spec", "distinguisherMethod"]), None);
    }
}
