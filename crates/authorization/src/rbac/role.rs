//! The rules of one role, indexed by resource: a role with a hundred rules is as fast as one with two.

use super::rule::{PreparedAction, PreparedTarget, Rule};

/// The rules of one role. See the module documentation.
#[derive(Debug, Default)]
pub struct Role {
    rules: Box<[Rule]>,
    /// The resources that rules name, sorted.
    named: Box<[NamedResource]>,
}

/// A resource that a rule names.
#[derive(Clone, Copy, Debug)]
struct NamedResource {
    /// The index of the rule.
    rule: u32,
    /// The index of the resource within the rule.
    resource: u32,
}

impl Role {
    /// A role with these rules.
    pub fn new(rules: Vec<Rule>) -> Role {
        let mut named = Vec::new();
        for (index, rule) in (0_u32..).zip(&rules) {
            let resources = (0_u32..).zip(&rule.resources);
            named.extend(resources.map(|(resource, _)| NamedResource { rule: index, resource }));
        }
        let mut role = Role { rules: rules.into(), named: Box::default() };
        named.sort_by(|a, b| role.resource(*a).cmp(role.resource(*b)));
        role.named = named.into();
        role
    }

    /// Its rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether one of its rules allows this.
    pub fn allows(&self, action: &PreparedAction<'_>) -> bool {
        self.matching(action).any(|rule| rule.allows_named(action))
    }

    /// Whether one of its rules covers a single permission, with a budget: subtracts from `budget` how many words were compared at
    /// most. `None` if the budget is exceeded.
    pub(super) fn covers_within(&self, permission: &PreparedAction<'_>, budget: &mut usize) -> Option<bool> {
        for rule in self.matching(permission) {
            *budget = budget.checked_sub(rule.words() + 1)?;
            if rule.covers_permission(permission) {
                return Some(true);
            }
        }
        *budget = budget.checked_sub(1)?;
        Some(false)
    }

    /// The rules that name the requested resource, or a wildcard.
    fn matching<'a>(&'a self, action: &'a PreparedAction<'_>) -> impl Iterator<Item = &'a Rule> {
        let (all_rules, names) = match &action.target {
            PreparedTarget::Path(_) => (&*self.rules, [None; 3]),
            PreparedTarget::Resource { resource, any_with_part, .. } => {
                let wildcard = Some(any_with_part.as_str()).filter(|wildcard| !wildcard.is_empty());
                (&[][..], [Some("*"), Some(&**resource), wildcard])
            }
        };
        all_rules.iter().chain(names.into_iter().flatten().flat_map(|name| self.rules_naming(name)))
    }

    fn rules_naming<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Rule> {
        let first = self.named.partition_point(|named| self.resource(*named) < resource);
        let matching = self.named.get(first..).unwrap_or_default().iter();
        let matching = matching.take_while(move |named| self.resource(**named) == resource);
        matching.filter_map(|named| self.rules.get(named.rule as usize))
    }

    fn resource(&self, named: NamedResource) -> &str {
        let rule = self.rules.get(named.rule as usize);
        rule.and_then(|rule| rule.resources.get(named.resource as usize)).map_or("", |resource| resource)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::Objects;
    use super::*;
    use crate::testing::{action, path_rule, rule};

    #[test]
    fn role_finds_rules_by_resource_and_wildcard() {
        let role = Role::new(vec![
            rule("get", "core", "pods pods/log", ""),
            rule("list", "core", "pods secrets", ""),
            rule("watch", "apps", "*", ""),
            rule("update", "*", "*/scale", ""),
            path_rule("get", "/metrics"),
        ]);
        let allows = |verb, group, resource| {
            role.allows(&PreparedAction::from(&action(verb, group, resource, "", "a")))
        };
        assert!(allows("get", "", "pods") && allows("list", "", "pods") && allows("get", "", "pods/log"));
        assert!(allows("watch", "apps", "anything") && allows("update", "x", "things/scale"));
        assert!(!allows("get", "", "secrets") && !allows("list", "", "pods/log") && !allows("get", "", "po"));
        assert!(!allows("update", "", "scale"));
        assert!(
            role.allows(&PreparedAction::path("get", "/metrics"))
                && !role.allows(&PreparedAction::path("get", "/"))
        );
        let action = PreparedAction::resource("get", "", "pods", Objects::All);
        assert_eq!(role.covers_within(&action, &mut 100), Some(true));
        assert_eq!(role.covers_within(&action, &mut 1), None, "the budget is exceeded");
    }
}
