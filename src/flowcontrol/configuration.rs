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
const EVERY: &str = "*";

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
    /// One flow.
    #[default]
    Nothing,
    /// By user.
    User,
    /// By namespace.
    Namespace,
}

impl FlowDistinguisher {
    /// The value of the flow distinguisher for a request.
    pub fn value<'a>(self, user: &'a Identity, request: &'a Request<'a>) -> &'a str {
        match self {
            FlowDistinguisher::Nothing => "",
            FlowDistinguisher::User => &user.name,
            FlowDistinguisher::Namespace => request.resource().map_or("", |found| found.namespace),
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
    /// Its queues, or that it rejects (limitResponse).
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
    every: bool,
    words: Vec<String>,
}

impl StringMatcher {
    fn read(rule: &Value, field: &str) -> StringMatcher {
        let words = texts(rule, field);
        StringMatcher { every: matches!(&*words, [word] if word == EVERY), words }
    }

    fn have(&self, word: &str) -> bool {
        self.every || self.words.iter().any(|known| known == word)
    }

    /// Matches a resource and its subresource, as `resource/subresource`.
    fn have_part(&self, resource: &str, part: &str) -> bool {
        let is_it = |known: &String| {
            if part.is_empty() {
                return known == resource;
            }
            known.strip_prefix(resource).and_then(|rest| rest.strip_prefix('/')) == Some(part)
        };
        self.every || self.words.iter().any(is_it)
    }
}

fn texts(object: &Value, field: &str) -> Vec<String> {
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
                let begin = format!("{ACCOUNT_PREFIX}{}:", account.str("namespace"));
                match account.str("name") {
                    EVERY => Subject::Accounts(begin),
                    name => Subject::User(begin + name),
                }
            }),
            _ => None,
        }
    }

    fn is(&self, user: &Identity) -> bool {
        match self {
            Subject::User(name) => name == EVERY || *name == user.name,
            Subject::Group(name) => name == EVERY || user.is_in(name),
            Subject::Accounts(begin) => user.name.starts_with(begin),
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

    fn means(&self, verb: Verb, found: &ResourcePath<'_>) -> bool {
        let in_scope =
            if found.namespace.is_empty() { self.cluster } else { self.namespaces.have(found.namespace) };
        in_scope
            && self.verbs.have(verb.as_str())
            && self.resources.have_part(found.resource, found.subresource)
            && self.groups.have(found.group)
    }
}

impl PathRule {
    fn read(rule: &Value) -> PathRule {
        PathRule { verbs: StringMatcher::read(rule, "verbs"), paths: texts(rule, "nonResourceURLs") }
    }

    fn means(&self, verb: Verb, path: &str) -> bool {
        // A path also matches what is below it, with or without a trailing `*`.
        let below = |known: &str| {
            let known = known.strip_suffix(EVERY).unwrap_or(known);
            path.strip_prefix(known).is_some_and(|rest| known.ends_with('/') || rest.starts_with('/'))
        };
        self.verbs.have(verb.as_str())
            && self.paths.iter().any(|known| known == EVERY || known == path || below(known))
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

    fn means(&self, user: &Identity, request: &Request<'_>) -> bool {
        let about = || match &request.target {
            Target::Resource(found) => self.resources.iter().any(|rule| rule.means(request.verb, found)),
            Target::NonResource(path) => self.paths.iter().any(|rule| rule.means(request.verb, path)),
        };
        self.subjects.iter().any(|subject| subject.is(user)) && about()
    }
}

/// Whether a request is long-running and not classified. Watches are, for their initialization.
pub fn bypasses_flow_control(request: &Request<'_>) -> bool {
    request.verb != Verb::Watch && request.is_long_running()
}

impl FlowSchema {
    /// Whether it matches this request of this user.
    pub fn means(&self, user: &Identity, request: &Request<'_>) -> bool {
        self.rules.iter().any(|rule| rule.means(user, request))
    }

    /// Parses a stored FlowSchema.
    pub fn read(schema: &Value) -> FlowSchema {
        let spec = schema.get("spec").unwrap_or(&Value::Null);
        let level = spec.get("priorityLevelConfiguration").unwrap_or(&Value::Null);
        FlowSchema {
            uid: uid(schema),
            level: level.str("name").to_owned(),
            precedence: spec.get("matchingPrecedence").and_then(Value::as_int).unwrap_or_default(),
            distinguisher: match spec.at(&["distinguisherMethod", "type"]).and_then(Value::as_str) {
                Some("ByUser") => FlowDistinguisher::User,
                Some("ByNamespace") => FlowDistinguisher::Namespace,
                _ => FlowDistinguisher::Nothing,
            },
            rules: read_all(spec, "rules", |rule| Some(Rule::read(rule))).into(),
        }
    }

    /// The mandatory object of this name, for the case that it does not exist.
    pub fn mandatory(name: &str) -> FlowSchema {
        let schemas = flow_control::schemas();
        let found = schemas.iter().find(|wanted| meta::name(&wanted.object) == name);
        found.map(|wanted| FlowSchema::read(&wanted.object)).unwrap_or_default()
    }
}

/// The uid of an object.
pub fn uid(object: &Value) -> Bytes {
    Bytes::copy_from_slice(meta::of(object).str("uid").as_bytes())
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
        let numbers = spec.get(if is_exempt { "exempt" } else { "limited" })?;
        let share = Share {
            is_exempt,
            shares: number(numbers, "nominalConcurrencyShares").unwrap_or_default(),
            lendable: number(numbers, "lendablePercent").unwrap_or_default(),
            borrowing: number(numbers, "borrowingLimitPercent").filter(|_| !is_exempt),
        };
        let queuing = numbers.at(&["limitResponse", "queuing"]);
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
        let found = levels.iter().find(|wanted| meta::name(&wanted.object) == name)?;
        PriorityLevel::read(&found.object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_what_their_configuration_says() {
        let levels: Vec<Option<PriorityLevel>> =
            flow_control::levels().iter().map(|wanted| PriorityLevel::read(&wanted.object)).collect();
        assert!(levels.len() == 8 && levels.iter().all(Option::is_some));
        let workload = levels[7].as_ref().unwrap();
        assert_eq!(workload.shape, LevelKind::Queue { queues: 128, hand: 6, length: 50 });
        assert_eq!(workload.share, Share { is_exempt: false, shares: 100, lendable: 90, borrowing: None });
        assert_eq!(PriorityLevel::mandatory(EXEMPT).unwrap().shape, LevelKind::Exempt);
        let rest = PriorityLevel::mandatory("catch-all").unwrap();
        assert_eq!((rest.shape, rest.share.shares), (LevelKind::Reject, 5));
        assert_eq!(
            (FlowSchema::mandatory(EXEMPT).precedence, FlowSchema::mandatory("catch-all").distinguisher),
            (1, FlowDistinguisher::User)
        );
    }

    #[test]
    fn a_level_that_makes_no_sense_is_none() {
        let mut level = flow_control::levels().swap_remove(0).object;
        level.entry("metadata").set("name", "other");
        assert_eq!(PriorityLevel::read(&level), None, "only one is exempt");
        assert_eq!(PriorityLevel::read(&Value::object()), None);
    }
}
