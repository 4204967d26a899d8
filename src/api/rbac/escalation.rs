//! What a role would give that its author does not have: nobody hands out more than they hold.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{Rule, Words};
use crate::api::field::quoted;
use crate::api::limits::ROLE_PERMISSIONS;

/// What is missing.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// These, each with one verb, one resource, one name.
    Rules(Vec<Rule>),
    /// So many that nobody looked at each of them.
    TooMany,
}

/// What `wanted` allows and `held` does not; `None` if there is no such thing.
pub fn missing<'a>(held: &[&Rule], wanted: impl IntoIterator<Item = &'a Rule>) -> Option<Missing> {
    let mut left = ROLE_PERMISSIONS;
    let mut lacking = Vec::new();
    for rule in wanted {
        if held.iter().any(|mine| mine.covers(rule)) {
            continue;
        }
        let Some(after) = permissions(rule).and_then(|count| left.checked_sub(count)) else {
            return Some(Missing::TooMany);
        };
        left = after;
        for_each_permission(rule, |one| {
            if !held.iter().any(|mine| mine.covers(&one)) {
                lacking.push(one);
            }
        });
    }
    (!lacking.is_empty()).then_some(Missing::Rules(lacking))
}

/// How many single permissions a rule stands for; `None` for more than a number holds.
fn permissions(rule: &Rule) -> Option<usize> {
    let names = rule.resource_names.len().max(1);
    let resources = rule.api_groups.len().checked_mul(rule.resources.len())?.checked_mul(names)?;
    resources.checked_add(rule.paths.len())?.checked_mul(rule.verbs.len())
}

fn for_each_permission(rule: &Rule, mut take: impl FnMut(Rule)) {
    let one = |word: &str| -> Words { Box::from([Box::from(word)]) };
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let single = Rule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    ..Rule::default()
                };
                for name in &rule.resource_names {
                    take(Rule { resource_names: one(name), ..single.clone() });
                }
                if rule.resource_names.is_empty() {
                    take(single);
                }
            }
        }
    }
    for path in &rule.paths {
        for verb in &rule.verbs {
            take(Rule { verbs: one(verb), paths: one(path), ..Rule::default() });
        }
    }
}

/// The first of some permissions, and the verbs of all.
type Joined<'a> = (&'a Rule, Vec<Box<str>>);

/// Puts single permissions that differ only in their verb together.
fn compact(rules: &[Rule]) -> Vec<Rule> {
    let mut others = Vec::new();
    let mut by_object: BTreeMap<(&str, &str, &str), Joined<'_>> = BTreeMap::new();
    for rule in rules {
        let ([group], [resource]) = (&*rule.api_groups, &*rule.resources) else {
            others.push(rule.clone());
            continue;
        };
        let name = rule.resource_names.first().map_or("", |name| name);
        let (_, verbs) = by_object.entry((group, resource, name)).or_insert((rule, Vec::new()));
        verbs.extend(rule.verbs.iter().cloned());
    }
    let joined = by_object.into_values().map(|(rule, verbs)| Rule { verbs: verbs.into(), ..rule.clone() });
    others.extend(joined);
    others
}

/// Why somebody may not grant what they do not hold, in the reference's words. `trouble`: what kept the server from
/// knowing all that they hold.
pub fn refusal(user: &str, groups: &[String], missing: &Missing, trouble: &[String]) -> String {
    let groups: Vec<String> = groups.iter().map(|group| quoted(group)).collect();
    let lacking: BTreeSet<String> = match missing {
        Missing::Rules(rules) => compact(rules).iter().map(Rule::to_string).collect(),
        Missing::TooMany => [format!("more than {ROLE_PERMISSIONS} permissions")].into(),
    };
    let lacking: Vec<String> = lacking.into_iter().collect();
    let mut text = format!(
        "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        quoted(user),
        groups.join(" "),
        lacking.join("\n")
    );
    match trouble {
        [] => {}
        [one] => text.push_str(&format!("; resolution errors: [{one}]")),
        several => text.push_str(&format!("; resolution errors: [[{}]]", several.join(", "))),
    }
    text
}

/// The rules that allow everything.
pub fn everything() -> [Rule; 2] {
    let all = || Box::from([Box::from("*")]);
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), paths: all(), ..Rule::default() },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::rule::tests::{path_rule, rule};
    use super::*;

    fn lacking(held: &[Rule], wanted: &[Rule]) -> Vec<String> {
        let held: Vec<&Rule> = held.iter().collect();
        match missing(&held, wanted) {
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
        assert_eq!(missing(&[&everything()[0]], [&huge]), None, "whoever has all may grant all");
    }
}
