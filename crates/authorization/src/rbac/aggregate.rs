//! Aggregated ClusterRoles: roles that collect the rules of other roles by label.
//!
//! The rules of an aggregated role are computed only from roles that are not aggregated themselves. So nested aggregation needs
//! one step, and roles that aggregate each other keep no rules alive between themselves.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::rule::Rule;

/// The relevant parts of one role.
#[derive(Debug, Default, PartialEq)]
struct ClusterRoleInfo {
    labels: Option<Value>,
    /// Its aggregation rule; `None` if its rules are its own.
    selectors: Option<Vec<Value>>,
}

impl ClusterRoleInfo {
    fn from_role(role: &Value) -> ClusterRoleInfo {
        let selectors = role.get_path(&["aggregationRule", "clusterRoleSelectors"]);
        ClusterRoleInfo {
            labels: meta::metadata(role).get("labels").cloned(),
            selectors: role
                .get("aggregationRule")
                .map(|_| selectors.map(Value::items).unwrap_or_default().to_vec()),
        }
    }

    fn aggregates(&self, labels: Option<&Value>) -> bool {
        self.selectors.iter().flatten().any(|selector| label_selector::matches(Some(selector), labels))
    }
}

/// All ClusterRoles, as far as aggregation needs them.
#[derive(Debug, Default)]
pub struct RoleAggregator(BTreeMap<String, ClusterRoleInfo>);

impl RoleAggregator {
    /// Adds a role, or replaces its older state. Returns the roles whose rules may change.
    pub fn put(&mut self, name: &str, role: &Value) -> BTreeSet<String> {
        let info = ClusterRoleInfo::from_role(role);
        let is_aggregated = info.selectors.is_some();
        let old = self.0.insert(name.to_owned(), info);
        let info = self.0.get(name);
        // The rules of an aggregated role do not count for others, only its sources do.
        let mut affected = if is_aggregated && old.as_ref() == info {
            BTreeSet::new()
        } else {
            let labels = [old.as_ref(), info].into_iter().flatten().map(|info| info.labels.clone());
            self.aggregating_roles(labels.collect())
        };
        if is_aggregated {
            affected.insert(name.to_owned());
        }
        affected
    }

    /// Removes a role. Returns the roles whose rules may change.
    pub fn remove(&mut self, name: &str) -> BTreeSet<String> {
        let Some(old) = self.0.remove(name) else { return BTreeSet::new() };
        self.aggregating_roles(vec![old.labels])
    }

    /// All aggregated roles.
    pub fn aggregated(&self) -> Vec<String> {
        let is_aggregated = |(_, info): &(&String, &ClusterRoleInfo)| info.selectors.is_some();
        self.0.iter().filter(is_aggregated).map(|(name, _)| name.clone()).collect()
    }

    /// All roles that aggregate such labels, directly or indirectly.
    fn aggregating_roles(&self, mut labels: Vec<Option<Value>>) -> BTreeSet<String> {
        let mut roles = BTreeSet::new();
        while let Some(role_labels) = labels.pop() {
            for (name, info) in self.0.iter().filter(|(_, info)| info.aggregates(role_labels.as_ref())) {
                if roles.insert(name.clone()) {
                    labels.push(info.labels.clone());
                }
            }
        }
        roles
    }

    /// The roles that a role aggregates, in order of precedence: by selector, then by name. `None` if it is not aggregated.
    pub fn sources(&self, name: &str) -> Option<Vec<&str>> {
        let mut seen = HashSet::from([name]);
        let mut sources = Vec::new();
        // An explicit stack, because clients decide how long a chain of roles is.
        let mut stack = vec![self.selected_roles(self.0.get(name)?.selectors.as_ref()?).into_iter()];
        while let Some(roles) = stack.last_mut() {
            let Some((name, info)) = roles.next() else {
                stack.pop();
                continue;
            };
            if !seen.insert(name) {
                continue;
            }
            match &info.selectors {
                None => sources.push(name),
                Some(selectors) => stack.push(self.selected_roles(selectors).into_iter()),
            }
        }
        Some(sources)
    }

    fn selected_roles(&self, selectors: &[Value]) -> Vec<(&str, &ClusterRoleInfo)> {
        let roles = selectors.iter().flat_map(|selector| {
            self.0.iter().filter(|(_, info)| label_selector::matches(Some(selector), info.labels.as_ref()))
        });
        roles.map(|(name, info)| (name.as_str(), info)).collect()
    }
}

/// The rules of several roles, without duplicates.
pub fn joined(rules: impl IntoIterator<Item = Rule>) -> Vec<Rule> {
    let mut seen = HashSet::new();
    rules.into_iter().filter(|rule| seen.insert(rule.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rule;

    fn role(labels: &[&str], gathers: &[&str]) -> Value {
        let mut role = Value::object();
        for label in labels {
            role.entry("metadata").entry("labels").set(label, "true");
        }
        let selectors = gathers.iter().map(|label| {
            let mut selector = Value::object();
            selector.entry("matchLabels").set(label, "true");
            selector
        });
        if !gathers.is_empty() {
            role.entry("aggregationRule").set("clusterRoleSelectors", selectors.collect::<Vec<_>>());
        }
        role
    }

    fn all(roles: &[(&str, &[&str], &[&str])]) -> RoleAggregator {
        let mut all = RoleAggregator::default();
        for (name, labels, gathers) in roles {
            all.put(name, &role(labels, gathers));
        }
        all
    }

    fn names(roles: &BTreeSet<String>) -> Vec<&str> {
        roles.iter().map(String::as_str).collect()
    }

    #[test]
    fn sources_are_ordered_and_include_nested_aggregation() {
        let all = all(&[
            ("a", &["x"], &[]),
            ("b", &["y"], &[]),
            ("c", &["z", "y"], &["x"]),
            ("top", &["x"], &["y", "x"]),
            ("none", &[], &["nobody"]),
        ]);
        assert_eq!(all.sources("a"), None);
        assert_eq!(all.sources("gone"), None);
        assert_eq!(all.sources("none"), Some(vec![]));
        assert_eq!(all.sources("top"), Some(vec!["b", "a"]), "a role does not aggregate itself");
        assert_eq!(all.sources("c"), Some(vec!["a", "b"]), "also through top");
    }

    #[test]
    fn role_change_affects_aggregating_roles_only() {
        let mut all = all(&[
            ("leaf", &["view"], &[]),
            ("view", &["edit"], &["view"]),
            ("edit", &["admin"], &["edit"]),
            ("admin", &[], &["admin"]),
            ("other", &[], &["else"]),
        ]);
        assert_eq!(names(&all.put("leaf", &role(&["view"], &[]))), ["admin", "edit", "view"]);
        assert_eq!(names(&all.put("leaf", &role(&["else"], &[]))), ["admin", "edit", "other", "view"]);
        assert_eq!(
            names(&all.put("edit", &role(&["admin"], &["edit"]))),
            ["edit"],
            "only the rules of the role itself"
        );
        assert_eq!(names(&all.remove("view")), ["admin", "edit"]);
        assert_eq!(names(&all.remove("view")), [""; 0]);
    }

    #[test]
    fn cyclic_aggregation_terminates() {
        let ring = all(&[
            ("a", &["a"], &["b"]),
            ("b", &["b"], &["c"]),
            ("c", &["c"], &["a", "leaf"]),
            ("leaf", &["leaf"], &[]),
        ]);
        for name in ["a", "b", "c"] {
            assert_eq!(ring.sources(name), Some(vec!["leaf"]), "{name}");
        }
        let mut chain = RoleAggregator::default();
        for index in 0..20_000 {
            chain.0.insert(format!("{index:05}"), ClusterRoleInfo::default());
        }
        chain.put("x", &role(&["x"], &["x"]));
        chain.put("deep", &role(&[], &["x"]));
        assert_eq!(chain.sources("deep"), Some(vec![]));
    }

    #[test]
    fn joined_rules_are_deduplicated_in_order() {
        let (pods, secrets) = (rule("get", "core", "pods", ""), rule("get", "core", "secrets", ""));
        let rules = joined([secrets.clone(), pods.clone(), secrets.clone()]);
        assert_eq!(rules, [secrets, pods]);
    }
}
