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
    fn of(role: &Value) -> ClusterRoleInfo {
        let selectors = role.at(&["aggregationRule", "clusterRoleSelectors"]);
        ClusterRoleInfo {
            labels: meta::of(role).get("labels").cloned(),
            selectors: role
                .get("aggregationRule")
                .map(|_| selectors.map(Value::items).unwrap_or_default().to_vec()),
        }
    }

    fn gathers(&self, labels: Option<&Value>) -> bool {
        self.selectors.iter().flatten().any(|one| label_selector::matches(Some(one), labels))
    }
}

/// All ClusterRoles, as far as aggregation needs them.
#[derive(Debug, Default)]
pub struct RoleAggregator(BTreeMap<String, ClusterRoleInfo>);

impl RoleAggregator {
    /// Adds a role, or replaces its older state. Answers the roles whose rules may change.
    pub fn put(&mut self, name: &str, role: &Value) -> BTreeSet<String> {
        let known = ClusterRoleInfo::of(role);
        let gathers = known.selectors.is_some();
        let old = self.0.insert(name.to_owned(), known);
        let known = self.0.get(name);
        // The rules of an aggregated role do not count for others, only its sources do.
        let mut concerned = if gathers && old.as_ref() == known {
            BTreeSet::new()
        } else {
            let labels = [old.as_ref(), known].into_iter().flatten().map(|known| known.labels.clone());
            self.above(labels.collect())
        };
        if gathers {
            concerned.insert(name.to_owned());
        }
        concerned
    }

    /// Removes a role. Answers the roles whose rules may change.
    pub fn remove(&mut self, name: &str) -> BTreeSet<String> {
        let Some(old) = self.0.remove(name) else { return BTreeSet::new() };
        self.above(vec![old.labels])
    }

    /// All aggregated roles.
    pub fn aggregated(&self) -> Vec<String> {
        let gathers = |(_, known): &(&String, &ClusterRoleInfo)| known.selectors.is_some();
        self.0.iter().filter(gathers).map(|(name, _)| name.clone()).collect()
    }

    /// All roles that aggregate such labels, directly or indirectly.
    fn above(&self, mut labels: Vec<Option<Value>>) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        while let Some(next) = labels.pop() {
            for (name, known) in self.0.iter().filter(|(_, known)| known.gathers(next.as_ref())) {
                if found.insert(name.clone()) {
                    labels.push(known.labels.clone());
                }
            }
        }
        found
    }

    /// The roles that a role aggregates, in order of precedence: by selector, then by name. `None` if it is not aggregated.
    pub fn sources(&self, name: &str) -> Option<Vec<&str>> {
        let mut seen = HashSet::from([name]);
        let mut sources = Vec::new();
        // Without recursion: clients decide how long a chain of roles is.
        let mut ways = vec![self.next_to(self.0.get(name)?.selectors.as_ref()?).into_iter()];
        while let Some(way) = ways.last_mut() {
            let Some((name, known)) = way.next() else {
                ways.pop();
                continue;
            };
            if !seen.insert(name) {
                continue;
            }
            match &known.selectors {
                None => sources.push(name),
                Some(selectors) => ways.push(self.next_to(selectors).into_iter()),
            }
        }
        Some(sources)
    }

    fn next_to(&self, selectors: &[Value]) -> Vec<(&str, &ClusterRoleInfo)> {
        let found = selectors.iter().flat_map(|one| {
            self.0.iter().filter(|(_, known)| label_selector::matches(Some(one), known.labels.as_ref()))
        });
        found.map(|(name, known)| (name.as_str(), known)).collect()
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

    fn names(found: &BTreeSet<String>) -> Vec<&str> {
        found.iter().map(String::as_str).collect()
    }

    #[test]
    fn roles_are_found_by_selector_and_name_and_through_others() {
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
        assert_eq!(all.sources("top"), Some(vec!["b", "a"]), "its own label means nothing to itself");
        assert_eq!(all.sources("c"), Some(vec!["a", "b"]), "and through top");
    }

    #[test]
    fn a_change_concerns_all_who_gather_it_and_nobody_else() {
        let mut all = all(&[
            ("leaf", &["view"], &[]),
            ("view", &["edit"], &["view"]),
            ("edit", &["admin"], &["edit"]),
            ("admin", &[], &["admin"]),
            ("other", &[], &["else"]),
        ]);
        assert_eq!(names(&all.put("leaf", &role(&["view"], &[]))), ["admin", "edit", "view"]);
        assert_eq!(names(&all.put("leaf", &role(&["else"], &[]))), ["admin", "edit", "other", "view"]);
        assert_eq!(names(&all.put("edit", &role(&["admin"], &["edit"]))), ["edit"], "only its rules");
        assert_eq!(names(&all.remove("view")), ["admin", "edit"]);
        assert_eq!(names(&all.remove("view")), [""; 0]);
    }

    #[test]
    fn roles_that_gather_each_other_settle() {
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
        for at in 0..20_000 {
            chain.0.insert(format!("{at:05}"), ClusterRoleInfo::default());
        }
        chain.put("x", &role(&["x"], &["x"]));
        chain.put("deep", &role(&[], &["x"]));
        assert_eq!(chain.sources("deep"), Some(vec![]));
    }

    #[test]
    fn each_rule_comes_once_in_its_order() {
        let (pods, secrets) = (rule("get", "core", "pods", ""), rule("get", "core", "secrets", ""));
        let together = joined([secrets.clone(), pods.clone(), secrets.clone()]);
        assert_eq!(together, [secrets, pods]);
    }
}
