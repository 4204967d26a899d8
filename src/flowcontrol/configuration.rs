//! Parses FlowSchemas and PriorityLevelConfigurations: which requests a FlowSchema matches, its flow distinguisher, and the
//! limits of a priority level. `crate::flowcontrol` classifies requests with them.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::fair_queuing::queues::LevelKind;
use pilothouse_actors::fair_queuing::shares::Share;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::well_known::ACCOUNT_PREFIX;
use pilothouse_types::identity::Identity;

use pilothouse_api::bootstrap::flow_control;
use pilothouse_api::path::{Request, ResourcePath, Target};
use pilothouse_apimachinery::well_known::flows::EXEMPT;

/// The wildcard.
const WILDCARD: &str = "*";

/// A parsed FlowSchema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSchema {
    /// The UID; empty for a mandatory object that does not exist.
    pub uid: Bytes,
    /// The priority level of its requests.
    pub level: String,
    /// matchingPrecedence: of several matching schemas, the lowest wins.
    pub precedence: i64,
    /// distinguisherMethod: how its requests are separated into flows.
    pub distinguisher: FlowDistinguisher,
    rules: Arc<[Rule]>,
}

/// The flow distinguisher: how the requests of a FlowSchema are separated into flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowDistinguisher {
    /// One flow for all requests.
    #[default]
    Single,
    /// By user.
    User,
    /// By namespace.
    Namespace,
}

impl FlowDistinguisher {
    /// The value of the flow distinguisher for a request.
    pub fn value<'a>(self, user: &'a Identity, request: &'a Request<'a>) -> &'a str {
        match self {
            FlowDistinguisher::Single => "",
            FlowDistinguisher::User => &user.name,
            FlowDistinguisher::Namespace => request.resource().map_or("", |resource| resource.namespace),
        }
    }
}

/// A parsed PriorityLevelConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityLevel {
    /// The UID; empty for a mandatory object that does not exist.
    pub uid: Bytes,
    /// Its concurrency limits.
    pub share: Share,
    /// Whether it is exempt, queues or rejects (limitResponse).
    pub shape: LevelKind,
}

/// A PolicyRulesWithSubjects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
    /// All service accounts of a namespace, by the prefix of their user names.
    Accounts(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ResourceRule {
    verbs: StringMatcher,
    groups: StringMatcher,
    resources: StringMatcher,
    namespaces: StringMatcher,
    /// clusterScope: whether requests without a namespace match, too.
    cluster: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PathRule {
    verbs: StringMatcher,
    paths: Vec<String>,
}

/// A list of strings, or the wildcard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StringMatcher {
    is_wildcard: bool,
    values: Vec<String>,
}

impl StringMatcher {
    fn read(rule: &Value, field: &str) -> StringMatcher {
        let values = strings(rule, field);
        StringMatcher { is_wildcard: matches!(&*values, [value] if value == WILDCARD), values }
    }

    fn matches_value(&self, value: &str) -> bool {
        self.is_wildcard || self.values.iter().any(|pattern| pattern == value)
    }

    /// Matches a resource and its subresource, as `resource/subresource`.
    fn matches_resource(&self, resource: &str, subresource: &str) -> bool {
        let matches = |pattern: &String| {
            if subresource.is_empty() {
                return pattern == resource;
            }
            pattern.strip_prefix(resource).and_then(|rest| rest.strip_prefix('/')) == Some(subresource)
        };
        self.is_wildcard || self.values.iter().any(matches)
    }
}

fn strings(object: &Value, field: &str) -> Vec<String> {
    let items = object.get(field).map(Value::items).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read_all<T>(object: &Value, field: &str, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    object.get(field).map(Value::items).unwrap_or_default().iter().filter_map(read).collect()
}

impl Subject {
    fn read(subject: &Value) -> Option<Subject> {
        match subject.str("kind") {
            "User" => subject.get("user").map(|user| Subject::User(user.str("name").to_owned())),
            "Group" => subject.get("group").map(|group| Subject::Group(group.str("name").to_owned())),
            "ServiceAccount" => subject.get("serviceAccount").map(|account| {
                let prefix = format!("{ACCOUNT_PREFIX}{}:", account.str("namespace"));
                match account.str("name") {
                    WILDCARD => Subject::Accounts(prefix),
                    name => Subject::User(prefix + name),
                }
            }),
            _ => None,
        }
    }

    fn matches(&self, user: &Identity) -> bool {
        match self {
            Subject::User(name) => name == WILDCARD || *name == user.name,
            Subject::Group(name) => name == WILDCARD || user.is_in(name),
            Subject::Accounts(prefix) => user.name.starts_with(prefix),
        }
    }
}

impl ResourceRule {
    fn read(rule: &Value) -> ResourceRule {
        ResourceRule {
            verbs: StringMatcher::read(rule, "verbs"),
            groups: StringMatcher::read(rule, "apiGroups"),
            resources: StringMatcher::read(rule, "resources"),
            namespaces: StringMatcher::read(rule, "namespaces"),
            cluster: rule.get("clusterScope").and_then(Value::as_bool).unwrap_or_default(),
        }
    }

    fn matches(&self, verb: Verb, resource: &ResourcePath<'_>) -> bool {
        let in_scope = if resource.namespace.is_empty() {
            self.cluster
        } else {
            self.namespaces.matches_value(resource.namespace)
        };
        in_scope
            && self.verbs.matches_value(verb.as_str())
            && self.resources.matches_resource(resource.resource, resource.subresource)
            && self.groups.matches_value(resource.group)
    }
}

impl PathRule {
    fn read(rule: &Value) -> PathRule {
        PathRule { verbs: StringMatcher::read(rule, "verbs"), paths: strings(rule, "nonResourceURLs") }
    }

    fn matches(&self, verb: Verb, path: &str) -> bool {
        // A path also matches what is below it, with or without a trailing `*`.
        let is_below = |pattern: &str| {
            let prefix = pattern.strip_suffix(WILDCARD).unwrap_or(pattern);
            path.strip_prefix(prefix).is_some_and(|rest| prefix.ends_with('/') || rest.starts_with('/'))
        };
        self.verbs.matches_value(verb.as_str())
            && self.paths.iter().any(|pattern| pattern == WILDCARD || pattern == path || is_below(pattern))
    }
}

impl Rule {
    fn read(rule: &Value) -> Rule {
        Rule {
            subjects: read_all(rule, "subjects", Subject::read),
            resources: read_all(rule, "resourceRules", |rule| Some(ResourceRule::read(rule))),
            paths: read_all(rule, "nonResourceRules", |rule| Some(PathRule::read(rule))),
        }
    }

    fn matches(&self, user: &Identity, request: &Request<'_>) -> bool {
        let matches_target = || match &request.target {
            Target::Resource(resource) => {
                self.resources.iter().any(|rule| rule.matches(request.verb, resource))
            }
            Target::NonResource(path) => self.paths.iter().any(|rule| rule.matches(request.verb, path)),
        };
        self.subjects.iter().any(|subject| subject.matches(user)) && matches_target()
    }
}

/// Whether a request is not classified because it is long-running. Watches are classified, for their initialization.
pub fn bypasses_flow_control(request: &Request<'_>) -> bool {
    request.verb != Verb::Watch && request.is_long_running()
}

impl FlowSchema {
    /// Whether it matches this request of this user.
    pub fn matches(&self, user: &Identity, request: &Request<'_>) -> bool {
        self.rules.iter().any(|rule| rule.matches(user, request))
    }

    /// Parses a stored FlowSchema.
    pub fn read(schema: &Value) -> FlowSchema {
        let spec = schema.get("spec").unwrap_or(&Value::Null);
        let level = spec.get("priorityLevelConfiguration").unwrap_or(&Value::Null);
        FlowSchema {
            uid: uid(schema),
            level: level.str("name").to_owned(),
            precedence: spec.get("matchingPrecedence").and_then(Value::as_int).unwrap_or_default(),
            distinguisher: match spec.get_path(&["distinguisherMethod", "type"]).and_then(Value::as_str) {
                Some("ByUser") => FlowDistinguisher::User,
                Some("ByNamespace") => FlowDistinguisher::Namespace,
                _ => FlowDistinguisher::Single,
            },
            rules: read_all(spec, "rules", |rule| Some(Rule::read(rule))).into(),
        }
    }

    /// The mandatory object of this name, for the case that it does not exist.
    pub fn mandatory(name: &str) -> FlowSchema {
        let schemas = flow_control::schemas();
        let schema = schemas.iter().find(|schema| meta::name(&schema.object) == name);
        schema.map(|schema| FlowSchema::read(&schema.object)).unwrap_or_default()
    }
}

/// The uid of an object.
pub fn uid(object: &Value) -> Bytes {
    Bytes::copy_from_slice(meta::metadata(object).str("uid").as_bytes())
}

/// A field with a non-negative integer.
fn number(object: &Value, field: &str) -> Option<u32> {
    object.get(field).and_then(Value::as_int).map(|number| u32::try_from(number).unwrap_or_default())
}

impl PriorityLevel {
    /// Parses a stored PriorityLevelConfiguration. `None` for an invalid one, which validation would refuse.
    pub fn read(level: &Value) -> Option<PriorityLevel> {
        let spec = level.get("spec")?;
        let is_exempt = spec.str("type") == "Exempt";
        if is_exempt != (meta::name(level) == EXEMPT) {
            return None;
        }
        let limits = spec.get(if is_exempt { "exempt" } else { "limited" })?;
        let share = Share {
            is_exempt,
            shares: number(limits, "nominalConcurrencyShares").unwrap_or_default(),
            lendable: number(limits, "lendablePercent").unwrap_or_default(),
            borrowing: number(limits, "borrowingLimitPercent").filter(|_| !is_exempt),
        };
        let queuing = limits.get_path(&["limitResponse", "queuing"]);
        let shape = match queuing {
            _ if is_exempt => LevelKind::Exempt,
            None => LevelKind::Reject,
            Some(queuing) => LevelKind::Queue {
                queues: number(queuing, "queues")?,
                hand: number(queuing, "handSize")? as usize,
                length: number(queuing, "queueLengthLimit")? as usize,
            },
        };
        Some(PriorityLevel { uid: uid(level), share, shape })
    }

    /// The mandatory object of this name, for the case that it does not exist.
    pub fn mandatory(name: &str) -> Option<PriorityLevel> {
        let levels = flow_control::levels();
        let level = levels.iter().find(|level| meta::name(&level.object) == name)?;
        PriorityLevel::read(&level.object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_levels_are_parsed_from_bootstrap_configuration() {
        let levels: Vec<Option<PriorityLevel>> =
            flow_control::levels().iter().map(|level| PriorityLevel::read(&level.object)).collect();
        assert!(levels.len() == 8 && levels.iter().all(Option::is_some));
        let workload = levels[7].as_ref().unwrap();
        assert_eq!(workload.shape, LevelKind::Queue { queues: 128, hand: 6, length: 50 });
        assert_eq!(workload.share, Share { is_exempt: false, shares: 100, lendable: 90, borrowing: None });
        assert_eq!(PriorityLevel::mandatory(EXEMPT).unwrap().shape, LevelKind::Exempt);
        let catch_all = PriorityLevel::mandatory("catch-all").unwrap();
        assert_eq!((catch_all.shape, catch_all.share.shares), (LevelKind::Reject, 5));
        assert_eq!(
            (FlowSchema::mandatory(EXEMPT).precedence, FlowSchema::mandatory("catch-all").distinguisher),
            (1, FlowDistinguisher::User)
        );
    }

    #[test]
    fn invalid_priority_level_is_not_parsed() {
        let mut level = flow_control::levels().swap_remove(0).object;
        level.entry("metadata").set("name", "other");
        assert_eq!(PriorityLevel::read(&level), None, "only one is exempt");
        assert_eq!(PriorityLevel::read(&Value::object()), None);
    }
}
