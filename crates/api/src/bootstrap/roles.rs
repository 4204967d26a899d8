//! The default roles and bindings, read from the table beside this file, and how existing ones are reconciled: missing rules are
//! added, additional ones stay, and objects with the opt-out annotation are left alone.

use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{RBAC_GROUP, SYSTEM_NAMESPACE};
use pilothouse_authorization::rbac::escalation::{Missing, missing};
use pilothouse_authorization::rbac::role::Role;
use pilothouse_authorization::rbac::rule::{Rule, rules_of};

use super::{BootstrapObject, named};

const TABLE: &str = include_str!("roles.txt");
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const BOOTSTRAPPING: &str = "kubernetes.io/bootstrapping";
/// The prefix of the roles of controllers; the rest of the name is the controller's service account.
const CONTROLLER: &str = "system:controller:";
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// All default roles and bindings. `enabled` tells whether a feature gate is on.
pub fn all(enabled: impl Fn(&str) -> bool) -> Vec<BootstrapObject> {
    let mut all: Vec<BootstrapObject> = Vec::new();
    let mut wanted = true;
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (gates, words) = gated(line.trim_start());
        let on = gates.split('+').filter(|gate| !gate.is_empty()).all(&enabled);
        let words: Vec<&str> = words.split(' ').collect();
        if !line.starts_with(' ') {
            wanted = on;
            if on {
                all.extend(heading(&words));
            }
        } else if wanted
            && on
            && let Some(last) = all.last_mut()
        {
            add(&mut last.object, &words);
        }
    }
    let controllers: Vec<BootstrapObject> =
        all.iter().filter_map(|role| controller_binding(&role.object)).collect();
    all.extend(controllers);
    all
}

fn gated(line: &str) -> (&str, &str) {
    line.strip_prefix('?').and_then(|rest| rest.split_once(' ')).unwrap_or(("", line))
}

/// An object from its heading, still without rules or subjects.
fn heading(words: &[&str]) -> Option<BootstrapObject> {
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
    let mut object = named(API_VERSION, kind, name);
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
fn add(object: &mut Value, words: &[&str]) {
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
        [verbs, groups, what @ ..] => push(object, "rules", rule(verbs, groups, what).to_value()),
        _ => {}
    }
}

fn rule(verbs: &str, groups: &str, what: &[&str]) -> Rule {
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
        return Rule { verbs: boxed(&verbs), paths: boxed(what), ..Rule::default() };
    }
    let named = what.iter().position(|word| *word == "named").unwrap_or(what.len());
    let (resources, names) = what.split_at(named);
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
    let mut binding = heading(&["cluster-binding", meta::name(role)])?;
    add(&mut binding.object, &["account", SYSTEM_NAMESPACE, account]);
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
    Remake,
}

/// Compares an existing object with the wanted one.
pub fn repair(found: &Value, wanted: &Value) -> Reconciliation {
    let autoupdate = meta::of(found).get("annotations").map(|all| all.str(AUTO_UPDATE));
    if autoupdate == Some("false") {
        return Reconciliation::Nothing;
    }
    let is_binding = wanted.get("roleRef").is_some();
    if is_binding && !same(found.get("roleRef"), wanted.get("roleRef")) {
        return Reconciliation::Remake;
    }
    let mut repaired = found.clone();
    for field in ["annotations", "labels"] {
        let ours = meta::of(wanted).get(field).and_then(Value::fields);
        for (key, value) in ours.into_iter().flatten() {
            if meta::of(found).get(field).and_then(|all| all.get(key)).is_none() {
                repaired.entry("metadata").entry(field).set(key, value.clone());
            }
        }
    }
    if is_binding {
        add_missing(&mut repaired, wanted, "subjects");
    } else {
        repair_role(&mut repaired, wanted);
    }
    if repaired == *found { Reconciliation::Nothing } else { Reconciliation::Replace(repaired) }
}

/// The binding from which a missing one of this name is made: its role was once a part of that one's.
pub fn origin(name: &str) -> Option<&'static str> {
    (name == "system:public-info-viewer").then_some("system:discovery")
}

/// A missing binding as its origin has it, so that whoever restricted the origin does not find the restriction undone.
pub fn split_off(wanted: &Value, origin: &Value) -> Value {
    let mut made = wanted.clone();
    let inherit = |into: &mut Value, from: &Value, field: &str| match from.get(field) {
        Some(value) => into.set(field, value.clone()),
        None => drop(into.remove(field)),
    };
    inherit(&mut made, origin, "subjects");
    for field in ["annotations", "labels"] {
        inherit(made.entry("metadata"), meta::of(origin), field);
    }
    match repair(&made, wanted) {
        Reconciliation::Replace(repaired) => repaired,
        Reconciliation::Nothing | Reconciliation::Remake => made,
    }
}

fn repair_role(role: &mut Value, wanted: &Value) {
    let held = Role::new(rules_of(role));
    if let Some(Missing::Rules(lacking)) = missing(&[&held], &rules_of(wanted)) {
        for rule in lacking {
            push(role, "rules", rule.to_value());
        }
    }
    match wanted.get("aggregationRule") {
        None => {
            role.remove("aggregationRule");
        }
        Some(gathers) => add_missing(role.entry("aggregationRule"), gathers, "clusterRoleSelectors"),
    }
}

/// Appends the wanted items that the list lacks.
fn add_missing(to: &mut Value, wanted: &Value, field: &str) {
    for item in wanted.get(field).map(Value::items).unwrap_or_default() {
        if !to.get(field).map(Value::items).unwrap_or_default().contains(item) {
            push(to, field, item.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec;

    use super::*;

    const DEFAULT_ON: [&str; 3] =
        ["KubeletFineGrainedAuthz", "MultiCIDRServiceAllocator", "SELinuxChangePolicy"];

    fn usual() -> Vec<BootstrapObject> {
        all(|gate| DEFAULT_ON.contains(&gate))
    }

    fn find(all: &[BootstrapObject], resource: &str, name: &str) -> Value {
        let found = all.iter().find(|one| one.resource == resource && meta::name(&one.object) == name);
        found.unwrap_or_else(|| panic!("no {name}")).object.clone()
    }

    fn json(value: &Value) -> serde_json::Value {
        serde_json::from_slice(&codec::to_json(value)).unwrap()
    }

    #[test]
    fn every_line_of_the_table_means_something() {
        let count = |all: &[BootstrapObject], resource: &str| {
            all.iter().filter(|one| one.resource == resource).count()
        };
        let counts = |all: &[BootstrapObject]| {
            ["clusterroles", "clusterrolebindings", "roles", "rolebindings"]
                .map(|resource| count(all, resource))
        };
        assert_eq!(counts(&usual()), [66, 47, 7, 7]);
        assert_eq!(counts(&all(|_| true)), [73, 54, 7, 7]);
        let gated = counts(&all(|gate| gate == "DynamicResourceAllocation"));
        assert_eq!(gated, [65, 46, 7, 7], "two usual ones less, one more; not the one of two gates");
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
    fn objects_are_as_clients_expect_them() {
        let all = usual();
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
    fn what_is_missing_comes_back_and_what_was_added_stays() {
        let all = usual();
        let wanted = find(&all, "clusterroles", "system:basic-user");
        assert_eq!(repair(&wanted, &wanted), Reconciliation::Nothing);
        let mut found = wanted.clone();
        let own = rule("get", "core", &["pods"]).to_value();
        found.set("rules", vec![own.clone()]);
        found.entry("metadata").remove("labels");
        found.entry("metadata").entry("annotations").set(AUTO_UPDATE, "maybe");
        let Reconciliation::Replace(repaired) = repair(&found, &wanted) else { panic!("nothing repaired") };
        let rules = repaired.get("rules").unwrap().items();
        assert_eq!((rules.len(), &rules[0]), (4, &own), "one of its own, three that were missing");
        assert_eq!(meta::of(&repaired).get("labels"), meta::of(&wanted).get("labels"));
        assert_eq!(meta::of(&repaired).get("annotations").unwrap().str(AUTO_UPDATE), "maybe");
        found.entry("metadata").entry("annotations").set(AUTO_UPDATE, "false");
        assert_eq!(repair(&found, &wanted), Reconciliation::Nothing);
    }

    #[test]
    fn bindings_get_their_subjects_back_and_another_role_is_not_repaired() {
        let wanted = find(&usual(), "clusterrolebindings", "system:public-info-viewer");
        let mut found = wanted.clone();
        found.remove("subjects");
        assert_eq!(repair(&found, &wanted), Reconciliation::Replace(wanted.clone()));
        found.entry("roleRef").set("name", "cluster-admin");
        assert_eq!(repair(&found, &wanted), Reconciliation::Remake);
        let mut gathers = find(&usual(), "clusterroles", "view");
        let view = gathers.clone();
        gathers.set("rules", vec![rule("get", "core", &["x"]).to_value()]);
        assert_eq!(repair(&gathers, &view), Reconciliation::Nothing, "what it gathered is its own");
        gathers.remove("aggregationRule");
        assert!(matches!(repair(&gathers, &view), Reconciliation::Replace(_)));
        assert!(
            matches!(repair(&view, &wanted_plain(&view)), Reconciliation::Replace(role) if role.get("aggregationRule").is_none())
        );
    }

    #[test]
    fn a_missing_binding_is_made_as_restricted_as_its_origin() {
        let wanted = find(&usual(), "clusterrolebindings", "system:public-info-viewer");
        let mut discovery =
            find(&usual(), "clusterrolebindings", origin("system:public-info-viewer").unwrap());
        assert_eq!(split_off(&wanted, &discovery).get("roleRef"), wanted.get("roleRef"));
        let groups = |binding: &Value| binding.get("subjects").map_or(0, |subjects| subjects.items().len());
        assert_eq!(groups(&split_off(&wanted, &discovery)), 2, "repaired like any other");
        discovery.entry("metadata").entry("annotations").set(AUTO_UPDATE, "false");
        let made = split_off(&wanted, &discovery);
        assert_eq!((groups(&made), made.get("subjects")), (1, discovery.get("subjects")));
        assert_eq!(meta::of(&made).get("annotations"), meta::of(&discovery).get("annotations"));
        assert_eq!(meta::name(&made), "system:public-info-viewer");
        assert_eq!(origin("system:discovery"), None);
    }

    fn wanted_plain(role: &Value) -> Value {
        let mut plain = role.clone();
        plain.remove("aggregationRule");
        plain
    }
}
