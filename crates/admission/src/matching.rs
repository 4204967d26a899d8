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
    /// The same request as if it were for an equivalent resource.
    pub fn as_of(self, group: &'a str, version: &'a str, resource: &'a str) -> AdmissionAttributes<'a> {
        AdmissionAttributes { group, version, resource, ..self }
    }

    /// Whether it is about namespaces, which are cluster-scoped.
    pub fn is_of_namespaces(&self) -> bool {
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
        let texts = |field: &str| -> Vec<String> {
            let all = rule.get(field).map(Value::items).unwrap_or_default();
            all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Rule {
            operations: texts("operations"),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: texts("resources"),
            scope: rule.str("scope").to_owned(),
            names: texts("resourceNames"),
        }
    }

    /// Parses a list of rules.
    pub fn read_all(list: Option<&Value>) -> Vec<Rule> {
        list.map(Value::items).unwrap_or_default().iter().map(Rule::read).collect()
    }

    /// Whether it matches a request, except for the name of the object.
    pub fn covers(&self, asked: &AdmissionAttributes<'_>) -> bool {
        let has = |words: &[String], wanted: &str| words.iter().any(|word| word == "*" || word == wanted);
        let stands_alone = asked.is_of_namespaces() || asked.namespace.is_empty();
        let in_scope = match self.scope.as_str() {
            "" | "*" => true,
            "Namespaced" => !stands_alone,
            "Cluster" => stands_alone,
            _ => false,
        };
        let part = |word: &String| {
            let (resource, subresource) = word.split_once('/').unwrap_or((word, ""));
            (resource == "*" || resource == asked.resource)
                && (subresource == "*" || subresource == asked.subresource)
        };
        in_scope
            && has(&self.operations, asked.operation)
            && has(&self.groups, asked.group)
            && has(&self.versions, asked.version)
            && self.resources.iter().any(part)
    }

    /// Whether it matches this object name. Without resourceNames it matches all.
    fn names(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|one| one == name)
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
    is_broad: bool,
}

/// How a request matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// As it was made.
    AsAsked,
    /// As an equivalent resource, by its index.
    As(usize),
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
            is_broad: constraints.str("matchPolicy") == "Equivalent",
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
        let fits = |object: &Value| {
            !object.is_null()
                && label_selector::matches(Some(&self.objects), object.at(&["metadata", "labels"]))
        };
        fits(new) || old.is_some_and(fits)
    }

    /// Whether the rules match a request. `equivalents` are the other resources that show the same objects.
    pub fn rules_match(
        &self,
        asked: &AdmissionAttributes<'_>,
        equivalents: &[AdmissionAttributes<'_>],
    ) -> Option<Match> {
        if self.found(&self.excluded, asked, equivalents).is_some() {
            return None;
        }
        if self.rules.is_empty() { Some(Match::AsAsked) } else { self.found(&self.rules, asked, equivalents) }
    }

    fn found(
        &self,
        rules: &[Rule],
        asked: &AdmissionAttributes<'_>,
        equivalents: &[AdmissionAttributes<'_>],
    ) -> Option<Match> {
        let mut named = rules.iter().filter(|rule| rule.names(asked.name));
        if named.any(|rule| rule.covers(asked)) {
            return Some(Match::AsAsked);
        }
        if !self.is_broad {
            return None;
        }
        let mut named = rules.iter().filter(|rule| rule.names(asked.name));
        named.find_map(|rule| equivalents.iter().position(|other| rule.covers(other))).map(Match::As)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    const ASKED: AdmissionAttributes<'_> = AdmissionAttributes {
        group: "apps",
        version: "v1",
        resource: "deployments",
        subresource: "",
        namespace: "n",
        name: "d",
        operation: "CREATE",
    };

    #[test]
    fn every_part_of_a_rule_counts() {
        let base = r#""operations":["CREATE"],"apiGroups":["apps"],"apiVersions":["v1"],"resources":["deployments"]"#;
        let covers = |text: &str, asked: &AdmissionAttributes<'_>| Rule::read(&value(text)).covers(asked);
        assert!(covers(&format!("{{{base}}}"), &ASKED));
        for (changed, yes) in [
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
            assert_eq!(covers(&format!("{{{base},{changed}}}"), &ASKED), yes, "{changed}");
        }
        let scale = AdmissionAttributes { subresource: "scale", ..ASKED };
        assert!(!covers(&format!("{{{base}}}"), &scale), "a part is not the object");
        assert!(covers(&format!(r#"{{{base},"resources":["*/scale"]}}"#), &scale));
        let namespace =
            AdmissionAttributes { group: "", resource: "namespaces", namespace: "n", name: "n", ..ASKED };
        let all = r#"{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"],"scope":"#;
        assert!(covers(&format!(r#"{all}"Cluster"}}"#), &namespace));
        assert!(!covers(&format!(r#"{all}"Namespaced"}}"#), &namespace));
    }

    #[test]
    fn exceptions_names_and_versions_decide() {
        let rule =
            r#"{"operations":["*"],"apiGroups":["apps"],"apiVersions":["v1"],"resources":["deployments"]}"#;
        let read = |text: &str| MatchConstraints::read(Some(&value(text))).unwrap();
        let found = |text: &str, asked: AdmissionAttributes<'_>, others: &[AdmissionAttributes<'_>]| {
            read(text).rules_match(&asked, others)
        };
        let old = AdmissionAttributes { version: "v1beta1", ..ASKED };
        assert_eq!(found("{}", ASKED, &[]), Some(Match::AsAsked), "no rules mean everything");
        let exact = format!(r#"{{"resourceRules":[{rule}],"matchPolicy":"Exact"}}"#);
        assert_eq!(found(&exact, old, &[ASKED]), None);
        let broad = format!(r#"{{"resourceRules":[{rule}],"matchPolicy":"Equivalent"}}"#);
        assert_eq!(found(&broad, old, &[ASKED]), Some(Match::As(0)));
        assert_eq!(found(&broad, ASKED, &[old]), Some(Match::AsAsked));
        let excluded = format!(r#"{{"excludeResourceRules":[{rule}],"matchPolicy":"Equivalent"}}"#);
        assert_eq!(found(&excluded, old, &[ASKED]), None, "exceptions are as broad");
        let named = broad.replace(r#""operations""#, r#""resourceNames":["d"],"operations""#);
        assert_eq!(found(&named, ASKED, &[]), Some(Match::AsAsked));
        assert_eq!(found(&named, AdmissionAttributes { name: "e", ..ASKED }, &[]), None);
        assert_eq!(found(&named, AdmissionAttributes { name: "e", ..old }, &[ASKED]), None);
    }

    #[test]
    fn an_object_is_meant_by_either_of_its_states() {
        let read = |text: &str| MatchConstraints::read(Some(&value(text))).unwrap();
        let matching = read(r#"{"objectSelector":{"matchLabels":{"a":"b"}}}"#);
        let (yes, no) = (value(r#"{"metadata":{"labels":{"a":"b"}}}"#), value(r#"{"metadata":{}}"#));
        assert!(matching.selects_object(&no, Some(&yes)) && matching.selects_object(&yes, None));
        assert!(!matching.selects_object(&no, Some(&no)) && !matching.selects_object(&Value::Null, None));
        assert!(read("{}").selects_object(&Value::Null, None), "an empty selector selects everything");
        assert!(MatchConstraints::read(Some(&Value::Null)).is_none());
    }

    /// What empty and absent parts of constraints mean: no rules and no names are all, an empty list in a rule is nothing.
    #[test]
    fn empty_parts_of_constraints() {
        let nameless = AdmissionAttributes { name: "", ..ASKED };
        let all = r#""operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]"#;
        let ruled = |rules: &str| format!(r#"{{"resourceRules":{rules}}}"#);
        let named = |names: &str| ruled(&format!(r#"[{{{all},"resourceNames":{names}}}]"#));
        let lacking = |field: &str| {
            let rule =
                format!(r#"{{{all}}}"#).replace(&format!(r#""{field}":["*"]"#), &format!(r#""{field}":[]"#));
            ruled(&format!("[{rule}]"))
        };
        let excluded = |rules: &str| format!(r#"{{"excludeResourceRules":{rules}}}"#);
        for (constraints, asked, matches) in [
            (ruled("[]"), ASKED, true),
            (ruled("null"), ASKED, true),
            (ruled("[{}]"), ASKED, false),
            (lacking("operations"), ASKED, false),
            (lacking("apiGroups"), ASKED, false),
            (lacking("apiVersions"), ASKED, false),
            (lacking("resources"), ASKED, false),
            (named("[]"), ASKED, true),
            (named("null"), ASKED, true),
            (named(r#"[""]"#), ASKED, false),
            (named(r#"["*"]"#), ASKED, false),
            // An object whose name is generated has none yet, as in the reference.
            (named(r#"[""]"#), nameless, true),
            (named(r#"["d"]"#), nameless, false),
            (excluded("[]"), ASKED, true),
            (excluded("[{}]"), ASKED, true),
            (excluded(&format!("[{{{all}}}]")), ASKED, false),
            (excluded(&format!(r#"[{{{all},"resourceNames":[""]}}]"#)), ASKED, true),
        ] {
            let read = MatchConstraints::read(Some(&value(&constraints))).unwrap();
            assert_eq!(read.rules_match(&asked, &[]).is_some(), matches, "{constraints} {asked:?}");
        }
        for (selector, selects) in [
            ("", true),
            (r#""namespaceSelector":null"#, true),
            (r#""namespaceSelector":{}"#, true),
            (r#""namespaceSelector":{"matchLabels":{},"matchExpressions":[]}"#, true),
            (r#""namespaceSelector":{"matchLabels":{"a":""}}"#, false),
            (r#""namespaceSelector":{"matchExpressions":[{"key":"a","operator":"Exists"}]}"#, false),
        ] {
            let read = MatchConstraints::read(Some(&value(&format!("{{{selector}}}")))).unwrap();
            assert_eq!(!read.selects_namespaces(), selects, "{selector}");
            assert_eq!(!read.selects_namespaces() || read.selects_namespace(None), selects, "{selector}");
        }
        assert!(MatchConstraints::read(None).is_none(), "who reads them says what their absence means");
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
    fn rules_match_parts_wildcards_and_scopes() {
        let exec = AdmissionAttributes { subresource: "exec", operation: "CONNECT", ..PODS };
        let scale =
            AdmissionAttributes { group: "apps", resource: "deployments", subresource: "scale", ..PODS };
        let namespace = AdmissionAttributes { resource: "namespaces", namespace: "n", ..PODS };
        let node = AdmissionAttributes { resource: "nodes", namespace: "", ..PODS };
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
            assert_eq!(rule.covers(&of), wanted, "{of:?} {rule:?}");
        }
        assert!(!rule("*", "*", "v2", "*", "*").covers(&PODS));
        assert!(rule("*", "*", "v2 *", "*", "*").covers(&PODS));
        assert!(!rule("", "", "", "", "*").covers(&PODS));
    }
}
