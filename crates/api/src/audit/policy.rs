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
    pub omits_managed_fields: bool,
}

/// The rules, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    default: Decision,
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

fn contains(list: &[String], item: &str) -> bool {
    list.iter().any(|known| known == item)
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
        if let Some(error) = reader.type_error {
            return Err(format!("failed decoding: {error}"));
        }
        match reader.errors.as_slice() {
            [] if policy.rules.is_empty() => Err("loaded illegal policy with 0 rules".to_owned()),
            [] => Ok(ParsedPolicy { policy, unknown: reader.unknown }),
            [error] => Err(error.to_string()),
            errors => {
                let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
                Err(format!("[{}]", all.join(", ")))
            }
        }
    }

    /// Decides about a request. Without a user if authentication failed.
    pub fn decide(&self, user: Option<&Identity>, request: &Request<'_>) -> Decision {
        let rule = self.rules.iter().find(|rule| rule.matches(user, request));
        rule.map_or(self.default, |rule| rule.decision)
    }
}

impl Rule {
    fn matches(&self, user: Option<&Identity>, request: &Request<'_>) -> bool {
        if !self.users.is_empty() && !user.is_some_and(|user| contains(&self.users, &user.name)) {
            return false;
        }
        let is_member = |user: &Identity| user.groups.iter().any(|group| contains(&self.groups, group));
        if !self.groups.is_empty() && !user.is_some_and(is_member) {
            return false;
        }
        if !self.verbs.is_empty() && !contains(&self.verbs, request.verb.as_str()) {
            return false;
        }
        let has_resources = !self.namespaces.is_empty() || !self.resources.is_empty();
        match &request.target {
            Target::Resource(path) if has_resources => self.matches_resource(path),
            Target::Resource(_) => self.paths.is_empty(),
            Target::NonResource(_) if has_resources => false,
            Target::NonResource(path) => {
                self.paths.is_empty() || self.paths.iter().any(|pattern| matches_path(pattern, path))
            }
        }
    }

    fn matches_resource(&self, path: &ResourcePath<'_>) -> bool {
        if !self.namespaces.is_empty() && !contains(&self.namespaces, path.namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|resources| resources.matches(path))
    }
}

impl Resources {
    fn matches(&self, path: &ResourcePath<'_>) -> bool {
        if self.group != path.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let named = self.names.is_empty() || contains(&self.names, &path.authorized_name);
        named && self.resources.iter().any(|resource| matches_resource_name(resource, path))
    }
}

fn matches_resource_name(pattern: &str, path: &ResourcePath<'_>) -> bool {
    if pattern == "*" {
        return true;
    }
    match pattern.split_once('/') {
        // `resource/*` matches the resource itself, too.
        Some((resource, "*")) if resource == path.resource => true,
        Some(("*", subresource)) => !path.subresource.is_empty() && subresource == path.subresource,
        Some((resource, subresource)) => {
            !path.subresource.is_empty() && (resource, subresource) == (path.resource, path.subresource)
        }
        None => path.subresource.is_empty() && pattern == path.resource,
    }
}

fn matches_path(pattern: &str, path: &str) -> bool {
    pattern == "*"
        || pattern == path
        || (pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*')))
}

/// Parses a policy and collects errors.
#[derive(Default)]
struct Reader {
    errors: Vec<FieldError>,
    /// The first value of the wrong type.
    type_error: Option<String>,
    unknown: Vec<String>,
}

/// The location of fields in the file, as Go's decoder reports it: the struct, and the path to its fields.
#[derive(Clone, Copy)]
struct FieldLocation<'a> {
    structure: &'a str,
    path: &'a str,
}

impl FieldLocation<'_> {
    fn field(self, name: &str) -> String {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        format!("{}.{path}", self.structure)
    }
}

impl Reader {
    fn record_type_error(&mut self, value: &Value, location: FieldLocation<'_>, name: &str, expected: &str) {
        let field = location.field(name);
        let actual = value.json_word();
        self.type_error.get_or_insert_with(|| {
            format!("json: cannot unmarshal {actual} into Go struct field {field} of type {expected}")
        });
    }

    fn list<'v>(
        &mut self,
        object: &'v Value,
        location: FieldLocation<'_>,
        name: &str,
        expected: &str,
    ) -> &'v [Value] {
        match object.get(name) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(items)) => items,
            Some(other) => {
                self.record_type_error(other, location, name, &format!("[]{expected}"));
                &[]
            }
        }
    }

    fn text(&mut self, object: &Value, location: FieldLocation<'_>, name: &str, expected: &str) -> String {
        match object.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => {
                self.record_type_error(other, location, name, expected);
                String::new()
            }
        }
    }

    fn texts(
        &mut self,
        object: &Value,
        location: FieldLocation<'_>,
        name: &str,
        expected: &str,
    ) -> Vec<String> {
        let items = self.list(object, location, name, expected);
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Value::String(text) => texts.push(text.clone()),
                Value::Null => texts.push(String::new()),
                other => self.record_type_error(other, location, name, expected),
            }
        }
        texts
    }

    fn boolean(&mut self, object: &Value, location: FieldLocation<'_>, name: &str) -> Option<bool> {
        match object.get(name) {
            None | Some(Value::Null) => None,
            Some(Value::Bool(boolean)) => Some(*boolean),
            Some(other) => {
                self.record_type_error(other, location, name, "bool");
                None
            }
        }
    }

    fn check_known_fields(&mut self, object: &Value, path: &FieldPath, known: &[&str]) {
        let fields = object.fields().into_iter().flatten();
        for (name, _) in fields.filter(|(name, _)| !known.contains(&name.as_str())) {
            self.unknown.push(format!("unknown field {}", quoted(&path.child(name).to_string())));
        }
    }

    fn stages(&mut self, object: &Value, location: FieldLocation<'_>, path: &FieldPath) -> Stages {
        let mut stages = Stages::default();
        for (index, text) in self.texts(object, location, "omitStages", "v1.Stage").iter().enumerate() {
            match Stage::ALL.into_iter().find(|stage| stage.word() == text) {
                Some(stage) => stages = stages.with(stage),
                None => {
                    let all = Stage::ALL.map(Stage::word).join(",");
                    let path = path.child("omitStages").index(index);
                    let detail = format!("allowed stages are {all}");
                    self.errors.push(FieldError::invalid(&path, &quoted(text), &detail));
                }
            }
        }
        stages
    }

    fn policy(&mut self, file: &Value) -> Policy {
        let (root, location) = (FieldPath::root(), FieldLocation { structure: "Policy", path: "" });
        self.check_known_fields(
            file,
            &root,
            &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"],
        );
        let omitted = self.stages(file, location, &root);
        let omits_managed_fields = self.boolean(file, location, "omitManagedFields").unwrap_or_default();
        let default = Decision { level: Level::None, omitted, omits_managed_fields };
        let rules = self.list(file, location, "rules", "v1.PolicyRule");
        let path = FieldPath::new("rules");
        let mut parsed = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            if !matches!(rule, Value::Object(_) | Value::Null) {
                self.record_type_error(rule, location, "rules", "v1.PolicyRule");
            }
            parsed.push(self.rule(rule, &path.index(index), default));
        }
        Policy { rules: parsed, default }
    }

    fn rule(&mut self, rule: &Value, path: &FieldPath, default: Decision) -> Rule {
        let location = FieldLocation { structure: "PolicyRule", path: "rules" };
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
        self.check_known_fields(rule, path, &known);
        let level = self.level(rule, location, path);
        let paths = self.paths(rule, location, path);
        let resources = self.resources(rule, location, path);
        let omitted = self.stages(rule, location, path).union(default.omitted);
        let namespaces = self.texts(rule, location, "namespaces", "string");
        let has_resources = !resources.is_empty() || !namespaces.is_empty();
        if has_resources && !paths.is_empty() {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            self.errors.push(FieldError::invalid(&path.child("nonResourceURLs"), &go_list(&paths), detail));
        }
        Rule {
            users: self.texts(rule, location, "users", "string"),
            groups: self.texts(rule, location, "userGroups", "string"),
            verbs: self.texts(rule, location, "verbs", "string"),
            resources,
            namespaces,
            paths,
            decision: Decision {
                level,
                omitted,
                omits_managed_fields: self
                    .boolean(rule, location, "omitManagedFields")
                    .unwrap_or(default.omits_managed_fields),
            },
        }
    }

    fn level(&mut self, rule: &Value, location: FieldLocation<'_>, path: &FieldPath) -> Level {
        let (text, path) = (self.text(rule, location, "level", "v1.Level"), path.child("level"));
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

    fn paths(&mut self, rule: &Value, location: FieldLocation<'_>, path: &FieldPath) -> Vec<String> {
        let paths = self.texts(rule, location, "nonResourceURLs", "string");
        let path = path.child("nonResourceURLs");
        for (index, url) in paths.iter().enumerate().filter(|(_, url)| *url != "*") {
            let mut invalid = |detail| {
                self.errors.push(FieldError::invalid(&path.index(index), &quoted(url), detail));
            };
            if !url.starts_with('/') {
                invalid("non-resource URL rules must begin with a '/' character");
            }
            if url.find('*').is_some_and(|index| index + 1 < url.len()) {
                invalid("non-resource URL wildcards '*' must be the final character of the rule");
            }
        }
        paths
    }

    fn resources(&mut self, rule: &Value, location: FieldLocation<'_>, path: &FieldPath) -> Vec<Resources> {
        let items = self.list(rule, location, "resources", "v1.GroupResources");
        let inner = FieldLocation { structure: "GroupResources", path: "rules.resources" };
        let path = path.child("resources");
        let mut group_resources = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if !matches!(item, Value::Object(_) | Value::Null) {
                self.record_type_error(item, location, "resources", "v1.GroupResources");
            }
            self.check_known_fields(item, &path.index(index), &["group", "resources", "resourceNames"]);
            let group = self.text(item, inner, "group", "string");
            let resources = self.texts(item, inner, "resources", "string");
            let names = self.texts(item, inner, "resourceNames", "string");
            if !group.is_empty() {
                let messages = names::dns_subdomain(&group);
                if !messages.is_empty() {
                    let path = path.child("group");
                    self.errors.push(FieldError::invalid(&path, &quoted(&group), &messages.join(",")));
                }
            }
            if !names.is_empty() && resources.is_empty() {
                let detail = "using resourceNames requires at least one resource";
                self.errors.push(FieldError::invalid(&path.child("resourceNames"), &go_list(&names), detail));
            }
            group_resources.push(Resources { group, resources, names });
        }
        group_resources
    }
}

/// A list of strings in Go's format.
fn go_list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
    format!("[]string{{{}}}", items.join(", "))
}

#[cfg(test)]
mod tests;
