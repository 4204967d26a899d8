//! Escalation by examples, and against an enumeration of single permissions and of requests.

use pilothouse_types::authorization::{Action, Target};
use proptest::prelude::*;

use super::*;
use crate::testing::{path_rule, rule};

fn missing_lines(held: &[Rule], granted: &[Rule]) -> Vec<String> {
    let held = Role::new(held.to_vec());
    match find_missing_permissions(&[&held], granted) {
        None => Vec::new(),
        Some(missing) => {
            let text = render_error("u", &["a".into(), "b".into()], &missing, &[]);
            text.lines().skip(1).map(str::to_owned).collect()
        }
    }
}

#[test]
fn several_held_rules_cover_a_rule_together() {
    let held = [rule("get", "core", "pods", ""), rule("list", "core", "pods secrets", "")];
    assert_eq!(missing_lines(&held, &[rule("get list", "core", "pods", "")]), [""; 0]);
    assert_eq!(
        missing_lines(&held, &[rule("get list watch", "core", "pods secrets", "")]),
        [
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["watch"]}"#,
            r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "watch"]}"#
        ]
    );
    assert_eq!(
        missing_lines(&held, &wildcard_rules()),
        [r#"{APIGroups:["*"], Resources:["*"], Verbs:["*"]}"#, r#"{NonResourceURLs:["*"], Verbs:["*"]}"#]
    );
    assert_eq!(missing_lines(&wildcard_rules(), &[path_rule("get put", "/x"), held[1].clone()]), [""; 0]);
}

#[test]
fn refusal_names_user_groups_and_resolution_errors() {
    let missing = MissingPermissions::Rules(vec![rule("get", "core", "pods", "a")]);
    let text = render_error("u", &["g".into()], &missing, &["x not found".into()]);
    assert_eq!(
        text,
        "user \"u\" (groups=[\"g\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], ResourceNames:[\"a\"], Verbs:[\"get\"]}; resolution errors: \
         [x not found]"
    );
}

#[test]
fn rule_with_too_many_permissions_is_refused() {
    let many = (0..2_000).map(|n| format!("w{n} ")).collect::<String>();
    let huge = rule(&many, &many, &many, &many);
    assert_eq!(find_missing_permissions(&[], [&huge]), Some(MissingPermissions::TooMany));
    let all = Role::new(wildcard_rules().into());
    assert_eq!(find_missing_permissions(&[&all], [&huge]), None, "all permissions cover every rule");
}

#[test]
fn comparison_stops_at_word_limit() {
    let names = (0..10_000).map(|n| format!("n{n} ")).collect::<String>();
    let held: Vec<Rule> = (0..5_000).map(|n| rule("list", &format!("g{n}"), "pods", "")).collect();
    let held = Role::new(held);
    let granted = rule("get", "core", "pods", &names);
    assert_eq!(find_missing_permissions(&[&held], [&granted]), Some(MissingPermissions::TooMany));
    assert!(
        render_error("u", &[], &MissingPermissions::TooMany, &[])
            .ends_with("more permissions than can be compared")
    );
}

#[test]
fn role_index_covers_what_its_rules_cover() {
    let words = ["get", "*", "pods", "pods/log", "*/log", "core", "apps", "a"];
    let rules: Vec<Rule> = words
        .iter()
        .flat_map(|word| {
            [
                rule(word, "core", "pods/log", ""),
                rule("get", word, "pods", "a"),
                rule("get", "core", word, ""),
            ]
        })
        .chain([path_rule("get", "/a /b*"), path_rule("*", "/a*"), path_rule("get", "*")])
        .collect();
    for held in &rules {
        for granted in &rules {
            let role = Role::new(vec![held.clone()]);
            assert_eq!(
                find_missing_permissions(&[&role], [granted]).is_none(),
                held.covers(granted),
                "{held} {granted}"
            );
        }
    }
}

fn list(words: &[&str]) -> StringList {
    words.iter().map(|word| Box::from(*word)).collect()
}

#[test]
fn empty_resource_name_is_not_all_names() {
    let all = rule("get", "core", "secrets", "");
    let empty = Rule { resource_names: list(&[""]), ..all.clone() };
    assert_eq!(
        missing_lines(std::slice::from_ref(&empty), std::slice::from_ref(&all)),
        [r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#]
    );
    assert_eq!(missing_lines(std::slice::from_ref(&all), std::slice::from_ref(&empty)), [""; 0]);
    assert_eq!(missing_lines(std::slice::from_ref(&empty), std::slice::from_ref(&empty)), [""; 0]);
    let both = [all, Rule { verbs: list(&["list"]), ..empty }];
    let expected = [
        r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:[""], Verbs:["list"]}"#,
        r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#,
    ];
    assert_eq!(missing_lines(&[], &both), expected, "the message distinguishes them");
}

#[test]
fn rule_with_resource_names_covers_no_path() {
    let named = Rule { resource_names: list(&["a"]), ..path_rule("get", "/x") };
    assert_eq!(
        missing_lines(std::slice::from_ref(&named), &[path_rule("get", "/x")]),
        [r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#]
    );
    assert!(!named.covers(&named), "nor as a whole rule");
}

/// Small universes with the words that could be taken for others.
const VERBS: [&str; 4] = ["get", "list", "*", ""];
const GROUPS: [&str; 3] = ["", "apps", "*"];
const RESOURCES: [&str; 8] = ["pods", "secrets", "pods/status", "*", "*/status", "pods/*", "*/*", ""];
const NAMES: [&str; 4] = ["", "a", "b", "*"];
const PATHS: [&str; 7] = ["/a", "/a/b", "/a/*", "/a*", "*", "", "/*"];

fn subset(words: &'static [&'static str]) -> impl Strategy<Value = StringList> {
    prop::sample::subsequence(words, 0..=words.len().min(3)).prop_map(|words| list(&words))
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let names = prop_oneof![Just(list(&[])), subset(&NAMES)];
    let paths = prop_oneof![3 => Just(list(&[])), 1 => subset(&PATHS)];
    let fields = (subset(&VERBS), subset(&GROUPS), subset(&RESOURCES), names, paths);
    fields.prop_map(|(verbs, api_groups, resources, resource_names, paths)| Rule {
        verbs,
        api_groups,
        resources,
        resource_names,
        paths,
    })
}

/// Every single permission of a rule: group, resource, verb and a name or none; or a path and a verb.
fn single_permissions(rule: &Rule) -> Vec<Rule> {
    let list_of = |word: &str| list(&[word]);
    let mut all = Vec::new();
    for verb in &rule.verbs {
        for (group, resource) in rule
            .api_groups
            .iter()
            .flat_map(|group| rule.resources.iter().map(move |resource| (group, resource)))
        {
            let single = Rule {
                verbs: list_of(verb),
                api_groups: list_of(group),
                resources: list_of(resource),
                ..Rule::default()
            };
            if rule.resource_names.is_empty() {
                all.push(single.clone());
            }
            all.extend(
                rule.resource_names
                    .iter()
                    .map(|name| Rule { resource_names: list_of(name), ..single.clone() }),
            );
        }
        all.extend(rule.paths.iter().map(|path| Rule {
            verbs: list_of(verb),
            paths: list_of(path),
            ..Rule::default()
        }));
    }
    all
}

/// Whether one held rule has every word of a single permission, or the wildcard for it.
fn has_each_word(held: &Rule, single: &Rule) -> bool {
    let has = |words: &StringList, expected: &str| words.iter().any(|word| **word == *expected);
    let each = |words: &StringList, expected: &StringList| {
        expected.iter().all(|word| has(words, "*") || has(words, word))
    };
    let resource = single.resources.iter().all(|resource| {
        let any_with_part = resource.split_once('/').map(|(_, part)| format!("*/{part}"));
        has(&held.resources, "*")
            || has(&held.resources, resource)
            || any_with_part.is_some_and(|any| has(&held.resources, &any))
    });
    let path = single.paths.iter().all(|path| {
        held.paths.iter().any(|held_path| {
            held_path == path
                || (held_path.ends_with('*') && path.starts_with(held_path.trim_end_matches('*')))
        })
    });
    let name = held.resource_names.is_empty()
        || (!single.resource_names.is_empty()
            && single.resource_names.iter().all(|name| has(&held.resource_names, name)));
    each(&held.verbs, &single.verbs) && each(&held.api_groups, &single.api_groups) && resource && path && name
}

/// Every request of a universe that is a little larger than that of the rules.
fn requests() -> Vec<Action> {
    let mut all = Vec::new();
    for verb in VERBS.into_iter().chain(["delete"]) {
        for group in GROUPS.into_iter().chain(["batch"]) {
            for resource in RESOURCES.into_iter().chain(["nodes", "secrets/status", "pods/log"]) {
                for name in NAMES.into_iter().chain(["c"]) {
                    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                    let target = Target::Resource {
                        group: group.into(),
                        version: "v1".into(),
                        resource: resource.into(),
                        subresource: subresource.into(),
                        namespace: "n".into(),
                        name: name.into(),
                    };
                    all.push(Action { verb: verb.into(), target });
                }
            }
        }
        let paths = PATHS.into_iter().chain(["/", "/b", "/a/b/c", "/ab"]);
        all.extend(paths.map(|path| Action { verb: verb.into(), target: Target::Path(path.into()) }));
    }
    all
}

proptest! {
    /// The missing permissions are exactly the single permissions that no held rule covers by itself.
    #[test]
    fn missing_permissions_are_those_of_the_enumeration(
        held in prop::collection::vec(any_rule(), 0..4),
        granted in prop::collection::vec(any_rule(), 0..3),
    ) {
        let is_missing = |single: &Rule| !held.iter().any(|held_rule| has_each_word(held_rule, single));
        let mut expected: Vec<String> = granted.iter().flat_map(single_permissions)
            .filter(is_missing).map(|single| single.to_string()).collect();
        expected.sort_unstable();
        let roles: Vec<Role> = held.iter().map(|rule| Role::new(vec![rule.clone()])).collect();
        let together = Role::new(held.clone());
        for held in [roles.iter().collect(), vec![&together]] {
            let mut actual: Vec<String> = match find_missing_permissions(&held, &granted) {
                None => Vec::new(),
                Some(MissingPermissions::Rules(rules)) => rules.iter().map(Rule::to_string).collect(),
                Some(MissingPermissions::TooMany) => vec!["too many".to_owned()],
            };
            actual.sort_unstable();
            prop_assert_eq!(&actual, &expected);
        }
    }

    /// A user who may grant a role gains no request by it.
    #[test]
    fn granted_rules_allow_no_request_that_the_held_ones_refuse(
        held in prop::collection::vec(any_rule(), 1..4),
        granted in prop::collection::vec(any_rule(), 1..3),
    ) {
        let (held, granted_role) = (Role::new(held), Role::new(granted.clone()));
        if find_missing_permissions(&[&held], &granted).is_none() {
            for action in requests() {
                let prepared = PreparedAction::from(&action);
                prop_assert!(!granted_role.allows(&prepared) || held.allows(&prepared), "{:?}", action);
            }
        }
    }

    /// The comparison of whole rules, which is used for rules that are too large to enumerate, agrees with that of single permissions.
    #[test]
    fn covering_rule_covers_each_permission(held in any_rule(), granted in any_rule()) {
        if held.covers(&granted) {
            prop_assert!(single_permissions(&granted).iter().all(|single| has_each_word(&held, single)));
        }
    }
}
