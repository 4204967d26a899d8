//! Escalation by examples, and against an enumeration of single permissions and of requests.

use pilothouse_types::authorization::{Action, Target};
use proptest::prelude::*;

use super::*;
use crate::testing::{path_rule, rule};

fn lacking(held: &[Rule], wanted: &[Rule]) -> Vec<String> {
    let held = Role::new(held.to_vec());
    match missing(&[&held], wanted) {
        None => Vec::new(),
        Some(missing) => {
            let text = refusal("u", &["a".into(), "b".into()], &missing, &[]);
            text.lines().skip(1).map(str::to_owned).collect()
        }
    }
}

#[test]
fn what_several_rules_cover_together_is_covered() {
    let held = [rule("get", "core", "pods", ""), rule("list", "core", "pods secrets", "")];
    assert_eq!(lacking(&held, &[rule("get list", "core", "pods", "")]), [""; 0]);
    assert_eq!(
        lacking(&held, &[rule("get list watch", "core", "pods secrets", "")]),
        [
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["watch"]}"#,
            r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "watch"]}"#
        ]
    );
    assert_eq!(
        lacking(&held, &everything()),
        [r#"{APIGroups:["*"], Resources:["*"], Verbs:["*"]}"#, r#"{NonResourceURLs:["*"], Verbs:["*"]}"#]
    );
    assert_eq!(lacking(&everything(), &[path_rule("get put", "/x"), held[1].clone()]), [""; 0]);
}

#[test]
fn the_refusal_names_user_and_groups_and_what_was_in_the_way() {
    let missing = Missing::Rules(vec![rule("get", "core", "pods", "a")]);
    let text = refusal("u", &["g".into()], &missing, &["x not found".into()]);
    assert_eq!(
        text,
        "user \"u\" (groups=[\"g\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], ResourceNames:[\"a\"], Verbs:[\"get\"]}; resolution errors: \
         [x not found]"
    );
}

#[test]
fn a_rule_that_multiplies_is_refused_without_counting_it_out() {
    let many = (0..2_000).map(|n| format!("w{n} ")).collect::<String>();
    let huge = rule(&many, &many, &many, &many);
    assert_eq!(missing(&[], [&huge]), Some(Missing::TooMany));
    let all = Role::new(everything().into());
    assert_eq!(missing(&[&all], [&huge]), None, "whoever has all may grant all");
}

#[test]
fn nobody_compares_for_ever() {
    let names = (0..10_000).map(|n| format!("n{n} ")).collect::<String>();
    let held: Vec<Rule> = (0..5_000).map(|n| rule("list", &format!("g{n}"), "pods", "")).collect();
    let held = Role::new(held);
    let wanted = rule("get", "core", "pods", &names);
    assert_eq!(missing(&[&held], [&wanted]), Some(Missing::TooMany));
    assert!(refusal("u", &[], &Missing::TooMany, &[]).ends_with("more permissions than can be compared"));
}

#[test]
fn what_is_held_by_the_index_is_what_a_rule_covers() {
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
        for wanted in &rules {
            let role = Role::new(vec![held.clone()]);
            assert_eq!(missing(&[&role], [wanted]).is_none(), held.covers(wanted), "{held} {wanted}");
        }
    }
}

fn list(words: &[&str]) -> StringList {
    words.iter().map(|word| Box::from(*word)).collect()
}

#[test]
fn the_empty_name_is_not_all_names() {
    let all = rule("get", "core", "secrets", "");
    let empty = Rule { resource_names: list(&[""]), ..all.clone() };
    assert_eq!(
        lacking(std::slice::from_ref(&empty), std::slice::from_ref(&all)),
        [r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#]
    );
    assert_eq!(lacking(std::slice::from_ref(&all), std::slice::from_ref(&empty)), [""; 0]);
    assert_eq!(lacking(std::slice::from_ref(&empty), std::slice::from_ref(&empty)), [""; 0]);
    let both = [all, Rule { verbs: list(&["list"]), ..empty }];
    let wanted = [
        r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:[""], Verbs:["list"]}"#,
        r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#,
    ];
    assert_eq!(lacking(&[], &both), wanted, "they are told apart in the message");
}

#[test]
fn a_rule_with_names_covers_no_path() {
    let named = Rule { resource_names: list(&["a"]), ..path_rule("get", "/x") };
    assert_eq!(
        lacking(std::slice::from_ref(&named), &[path_rule("get", "/x")]),
        [r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#]
    );
    assert!(!named.covers(&named), "nor does it as a whole");
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
    let one = |word: &str| list(&[word]);
    let mut all = Vec::new();
    for verb in &rule.verbs {
        for (group, resource) in
            rule.api_groups.iter().flat_map(|group| rule.resources.iter().map(move |one| (group, one)))
        {
            let single = Rule {
                verbs: one(verb),
                api_groups: one(group),
                resources: one(resource),
                ..Rule::default()
            };
            if rule.resource_names.is_empty() {
                all.push(single.clone());
            }
            all.extend(
                rule.resource_names.iter().map(|name| Rule { resource_names: one(name), ..single.clone() }),
            );
        }
        all.extend(rule.paths.iter().map(|path| Rule {
            verbs: one(verb),
            paths: one(path),
            ..Rule::default()
        }));
    }
    all
}

/// Whether one held rule has every word of a single permission, or the wildcard for it.
fn has_each_word(held: &Rule, single: &Rule) -> bool {
    let has = |words: &StringList, wanted: &str| words.iter().any(|word| **word == *wanted);
    let each = |words: &StringList, wanted: &StringList| {
        wanted.iter().all(|word| has(words, "*") || has(words, word))
    };
    let resource = single.resources.iter().all(|resource| {
        let of_part = resource.split_once('/').map(|(_, part)| format!("*/{part}"));
        has(&held.resources, "*")
            || has(&held.resources, resource)
            || of_part.is_some_and(|any| has(&held.resources, &any))
    });
    let path = single.paths.iter().all(|path| {
        held.paths
            .iter()
            .any(|mine| mine == path || (mine.ends_with('*') && path.starts_with(mine.trim_end_matches('*'))))
    });
    let name = held.resource_names.is_empty()
        || (!single.resource_names.is_empty()
            && single.resource_names.iter().all(|name| has(&held.resource_names, name)));
    each(&held.verbs, &single.verbs) && each(&held.api_groups, &single.api_groups) && resource && path && name
}

/// Every request of a universe that is a little larger than what rules name.
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
    /// What is missing is exactly the single permissions that no held rule has by itself.
    #[test]
    fn missing_permissions_are_those_of_the_enumeration(
        held in prop::collection::vec(any_rule(), 0..4),
        wanted in prop::collection::vec(any_rule(), 0..3),
    ) {
        let is_lacking = |single: &Rule| !held.iter().any(|mine| has_each_word(mine, single));
        let mut lacking: Vec<String> = wanted.iter().flat_map(single_permissions)
            .filter(is_lacking).map(|single| single.to_string()).collect();
        lacking.sort_unstable();
        let roles: Vec<Role> = held.iter().map(|rule| Role::new(vec![rule.clone()])).collect();
        let together = Role::new(held.clone());
        for held in [roles.iter().collect(), vec![&together]] {
            let mut found: Vec<String> = match missing(&held, &wanted) {
                None => Vec::new(),
                Some(Missing::Rules(rules)) => rules.iter().map(Rule::to_string).collect(),
                Some(Missing::TooMany) => vec!["too many".to_owned()],
            };
            found.sort_unstable();
            prop_assert_eq!(&found, &lacking);
        }
    }

    /// Nobody who may grant a role gains a request by it.
    #[test]
    fn granted_rules_allow_no_request_that_the_held_ones_refuse(
        held in prop::collection::vec(any_rule(), 1..4),
        wanted in prop::collection::vec(any_rule(), 1..3),
    ) {
        let (held, granted) = (Role::new(held), Role::new(wanted.clone()));
        if missing(&[&held], &wanted).is_none() {
            for action in requests() {
                let ask = PreparedAction::from(&action);
                prop_assert!(!granted.allows(&ask) || held.allows(&ask), "{:?}", action);
            }
        }
    }

    /// Whole rules are compared like their permissions: the way out for rules that are too large to enumerate.
    #[test]
    fn a_rule_that_covers_another_covers_each_of_its_permissions(held in any_rule(), wanted in any_rule()) {
        if held.covers(&wanted) {
            prop_assert!(single_permissions(&wanted).iter().all(|single| has_each_word(&held, single)));
        }
    }
}
