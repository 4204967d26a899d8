//! Privilege escalation: the permissions of a role that its author lacks. Nobody may grant more than they have.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::field::quoted;

use super::role::Role;
use super::rule::{Objects, PreparedAction, Rule, StringList};
use crate::limits::{RIGHTS_COMPARED, ROLE_PERMISSIONS};

/// The permissions that are missing.
#[derive(Debug, PartialEq, Eq)]
pub enum MissingPermissions {
    /// These, each with one verb, one resource, one name.
    Rules(Vec<Rule>),
    /// Too many to compare. The user then counts as lacking some.
    TooMany,
}

/// The permissions of the rules that the roles of their author lack; `None` if there are none.
pub fn find_missing_permissions<'a>(
    author_roles: &[&Role],
    rules: impl IntoIterator<Item = &'a Rule>,
) -> Option<MissingPermissions> {
    let (mut permissions_left, mut words_left) = (ROLE_PERMISSIONS, RIGHTS_COMPARED);
    let mut missing_rules = Vec::new();
    for rule in rules {
        match count_permissions(rule).and_then(|count| permissions_left.checked_sub(count)) {
            Some(remaining) => permissions_left = remaining,
            // A single rule may cover what would take too long to enumerate.
            None if is_covered_by_one_rule(author_roles, rule, &mut words_left) => continue,
            None => return Some(MissingPermissions::TooMany),
        }
        let compared = for_each_permission(rule, |permission, single_rule| {
            if !is_covered(author_roles, permission, &mut words_left)? {
                missing_rules.push(single_rule());
            }
            Some(())
        });
        if compared.is_none() {
            return Some(MissingPermissions::TooMany);
        }
    }
    (!missing_rules.is_empty()).then_some(MissingPermissions::Rules(missing_rules))
}

/// Whether one of the roles covers this permission. `None` if the budget is exceeded.
fn is_covered(roles: &[&Role], permission: &PreparedAction<'_>, words_left: &mut usize) -> Option<bool> {
    for role in roles {
        if role.covers_within(permission, words_left)? {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether a single rule of the roles covers the whole rule.
fn is_covered_by_one_rule(roles: &[&Role], rule: &Rule, words_left: &mut usize) -> bool {
    for role_rule in roles.iter().flat_map(|role| role.rules()) {
        let Some(remaining) = words_left.checked_sub(role_rule.words().saturating_mul(rule.words())) else {
            return false;
        };
        *words_left = remaining;
        if role_rule.covers(rule) {
            return true;
        }
    }
    false
}

/// The number of single permissions of a rule; `None` on overflow.
fn count_permissions(rule: &Rule) -> Option<usize> {
    let names = rule.resource_names.len().max(1);
    let resources = rule.api_groups.len().checked_mul(rule.resources.len())?.checked_mul(names)?;
    resources.checked_add(rule.paths.len())?.checked_mul(rule.verbs.len())
}

/// Visits each single permission of a rule, as an action and as a rule, until the visitor returns `None`.
fn for_each_permission(
    rule: &Rule,
    mut visit: impl FnMut(&PreparedAction<'_>, &dyn Fn() -> Rule) -> Option<()>,
) -> Option<()> {
    let list_of = |word: &str| -> StringList { Box::from([Box::from(word)]) };
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let single = || Rule {
                    verbs: list_of(verb),
                    api_groups: list_of(group),
                    resources: list_of(resource),
                    ..Rule::default()
                };
                for name in &rule.resource_names {
                    let named = || Rule { resource_names: list_of(name), ..single() };
                    visit(&PreparedAction::resource(verb, group, resource, Objects::Named(name)), &named)?;
                }
                if rule.resource_names.is_empty() {
                    visit(&PreparedAction::resource(verb, group, resource, Objects::All), &single)?;
                }
            }
        }
    }
    for path in &rule.paths {
        for verb in &rule.verbs {
            let single = || Rule { verbs: list_of(verb), paths: list_of(path), ..Rule::default() };
            visit(&PreparedAction::path(verb, path), &single)?;
        }
    }
    Some(())
}

/// The first of some permissions, and the verbs of all.
type JoinedPermissions<'a> = (&'a Rule, Vec<Box<str>>);

/// Joins single permissions that differ only in their verb.
fn compact(rules: &[Rule]) -> Vec<Rule> {
    let mut path_rules = Vec::new();
    let mut by_object: BTreeMap<(&str, &str, Option<&str>), JoinedPermissions<'_>> = BTreeMap::new();
    for rule in rules {
        let ([group], [resource]) = (&*rule.api_groups, &*rule.resources) else {
            path_rules.push(rule.clone());
            continue;
        };
        // No name is another permission than the empty name.
        let name = rule.resource_names.first().map(|name| &**name);
        let (_, verbs) = by_object.entry((group, resource, name)).or_insert((rule, Vec::new()));
        verbs.extend(rule.verbs.iter().cloned());
    }
    let joined = by_object.into_values().map(|(rule, verbs)| Rule { verbs: verbs.into(), ..rule.clone() });
    path_rules.extend(joined);
    path_rules
}

/// The error for an escalation, in the reference's words. `errors`: those that occurred while the user's rights were collected.
pub fn render_error(
    user: &str,
    groups: &[String],
    missing: &MissingPermissions,
    errors: &[String],
) -> String {
    let groups: Vec<String> = groups.iter().map(|group| quoted(group)).collect();
    let rules: BTreeSet<String> = match missing {
        MissingPermissions::Rules(rules) => compact(rules).iter().map(Rule::to_string).collect(),
        MissingPermissions::TooMany => ["more permissions than can be compared".to_owned()].into(),
    };
    let rules: Vec<String> = rules.into_iter().collect();
    let mut text = format!(
        "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        quoted(user),
        groups.join(" "),
        rules.join("\n")
    );
    match errors {
        [] => {}
        [error] => text.push_str(&format!("; resolution errors: [{error}]")),
        several => text.push_str(&format!("; resolution errors: [[{}]]", several.join(", "))),
    }
    text
}

/// The rules that allow everything.
pub fn wildcard_rules() -> [Rule; 2] {
    let wildcard = || Box::from([Box::from("*")]);
    [
        Rule { verbs: wildcard(), api_groups: wildcard(), resources: wildcard(), ..Rule::default() },
        Rule { verbs: wildcard(), paths: wildcard(), ..Rule::default() },
    ]
}

#[cfg(test)]
mod tests;
