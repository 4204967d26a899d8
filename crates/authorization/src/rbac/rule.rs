//! One rule of a role: what it allows, and which other rules it covers.

use std::borrow::Cow;
use std::fmt;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::authorization::{Action, Grant, Target};
use serde::{Deserialize, Deserializer};

const WILDCARD: &str = "*";

/// A compact list of words.
pub type StringList = Box<[Box<str>]>;

/// A PolicyRule. Fields that do not apply are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rule {
    /// The verbs; `*` stands for all.
    #[serde(deserialize_with = "null_is_default")]
    pub verbs: StringList,
    /// The API groups; `*` stands for all.
    #[serde(deserialize_with = "null_is_default")]
    pub api_groups: StringList,
    /// The resources: `pods`, `pods/log`, `*/scale`, `*`.
    #[serde(deserialize_with = "null_is_default")]
    pub resources: StringList,
    /// The names of the objects; empty for all.
    #[serde(deserialize_with = "null_is_default")]
    pub resource_names: StringList,
    /// The non-resource paths; a final `*` stands for any rest.
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_is_default")]
    pub paths: StringList,
}

/// Parses null as the default, because absent fields may be written so.
pub fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// An action, prepared for comparisons.
pub struct PreparedAction<'a> {
    pub(super) verb: &'a str,
    pub(super) target: PreparedTarget<'a>,
}

pub(super) enum PreparedTarget<'a> {
    Resource {
        group: &'a str,
        /// The resource with its subresource: `pods/log`.
        resource: Cow<'a, str>,
        /// The wildcard form: `*/log`; empty without a subresource.
        any_with_part: String,
        objects: Objects<'a>,
    },
    Path(&'a str),
}

/// The objects of a resource that an action is for. A rule without resourceNames grants all objects; a request without a name has
/// the empty name, which a rule may contain. They must never be confused: permission for the empty name would count as permission
/// for all objects.
#[derive(Clone, Copy)]
pub(super) enum Objects<'a> {
    All,
    Named(&'a str),
}

impl<'a> From<&'a Action> for PreparedAction<'a> {
    fn from(action: &'a Action) -> PreparedAction<'a> {
        let target = match &action.target {
            Target::Path(path) => PreparedTarget::Path(path),
            Target::Resource { group, resource, subresource, name, .. } if subresource.is_empty() => {
                let (resource, objects) = (resource.into(), Objects::Named(name));
                PreparedTarget::Resource { group, resource, any_with_part: String::new(), objects }
            }
            Target::Resource { group, resource, subresource, name, .. } => PreparedTarget::Resource {
                group,
                resource: format!("{resource}/{subresource}").into(),
                any_with_part: format!("*/{subresource}"),
                objects: Objects::Named(name),
            },
        };
        PreparedAction { verb: &action.verb, target }
    }
}

impl<'a> PreparedAction<'a> {
    /// One verb on one resource as rules name it, including `*` and `*/part`.
    pub(super) fn resource(
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        objects: Objects<'a>,
    ) -> PreparedAction<'a> {
        let part = resource.split_once('/').map(|(_, part)| format!("*/{part}"));
        let any_with_part = part.unwrap_or_default();
        PreparedAction {
            verb,
            target: PreparedTarget::Resource { group, resource: resource.into(), any_with_part, objects },
        }
    }

    /// One verb on one path as rules name it.
    pub(super) fn path(verb: &'a str, path: &'a str) -> PreparedAction<'a> {
        PreparedAction { verb, target: PreparedTarget::Path(path) }
    }
}

fn contains(words: &[Box<str>], word: &str) -> bool {
    words.iter().any(|known| **known == *word)
}

fn contains_or_all(words: &[Box<str>], word: &str) -> bool {
    words.iter().any(|known| **known == *WILDCARD || **known == *word)
}

/// Whether a rule's path matches this path.
fn path_covers(rule: &str, path: &str) -> bool {
    rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
}

impl Rule {
    /// Whether it allows the action.
    pub fn allows(&self, action: &PreparedAction<'_>) -> bool {
        match &action.target {
            PreparedTarget::Resource { resource, any_with_part, .. } => {
                self.allows_named(action)
                    && self.resources.iter().any(|known| {
                        **known == *WILDCARD
                            || **known == **resource
                            || (!any_with_part.is_empty() && **known == **any_with_part)
                    })
            }
            PreparedTarget::Path(path) => {
                contains_or_all(&self.verbs, action.verb)
                    && self.paths.iter().any(|known| path_covers(known, path))
            }
        }
    }

    /// Whether it allows the action, given that its `resources` contain that of the action.
    pub(super) fn allows_named(&self, action: &PreparedAction<'_>) -> bool {
        let PreparedTarget::Resource { group, objects, .. } = &action.target else {
            return self.allows(action);
        };
        let names = match objects {
            Objects::All => self.resource_names.is_empty(),
            Objects::Named(name) => self.resource_names.is_empty() || contains(&self.resource_names, name),
        };
        names && contains_or_all(&self.verbs, action.verb) && contains_or_all(&self.api_groups, group)
    }

    /// Whether it covers a single permission of a rule, given that it names the resource. A permission for paths has no names,
    /// so a rule with names does not cover it, as in the reference.
    pub(super) fn covers_permission(&self, permission: &PreparedAction<'_>) -> bool {
        let is_of_path = matches!(permission.target, PreparedTarget::Path(_));
        (!is_of_path || self.resource_names.is_empty()) && self.allows_named(permission)
    }

    /// The number of words to compare.
    pub(super) fn words(&self) -> usize {
        let Rule { verbs, api_groups, resources, resource_names, paths } = self;
        [verbs, api_groups, resources, resource_names, paths].iter().map(|words| words.len()).sum()
    }

    /// Whether this rule alone allows everything that `other` allows.
    pub fn covers(&self, other: &Rule) -> bool {
        let contains_all = |own: &StringList, others: &StringList| {
            contains(own, WILDCARD) || others.iter().all(|word| contains(own, word))
        };
        let names = if other.resource_names.is_empty() {
            self.resource_names.is_empty()
        } else {
            self.resource_names.is_empty()
                || other.resource_names.iter().all(|name| contains(&self.resource_names, name))
        };
        names
            && contains_all(&self.verbs, &other.verbs)
            && contains_all(&self.api_groups, &other.api_groups)
            && other.resources.iter().all(|resource| self.covers_resource(resource))
            && other.paths.iter().all(|path| self.paths.iter().any(|own| path_covers(own, path)))
            // A rule with names covers no path, as for single permissions.
            && (other.paths.is_empty() || self.resource_names.is_empty())
    }

    fn covers_resource(&self, resource: &str) -> bool {
        contains_or_all(&self.resources, resource)
            || resource
                .split_once('/')
                .is_some_and(|(_, part)| contains(&self.resources, &format!("*/{part}")))
    }

    /// The rule as a value.
    pub fn to_value(&self) -> Value {
        let mut value = Value::object();
        let fields = [
            ("verbs", &self.verbs),
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.paths),
        ];
        for (field, words) in fields.into_iter().filter(|(_, words)| !words.is_empty()) {
            let words = words.iter().map(|word| Value::String(word.to_string())).collect();
            value.set(field, Value::Array(words));
        }
        value
    }

    /// Parses a rule from a value.
    pub fn from_value(value: &Value) -> Rule {
        let words = |field: &str| {
            let items = value.get(field).map(Value::items).unwrap_or_default();
            items.iter().filter_map(Value::as_str).map(Box::from).collect()
        };
        Rule {
            verbs: words("verbs"),
            api_groups: words("apiGroups"),
            resources: words("resources"),
            resource_names: words("resourceNames"),
            paths: words("nonResourceURLs"),
        }
    }

    /// The rule as a grant.
    pub fn to_grant(&self) -> Grant {
        let words = |words: &StringList| words.iter().map(|word| word.to_string()).collect();
        Grant {
            verbs: words(&self.verbs),
            groups: words(&self.api_groups),
            resources: words(&self.resources),
            names: words(&self.resource_names),
            paths: words(&self.paths),
        }
    }
}

/// The rules of a role.
pub fn rules_of(role: &Value) -> Vec<Rule> {
    role.get("rules").map(Value::items).unwrap_or_default().iter().map(Rule::from_value).collect()
}

/// As messages about missing permissions print it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.paths),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let mut separator = "";
        f.write_str("{")?;
        for (name, words) in fields.into_iter().filter(|(_, words)| !words.is_empty()) {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            write!(f, "{separator}{name}:[{}]", words.join(" "))?;
            separator = ", ";
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{action, path_rule, rule};

    #[test]
    fn rule_matches_wildcards_subresources_and_names() {
        let table = [
            (rule("get", "core", "pods", ""), ("get", "", "pods", "a"), true),
            (rule("get", "core", "pods", ""), ("list", "", "pods", ""), false),
            (rule("get", "core", "pods", ""), ("get", "apps", "pods", "a"), false),
            (rule("get", "core", "pods", ""), ("get", "", "pods/log", "a"), false),
            (rule("*", "*", "*", ""), ("anything", "any.group", "pods/log", "a"), true),
            (rule("get", "*", "*/scale", ""), ("get", "apps", "deployments/scale", "a"), true),
            (rule("get", "*", "*/scale", ""), ("get", "apps", "deployments", "a"), false),
            (rule("get", "core", "pods/*", ""), ("get", "", "pods/log", "a"), false),
            (rule("get list create", "core", "pods", "a b"), ("get", "", "pods", "b"), true),
            (rule("get list create", "core", "pods", "a b"), ("get", "", "pods", "c"), false),
            (rule("get list create", "core", "pods", "a b"), ("create", "", "pods", ""), false),
            (path_rule("get", "*"), ("get", "", "pods", "a"), false),
        ];
        for (rule, (verb, group, resource, name), expected) in table {
            let action = action(verb, group, resource, "n", name);
            assert_eq!(rule.allows(&PreparedAction::from(&action)), expected, "{rule} {action:?}");
        }
    }

    #[test]
    fn path_rule_matches_by_prefix_before_wildcard() {
        let allows = |paths: &str, path: &str| {
            let action = Action { verb: "get".into(), target: Target::Path(path.into()) };
            path_rule("get", paths).allows(&PreparedAction::from(&action))
        };
        assert!(allows("/api/*", "/api/v1") && allows("/api/*", "/api/") && allows("*", "/x"));
        assert!(allows("/nope*", "/nopex") && allows("/a**", "/ab"));
        assert!(!allows("/api/*", "/api") && !allows("/livez", "/livez/etcd") && !allows("/a*b", "/axb"));
    }

    #[test]
    fn rule_covers_narrower_rules() {
        let all = rule("*", "*", "*", "");
        assert!(all.covers(&rule("get list", "core apps", "pods */scale", "a")));
        assert!(!all.covers(&path_rule("get", "/x")), "resources are no paths");
        assert!(rule("get", "core", "*/status", "").covers(&rule("get", "core", "pods/status", "")));
        assert!(!rule("get", "core", "pods", "a").covers(&rule("get", "core", "pods", "")));
        assert!(rule("get", "core", "pods", "").covers(&rule("get", "core", "pods", "a")));
        assert!(!rule("get", "core", "pods", "a").covers(&rule("get", "core", "pods", "a b")));
        assert!(path_rule("get", "/a/*").covers(&path_rule("get", "/a/b /a/*")));
    }

    #[test]
    fn rule_renders_as_in_escalation_messages() {
        let rendered = rule("delete get", "core apps", "secrets", "a").to_string();
        let expected =
            r#"{APIGroups:["" "apps"], Resources:["secrets"], ResourceNames:["a"], Verbs:["delete" "get"]}"#;
        assert_eq!(rendered, expected);
        assert_eq!(path_rule("*", "*").to_string(), r#"{NonResourceURLs:["*"], Verbs:["*"]}"#);
    }
}
