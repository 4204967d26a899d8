//! The rights of a role that its author lacks: nobody may grant more than they have.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::field::quoted;

use super::role::Role;
use super::rule::{Objects, PreparedAction, Rule, StringList};
use crate::limits::{RIGHTS_COMPARED, ROLE_PERMISSIONS};

/// The rights that are missing.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// These, each with one verb, one resource, one name.
    Rules(Vec<Rule>),
    /// Too many to compare. A user who cannot be shown to have all rights counts as lacking them.
    TooMany,
}

/// The rights of `wanted` that `held` lacks; `None` if there are none.
pub fn missing<'a>(held: &[&Role], wanted: impl IntoIterator<Item = &'a Rule>) -> Option<Missing> {
    let (mut permissions_left, mut words_left) = (ROLE_PERMISSIONS, RIGHTS_COMPARED);
    let mut lacking = Vec::new();
    for rule in wanted {
        match permissions(rule).and_then(|count| permissions_left.checked_sub(count)) {
            Some(after) => permissions_left = after,
            // A single rule may cover what would take too long to enumerate.
            None if covered_at_once(held, rule, &mut words_left) => continue,
            None => return Some(Missing::TooMany),
        }
        let looked = for_each_permission(rule, |permission, one| {
            if !is_held(held, permission, &mut words_left)? {
                lacking.push(one());
            }
            Some(())
        });
        if looked.is_none() {
            return Some(Missing::TooMany);
        }
    }
    (!lacking.is_empty()).then_some(Missing::Rules(lacking))
}

/// Whether one of the roles covers this permission. `None` if the budget is exceeded.
fn is_held(held: &[&Role], permission: &PreparedAction<'_>, words_left: &mut usize) -> Option<bool> {
    for role in held {
        if role.covers_within(permission, words_left)? {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether a single rule of the roles covers the whole rule.
fn covered_at_once(held: &[&Role], rule: &Rule, words_left: &mut usize) -> bool {
    for mine in held.iter().flat_map(|role| role.rules()) {
        let Some(after) = words_left.checked_sub(mine.words().saturating_mul(rule.words())) else {
            return false;
        };
        *words_left = after;
        if mine.covers(rule) {
            return true;
        }
    }
    false
}

/// The number of single permissions of a rule; `None` on overflow.
fn permissions(rule: &Rule) -> Option<usize> {
    let names = rule.resource_names.len().max(1);
    let resources = rule.api_groups.len().checked_mul(rule.resources.len())?.checked_mul(names)?;
    resources.checked_add(rule.paths.len())?.checked_mul(rule.verbs.len())
}

/// Visits each single permission of a rule, as a question and as a rule, until the visitor stops.
fn for_each_permission(
    rule: &Rule,
    mut take: impl FnMut(&PreparedAction<'_>, &dyn Fn() -> Rule) -> Option<()>,
) -> Option<()> {
    let one = |word: &str| -> StringList { Box::from([Box::from(word)]) };
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let single = || Rule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    ..Rule::default()
                };
                for name in &rule.resource_names {
                    let named = || Rule { resource_names: one(name), ..single() };
                    take(&PreparedAction::resource(verb, group, resource, Objects::Named(name)), &named)?;
                }
                if rule.resource_names.is_empty() {
                    take(&PreparedAction::resource(verb, group, resource, Objects::All), &single)?;
                }
            }
        }
    }
    for path in &rule.paths {
        for verb in &rule.verbs {
            let single = || Rule { verbs: one(verb), paths: one(path), ..Rule::default() };
            take(&PreparedAction::path(verb, path), &single)?;
        }
    }
    Some(())
}

/// The first of some permissions, and the verbs of all.
type Joined<'a> = (&'a Rule, Vec<Box<str>>);

/// Joins single permissions that differ only in their verb.
fn compact(rules: &[Rule]) -> Vec<Rule> {
    let mut others = Vec::new();
    let mut by_object: BTreeMap<(&str, &str, Option<&str>), Joined<'_>> = BTreeMap::new();
    for rule in rules {
        let ([group], [resource]) = (&*rule.api_groups, &*rule.resources) else {
            others.push(rule.clone());
            continue;
        };
        // No name is another permission than the empty name.
        let name = rule.resource_names.first().map(|name| &**name);
        let (_, verbs) = by_object.entry((group, resource, name)).or_insert((rule, Vec::new()));
        verbs.extend(rule.verbs.iter().cloned());
    }
    let joined = by_object.into_values().map(|(rule, verbs)| Rule { verbs: verbs.into(), ..rule.clone() });
    others.extend(joined);
    others
}

/// The error for an escalation, in the reference's words. `trouble`: errors while the user's rights were collected.
pub fn refusal(user: &str, groups: &[String], missing: &Missing, trouble: &[String]) -> String {
    let groups: Vec<String> = groups.iter().map(|group| quoted(group)).collect();
    let lacking: BTreeSet<String> = match missing {
        Missing::Rules(rules) => compact(rules).iter().map(Rule::to_string).collect(),
        Missing::TooMany => ["more permissions than can be compared".to_owned()].into(),
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
mod tests;
