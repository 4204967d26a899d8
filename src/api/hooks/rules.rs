//! Which requests a webhook wants to hear of.

use crate::api::value::Value;

/// A request, as rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// The group of the resource.
    pub group: &'a str,
    /// Its version.
    pub version: &'a str,
    /// Its plural.
    pub resource: &'a str,
    /// The sub-resource, empty for none.
    pub subresource: &'a str,
    /// The namespace; that of a namespace is itself.
    pub namespace: &'a str,
    /// What is done, in the words of rules.
    pub operation: &'a str,
}

/// Where the objects of a rule stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Any,
    Namespaced,
    Cluster,
    /// A word that nobody knows: nothing.
    Nothing,
}

/// One rule of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<(String, String)>,
    scope: Scope,
}

fn texts(rule: &Value, field: &str) -> Vec<String> {
    let all = rule.get(field).map(Value::items).unwrap_or_default();
    all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn one_of(known: &[String], asked: &str) -> bool {
    known.iter().any(|known| known == "*" || known == asked)
}

impl Rule {
    /// Reads a rule of a stored configuration.
    pub fn read(rule: &Value) -> Rule {
        let split = |resource: &String| match resource.split_once('/') {
            Some((resource, part)) => (resource.to_owned(), part.to_owned()),
            None => (resource.clone(), String::new()),
        };
        Rule {
            operations: texts(rule, "operations"),
            groups: texts(rule, "apiGroups"),
            versions: texts(rule, "apiVersions"),
            resources: texts(rule, "resources").iter().map(split).collect(),
            scope: match rule.str("scope") {
                "" | "*" => Scope::Any,
                "Namespaced" => Scope::Namespaced,
                "Cluster" => Scope::Cluster,
                _ => Scope::Nothing,
            },
        }
    }

    /// Whether the rule is about this request.
    pub fn matches(&self, of: &Attributes<'_>) -> bool {
        self.has_scope(of)
            && one_of(&self.operations, of.operation)
            && one_of(&self.groups, of.group)
            && one_of(&self.versions, of.version)
            && self.resources.iter().any(|(resource, part)| {
                (resource == "*" || resource == of.resource) && (part == "*" || part == of.subresource)
            })
    }

    /// Namespaces stand in no namespace, though each is its own.
    fn has_scope(&self, of: &Attributes<'_>) -> bool {
        let in_cluster = of.namespace.is_empty()
            || (of.group.is_empty() && of.version == "v1" && of.resource == "namespaces");
        match self.scope {
            Scope::Any => true,
            Scope::Namespaced => !in_cluster,
            Scope::Cluster => in_cluster,
            Scope::Nothing => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::codec::json;

    const PODS: Attributes<'_> = Attributes {
        group: "",
        version: "v1",
        resource: "pods",
        subresource: "",
        namespace: "n",
        operation: "CREATE",
    };

    fn rule(operations: &str, groups: &str, versions: &str, resources: &str, scope: &str) -> Rule {
        let list = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(|word| format!("\"{word}\"")).collect();
            format!("[{}]", words.join(",")).replace("core", "")
        };
        let (operations, groups) = (list(operations), list(groups));
        let (versions, resources) = (list(versions), list(resources));
        let text = format!(
            r#"{{"operations":{operations},"apiGroups":{groups},"apiVersions":{versions},"resources":{resources},
                "scope":"{scope}"}}"#
        );
        Rule::read(&json::read(text.as_bytes()).unwrap())
    }

    #[test]
    fn every_part_of_a_rule_must_fit() {
        let exec = Attributes { subresource: "exec", operation: "CONNECT", ..PODS };
        let scale = Attributes { group: "apps", resource: "deployments", subresource: "scale", ..PODS };
        let namespace = Attributes { resource: "namespaces", namespace: "n", ..PODS };
        let node = Attributes { resource: "nodes", namespace: "", ..PODS };
        for (of, operations, groups, resources, scope, wanted) in [
            (PODS, "CREATE", "core", "pods", "*", true),
            (PODS, "CREATE UPDATE", "core apps", "services pods", "", true),
            (PODS, "UPDATE", "core", "pods", "*", false),
            (PODS, "*", "apps", "pods", "*", false),
            (PODS, "*", "*", "pods/*", "*", true),
            (PODS, "*", "*", "pods/status", "*", false),
            (PODS, "*", "*", "*", "*", true),
            (PODS, "*", "*", "*/scale", "*", false),
            (exec, "*", "*", "pods", "*", false),
            (exec, "*", "*", "*", "*", false),
            (exec, "*", "*", "*/*", "*", true),
            (exec, "CONNECT", "*", "pods/exec", "*", true),
            (exec, "CREATE", "*", "pods/exec", "*", false),
            (scale, "*", "*", "*/scale", "*", true),
            (scale, "*", "*", "deployments", "*", false),
            (PODS, "*", "*", "*", "Namespaced", true),
            (PODS, "*", "*", "*", "Cluster", false),
            (namespace, "*", "*", "*", "Namespaced", false),
            (namespace, "*", "*", "*", "Cluster", true),
            (node, "*", "*", "*", "Namespaced", false),
            (node, "*", "*", "*", "Cluster", true),
            (node, "*", "*", "*", "Elsewhere", false),
        ] {
            let rule = rule(operations, groups, "v1", resources, scope);
            assert_eq!(rule.matches(&of), wanted, "{of:?} {rule:?}");
        }
        assert!(!rule("*", "*", "v2", "*", "*").matches(&PODS));
        assert!(rule("*", "*", "v2 *", "*", "*").matches(&PODS));
        assert!(!rule("", "", "", "", "*").matches(&PODS));
    }
}
