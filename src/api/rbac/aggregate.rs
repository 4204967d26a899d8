//! Roles that gather the rules of other roles, which they find by label.

use super::rule::Rule;
use crate::api::kinds::selector_matches;
use crate::api::value::Value;

/// The rules that a role gathers out of all cluster roles, which come by name. `None` if it gathers nothing: its rules are
/// its own. Each rule comes once, in the order of the selectors and names.
pub fn gathered(role: &Value, all: &[(String, Value)]) -> Option<Vec<Rule>> {
    let selectors = role.get("aggregationRule")?.get("clusterRoleSelectors").map(Value::items)?;
    let own = role.at(&["metadata", "name"]).and_then(Value::as_str).unwrap_or_default();
    let mut rules: Vec<Rule> = Vec::new();
    for one in selectors {
        for (name, other) in all {
            let labels = other.at(&["metadata", "labels"]);
            if name == own || !selector_matches(Some(one), labels) {
                continue;
            }
            for rule in super::rule::rules_of(other) {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
    }
    Some(rules)
}

#[cfg(test)]
mod tests {
    use super::super::rule::tests::rule;
    use super::*;

    fn role(name: &str, label: &str, rules: &[Rule]) -> (String, Value) {
        let mut role = Value::object();
        role.entry("metadata").set("name", name);
        role.entry("metadata").entry("labels").set(label, "true");
        role.set("rules", rules.iter().map(Rule::to_value).collect::<Vec<_>>());
        (name.to_owned(), role)
    }

    fn gathers(mut role: Value, labels: &[&str]) -> Value {
        let selectors = labels.iter().map(|label| {
            let mut selector = Value::object();
            selector.entry("matchLabels").set(label, "true");
            selector
        });
        role.entry("aggregationRule").set("clusterRoleSelectors", selectors.collect::<Vec<_>>());
        role
    }

    #[test]
    fn rules_are_gathered_once_by_selector_and_name() {
        let (pods, secrets) = (rule("get", "core", "pods", ""), rule("get", "core", "secrets", ""));
        let all = [
            role("a", "x", std::slice::from_ref(&secrets)),
            role("b", "y", &[pods.clone(), secrets.clone()]),
            role("own", "x", &[rule("*", "*", "*", "")]),
        ];
        let own = all[2].1.clone();
        assert_eq!(gathered(&own, &all), None);
        assert_eq!(gathered(&gathers(own.clone(), &["y", "x"]), &all), Some(vec![pods, secrets]));
        assert_eq!(gathered(&gathers(own, &["z"]), &all), Some(vec![]));
    }
}
