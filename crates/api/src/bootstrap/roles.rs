//! The default roles and bindings, read from the table beside this file, and how existing ones are reconciled: missing rules are
//! added, additional ones stay, and objects with the opt-out annotation are left alone.

use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::labels::BOOTSTRAPPING;
use pilothouse_apimachinery::well_known::{RBAC_GROUP, SYSTEM_NAMESPACE};
use pilothouse_authorization::rbac::escalation::{MissingPermissions, find_missing_permissions};
use pilothouse_authorization::rbac::role::Role;
use pilothouse_authorization::rbac::rule::{Rule, rules_of};

use super::{BootstrapObject, object_with_name};

const TABLE: &str = include_str!("roles.txt");
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// The prefix of the roles of controllers; the rest of the name is the controller's service account.
const CONTROLLER: &str = "system:controller:";
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// All default roles and bindings. `is_enabled` tells whether a feature gate is on.
pub fn all(is_enabled: impl Fn(&str) -> bool) -> Vec<BootstrapObject> {
    let mut objects: Vec<BootstrapObject> = Vec::new();
    let mut is_included = true;
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (gates, words) = split_gates(line.trim_start());
        let gates_enabled = gates.split('+').filter(|gate| !gate.is_empty()).all(&is_enabled);
        let words: Vec<&str> = words.split(' ').collect();
        if !line.starts_with(' ') {
            is_included = gates_enabled;
            if gates_enabled {
                objects.extend(parse_heading(&words));
            }
        } else if is_included
            && gates_enabled
            && let Some(last) = objects.last_mut()
        {
            add_line(&mut last.object, &words);
        }
    }
    let controllers: Vec<BootstrapObject> =
        objects.iter().filter_map(|role| controller_binding(&role.object)).collect();
    objects.extend(controllers);
    objects
}

fn split_gates(line: &str) -> (&str, &str) {
    line.strip_prefix('?').and_then(|rest| rest.split_once(' ')).unwrap_or(("", line))
}

/// An object from its heading, still without rules or subjects.
fn parse_heading(words: &[&str]) -> Option<BootstrapObject> {
    let (resource, kind, role_kind, words) = match words {
        ["cluster-role", rest @ ..] => ("clusterroles", "ClusterRole", "", rest),
        ["role", rest @ ..] => ("roles", "Role", "", rest),
        ["cluster-binding", rest @ ..] => ("clusterrolebindings", "ClusterRoleBinding", "ClusterRole", rest),
        ["binding", rest @ ..] => ("rolebindings", "RoleBinding", "Role", rest),
        _ => return None,
    };
    let namespaced = !resource.starts_with("cluster");
    let (namespace, words) = if namespaced { (*words.first()?, words.get(1..)?) } else { ("", words) };
    let (name, rest) = words.split_first()?;
    let mut object = object_with_name(API_VERSION, kind, name);
    let metadata = object.entry("metadata");
    if namespaced {
        metadata.set("namespace", namespace);
    }
    metadata.entry("annotations").set(AUTO_UPDATE, "true");
    metadata.entry("labels").set(BOOTSTRAPPING, "rbac-defaults");
    for pair in rest.chunks(2) {
        if let ["part-of", role] = pair {
            metadata.entry("labels").set(&format!("{AGGREGATE_TO}{role}"), "true");
        }
    }
    if !role_kind.is_empty() {
        let role = object.entry("roleRef");
        role.set("apiGroup", RBAC_GROUP);
        role.set("kind", role_kind);
        role.set("name", if let ["of", role] = rest { *role } else { *name });
    }
    Some(BootstrapObject { group: RBAC_GROUP, resource, object })
}

fn push(object: &mut Value, field: &str, item: Value) {
    match object.entry(field) {
        Value::Array(items) => items.push(item),
        other => *other = Value::Array(vec![item].into()),
    }
}

/// Adds the rule or subject of an indented line.
fn add_line(object: &mut Value, words: &[&str]) {
    let subject = |kind: &str, name: &str| {
        let mut subject = Value::object();
        subject.set("kind", kind);
        subject.set("name", name);
        subject
    };
    match words {
        ["gathers", role] => {
            let mut selector = Value::object();
            selector.entry("matchLabels").set(&format!("{AGGREGATE_TO}{role}"), "true");
            push(object.entry("aggregationRule"), "clusterRoleSelectors", selector);
        }
        [kind @ ("user" | "group"), name] => {
            let mut subject = subject(if *kind == "user" { "User" } else { "Group" }, name);
            subject.set("apiGroup", RBAC_GROUP);
            push(object, "subjects", subject);
        }
        ["account", namespace, name] => {
            let mut subject = subject("ServiceAccount", name);
            subject.set("namespace", *namespace);
            push(object, "subjects", subject);
        }
        [verbs, groups, targets @ ..] => push(object, "rules", rule(verbs, groups, targets).to_value()),
        _ => {}
    }
}

fn rule(verbs: &str, groups: &str, targets: &[&str]) -> Rule {
    let boxed = |words: &[&str]| words.iter().map(|word| Box::from(*word)).collect();
    let verbs: Vec<&str> = match verbs {
        "read" => READ.to_vec(),
        "write" => WRITE.to_vec(),
        "read+write" => {
            let mut both = [&WRITE[..], &READ].concat();
            both.sort_unstable();
            both
        }
        verbs => verbs.split(',').collect(),
    };
    if groups == "url" {
        return Rule { verbs: boxed(&verbs), paths: boxed(targets), ..Rule::default() };
    }
    let names_at = targets.iter().position(|word| *word == "named").unwrap_or(targets.len());
    let (resources, names) = targets.split_at(names_at);
    let groups: Vec<&str> = groups.split(',').map(|group| if group == "core" { "" } else { group }).collect();
    Rule {
        verbs: boxed(&verbs),
        api_groups: boxed(&groups),
        resources: boxed(resources),
        resource_names: boxed(names.get(1..).unwrap_or_default()),
        paths: Box::default(),
    }
}

/// The binding of a controller's role to its service account.
fn controller_binding(role: &Value) -> Option<BootstrapObject> {
    if role.str("kind") != "ClusterRole" {
        return None;
    }
    let account = meta::name(role).strip_prefix(CONTROLLER)?;
    let mut binding = parse_heading(&["cluster-binding", meta::name(role)])?;
    add_line(&mut binding.object, &["account", SYSTEM_NAMESPACE, account]);
    Some(binding)
}

/// How to reconcile an existing object.
#[derive(Debug, PartialEq)]
pub enum Reconciliation {
    /// It is complete, or it has the opt-out annotation.
    Nothing,
    /// Update it to this.
    Replace(Value),
    /// Its roleRef differs, which is immutable: delete the binding and create it again.
    Recreate,
}

/// Compares an existing object with its default.
pub fn repair(current: &Value, expected: &Value) -> Reconciliation {
    let autoupdate = meta::metadata(current).get("annotations").map(|fields| fields.str(AUTO_UPDATE));
    if autoupdate == Some("false") {
        return Reconciliation::Nothing;
    }
    let is_binding = expected.get("roleRef").is_some();
    if is_binding && !same(current.get("roleRef"), expected.get("roleRef")) {
        return Reconciliation::Recreate;
    }
    let mut repaired = current.clone();
    for field in ["annotations", "labels"] {
        let expected_fields = meta::metadata(expected).get(field).and_then(Value::fields);
        for (key, value) in expected_fields.into_iter().flatten() {
            if meta::metadata(current).get(field).and_then(|fields| fields.get(key)).is_none() {
                repaired.entry("metadata").entry(field).set(key, value.clone());
            }
        }
    }
    if is_binding {
        add_missing(&mut repaired, expected, "subjects");
    } else {
        repair_role(&mut repaired, expected);
    }
    if repaired == *current { Reconciliation::Nothing } else { Reconciliation::Replace(repaired) }
}

/// The binding from which a missing one of this name is copied, because its role was split off from the role of that binding.
pub fn origin(name: &str) -> Option<&'static str> {
    (name == "system:public-info-viewer").then_some("system:discovery")
}

/// A missing binding with the subjects and annotations of its origin, so that restrictions of the origin stay in force.
pub fn split_off(expected: &Value, origin: &Value) -> Value {
    let mut split = expected.clone();
    let inherit = |into: &mut Value, from: &Value, field: &str| match from.get(field) {
        Some(value) => into.set(field, value.clone()),
        None => drop(into.remove(field)),
    };
    inherit(&mut split, origin, "subjects");
    for field in ["annotations", "labels"] {
        inherit(split.entry("metadata"), meta::metadata(origin), field);
    }
    match repair(&split, expected) {
        Reconciliation::Replace(repaired) => repaired,
        Reconciliation::Nothing | Reconciliation::Recreate => split,
    }
}

fn repair_role(role: &mut Value, expected: &Value) {
    let current_role = Role::new(rules_of(role));
    let missing = find_missing_permissions(&[&current_role], &rules_of(expected));
    if let Some(MissingPermissions::Rules(missing_rules)) = missing {
        for rule in missing_rules {
            push(role, "rules", rule.to_value());
        }
    }
    match expected.get("aggregationRule") {
        None => {
            role.remove("aggregationRule");
        }
        Some(aggregation) => add_missing(role.entry("aggregationRule"), aggregation, "clusterRoleSelectors"),
    }
}

/// Appends the expected items that the list lacks.
fn add_missing(target: &mut Value, expected: &Value, field: &str) {
    for item in expected.get(field).map(Value::items).unwrap_or_default() {
        if !target.get(field).map(Value::items).unwrap_or_default().contains(item) {
            push(target, field, item.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec;

    use super::*;

    const DEFAULT_ON: [&str; 3] =
        ["KubeletFineGrainedAuthz", "MultiCIDRServiceAllocator", "SELinuxChangePolicy"];

    fn default_objects() -> Vec<BootstrapObject> {
        all(|gate| DEFAULT_ON.contains(&gate))
    }

    fn find(all: &[BootstrapObject], resource: &str, name: &str) -> Value {
        let object =
            all.iter().find(|object| object.resource == resource && meta::name(&object.object) == name);
        object.unwrap_or_else(|| panic!("no {name}")).object.clone()
    }

    fn json(value: &Value) -> serde_json::Value {
        serde_json::from_slice(&codec::to_json(value)).unwrap()
    }

    #[test]
    fn table_of_roles_is_parsed_completely() {
        let count = |all: &[BootstrapObject], resource: &str| {
            all.iter().filter(|one| one.resource == resource).count()
        };
        let counts = |all: &[BootstrapObject]| {
            ["clusterroles", "clusterrolebindings", "roles", "rolebindings"]
                .map(|resource| count(all, resource))
        };
        assert_eq!(counts(&default_objects()), [66, 47, 7, 7]);
        assert_eq!(counts(&all(|_| true)), [73, 54, 7, 7]);
        let gated = counts(&all(|gate| gate == "DynamicResourceAllocation"));
        assert_eq!(
            gated,
            [65, 46, 7, 7],
            "two default gates off, one more on; both gates of a pair are needed"
        );
        for BootstrapObject { object, .. } in all(|_| true) {
            for rule in rules_of(&object) {
                assert!(
                    !rule.verbs.is_empty() && rule.paths.is_empty() != rule.resources.is_empty(),
                    "{rule}"
                );
                assert!(rule.paths.is_empty() != rule.api_groups.is_empty(), "{rule}");
            }
        }
    }

    #[test]
    fn default_roles_and_bindings_equal_the_reference() {
        let all = default_objects();
        assert_eq!(
            json(&find(&all, "clusterroles", "edit")),
            serde_json::json!({
                "apiVersion": API_VERSION, "kind": "ClusterRole",
                "metadata": {
                    "name": "edit",
                    "annotations": {AUTO_UPDATE: "true"},
                    "labels": {BOOTSTRAPPING: "rbac-defaults", "rbac.authorization.k8s.io/aggregate-to-admin": "true"},
                },
                "aggregationRule": {"clusterRoleSelectors": [
                    {"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}},
                ]},
            })
        );
        let locking = json(&find(&all, "roles", "system::leader-locking-kube-scheduler"));
        assert_eq!(locking["metadata"]["namespace"], "kube-system");
        assert_eq!(
            locking["rules"][1],
            serde_json::json!({
                "verbs": ["get", "update"], "apiGroups": [""], "resources": ["configmaps"],
                "resourceNames": ["kube-scheduler"],
            })
        );
        let job = json(&find(&all, "clusterrolebindings", "system:controller:job-controller"));
        assert_eq!(
            (&job["roleRef"], &job["subjects"]),
            (
                &serde_json::json!({"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "system:controller:job-controller"}),
                &serde_json::json!([{"kind": "ServiceAccount", "namespace": "kube-system", "name": "job-controller"}]),
            )
        );
        let reader = json(&find(&all, "rolebindings", "system::extension-apiserver-authentication-reader"));
        assert_eq!(reader["roleRef"]["name"], "extension-apiserver-authentication-reader");
        assert_eq!(json(&find(&all, "clusterrolebindings", "system:node")).get("subjects"), None);
    }

    #[test]
    fn repair_restores_missing_rules_and_keeps_additional_ones() {
        let all = default_objects();
        let expected = find(&all, "clusterroles", "system:basic-user");
        assert_eq!(repair(&expected, &expected), Reconciliation::Nothing);
        let mut current = expected.clone();
        let own = rule("get", "core", &["pods"]).to_value();
        current.set("rules", vec![own.clone()]);
        current.entry("metadata").remove("labels");
        current.entry("metadata").entry("annotations").set(AUTO_UPDATE, "maybe");
        let Reconciliation::Replace(repaired) = repair(&current, &expected) else {
            panic!("nothing repaired")
        };
        let rules = repaired.get("rules").unwrap().items();
        assert_eq!((rules.len(), &rules[0]), (4, &own), "one additional rule and three restored ones");
        assert_eq!(meta::metadata(&repaired).get("labels"), meta::metadata(&expected).get("labels"));
        assert_eq!(meta::metadata(&repaired).get("annotations").unwrap().str(AUTO_UPDATE), "maybe");
        current.entry("metadata").entry("annotations").set(AUTO_UPDATE, "false");
        assert_eq!(repair(&current, &expected), Reconciliation::Nothing);
    }

    #[test]
    fn repair_restores_subjects_and_remakes_binding_of_other_role() {
        let expected = find(&default_objects(), "clusterrolebindings", "system:public-info-viewer");
        let mut current = expected.clone();
        current.remove("subjects");
        assert_eq!(repair(&current, &expected), Reconciliation::Replace(expected.clone()));
        current.entry("roleRef").set("name", "cluster-admin");
        assert_eq!(repair(&current, &expected), Reconciliation::Recreate);
        let mut aggregated = find(&default_objects(), "clusterroles", "view");
        let view = aggregated.clone();
        aggregated.set("rules", vec![rule("get", "core", &["x"]).to_value()]);
        assert_eq!(repair(&aggregated, &view), Reconciliation::Nothing, "aggregated rules are kept");
        aggregated.remove("aggregationRule");
        assert!(matches!(repair(&aggregated, &view), Reconciliation::Replace(_)));
        assert!(
            matches!(repair(&view, &without_aggregation(&view)), Reconciliation::Replace(role) if role.get("aggregationRule").is_none())
        );
    }

    #[test]
    fn split_off_binding_inherits_restrictions_of_its_origin() {
        let expected = find(&default_objects(), "clusterrolebindings", "system:public-info-viewer");
        let mut discovery =
            find(&default_objects(), "clusterrolebindings", origin("system:public-info-viewer").unwrap());
        assert_eq!(split_off(&expected, &discovery).get("roleRef"), expected.get("roleRef"));
        let groups = |binding: &Value| binding.get("subjects").map_or(0, |subjects| subjects.items().len());
        assert_eq!(groups(&split_off(&expected, &discovery)), 2, "default subjects are added");
        discovery.entry("metadata").entry("annotations").set(AUTO_UPDATE, "false");
        let split = split_off(&expected, &discovery);
        assert_eq!((groups(&split), split.get("subjects")), (1, discovery.get("subjects")));
        assert_eq!(meta::metadata(&split).get("annotations"), meta::metadata(&discovery).get("annotations"));
        assert_eq!(meta::name(&split), "system:public-info-viewer");
        assert_eq!(origin("system:discovery"), None);
    }

    fn without_aggregation(role: &Value) -> Value {
        let mut plain = role.clone();
        plain.remove("aggregationRule");
        plain
    }
}
