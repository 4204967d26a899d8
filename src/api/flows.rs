//! Which flow schema a request belongs to: what the configuration of priority and fairness says, taken apart and in order.
//!
//! Nothing here queues. Clients are told the schema and the priority level that their request was put to, and ask their
//! administrators about those.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pilothouse_actors::identity::Identity;

use super::bootstrap::flow_control::{CATCH_ALL, EXEMPT};
use super::connect::WAYS;
use super::meta;
use super::path::{Request, ResourcePath, Target};
use super::value::Value;
use super::verb::Verb;
use super::words::{ACCOUNT_PREFIX, MASTERS};

/// What stands for everything in a list of one.
const EVERY: &str = "*";

/// Whom and what a request was put to, by their uids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The schema; empty for one that must be there and is not.
    pub schema: Bytes,
    /// Its priority level; likewise.
    pub level: Bytes,
}

/// A flow schema, read.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    uid: Bytes,
    level: String,
    precedence: i64,
    rules: Arc<[Rule]>,
}

/// Whom a rule means, and which of their requests.
#[derive(Clone, Debug, Default)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Clone, Debug)]
enum Subject {
    User(String),
    Group(String),
    /// All service accounts of a namespace: how the names of their users begin.
    Accounts(String),
}

#[derive(Clone, Debug, Default)]
struct ResourceRule {
    verbs: Words,
    groups: Words,
    resources: Words,
    namespaces: Words,
    /// Whether requests without a namespace are meant, too.
    cluster: bool,
}

#[derive(Clone, Debug, Default)]
struct PathRule {
    verbs: Words,
    paths: Vec<String>,
}

/// Some words, or every word.
#[derive(Clone, Debug, Default)]
struct Words {
    every: bool,
    words: Vec<String>,
}

impl Words {
    fn read(rule: &Value, field: &str) -> Words {
        let words = texts(rule, field);
        Words { every: matches!(&*words, [word] if word == EVERY), words }
    }

    fn have(&self, word: &str) -> bool {
        self.every || self.words.iter().any(|known| known == word)
    }

    /// The same for a resource and its part, which are one word with a slash between them.
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
            verbs: Words::read(rule, "verbs"),
            groups: Words::read(rule, "apiGroups"),
            resources: Words::read(rule, "resources"),
            namespaces: Words::read(rule, "namespaces"),
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
        PathRule { verbs: Words::read(rule, "verbs"), paths: texts(rule, "nonResourceURLs") }
    }

    fn means(&self, verb: Verb, path: &str) -> bool {
        // A path means also what is below it, with or without a star at its end.
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

impl Schema {
    /// Reads a stored flow schema.
    pub fn read(schema: &Value) -> Schema {
        let spec = schema.get("spec").unwrap_or(&Value::Null);
        let level = spec.get("priorityLevelConfiguration").unwrap_or(&Value::Null);
        Schema {
            uid: uid(schema),
            level: level.str("name").to_owned(),
            precedence: spec.get("matchingPrecedence").and_then(Value::as_int).unwrap_or_default(),
            rules: read_all(spec, "rules", |rule| Some(Rule::read(rule))).into(),
        }
    }

    /// The one for those who may do everything, where nobody has made it.
    fn exempt() -> Schema {
        let everything = Words { every: true, ..Words::default() };
        let resources = ResourceRule {
            verbs: everything.clone(),
            groups: everything.clone(),
            resources: everything.clone(),
            namespaces: everything.clone(),
            cluster: true,
        };
        let paths = PathRule { verbs: everything, paths: vec![EVERY.to_owned()] };
        let rule = Rule {
            subjects: vec![Subject::Group(MASTERS.to_owned())],
            resources: vec![resources],
            paths: vec![paths],
        };
        Schema { level: EXEMPT.to_owned(), rules: [rule].into(), ..Schema::default() }
    }
}

/// The uid of an object.
pub fn uid(object: &Value) -> Bytes {
    Bytes::copy_from_slice(meta::of(object).str("uid").as_bytes())
}

/// All flow schemas and priority levels.
#[derive(Default)]
pub struct Flows {
    schemas: BTreeMap<String, Schema>,
    levels: BTreeMap<String, Bytes>,
    /// What follows from both, made when somebody asks: many may change before that.
    arranged: OnceLock<Arranged>,
}

/// Flow schemas as they are asked.
struct Arranged {
    /// The schemas that count, in the order in which they are asked, and the flow of each.
    order: Vec<(Arc<[Rule]>, Flow)>,
    /// What is left for all others.
    rest: Flow,
}

impl Flows {
    /// Takes a schema in, or lets go of it.
    pub fn put_schema(&mut self, name: &str, schema: Option<Schema>) {
        put(&mut self.schemas, name, schema);
        self.arranged.take();
    }

    /// Takes a level in by its uid, or lets go of it.
    pub fn put_level(&mut self, name: &str, uid: Option<Bytes>) {
        put(&mut self.levels, name, uid);
        self.arranged.take();
    }

    /// Lets go of all schemas.
    pub fn clear_schemas(&mut self) {
        self.schemas.clear();
        self.arranged.take();
    }

    /// Lets go of all levels.
    pub fn clear_levels(&mut self) {
        self.levels.clear();
        self.arranged.take();
    }

    fn arrange(&self) -> Arranged {
        let level = |name: &str| self.levels.get(name).cloned();
        // The two levels that must be there count as there.
        let known = |schema: &Schema| {
            [EXEMPT, CATCH_ALL].contains(&&*schema.level) || self.levels.contains_key(&schema.level)
        };
        let flow = |schema: &Schema| Flow {
            schema: schema.uid.clone(),
            level: level(&schema.level).unwrap_or_default(),
        };
        // Names are their order already: of two with the same precedence the first by name is asked first.
        let mut good: Vec<(&String, &Schema)> =
            self.schemas.iter().filter(|(_, schema)| known(schema)).collect();
        good.sort_by_key(|(_, schema)| schema.precedence);
        let has = |wanted: &str| good.iter().any(|(name, _)| *name == wanted);
        let exempt = (!has(EXEMPT)).then(Schema::exempt);
        let all = exempt.iter().chain(good.iter().map(|(_, schema)| *schema));
        let order = all.map(|schema| (schema.rules.clone(), flow(schema))).collect();
        let rest = good.iter().find(|(name, _)| *name == CATCH_ALL).map(|(_, schema)| flow(schema));
        let rest = rest
            .unwrap_or_else(|| Flow { schema: Bytes::new(), level: level(CATCH_ALL).unwrap_or_default() });
        Arranged { order, rest }
    }

    /// The flow that a request of this user belongs to. `None` for what lasts as long as its two ends like, which is put to
    /// none; watches are put to one, for their beginning.
    pub fn of(&self, user: &Identity, request: &Request<'_>) -> Option<Flow> {
        let is_way = || request.resource().is_some_and(|found| WAYS.contains(&found.subresource));
        if request.verb == Verb::Proxy || (request.verb != Verb::Watch && is_way()) {
            return None;
        }
        let means = |rules: &[Rule]| rules.iter().any(|rule| rule.means(user, request));
        let Arranged { order, rest } = self.arranged.get_or_init(|| self.arrange());
        let found = order.iter().find(|(rules, _)| means(rules));
        Some(found.map_or(rest, |(_, flow)| flow).clone())
    }
}

fn put<T>(all: &mut BTreeMap<String, T>, name: &str, value: Option<T>) {
    match value {
        Some(value) => {
            all.insert(name.to_owned(), value);
        }
        None => {
            all.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bootstrap::flow_control;
    use super::super::query::Query;
    use super::*;
    use crate::api::kinds::testing::object;

    /// What a fresh cluster has. Uids are the names.
    fn fresh() -> Flows {
        let mut flows = Flows::default();
        let named = |object: &Value| {
            let name = meta::name(object).to_owned();
            let mut object = object.clone();
            object.entry("metadata").set("uid", name.as_str());
            (name, object)
        };
        for level in flow_control::levels() {
            let (name, level) = named(&level.object);
            flows.put_level(&name, Some(uid(&level)));
        }
        for schema in flow_control::schemas() {
            let (name, schema) = named(&schema.object);
            flows.put_schema(&name, Some(Schema::read(&schema)));
        }
        flows
    }

    fn user(name: &str, groups: &[&str]) -> Identity {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Identity { name: name.to_owned(), groups, ..Identity::default() }
    }

    fn flow(flows: &Flows, user: &Identity, method: &str, path: &str) -> String {
        let query = Query::parse("");
        let found = flows.of(user, &Request::parse(method, path, &query).unwrap());
        let text = |uid: &Bytes| String::from_utf8(uid.to_vec()).unwrap();
        found.map_or("none".to_owned(), |flow| format!("{} {}", text(&flow.schema), text(&flow.level)))
    }

    #[test]
    fn a_fresh_cluster_puts_everybody_where_they_belong() {
        let flows = fresh();
        let known = "system:authenticated";
        let (admin, alice) = (user("admin", &["system:masters", known]), user("alice", &[known]));
        let nobody = user("system:anonymous", &["system:unauthenticated"]);
        let node = user("system:node:n", &["system:nodes", known]);
        let account = user("system:serviceaccount:n:a", &["system:serviceaccounts", known]);
        let own = user("system:serviceaccount:kube-system:a", &["system:serviceaccounts", known]);
        let pods = "/api/v1/namespaces/n/pods";
        let table = [
            (&admin, "GET", "/healthz", "exempt exempt"),
            (&alice, "GET", "/healthz", "probes exempt"),
            (&nobody, "GET", "/livez/ping", "probes exempt"),
            (&nobody, "GET", "/livezz", "global-default global-default"),
            (&nobody, "POST", "/healthz", "global-default global-default"),
            (&alice, "GET", pods, "global-default global-default"),
            (&node, "GET", pods, "system-nodes system"),
            (&node, "PUT", "/api/v1/nodes/n/status", "system-node-high node-high"),
            (&node, "GET", "/api/v1/nodes/n", "system-node-high node-high"),
            (&account, "GET", pods, "service-accounts workload-low"),
            (&own, "GET", pods, "kube-system-service-accounts workload-high"),
            (
                &own,
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/n/leases/l",
                "system-leader-election leader-election",
            ),
            (&admin, "GET", "/api/v1/namespaces/n/pods/p/log", "none"),
            (&admin, "POST", "/api/v1/namespaces/n/pods/p/exec", "none"),
            (&admin, "GET", "/api/v1/watch/namespaces/n/pods", "exempt exempt"),
            (&user("odd", &[]), "GET", pods, "catch-all catch-all"),
        ];
        for (who, method, path, wanted) in table {
            assert_eq!(flow(&flows, who, method, path), wanted, "{} {method} {path}", who.name);
        }
    }

    #[test]
    fn schemas_come_by_precedence_and_name_and_need_their_level() {
        let mut flows = fresh();
        let alice = user("alice", &[AUTHENTICATED]);
        let schema = |precedence: i64, level: &str, uid: &str| {
            let text = format!(
                r#"{{"metadata":{{"uid":"{uid}"}},"spec":{{"matchingPrecedence":{precedence},
                    "priorityLevelConfiguration":{{"name":"{level}"}},
                    "rules":[{{"subjects":[{{"kind":"User","user":{{"name":"alice"}}}}],
                        "resourceRules":[{{"verbs":["list"],"apiGroups":[""],"resources":["pods"],
                            "namespaces":["n"]}}]}}]}}}}"#
            );
            Some(Schema::read(&object(&text)))
        };
        let pods = "/api/v1/namespaces/n/pods";
        flows.put_schema("b", schema(50, "system", "b"));
        assert_eq!(flow(&flows, &alice, "GET", pods), "b system");
        assert_eq!(flow(&flows, &alice, "GET", "/api/v1/pods"), "global-default global-default");
        assert_eq!(flow(&flows, &alice, "GET", "/api/v1/namespaces/m/pods"), "global-default global-default");
        flows.put_schema("a", schema(50, "not-yet", "a"));
        assert_eq!(flow(&flows, &alice, "GET", pods), "b system");
        flows.put_level("not-yet", Some(Bytes::from_static(b"l")));
        assert_eq!(flow(&flows, &alice, "GET", pods), "a l");
        flows.put_schema("c", schema(49, "system", "c"));
        assert_eq!(flow(&flows, &alice, "GET", pods), "c system");
        for name in ["a", "b", "c"] {
            flows.put_schema(name, None);
        }
        assert_eq!(flow(&flows, &alice, "GET", pods), "global-default global-default");
    }

    #[test]
    fn nothing_is_put_in_order_before_somebody_asks() {
        let flows = fresh();
        assert!(flows.arranged.get().is_none(), "to read many costs no more than each of them");
        assert_eq!(flow(&flows, &user("odd", &[]), "GET", "/api/v1/pods"), "catch-all catch-all");
        assert!(flows.arranged.get().is_some());
    }

    #[test]
    fn what_must_be_there_is_there() {
        let mut flows = Flows::default();
        flows.clear_levels();
        let admin = user("admin", &[MASTERS]);
        assert_eq!(flow(&flows, &admin, "GET", "/api/v1/pods"), " ");
        let mut flows = fresh();
        flows.put_schema(EXEMPT, None);
        assert_eq!(flow(&flows, &admin, "GET", "/api/v1/pods"), " exempt");
        flows.put_schema(CATCH_ALL, None);
        assert_eq!(flow(&flows, &user("odd", &[]), "GET", "/api/v1/pods"), " catch-all");
    }

    const AUTHENTICATED: &str = crate::api::words::AUTHENTICATED;
}
