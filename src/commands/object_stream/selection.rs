//! Which objects are exported or imported.

use std::str::FromStr;

use clap::Args;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::selectors::parse_labels;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::NAMESPACES;
use pilothouse_types::filter::LabelRule;
use pilothouse_types::object::Pairs;

use super::resource::{Resource, namespace};

/// Flags that select objects. Without any, all are selected.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Selection")]
pub(crate) struct Selection {
    /// Only these resources: a name in any group (pods), a name and its group (deployments.apps), or with a star for either:
    /// *.apps is all of a group, *. all of the core group, and *.* everything.
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',')]
    resource: Vec<ResourcePattern>,
    /// All but these resources, named in the same way.
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',')]
    exclude_resource: Vec<ResourcePattern>,
    /// Only objects in these namespaces, and the namespaces themselves. No other object without a namespace is selected.
    #[arg(long, short = 'n', value_name = "NAMESPACES", value_delimiter = ',')]
    namespace: Vec<String>,
    /// Only objects with these labels, in the form that kubectl accepts: app=web,tier in (a,b).
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<LabelSelector>,
}

/// A resource, or several by a star.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourcePattern {
    /// As given.
    text: String,
    /// The plural name; `None` for any.
    name: Option<String>,
    /// The group; `None` for any.
    group: Option<String>,
}

impl FromStr for ResourcePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<ResourcePattern, String> {
        let (name, group) = match text.split_once('.') {
            Some((name, group)) => (name, Some(group)),
            None => (text, None),
        };
        let is_word = |word: &str| {
            word.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
        };
        let is_valid = |word: &str| word == "*" || is_word(word);
        if name.is_empty() || name.contains('/') || !is_valid(name) || !group.is_none_or(is_valid) {
            return Err("neither a resource (pods, deployments.apps) nor a pattern (*.apps, *.*)".to_owned());
        }
        let unless_star = |word: &str| (word != "*").then(|| word.to_owned());
        Ok(ResourcePattern {
            text: text.to_owned(),
            name: unless_star(name),
            group: group.and_then(unless_star),
        })
    }
}

impl ResourcePattern {
    fn matches(&self, resource: &Resource) -> bool {
        self.name.as_ref().is_none_or(|name| *name == resource.name)
            && self.group.as_ref().is_none_or(|group| *group == resource.group)
    }
}

/// A label selector, as text and parsed.
#[derive(Clone, Debug)]
pub(crate) struct LabelSelector {
    text: String,
    rules: Vec<LabelRule>,
}

impl FromStr for LabelSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<LabelSelector, String> {
        let rules = parse_labels(text).map_err(|status| status.message.clone())?;
        Ok(LabelSelector { text: text.to_owned(), rules })
    }
}

impl Selection {
    /// Whether objects of the resource may be selected.
    pub(crate) fn includes_resource(&self, resource: &Resource) -> bool {
        let is_in = |patterns: &[ResourcePattern]| patterns.iter().any(|pattern| pattern.matches(resource));
        (self.resource.is_empty() || is_in(&self.resource)) && !is_in(&self.exclude_resource)
    }

    /// Whether the resource is named without a star: then it is meant, even if it is usually left out.
    pub(crate) fn names_resource(&self, resource: &Resource) -> bool {
        let names = |pattern: &ResourcePattern| pattern.name.is_some() && pattern.matches(resource);
        self.resource.iter().any(names)
    }

    /// The patterns that match none of these resources: probably misspelled.
    pub(crate) fn unmatched<'a>(&'a self, resources: &[Resource]) -> Vec<&'a str> {
        let patterns = self.resource.iter().chain(&self.exclude_resource);
        let unmatched =
            patterns.filter(|pattern| !resources.iter().any(|resource| pattern.matches(resource)));
        unmatched.map(|pattern| pattern.text.as_str()).collect()
    }

    /// The namespaces that a resource is listed in: `None` stands for all of them at once.
    pub(crate) fn namespaces_of(&self, resource: &Resource) -> Vec<Option<&str>> {
        match (self.namespace.as_slice(), resource.is_namespaced || resource.is("", NAMESPACES)) {
            ([], _) => vec![None],
            (_, false) => Vec::new(),
            (namespaces, true) => namespaces.iter().map(|name| Some(name.as_str())).collect(),
        }
    }

    /// The label selector, as given.
    pub(crate) fn labels(&self) -> Option<&str> {
        self.selector.as_ref().map(|selector| selector.text.as_str())
    }

    /// Whether an object of an included resource is selected, by its namespace and its labels.
    pub(crate) fn includes_object(&self, object: &Value) -> bool {
        let is_namespace = (object.str("apiVersion"), object.str("kind")) == ("v1", "Namespace");
        let own = if is_namespace { meta::name(object) } else { namespace(object) };
        self.includes_namespace(own) && self.has_labels(object)
    }

    /// Whether a namespace and its objects are selected. That of objects without one is empty.
    pub(crate) fn includes_namespace(&self, name: &str) -> bool {
        self.namespace.is_empty() || self.namespace.iter().any(|selected| selected == name)
    }

    /// Whether an object has the selected labels.
    pub(crate) fn has_labels(&self, object: &Value) -> bool {
        let Some(selector) = &self.selector else { return true };
        let labels = meta::metadata(object).get("labels").and_then(Value::fields);
        let labels: Pairs = labels
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
            .collect();
        selector.rules.iter().all(|rule| rule.holds(&labels))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        selection: Selection,
    }

    fn selection(line: &[&str]) -> Selection {
        Line::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).selection
    }

    fn resource(full_name: &str) -> Resource {
        let (name, group) = full_name.split_once('.').unwrap_or((full_name, ""));
        let is_namespaced = !["namespaces", "nodes"].contains(&name);
        Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            name: name.to_owned(),
            kind: String::new(),
            is_namespaced,
            has_status: false,
            is_aggregated: false,
        }
    }

    #[test]
    fn resource_patterns_match_names_and_groups() {
        for (pattern, full_name, expected) in [
            ("pods", "pods", true),
            ("pods", "pods.metrics.k8s.io", true),
            ("deployments.apps", "deployments.apps", true),
            ("deployments.apps", "deployments.extensions", false),
            ("*.apps", "daemonsets.apps", true),
            ("*.apps", "pods", false),
            ("*.", "pods", true),
            ("*.", "daemonsets.apps", false),
            ("*.*", "ships.example.com", true),
            ("*", "pods", true),
            ("ships.*", "ships.example.com", true),
        ] {
            let included = selection(&["--resource", pattern]).includes_resource(&resource(full_name));
            assert_eq!(included, expected, "{pattern} {full_name}");
            let excluded =
                !selection(&["--exclude-resource", pattern]).includes_resource(&resource(full_name));
            assert_eq!(excluded, expected, "{pattern} {full_name}");
        }
        for pattern in ["", "Pods", "pods/status", "*s.apps", ".apps", "a b"] {
            assert!(pattern.parse::<ResourcePattern>().is_err(), "{pattern}");
        }
    }

    #[test]
    fn unmatched_patterns_are_reported() {
        let selection = selection(&["--resource=pods,podz", "--exclude-resource=*.nowhere"]);
        assert_eq!(selection.unmatched(&[resource("pods")]), ["podz", "*.nowhere"]);
        assert!(selection.names_resource(&resource("pods")));
        assert!(!super::tests::selection(&["--resource=*"]).names_resource(&resource("pods")));
    }

    #[test]
    fn namespaces_select_their_objects_and_themselves() {
        let selection = selection(&["-n", "a,b"]);
        assert_eq!(selection.namespaces_of(&resource("pods")), [Some("a"), Some("b")]);
        assert_eq!(selection.namespaces_of(&resource("namespaces")), [Some("a"), Some("b")]);
        assert!(selection.namespaces_of(&resource("nodes")).is_empty());
        for (text, expected) in [
            ("{apiVersion: v1, kind: Pod, metadata: {namespace: a, name: x}}", true),
            ("{apiVersion: v1, kind: Pod, metadata: {namespace: c, name: a}}", false),
            ("{apiVersion: v1, kind: Namespace, metadata: {name: b}}", true),
            ("{apiVersion: v1, kind: Node, metadata: {name: a}}", false),
        ] {
            let object = yaml::read(text.as_bytes()).unwrap();
            assert_eq!(selection.includes_object(&object), expected, "{text}");
        }
    }

    #[test]
    fn labels_select_objects() {
        let selection = selection(&["-l", "app=web,tier notin (db)"]);
        for (labels, expected) in [("{app: web}", true), ("{app: web, tier: db}", false), ("{}", false)] {
            let object = yaml::read(format!("{{metadata: {{labels: {labels}}}}}").as_bytes()).unwrap();
            assert_eq!(selection.includes_object(&object), expected, "{labels}");
        }
        assert!(Line::try_parse_from(["-l", "a in"]).is_err());
    }
}
