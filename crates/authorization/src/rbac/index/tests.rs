//! The index by examples, and against an evaluator that looks at everything.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::*;
use crate::testing::{action, path_rule, rule};

fn who(name: &str, groups: &[&str]) -> Identity {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Identity { name: name.into(), groups, ..Identity::default() }
}

fn subject(kind: &str, name: &str, namespace: &str) -> Subject {
    Subject { kind: kind.into(), name: name.into(), namespace: namespace.into() }
}

fn binding(namespace: &str, name: &str, (kind, role): (&str, &str), subjects: &[Subject]) -> Binding {
    let role = RoleRef { kind: kind.into(), name: role.into() };
    Binding { namespace: namespace.into(), name: name.into(), role, subjects: subjects.into() }
}

fn reason(index: &Index, who: &Identity, action: &Action) -> String {
    match index.decide(who, action) {
        RuleLookup::Allowed(allowance) => allowance.to_string(),
        RuleLookup::Nothing(missing) => {
            missing.iter().map(MissingRole::to_string).collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn a_reason_names_binding_role_and_subject() {
    let mut index = Index::default();
    index.put_role("", "reader", Role::new(vec![rule("get", "core", "pods", ""), path_rule("get", "/x")]));
    index.put_role("n", "local", Role::new(vec![rule("list", "core", "pods", "")]));
    let people = [subject("Group", "devs", ""), subject("User", "u", "")];
    index.put_binding(binding("", "all", ("ClusterRole", "reader"), &people));
    let accounts = [subject("ServiceAccount", "sa", ""), subject("ServiceAccount", "sb", "m")];
    index.put_binding(binding("n", "b", ("Role", "local"), &accounts));
    let get = action("get", "", "pods", "n", "a");
    let list = action("list", "", "pods", "n", "");
    assert_eq!(
        reason(&index, &who("u", &[]), &get),
        r#"RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "reader" to User "u""#
    );
    assert_eq!(
        reason(
            &index,
            &who("u", &["devs"]),
            &Action { verb: "get".into(), target: Target::Path("/x".into()) }
        ),
        r#"RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "reader" to Group "devs""#,
        "the first subject that fits"
    );
    assert_eq!(
        reason(&index, &who("system:serviceaccount:n:sa", &[]), &list),
        r#"RBAC: allowed by RoleBinding "b/n" of Role "local" to ServiceAccount "sa/n""#
    );
    assert_eq!(
        reason(&index, &who("system:serviceaccount:m:sb", &[]), &list),
        r#"RBAC: allowed by RoleBinding "b/n" of Role "local" to ServiceAccount "sb/m""#
    );
    assert_eq!(reason(&index, &who("system:serviceaccount:m:sa", &[]), &list), "");
}

#[test]
fn what_is_missing_is_told_once() {
    let mut index = Index::default();
    let me = [subject("User", "u", "")];
    for name in ["b", "c"] {
        index.put_binding(binding("", name, ("ClusterRole", "gone"), &me));
    }
    index.put_binding(binding("n", "b", ("Role", "gone"), &me));
    index.put_binding(binding("n", "odd", ("Thing", "t"), &me));
    assert_eq!(
        reason(&index, &who("u", &[]), &action("get", "", "pods", "n", "a")),
        "clusterrole.rbac.authorization.k8s.io \"gone\" not found, role.rbac.authorization.k8s.io \"gone\" not \
         found, unsupported role reference kind: \"Thing\""
    );
}

#[test]
fn a_role_that_somebody_has_many_times_is_looked_at_once() {
    let mut index = Index::default();
    let me = [subject("User", "u", "")];
    let rules = (0..2_000).map(|n| rule("get", "core", "pods", &format!("n{n}"))).collect();
    index.put_role("", "huge", Role::new(rules));
    for other in 0..20 {
        index.put_role("", &format!("r{other}"), Role::new(vec![rule("list", "core", "pods", "")]));
    }
    for n in 0..2_000 {
        let role = if n % 2 == 0 { "huge".to_owned() } else { format!("r{}", n / 2 % 20) };
        index.put_binding(binding("n", &format!("b{n}"), ("ClusterRole", &role), &me));
        index.put_binding(binding("n", &format!("c{n}"), ("Role", &format!("gone{n}")), &me));
    }
    let RuleLookup::Nothing(missing) = index.decide(&who("u", &[]), &action("get", "", "pods", "n", "z"))
    else {
        panic!("nobody allows this");
    };
    assert_eq!(missing.len(), MISSING_ROLES_TOLD);
    assert!(matches!(
        index.decide(&who("u", &[]), &action("list", "", "pods", "n", "")),
        RuleLookup::Allowed(_)
    ));
    let roles: Vec<Arc<Role>> = (0..30).map(|_| Arc::default()).collect();
    let mut refused = ExaminedRoles::default();
    let looked = (0..300).filter(|n| refused.is_new(&roles[n * 7 % 30])).count();
    assert_eq!(looked, 30, "each once");
}

#[test]
fn the_nearest_way_in_is_a_binding_or_else_a_role() {
    let mut index = Index::default();
    index.put_role("", "all", Role::new(vec![rule("*", "*", "*", ""), path_rule("*", "*")]));
    index.put_role("", "small", Role::new(vec![rule("get", "core", "pods", "")]));
    let get = action("get", "", "pods", "n", "a");
    assert_eq!(
        index.nearest(&get).as_deref(),
        Some(r#"ClusterRole "small" would allow it, but no binding gives it here"#)
    );
    index.put_binding(binding("n", "b", ("ClusterRole", "all"), &[subject("User", "x", "")]));
    assert_eq!(
        index.nearest(&get).as_deref(),
        Some(r#"RoleBinding "b/n" of ClusterRole "all" would allow it, but does not name this subject"#)
    );
    assert_eq!(Index::default().nearest(&get), None);
}

#[test]
fn an_index_that_lets_go_of_everything_is_empty() {
    let mut index = Index::default();
    let both = [subject("User", "u", ""), subject("Group", "g", ""), subject("User", "u", "")];
    for namespace in ["", "n", "m"] {
        index.put_role(namespace, "r", Role::default());
        index.put_binding(binding(namespace, "b", ("ClusterRole", "r"), &both));
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
fn roles_that_say_the_same_are_kept_once_and_change_alone() {
    let mut index = Index::default();
    let say = |verb: &str| Role::new(vec![rule(verb, "core", "pods", "")]);
    for namespace in ["n", "m"] {
        index.put_role(namespace, "r", say("get"));
        index.put_binding(binding(namespace, "b", ("Role", "r"), &[subject("User", "u", "")]));
    }
    assert_eq!(index.pool.0.len(), 1);
    let may = |index: &Index, verb: &str, namespace: &str| {
        matches!(
            index.decide(&who("u", &[]), &action(verb, "", "pods", namespace, "a")),
            RuleLookup::Allowed(_)
        )
    };
    index.put_role("n", "r", say("list"));
    assert!(!may(&index, "get", "n") && may(&index, "list", "n") && may(&index, "get", "m"));
    assert_eq!(index.pool.0.len(), 2);
    index.put_role("n", "r", say("get"));
    assert_eq!(index.pool.0.len(), 1, "nobody says the other any more");
    // Somebody looks at a role while it goes.
    let held = index.roles_of(&who("u", &[]), "n").0;
    index.remove_role("n", "r");
    index.remove_role("m", "r");
    drop(held);
    assert_eq!(index.pool.0.len(), 1);
    for _ in 0..SWEEP_EVERY {
        index.remove_role("n", "r");
    }
    assert!(index.pool.0.is_empty());
}

#[test]
fn stored_text_is_read_and_broken_text_is_nothing() {
    let role =
        read_role(br#"{"metadata":{"name":"a"},"rules":[{"verbs":["get"],"apiGroups":null}]}"#).unwrap();
    assert_eq!(&*role.rules()[0].verbs, [Box::from("get")]);
    assert!(read_role(br#"{"rules":null}"#).unwrap().rules().is_empty());
    assert!(read_role(br#"{"rules":[1]}"#).is_none() && read_role(b"").is_none());
    let text =
        br#"{"roleRef":{"apiGroup":"x","kind":"Role","name":"r"},"subjects":[{"kind":"User","name":"u"}]}"#;
    assert_eq!(
        read_binding("n", "b", text),
        Some(binding("n", "b", ("Role", "r"), &[subject("User", "u", "")]))
    );
}

/// A change of the world.
#[derive(Clone, Debug)]
enum Step {
    Role(&'static str, &'static str, Vec<Rule>),
    NoRole(&'static str, &'static str),
    Binding(Binding),
    NoBinding(&'static str, &'static str),
}

const PLACES: [&str; 3] = ["", "n", "m"];
const NAMES: [&str; 3] = ["a", "b", "c"];

fn one(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    proptest::sample::select(words)
}

fn some(words: &'static [&'static str]) -> impl Strategy<Value = Vec<Box<str>>> {
    proptest::collection::vec(one(words).prop_map(Box::from), 0..3)
}

const VERBS: &[&str] = &["get", "list", "*"];
const GROUPS: &[&str] = &["", "apps", "*"];
const WHAT: &[&str] = &["pods", "pods/log", "*/log", "things/log", "*"];
const PATHS: &[&str] = &["/x", "/x/*", "/x/y", "*"];

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let rule = (some(VERBS), some(GROUPS), some(WHAT), some(&NAMES), some(PATHS));
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
    let kinds = one(&["User", "Group", "ServiceAccount", "Odd"]);
    let one = (kinds, one(&NAMES), one(&PLACES));
    proptest::collection::vec(one.prop_map(|(kind, name, place)| subject(kind, name, place)), 0..3)
}

fn step() -> impl Strategy<Value = Step> {
    let role = one(&["Role", "ClusterRole", "ClusterRole", "Odd"]);
    let given = (one(&PLACES), one(&NAMES), role, one(&NAMES), subjects());
    prop_oneof![
        3 => (one(&PLACES), one(&NAMES), rules()).prop_map(|(place, name, rules)| Step::Role(place, name, rules)),
        1 => (one(&PLACES), one(&NAMES)).prop_map(|(place, name)| Step::NoRole(place, name)),
        4 => given.prop_map(|(place, name, kind, role, subjects)| {
            Step::Binding(binding(place, name, (kind, role), &subjects))
        }),
        1 => (one(&PLACES), one(&NAMES)).prop_map(|(place, name)| Step::NoBinding(place, name)),
    ]
}

fn question() -> impl Strategy<Value = (Identity, Action)> {
    let users = one(&["a", "b", "system:serviceaccount:n:a", "system:serviceaccount:m:b"]);
    let groups = proptest::collection::vec(one(&NAMES), 0..3);
    let path = one(&["/x", "/x/y", "/x/", "/"]);
    let ask =
        (one(&["get", "list"]), one(&["", "apps"]), one(&["pods", "pods/log", "things/log", "secrets"]));
    let place = (one(&PLACES), one(&["", "a", "b"]), path, any::<bool>());
    (users, groups, ask, place).prop_map(
        |(user, groups, (verb, group, what), (place, name, path, is_path))| {
            let mut asked = action(verb, group, what, place, name);
            if is_path {
                asked.target = Target::Path(path.into());
            }
            (who(user, &groups), asked)
        },
    )
}

/// All that there is, in no order that helps.
#[derive(Default)]
struct World {
    roles: Vec<(String, String, Vec<Rule>)>,
    bindings: Vec<Binding>,
}

impl World {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Role(place, name, _) | Step::NoRole(place, name) => {
                self.roles.retain(|(p, n, _)| (p.as_str(), n.as_str()) != (*place, *name));
            }
            Step::Binding(Binding { namespace, name, .. }) => {
                self.bindings.retain(|known| (&known.namespace, &known.name) != (namespace, name));
            }
            Step::NoBinding(place, name) => {
                self.bindings.retain(|known| (&*known.namespace, &*known.name) != (*place, *name));
            }
        }
        match step {
            Step::Role(place, name, rules) => {
                self.roles.push(((*place).into(), (*name).into(), rules.clone()));
            }
            Step::Binding(binding) => self.bindings.push(binding.clone()),
            _ => {}
        }
    }

    /// By the letter: each binding in scope, each subject, each rule.
    fn allows(&self, who: &Identity, action: &Action) -> bool {
        let namespace = namespace_of(action);
        self.bindings.iter().any(|binding| {
            let in_scope = binding.namespace.is_empty() || *binding.namespace == *namespace;
            let is_meant = binding.subjects.iter().any(|subject| match &*subject.kind {
                "User" => *subject.name == *who.name,
                "Group" => who.groups.iter().any(|group| **group == *subject.name),
                "ServiceAccount" => {
                    let home =
                        if subject.namespace.is_empty() { &binding.namespace } else { &subject.namespace };
                    !home.is_empty() && who.name == format!("system:serviceaccount:{home}:{}", subject.name)
                }
                _ => false,
            });
            let place = match &*binding.role.kind {
                "ClusterRole" => "",
                "Role" if !binding.namespace.is_empty() => &binding.namespace,
                _ => return false,
            };
            let role = self.roles.iter().find(|(p, n, _)| p == place && **n == *binding.role.name);
            in_scope
                && is_meant
                && role.is_some_and(|(.., rules)| rules.iter().any(|rule| says(rule, action)))
        })
    }
}

/// What one rule says, by the letter and without any of the code that decides.
fn says(rule: &Rule, action: &Action) -> bool {
    let among = |words: &[Box<str>], wanted: &str| words.iter().any(|word| **word == *wanted);
    let all_or = |words: &[Box<str>], wanted: &str| among(words, "*") || among(words, wanted);
    if !all_or(&rule.verbs, &action.verb) {
        return false;
    }
    match &action.target {
        Target::Path(path) => rule.paths.iter().any(|known| match known.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => **known == **path,
        }),
        Target::Resource { group, resource, subresource, name, .. } => {
            let whole = match subresource.as_str() {
                "" => resource.clone(),
                part => format!("{resource}/{part}"),
            };
            let any_with_part =
                !subresource.is_empty() && among(&rule.resources, &format!("*/{subresource}"));
            all_or(&rule.api_groups, group)
                && (all_or(&rule.resources, &whole) || any_with_part)
                && (rule.resource_names.is_empty() || among(&rule.resource_names, name))
        }
    }
}

/// The index never disagrees with the letter, whatever came and went before. Quickly in every run; a million questions with
/// `PILOTHOUSE_LONG=1`.
#[test]
fn the_index_says_what_the_letter_says() {
    let cases =
        if std::env::var_os("PILOTHOUSE_LONG").is_some_and(|value| value == "1") { 50_000 } else { 300 };
    let config =
        Config { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Config::default() };
    let input = (proptest::collection::vec(step(), 1..40), proptest::collection::vec(question(), 20));
    let run = TestRunner::new(config).run(&input, |(steps, questions)| {
        let (mut index, mut world) = (Index::default(), World::default());
        for step in &steps {
            world.take(step);
            match step.clone() {
                Step::Role(place, name, rules) => index.put_role(place, name, Role::new(rules)),
                Step::NoRole(place, name) => index.remove_role(place, name),
                Step::Binding(binding) => index.put_binding(binding),
                Step::NoBinding(place, name) => index.remove_binding(place, name),
            }
        }
        for (who, action) in &questions {
            let said = matches!(index.decide(who, action), RuleLookup::Allowed(_));
            prop_assert_eq!(said, world.allows(who, action), "{:?} {:?}", who, action);
        }
        Ok(())
    });
    assert!(run.is_ok(), "{run:?}");
}
