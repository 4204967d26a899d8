//! The index by examples, and against a model without an index.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::*;
use crate::testing::{action, path_rule, rule};

fn user(name: &str, groups: &[&str]) -> Identity {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Identity { name: name.into(), groups, ..Identity::default() }
}

fn subject(kind: &str, name: &str, namespace: &str) -> Subject {
    Subject { kind: kind.into(), name: name.into(), namespace: namespace.into() }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { kind: kind.into(), name: name.into() }
}

fn binding(namespace: &str, name: &str, role: RoleRef, subjects: &[Subject]) -> Binding {
    Binding { namespace: namespace.into(), name: name.into(), role, subjects: subjects.into() }
}

fn reason(index: &Index, user: &Identity, action: &Action) -> String {
    match index.decide(user, action) {
        RuleLookup::Allowed(allowance) => allowance.to_string(),
        RuleLookup::NoMatch(missing) => {
            missing.iter().map(MissingRole::to_string).collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn reason_names_binding_role_and_subject() {
    let mut index = Index::default();
    index.put_role("", "reader", Role::new(vec![rule("get", "core", "pods", ""), path_rule("get", "/x")]));
    index.put_role("n", "local", Role::new(vec![rule("list", "core", "pods", "")]));
    let people = [subject("Group", "devs", ""), subject("User", "u", "")];
    index.put_binding(binding("", "all", role_ref("ClusterRole", "reader"), &people));
    let accounts = [subject("ServiceAccount", "sa", ""), subject("ServiceAccount", "sb", "m")];
    index.put_binding(binding("n", "b", role_ref("Role", "local"), &accounts));
    let get = action("get", "", "pods", "n", "a");
    let list = action("list", "", "pods", "n", "");
    assert_eq!(
        reason(&index, &user("u", &[]), &get),
        r#"RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "reader" to User "u""#
    );
    assert_eq!(
        reason(
            &index,
            &user("u", &["devs"]),
            &Action { verb: "get".into(), target: Target::Path("/x".into()) }
        ),
        r#"RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "reader" to Group "devs""#,
        "the first matching subject"
    );
    assert_eq!(
        reason(&index, &user("system:serviceaccount:n:sa", &[]), &list),
        r#"RBAC: allowed by RoleBinding "b/n" of Role "local" to ServiceAccount "sa/n""#
    );
    assert_eq!(
        reason(&index, &user("system:serviceaccount:m:sb", &[]), &list),
        r#"RBAC: allowed by RoleBinding "b/n" of Role "local" to ServiceAccount "sb/m""#
    );
    assert_eq!(reason(&index, &user("system:serviceaccount:m:sa", &[]), &list), "");
}

#[test]
fn missing_roles_are_reported_once() {
    let mut index = Index::default();
    let me = [subject("User", "u", "")];
    for name in ["b", "c"] {
        index.put_binding(binding("", name, role_ref("ClusterRole", "gone"), &me));
    }
    index.put_binding(binding("n", "b", role_ref("Role", "gone"), &me));
    index.put_binding(binding("n", "odd", role_ref("Thing", "t"), &me));
    assert_eq!(
        reason(&index, &user("u", &[]), &action("get", "", "pods", "n", "a")),
        "clusterrole.rbac.authorization.k8s.io \"gone\" not found, role.rbac.authorization.k8s.io \"gone\" not \
         found, unsupported role reference kind: \"Thing\""
    );
}

#[test]
fn role_with_many_bindings_is_examined_once() {
    let mut index = Index::default();
    let me = [subject("User", "u", "")];
    let rules = (0..2_000).map(|n| rule("get", "core", "pods", &format!("n{n}"))).collect();
    index.put_role("", "huge", Role::new(rules));
    for other in 0..20 {
        index.put_role("", &format!("r{other}"), Role::new(vec![rule("list", "core", "pods", "")]));
    }
    for n in 0..2_000 {
        let role = if n % 2 == 0 { "huge".to_owned() } else { format!("r{}", n / 2 % 20) };
        index.put_binding(binding("n", &format!("b{n}"), role_ref("ClusterRole", &role), &me));
        index.put_binding(binding("n", &format!("c{n}"), role_ref("Role", &format!("gone{n}")), &me));
    }
    let RuleLookup::NoMatch(missing) = index.decide(&user("u", &[]), &action("get", "", "pods", "n", "z"))
    else {
        panic!("no binding allows this");
    };
    assert_eq!(missing.len(), MISSING_ROLES_REPORTED);
    assert!(matches!(
        index.decide(&user("u", &[]), &action("list", "", "pods", "n", "")),
        RuleLookup::Allowed(_)
    ));
    let roles: Vec<Arc<Role>> = (0..30).map(|_| Arc::default()).collect();
    let mut examined_roles = ExaminedRoles::default();
    let examined = (0..300).filter(|n| examined_roles.is_new(&roles[n * 7 % 30])).count();
    assert_eq!(examined, 30, "each role once");
}

#[test]
fn nearest_suggests_a_binding_or_else_a_role() {
    let mut index = Index::default();
    index.put_role("", "all", Role::new(vec![rule("*", "*", "*", ""), path_rule("*", "*")]));
    index.put_role("", "small", Role::new(vec![rule("get", "core", "pods", "")]));
    let get = action("get", "", "pods", "n", "a");
    assert_eq!(
        index.nearest(&get).as_deref(),
        Some(r#"ClusterRole "small" would allow it, but no binding gives it here"#)
    );
    index.put_binding(binding("n", "b", role_ref("ClusterRole", "all"), &[subject("User", "x", "")]));
    assert_eq!(
        index.nearest(&get).as_deref(),
        Some(r#"RoleBinding "b/n" of ClusterRole "all" would allow it, but does not name this subject"#)
    );
    assert_eq!(Index::default().nearest(&get), None);
}

#[test]
fn cleared_index_is_empty() {
    let mut index = Index::default();
    let both = [subject("User", "u", ""), subject("Group", "g", ""), subject("User", "u", "")];
    for namespace in ["", "n", "m"] {
        index.put_role(namespace, "r", Role::default());
        index.put_binding(binding(namespace, "b", role_ref("ClusterRole", "r"), &both));
    }
    index.clear_roles(true);
    index.clear_bindings(true);
    assert_eq!((index.roles.len(), index.bindings.len(), index.users.len()), (1, 1, 1));
    index.clear_roles(false);
    index.clear_bindings(false);
    assert!(index.roles.is_empty() && index.bindings.is_empty());
    assert!(index.users.is_empty() && index.groups.is_empty() && index.pool.0.is_empty());
}

#[test]
fn roles_with_equal_rules_are_shared_and_change_independently() {
    let mut index = Index::default();
    let role_with_verb = |verb: &str| Role::new(vec![rule(verb, "core", "pods", "")]);
    for namespace in ["n", "m"] {
        index.put_role(namespace, "r", role_with_verb("get"));
        index.put_binding(binding(namespace, "b", role_ref("Role", "r"), &[subject("User", "u", "")]));
    }
    assert_eq!(index.pool.0.len(), 1);
    let allows = |index: &Index, verb: &str, namespace: &str| {
        matches!(
            index.decide(&user("u", &[]), &action(verb, "", "pods", namespace, "a")),
            RuleLookup::Allowed(_)
        )
    };
    index.put_role("n", "r", role_with_verb("list"));
    assert!(!allows(&index, "get", "n") && allows(&index, "list", "n") && allows(&index, "get", "m"));
    assert_eq!(index.pool.0.len(), 2);
    index.put_role("n", "r", role_with_verb("get"));
    assert_eq!(index.pool.0.len(), 1, "the replaced role is dropped");
    // A role that is in use while it is removed stays in the pool until the next sweep.
    let roles_in_use = index.roles_of(&user("u", &[]), "n").0;
    index.remove_role("n", "r");
    index.remove_role("m", "r");
    drop(roles_in_use);
    assert_eq!(index.pool.0.len(), 1);
    for _ in 0..CHANGES_PER_SWEEP {
        index.remove_role("n", "r");
    }
    assert!(index.pool.0.is_empty());
}

#[test]
fn stored_roles_and_bindings_are_parsed() {
    let role =
        read_role(br#"{"metadata":{"name":"a"},"rules":[{"verbs":["get"],"apiGroups":null}]}"#).unwrap();
    assert_eq!(&*role.rules()[0].verbs, [Box::from("get")]);
    assert!(read_role(br#"{"rules":null}"#).unwrap().rules().is_empty());
    assert!(read_role(br#"{"rules":[1]}"#).is_none() && read_role(b"").is_none());
    let text =
        br#"{"roleRef":{"apiGroup":"x","kind":"Role","name":"r"},"subjects":[{"kind":"User","name":"u"}]}"#;
    assert_eq!(
        read_binding("n", "b", text),
        Some(binding("n", "b", role_ref("Role", "r"), &[subject("User", "u", "")]))
    );
}

/// A change of a role or binding.
#[derive(Clone, Debug)]
enum Step {
    Role(&'static str, &'static str, Vec<Rule>),
    NoRole(&'static str, &'static str),
    Binding(Binding),
    NoBinding(&'static str, &'static str),
}

const NAMESPACES: [&str; 3] = ["", "n", "m"];
const NAMES: [&str; 3] = ["a", "b", "c"];

fn any_of(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    proptest::sample::select(words)
}

fn list_of(words: &'static [&'static str]) -> impl Strategy<Value = Vec<Box<str>>> {
    proptest::collection::vec(any_of(words).prop_map(Box::from), 0..3)
}

const VERBS: &[&str] = &["get", "list", "*"];
const GROUPS: &[&str] = &["", "apps", "*"];
const RESOURCES: &[&str] = &["pods", "pods/log", "*/log", "things/log", "*"];
const PATHS: &[&str] = &["/x", "/x/*", "/x/y", "*"];

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let rule = (list_of(VERBS), list_of(GROUPS), list_of(RESOURCES), list_of(&NAMES), list_of(PATHS));
    let rule = rule.prop_map(|(verbs, groups, resources, names, paths)| Rule {
        verbs: verbs.into(),
        api_groups: groups.into(),
        resources: resources.into(),
        resource_names: names.into(),
        paths: paths.into(),
    });
    proptest::collection::vec(rule, 0..3)
}

fn subjects() -> impl Strategy<Value = Vec<Subject>> {
    let kinds = any_of(&["User", "Group", "ServiceAccount", "Odd"]);
    let parts = (kinds, any_of(&NAMES), any_of(&NAMESPACES));
    proptest::collection::vec(parts.prop_map(|(kind, name, namespace)| subject(kind, name, namespace)), 0..3)
}

fn step() -> impl Strategy<Value = Step> {
    let role = any_of(&["Role", "ClusterRole", "ClusterRole", "Odd"]);
    let binding_parts = (any_of(&NAMESPACES), any_of(&NAMES), role, any_of(&NAMES), subjects());
    prop_oneof![
        3 => (any_of(&NAMESPACES), any_of(&NAMES), rules()).prop_map(|(namespace, name, rules)| Step::Role(namespace, name, rules)),
        1 => (any_of(&NAMESPACES), any_of(&NAMES)).prop_map(|(namespace, name)| Step::NoRole(namespace, name)),
        4 => binding_parts.prop_map(|(namespace, name, kind, role, subjects)| {
            Step::Binding(binding(namespace, name, role_ref(kind, role), &subjects))
        }),
        1 => (any_of(&NAMESPACES), any_of(&NAMES)).prop_map(|(namespace, name)| Step::NoBinding(namespace, name)),
    ]
}

fn decision_input() -> impl Strategy<Value = (Identity, Action)> {
    let users = any_of(&["a", "b", "system:serviceaccount:n:a", "system:serviceaccount:m:b"]);
    let groups = proptest::collection::vec(any_of(&NAMES), 0..3);
    let path = any_of(&["/x", "/x/y", "/x/", "/"]);
    let verb_group_resource = (
        any_of(&["get", "list"]),
        any_of(&["", "apps"]),
        any_of(&["pods", "pods/log", "things/log", "secrets"]),
    );
    let object = (any_of(&NAMESPACES), any_of(&["", "a", "b"]), path, any::<bool>());
    (users, groups, verb_group_resource, object).prop_map(
        |(user_name, groups, (verb, group, resource), (namespace, name, path, is_path))| {
            let mut action = action(verb, group, resource, namespace, name);
            if is_path {
                action.target = Target::Path(path.into());
            }
            (user(user_name, &groups), action)
        },
    )
}

/// A model of RBAC without an index.
#[derive(Default)]
struct Model {
    roles: Vec<(String, String, Vec<Rule>)>,
    bindings: Vec<Binding>,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Role(namespace, name, _) | Step::NoRole(namespace, name) => {
                self.roles.retain(|(p, n, _)| (p.as_str(), n.as_str()) != (*namespace, *name));
            }
            Step::Binding(Binding { namespace, name, .. }) => {
                self.bindings.retain(|known| (&known.namespace, &known.name) != (namespace, name));
            }
            Step::NoBinding(namespace, name) => {
                self.bindings.retain(|known| (&*known.namespace, &*known.name) != (*namespace, *name));
            }
        }
        match step {
            Step::Role(namespace, name, rules) => {
                self.roles.push(((*namespace).into(), (*name).into(), rules.clone()));
            }
            Step::Binding(binding) => self.bindings.push(binding.clone()),
            _ => {}
        }
    }

    /// Examines each binding in scope, each subject, each rule.
    fn allows(&self, user: &Identity, action: &Action) -> bool {
        let namespace = namespace_of(action);
        self.bindings.iter().any(|binding| {
            let in_scope = binding.namespace.is_empty() || *binding.namespace == *namespace;
            let has_subject = binding.subjects.iter().any(|subject| match &*subject.kind {
                "User" => *subject.name == *user.name,
                "Group" => user.groups.iter().any(|group| **group == *subject.name),
                "ServiceAccount" => {
                    let account_namespace =
                        if subject.namespace.is_empty() { &binding.namespace } else { &subject.namespace };
                    !account_namespace.is_empty()
                        && user.name == format!("system:serviceaccount:{account_namespace}:{}", subject.name)
                }
                _ => false,
            });
            let role_namespace = match &*binding.role.kind {
                "ClusterRole" => "",
                "Role" if !binding.namespace.is_empty() => &binding.namespace,
                _ => return false,
            };
            let role = self.roles.iter().find(|(p, n, _)| p == role_namespace && **n == *binding.role.name);
            in_scope
                && has_subject
                && role.is_some_and(|(.., rules)| rules.iter().any(|rule| rule_allows(rule, action)))
        })
    }
}

/// Whether a rule allows an action, written independently of the tested code.
fn rule_allows(rule: &Rule, action: &Action) -> bool {
    let contains = |words: &[Box<str>], expected: &str| words.iter().any(|word| **word == *expected);
    let contains_or_all =
        |words: &[Box<str>], expected: &str| contains(words, "*") || contains(words, expected);
    if !contains_or_all(&rule.verbs, &action.verb) {
        return false;
    }
    match &action.target {
        Target::Path(path) => rule.paths.iter().any(|known| match known.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => **known == **path,
        }),
        Target::Resource { group, resource, subresource, name, .. } => {
            let resource_path = match subresource.as_str() {
                "" => resource.clone(),
                part => format!("{resource}/{part}"),
            };
            let any_with_part =
                !subresource.is_empty() && contains(&rule.resources, &format!("*/{subresource}"));
            contains_or_all(&rule.api_groups, group)
                && (contains_or_all(&rule.resources, &resource_path) || any_with_part)
                && (rule.resource_names.is_empty() || contains(&rule.resource_names, name))
        }
    }
}

/// The index always decides like the model, after any sequence of changes. Few cases by default; a million decisions with
/// `PILOTHOUSE_LONG=1`.
#[test]
fn index_decides_like_the_model() {
    let cases =
        if std::env::var_os("PILOTHOUSE_LONG").is_some_and(|value| value == "1") { 50_000 } else { 300 };
    let config =
        Config { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Config::default() };
    let input = (proptest::collection::vec(step(), 1..40), proptest::collection::vec(decision_input(), 20));
    let result = TestRunner::new(config).run(&input, |(steps, inputs)| {
        let (mut index, mut model) = (Index::default(), Model::default());
        for step in &steps {
            model.apply(step);
            match step.clone() {
                Step::Role(namespace, name, rules) => index.put_role(namespace, name, Role::new(rules)),
                Step::NoRole(namespace, name) => index.remove_role(namespace, name),
                Step::Binding(binding) => index.put_binding(binding),
                Step::NoBinding(namespace, name) => index.remove_binding(namespace, name),
            }
        }
        for (user, action) in &inputs {
            let allowed = matches!(index.decide(user, action), RuleLookup::Allowed(_));
            prop_assert_eq!(allowed, model.allows(user, action), "{:?} {:?}", user, action);
        }
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
}
