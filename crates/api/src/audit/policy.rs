//! The audit policy: ordered rules, of which the first match decides the level of a request.

use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::identity::Identity;

use super::{API_VERSION, Level, Stage, Stages};
use crate::path::{Request, ResourcePath, Target};

const KIND: &str = "Policy";
/// The other kinds of the group.
const OTHER_KINDS: [&str; 3] = ["Event", "EventList", "PolicyList"];

/// The decision about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The audit level.
    pub level: Level,
    /// The omitted stages.
    pub omitted: Stages,
    /// Whether managedFields are dropped from bodies.
    pub drops_owners: bool,
}

/// The rules, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    otherwise: Decision,
}

/// A rule. An empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<Resources>,
    namespaces: Vec<String>,
    paths: Vec<String>,
    decision: Decision,
}

/// Resources of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Resources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

/// A parsed policy, and the findings of strict parsing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedPolicy {
    /// The policy.
    pub policy: Policy,
    /// Unknown fields, which have no effect.
    pub unknown: Vec<String>,
}

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|one| one == word)
}

impl Policy {
    /// Parses a policy. Errors are the reference's.
    pub fn read(file: &Value) -> Result<ParsedPolicy, String> {
        let (kind, version) = (file.str("kind"), file.str("apiVersion"));
        // A missing kind is accepted; a missing version is not.
        if version.is_empty() && matches!(kind, "" | KIND) {
            return Err(
                "unknown group version field audit.k8s.io/__internal, Kind=Policy in policy".to_owned()
            );
        }
        if version == API_VERSION && OTHER_KINDS.contains(&kind) {
            return Err(format!(
                "failed decoding: converting (v1.{kind}) to (audit.Policy): unknown conversion"
            ));
        }
        if version != API_VERSION || !matches!(kind, "" | KIND) {
            let (kind, version) = (quoted(kind), quoted(version));
            return Err(format!(
                "failed decoding: no kind {kind} is registered for version {version} in scheme \
                 \"k8s.io/apiserver/pkg/audit/scheme.go:30\""
            ));
        }
        let mut reader = Reader::default();
        let policy = reader.policy(file);
        if let Some(wrong) = reader.mistyped {
            return Err(format!("failed decoding: {wrong}"));
        }
        match reader.errors.as_slice() {
            [] if policy.rules.is_empty() => Err("loaded illegal policy with 0 rules".to_owned()),
            [] => Ok(ParsedPolicy { policy, unknown: reader.unknown }),
            [one] => Err(one.to_string()),
            several => {
                let all: Vec<String> = several.iter().map(ToString::to_string).collect();
                Err(format!("[{}]", all.join(", ")))
            }
        }
    }

    /// Decides about a request. Without a user if authentication failed.
    pub fn decide(&self, user: Option<&Identity>, request: &Request<'_>) -> Decision {
        let rule = self.rules.iter().find(|rule| rule.means(user, request));
        rule.map_or(self.otherwise, |rule| rule.decision)
    }
}

impl Rule {
    fn means(&self, user: Option<&Identity>, request: &Request<'_>) -> bool {
        if !self.users.is_empty() && !user.is_some_and(|user| has(&self.users, &user.name)) {
            return false;
        }
        let belongs = |user: &Identity| user.groups.iter().any(|group| has(&self.groups, group));
        if !self.groups.is_empty() && !user.is_some_and(belongs) {
            return false;
        }
        if !self.verbs.is_empty() && !has(&self.verbs, request.verb.as_str()) {
            return false;
        }
        let of_resources = !self.namespaces.is_empty() || !self.resources.is_empty();
        match &request.target {
            Target::Resource(found) if of_resources => self.means_resource(found),
            Target::Resource(_) => self.paths.is_empty(),
            Target::NonResource(_) if of_resources => false,
            Target::NonResource(path) => {
                self.paths.is_empty() || self.paths.iter().any(|known| is_path(known, path))
            }
        }
    }

    fn means_resource(&self, found: &ResourcePath<'_>) -> bool {
        if !self.namespaces.is_empty() && !has(&self.namespaces, found.namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|resources| resources.mean(found))
    }
}

impl Resources {
    fn mean(&self, found: &ResourcePath<'_>) -> bool {
        if self.group != found.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let named = self.names.is_empty() || has(&self.names, &found.authorized_name);
        named && self.resources.iter().any(|resource| is_resource(resource, found))
    }
}

fn is_resource(known: &str, found: &ResourcePath<'_>) -> bool {
    if known == "*" {
        return true;
    }
    match known.split_once('/') {
        // `resource/*` matches the resource itself, too.
        Some((resource, "*")) if resource == found.resource => true,
        Some(("*", part)) => !found.subresource.is_empty() && part == found.subresource,
        Some((resource, part)) => {
            !found.subresource.is_empty() && (resource, part) == (found.resource, found.subresource)
        }
        None => found.subresource.is_empty() && known == found.resource,
    }
}

fn is_path(known: &str, path: &str) -> bool {
    known == "*" || known == path || (known.ends_with('*') && path.starts_with(known.trim_end_matches('*')))
}

/// Parses a policy and collects errors.
#[derive(Default)]
struct Reader {
    errors: Vec<FieldError>,
    /// The first value of the wrong type.
    mistyped: Option<String>,
    unknown: Vec<String>,
}

/// The position in the file: the type, and the path to its fields.
#[derive(Clone, Copy)]
struct At<'a> {
    structure: &'a str,
    path: &'a str,
}

impl At<'_> {
    fn field(self, name: &str) -> String {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        format!("{}.{path}", self.structure)
    }
}

impl Reader {
    fn mistyped(&mut self, value: &Value, at: At<'_>, name: &str, wanted: &str) {
        let field = at.field(name);
        let found = value.json_word();
        self.mistyped.get_or_insert_with(|| {
            format!("json: cannot unmarshal {found} into Go struct field {field} of type {wanted}")
        });
    }

    fn list<'v>(&mut self, of: &'v Value, at: At<'_>, name: &str, wanted: &str) -> &'v [Value] {
        match of.get(name) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(items)) => items,
            Some(other) => {
                self.mistyped(other, at, name, &format!("[]{wanted}"));
                &[]
            }
        }
    }

    fn text(&mut self, of: &Value, at: At<'_>, name: &str, wanted: &str) -> String {
        match of.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => {
                self.mistyped(other, at, name, wanted);
                String::new()
            }
        }
    }

    fn texts(&mut self, of: &Value, at: At<'_>, name: &str, wanted: &str) -> Vec<String> {
        let items = self.list(of, at, name, wanted);
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Value::String(text) => texts.push(text.clone()),
                Value::Null => texts.push(String::new()),
                other => self.mistyped(other, at, name, wanted),
            }
        }
        texts
    }

    fn truth(&mut self, of: &Value, at: At<'_>, name: &str) -> Option<bool> {
        match of.get(name) {
            None | Some(Value::Null) => None,
            Some(Value::Bool(truth)) => Some(*truth),
            Some(other) => {
                self.mistyped(other, at, name, "bool");
                None
            }
        }
    }

    fn only(&mut self, of: &Value, path: &FieldPath, known: &[&str]) {
        let fields = of.fields().into_iter().flatten();
        for (name, _) in fields.filter(|(name, _)| !known.contains(&name.as_str())) {
            self.unknown.push(format!("unknown field {}", quoted(&path.child(name).to_string())));
        }
    }

    fn stages(&mut self, of: &Value, at: At<'_>, path: &FieldPath) -> Stages {
        let mut stages = Stages::default();
        for (index, text) in self.texts(of, at, "omitStages", "v1.Stage").iter().enumerate() {
            match Stage::ALL.into_iter().find(|stage| stage.word() == text) {
                Some(stage) => stages = stages.with(stage),
                None => {
                    let all = Stage::ALL.map(Stage::word).join(",");
                    let path = path.child("omitStages").index(index);
                    let why = format!("allowed stages are {all}");
                    self.errors.push(FieldError::invalid(&path, &quoted(text), &why));
                }
            }
        }
        stages
    }

    fn policy(&mut self, file: &Value) -> Policy {
        let (root, at) = (FieldPath::root(), At { structure: "Policy", path: "" });
        self.only(
            file,
            &root,
            &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"],
        );
        let omitted = self.stages(file, at, &root);
        let drops_owners = self.truth(file, at, "omitManagedFields").unwrap_or_default();
        let otherwise = Decision { level: Level::None, omitted, drops_owners };
        let rules = self.list(file, at, "rules", "v1.PolicyRule");
        let path = FieldPath::new("rules");
        let mut all = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            if !matches!(rule, Value::Object(_) | Value::Null) {
                self.mistyped(rule, at, "rules", "v1.PolicyRule");
            }
            all.push(self.rule(rule, &path.index(index), otherwise));
        }
        Policy { rules: all, otherwise }
    }

    fn rule(&mut self, rule: &Value, path: &FieldPath, otherwise: Decision) -> Rule {
        let at = At { structure: "PolicyRule", path: "rules" };
        let known = [
            "level",
            "users",
            "userGroups",
            "verbs",
            "resources",
            "namespaces",
            "nonResourceURLs",
            "omitStages",
            "omitManagedFields",
        ];
        self.only(rule, path, &known);
        let level = self.level(rule, at, path);
        let paths = self.paths(rule, at, path);
        let resources = self.resources(rule, at, path);
        let omitted = self.stages(rule, at, path).and(otherwise.omitted);
        let namespaces = self.texts(rule, at, "namespaces", "string");
        let of_resources = !resources.is_empty() || !namespaces.is_empty();
        if of_resources && !paths.is_empty() {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            self.errors.push(FieldError::invalid(&path.child("nonResourceURLs"), &listed(&paths), why));
        }
        Rule {
            users: self.texts(rule, at, "users", "string"),
            groups: self.texts(rule, at, "userGroups", "string"),
            verbs: self.texts(rule, at, "verbs", "string"),
            resources,
            namespaces,
            paths,
            decision: Decision {
                level,
                omitted,
                drops_owners: self.truth(rule, at, "omitManagedFields").unwrap_or(otherwise.drops_owners),
            },
        }
    }

    fn level(&mut self, rule: &Value, at: At<'_>, path: &FieldPath) -> Level {
        let (text, path) = (self.text(rule, at, "level", "v1.Level"), path.child("level"));
        if text.is_empty() {
            self.errors.push(FieldError::required(&path, ""));
            return Level::None;
        }
        Level::ALL.into_iter().find(|level| level.word() == text).unwrap_or_else(|| {
            let all = Level::ALL.map(Level::word);
            self.errors.push(FieldError::not_supported(&path, &quoted(&text), &all));
            Level::None
        })
    }

    fn paths(&mut self, rule: &Value, at: At<'_>, path: &FieldPath) -> Vec<String> {
        let paths = self.texts(rule, at, "nonResourceURLs", "string");
        let path = path.child("nonResourceURLs");
        for (index, url) in paths.iter().enumerate().filter(|(_, url)| *url != "*") {
            let mut wrong = |why| {
                self.errors.push(FieldError::invalid(&path.index(index), &quoted(url), why));
            };
            if !url.starts_with('/') {
                wrong("non-resource URL rules must begin with a '/' character");
            }
            if url.find('*').is_some_and(|at| at + 1 < url.len()) {
                wrong("non-resource URL wildcards '*' must be the final character of the rule");
            }
        }
        paths
    }

    fn resources(&mut self, rule: &Value, at: At<'_>, path: &FieldPath) -> Vec<Resources> {
        let items = self.list(rule, at, "resources", "v1.GroupResources");
        let inner = At { structure: "GroupResources", path: "rules.resources" };
        let path = path.child("resources");
        let mut all = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if !matches!(item, Value::Object(_) | Value::Null) {
                self.mistyped(item, at, "resources", "v1.GroupResources");
            }
            self.only(item, &path.index(index), &["group", "resources", "resourceNames"]);
            let group = self.text(item, inner, "group", "string");
            let resources = self.texts(item, inner, "resources", "string");
            let names = self.texts(item, inner, "resourceNames", "string");
            if !group.is_empty() {
                let wrong = names::dns_subdomain(&group);
                if !wrong.is_empty() {
                    let path = path.child("group");
                    self.errors.push(FieldError::invalid(&path, &quoted(&group), &wrong.join(",")));
                }
            }
            if !names.is_empty() && resources.is_empty() {
                let why = "using resourceNames requires at least one resource";
                self.errors.push(FieldError::invalid(&path.child("resourceNames"), &listed(&names), why));
            }
            all.push(Resources { group, resources, names });
        }
        all
    }
}

/// A list of words as messages show it.
fn listed(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("[]string{{{}}}", words.join(", "))
}

#[cfg(test)]
mod tests;
