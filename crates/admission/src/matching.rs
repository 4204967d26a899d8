//! Match rules of policies and webhooks.

use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;

/// A request as rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionAttributes<'a> {
    /// The group of the resource.
    pub group: &'a str,
    /// The version of the resource.
    pub version: &'a str,
    /// The plural of the resource.
    pub resource: &'a str,
    /// The subresource; empty for the object itself.
    pub subresource: &'a str,
    /// The namespace; empty for none. For a Namespace it is its own name.
    pub namespace: &'a str,
    /// The name of the object; empty if it is not known yet.
    pub name: &'a str,
    /// The operation in capital letters.
    pub operation: &'a str,
}

impl<'a> AdmissionAttributes<'a> {
    /// The attributes of the same request for an equivalent resource.
    pub fn for_resource(
        self,
        group: &'a str,
        version: &'a str,
        resource: &'a str,
    ) -> AdmissionAttributes<'a> {
        AdmissionAttributes { group, version, resource, ..self }
    }

    /// Whether the resource is namespaces, which are cluster-scoped though they have a namespace here.
    pub fn is_namespace_resource(&self) -> bool {
        (self.group, self.version, self.resource) == ("", "v1", "namespaces")
    }
}

/// One rule: a request matches if every part of the rule does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: String,
    names: Vec<String>,
}

impl Rule {
    /// Parses a rule.
    pub fn read(rule: &Value) -> Rule {
        let strings = |field: &str| -> Vec<String> {
            let values = rule.get(field).map(Value::items).unwrap_or_default();
            values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Rule {
            operations: strings("operations"),
            groups: strings("apiGroups"),
            versions: strings("apiVersions"),
            resources: strings("resources"),
            scope: rule.str("scope").to_owned(),
            names: strings("resourceNames"),
        }
    }

    /// Parses a list of rules.
    pub fn read_all(list: Option<&Value>) -> Vec<Rule> {
        list.map(Value::items).unwrap_or_default().iter().map(Rule::read).collect()
    }

    /// Whether it matches a request, except for the name of the object.
    pub fn covers(&self, attributes: &AdmissionAttributes<'_>) -> bool {
        let contains = |values: &[String], expected: &str| {
            values.iter().any(|pattern| pattern == "*" || pattern == expected)
        };
        let is_cluster_scoped = attributes.is_namespace_resource() || attributes.namespace.is_empty();
        let in_scope = match self.scope.as_str() {
            "" | "*" => true,
            "Namespaced" => !is_cluster_scoped,
            "Cluster" => is_cluster_scoped,
            _ => false,
        };
        let resource_matches = |pattern: &String| {
            let (resource, subresource) = pattern.split_once('/').unwrap_or((pattern, ""));
            (resource == "*" || resource == attributes.resource)
                && (subresource == "*" || subresource == attributes.subresource)
        };
        in_scope
            && contains(&self.operations, attributes.operation)
            && contains(&self.groups, attributes.group)
            && contains(&self.versions, attributes.version)
            && self.resources.iter().any(resource_matches)
    }

    /// Whether it matches this object name. Without resourceNames it matches all.
    fn covers_name(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|known| known == name)
    }
}

/// Match constraints.
#[derive(Debug)]
pub struct MatchConstraints {
    namespaces: Value,
    objects: Value,
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// Whether requests for equivalent resources match, too (matchPolicy Equivalent).
    matches_equivalents: bool,
}

/// How a request matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// As it was made.
    Exact,
    /// As an equivalent resource, by its index.
    Equivalent(usize),
}

impl MatchConstraints {
    /// Parses constraints; `None` if there are none.
    pub fn read(constraints: Option<&Value>) -> Option<MatchConstraints> {
        let constraints = constraints.filter(|constraints| !constraints.is_null())?;
        let selector = |field: &str| constraints.get(field).cloned().unwrap_or_else(Value::object);
        Some(MatchConstraints {
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            rules: Rule::read_all(constraints.get("resourceRules")),
            excluded: Rule::read_all(constraints.get("excludeResourceRules")),
            matches_equivalents: constraints.str("matchPolicy") == "Equivalent",
        })
    }

    /// Whether the labels of the namespace are needed.
    pub fn selects_namespaces(&self) -> bool {
        !label_selector::is_empty(&self.namespaces)
    }

    /// Whether the namespaceSelector matches these labels.
    pub fn selects_namespace(&self, labels: Option<&Value>) -> bool {
        label_selector::matches(Some(&self.namespaces), labels)
    }

    /// Whether the objectSelector matches the old or the new object.
    pub fn selects_object(&self, new: &Value, old: Option<&Value>) -> bool {
        if label_selector::is_empty(&self.objects) {
            return true;
        }
        let matches_labels = |object: &Value| {
            !object.is_null()
                && label_selector::matches(Some(&self.objects), object.get_path(&["metadata", "labels"]))
        };
        matches_labels(new) || old.is_some_and(matches_labels)
    }

    /// Whether the rules match a request. `equivalents` are the other resources that show the same objects.
    pub fn rules_match(
        &self,
        attributes: &AdmissionAttributes<'_>,
        equivalents: &[AdmissionAttributes<'_>],
    ) -> Option<Match> {
        if self.find_match(&self.excluded, attributes, equivalents).is_some() {
            return None;
        }
        if self.rules.is_empty() {
            Some(Match::Exact)
        } else {
            self.find_match(&self.rules, attributes, equivalents)
        }
    }

    fn find_match(
        &self,
        rules: &[Rule],
        attributes: &AdmissionAttributes<'_>,
        equivalents: &[AdmissionAttributes<'_>],
    ) -> Option<Match> {
        let mut named = rules.iter().filter(|rule| rule.covers_name(attributes.name));
        if named.any(|rule| rule.covers(attributes)) {
            return Some(Match::Exact);
        }
        if !self.matches_equivalents {
            return None;
        }
        let mut named = rules.iter().filter(|rule| rule.covers_name(attributes.name));
        named.find_map(|rule| equivalents.iter().position(|other| rule.covers(other))).map(Match::Equivalent)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    const DEPLOYMENT: AdmissionAttributes<'_> = AdmissionAttributes {
        group: "apps",
        version: "v1",
        resource: "deployments",
        subresource: "",
        namespace: "n",
        name: "d",
        operation: "CREATE",
    };

    #[test]
    fn rule_covers_request_only_if_every_part_matches() {
        let base = r#""operations":["CREATE"],"apiGroups":["apps"],"apiVersions":["v1"],"resources":["deployments"]"#;
        let covers =
            |text: &str, attributes: &AdmissionAttributes<'_>| Rule::read(&value(text)).covers(attributes);
        assert!(covers(&format!("{{{base}}}"), &DEPLOYMENT));
        for (field, expected) in [
            (r#""operations":["*"]"#, true),
            (r#""operations":["UPDATE","DELETE"]"#, false),
            (r#""apiGroups":["*"]"#, true),
            (r#""apiGroups":["", "extensions"]"#, false),
            (r#""apiVersions":["v1beta1"]"#, false),
            (r#""resources":["*"]"#, true),
            (r#""resources":["*/*"]"#, true),
            (r#""resources":["deployments/*"]"#, true),
            (r#""resources":["deployments/scale"]"#, false),
            (r#""resources":["*/scale"]"#, false),
            (r#""scope":"Namespaced""#, true),
            (r#""scope":"Cluster""#, false),
            (r#""scope":"*""#, true),
        ] {
            assert_eq!(covers(&format!("{{{base},{field}}}"), &DEPLOYMENT), expected, "{field}");
        }
        let scale = AdmissionAttributes { subresource: "scale", ..DEPLOYMENT };
        assert!(!covers(&format!("{{{base}}}"), &scale), "a subresource is not the object");
        assert!(covers(&format!(r#"{{{base},"resources":["*/scale"]}}"#), &scale));
        let namespace = AdmissionAttributes {
            group: "",
            resource: "namespaces",
            namespace: "n",
            name: "n",
            ..DEPLOYMENT
        };
        let all = r#"{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"],"scope":"#;
        assert!(covers(&format!(r#"{all}"Cluster"}}"#), &namespace));
        assert!(!covers(&format!(r#"{all}"Namespaced"}}"#), &namespace));
    }

    #[test]
    fn constraints_match_exclusions_names_and_equivalents() {
        let rule =
            r#"{"operations":["*"],"apiGroups":["apps"],"apiVersions":["v1"],"resources":["deployments"]}"#;
        let read = |text: &str| MatchConstraints::read(Some(&value(text))).unwrap();
        let rules_match =
            |text: &str, attributes: AdmissionAttributes<'_>, others: &[AdmissionAttributes<'_>]| {
                read(text).rules_match(&attributes, others)
            };
        let beta = AdmissionAttributes { version: "v1beta1", ..DEPLOYMENT };
        assert_eq!(rules_match("{}", DEPLOYMENT, &[]), Some(Match::Exact), "no rules mean everything");
        let exact = format!(r#"{{"resourceRules":[{rule}],"matchPolicy":"Exact"}}"#);
        assert_eq!(rules_match(&exact, beta, &[DEPLOYMENT]), None);
        let broad = format!(r#"{{"resourceRules":[{rule}],"matchPolicy":"Equivalent"}}"#);
        assert_eq!(rules_match(&broad, beta, &[DEPLOYMENT]), Some(Match::Equivalent(0)));
        assert_eq!(rules_match(&broad, DEPLOYMENT, &[beta]), Some(Match::Exact));
        let excluded = format!(r#"{{"excludeResourceRules":[{rule}],"matchPolicy":"Equivalent"}}"#);
        assert_eq!(rules_match(&excluded, beta, &[DEPLOYMENT]), None, "exclusions match equivalents, too");
        let named = broad.replace(r#""operations""#, r#""resourceNames":["d"],"operations""#);
        assert_eq!(rules_match(&named, DEPLOYMENT, &[]), Some(Match::Exact));
        assert_eq!(rules_match(&named, AdmissionAttributes { name: "e", ..DEPLOYMENT }, &[]), None);
        assert_eq!(rules_match(&named, AdmissionAttributes { name: "e", ..beta }, &[DEPLOYMENT]), None);
    }

    #[test]
    fn object_selector_matches_old_or_new_object() {
        let read = |text: &str| MatchConstraints::read(Some(&value(text))).unwrap();
        let matching = read(r#"{"objectSelector":{"matchLabels":{"a":"b"}}}"#);
        let (labelled, unlabelled) =
            (value(r#"{"metadata":{"labels":{"a":"b"}}}"#), value(r#"{"metadata":{}}"#));
        assert!(
            matching.selects_object(&unlabelled, Some(&labelled)) && matching.selects_object(&labelled, None)
        );
        assert!(
            !matching.selects_object(&unlabelled, Some(&unlabelled))
                && !matching.selects_object(&Value::Null, None)
        );
        assert!(read("{}").selects_object(&Value::Null, None), "an empty selector selects everything");
        assert!(MatchConstraints::read(Some(&Value::Null)).is_none());
    }

    /// No rules and no names match everything; an empty list in a rule matches nothing.
    #[test]
    fn empty_parts_of_constraints_match_as_in_the_reference() {
        let nameless = AdmissionAttributes { name: "", ..DEPLOYMENT };
        let all = r#""operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]"#;
        let with_rules = |rules: &str| format!(r#"{{"resourceRules":{rules}}}"#);
        let with_names = |names: &str| with_rules(&format!(r#"[{{{all},"resourceNames":{names}}}]"#));
        let with_empty = |field: &str| {
            let rule =
                format!(r#"{{{all}}}"#).replace(&format!(r#""{field}":["*"]"#), &format!(r#""{field}":[]"#));
            with_rules(&format!("[{rule}]"))
        };
        let with_exclusions = |rules: &str| format!(r#"{{"excludeResourceRules":{rules}}}"#);
        for (text, attributes, matches) in [
            (with_rules("[]"), DEPLOYMENT, true),
            (with_rules("null"), DEPLOYMENT, true),
            (with_rules("[{}]"), DEPLOYMENT, false),
            (with_empty("operations"), DEPLOYMENT, false),
            (with_empty("apiGroups"), DEPLOYMENT, false),
            (with_empty("apiVersions"), DEPLOYMENT, false),
            (with_empty("resources"), DEPLOYMENT, false),
            (with_names("[]"), DEPLOYMENT, true),
            (with_names("null"), DEPLOYMENT, true),
            (with_names(r#"[""]"#), DEPLOYMENT, false),
            (with_names(r#"["*"]"#), DEPLOYMENT, false),
            // An object whose name is generated has none yet, as in the reference.
            (with_names(r#"[""]"#), nameless, true),
            (with_names(r#"["d"]"#), nameless, false),
            (with_exclusions("[]"), DEPLOYMENT, true),
            (with_exclusions("[{}]"), DEPLOYMENT, true),
            (with_exclusions(&format!("[{{{all}}}]")), DEPLOYMENT, false),
            (with_exclusions(&format!(r#"[{{{all},"resourceNames":[""]}}]"#)), DEPLOYMENT, true),
        ] {
            let constraints = MatchConstraints::read(Some(&value(&text))).unwrap();
            assert_eq!(constraints.rules_match(&attributes, &[]).is_some(), matches, "{text} {attributes:?}");
        }
        for (selector, selects) in [
            ("", true),
            (r#""namespaceSelector":null"#, true),
            (r#""namespaceSelector":{}"#, true),
            (r#""namespaceSelector":{"matchLabels":{},"matchExpressions":[]}"#, true),
            (r#""namespaceSelector":{"matchLabels":{"a":""}}"#, false),
            (r#""namespaceSelector":{"matchExpressions":[{"key":"a","operator":"Exists"}]}"#, false),
        ] {
            let constraints = MatchConstraints::read(Some(&value(&format!("{{{selector}}}")))).unwrap();
            assert_eq!(!constraints.selects_namespaces(), selects, "{selector}");
            assert_eq!(
                !constraints.selects_namespaces() || constraints.selects_namespace(None),
                selects,
                "{selector}"
            );
        }
        assert!(MatchConstraints::read(None).is_none(), "the caller decides what absent constraints mean");
    }

    const PODS: AdmissionAttributes<'_> = AdmissionAttributes {
        group: "",
        version: "v1",
        resource: "pods",
        subresource: "",
        namespace: "n",
        name: "p",
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
    fn rules_match_subresources_wildcards_and_scopes() {
        let exec = AdmissionAttributes { subresource: "exec", operation: "CONNECT", ..PODS };
        let scale =
            AdmissionAttributes { group: "apps", resource: "deployments", subresource: "scale", ..PODS };
        let namespace = AdmissionAttributes { resource: "namespaces", namespace: "n", ..PODS };
        let node = AdmissionAttributes { resource: "nodes", namespace: "", ..PODS };
        for (attributes, operations, groups, resources, scope, expected) in [
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
            assert_eq!(rule.covers(&attributes), expected, "{attributes:?} {rule:?}");
        }
        assert!(!rule("*", "*", "v2", "*", "*").covers(&PODS));
        assert!(rule("*", "*", "v2 *", "*", "*").covers(&PODS));
        assert!(!rule("", "", "", "", "*").covers(&PODS));
    }
}
