//! ABAC: a policy file with one JSON object per line. Read once, at start.

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_apimachinery::well_known::AUTHENTICATED;
use pilothouse_types::authorization::{Action, Decision, Grant, Grants, Target};
use pilothouse_types::identity::Identity;
use serde::Deserialize;

/// The apiVersion of versioned lines.
const API_VERSION: &str = "abac.authorization.kubernetes.io/v1beta1";

/// A policy rule. An empty field matches nothing, but either of user and group may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rule {
    user: String,
    group: String,
    /// Only read requests.
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    non_resource_path: String,
}

/// A line: a versioned rule, or an unversioned one.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Line {
    kind: String,
    api_version: String,
    spec: Rule,
    user: String,
    group: String,
    readonly: bool,
    resource: String,
    namespace: String,
}

/// The rules of one file.
pub struct Abac(Vec<Rule>);

impl Abac {
    /// Reads the text of a policy file. Errors name the line.
    pub fn parse(text: &str) -> Result<Abac, String> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed: Line =
                serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
            match (parsed.api_version.as_str(), parsed.kind.as_str()) {
                (API_VERSION, "Policy") => rules.push(parsed.spec),
                ("", "") => rules.push(from_unversioned(parsed)),
                (version, kind) => {
                    return Err(format!("line {}: {kind} of {version} is not a policy", number + 1));
                }
            }
        }
        Ok(Abac(rules))
    }
}

/// Converts an unversioned line, whose empty fields match everything.
fn from_unversioned(line: Line) -> Rule {
    let or_wildcard = |text: String| if text.is_empty() { "*".to_owned() } else { text };
    let is_everybody =
        (line.user.is_empty() && line.group.is_empty()) || line.user == "*" || line.group == "*";
    let is_restricted = !line.namespace.is_empty() || !line.resource.is_empty();
    Rule {
        user: if is_everybody { String::new() } else { line.user },
        // In unversioned lines "everybody" means all authenticated users.
        group: if is_everybody { AUTHENTICATED.to_owned() } else { line.group },
        readonly: line.readonly,
        api_group: "*".to_owned(),
        resource: or_wildcard(line.resource),
        namespace: or_wildcard(line.namespace),
        non_resource_path: if is_restricted { String::new() } else { "*".to_owned() },
    }
}

fn matches_value(pattern: &str, value: &str) -> bool {
    pattern == "*" || pattern == value
}

impl Rule {
    fn matches_subject(&self, identity: &Identity) -> bool {
        let user = self.user == "*" || self.user == identity.name;
        let group = self.group == "*" || identity.is_in(&self.group);
        match (self.user.is_empty(), self.group.is_empty()) {
            (true, true) => false,
            (false, true) => user,
            (true, false) => group,
            (false, false) => user && group,
        }
    }

    fn allows(&self, action: &Action) -> bool {
        if self.readonly && !matches!(action.verb.as_str(), "get" | "list" | "watch") {
            return false;
        }
        match &action.target {
            Target::Resource { group, resource, namespace, .. } => {
                matches_value(&self.namespace, namespace)
                    && matches_value(&self.resource, resource)
                    && matches_value(&self.api_group, group)
            }
            Target::Path(path) => {
                let rule = &self.non_resource_path;
                rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
            }
        }
    }

    fn verbs(&self) -> Vec<String> {
        let verbs: &[&str] = if self.readonly { &["get", "list", "watch"] } else { &["*"] };
        verbs.iter().map(|verb| (*verb).to_owned()).collect()
    }
}

impl Policy for Abac {
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision> {
        let allowed = self.0.iter().any(|rule| rule.matches_subject(identity) && rule.allows(action));
        let no_opinion = || Decision::NoOpinion("No policy matched.".to_owned());
        Answer::Now(if allowed { Decision::Allowed } else { no_opinion() })
    }

    fn grants(&self, identity: &Identity, namespace: &str) -> Answer<Grants> {
        let mut grants = Vec::new();
        for rule in self
            .0
            .iter()
            .filter(|rule| rule.matches_subject(identity) && matches_value(&rule.namespace, namespace))
        {
            if !rule.resource.is_empty() {
                grants.push(Grant {
                    verbs: rule.verbs(),
                    groups: vec![rule.api_group.clone()],
                    resources: vec![rule.resource.clone()],
                    ..Grant::default()
                });
            }
            if !rule.non_resource_path.is_empty() {
                let paths = vec![rule.non_resource_path.clone()];
                grants.push(Grant { verbs: rule.verbs(), paths, ..Grant::default() });
            }
        }
        Answer::Now(Grants { grants, ..Grants::default() })
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::well_known::UNAUTHENTICATED;

    use super::*;

    const FILE: &str = r#"
# people
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"alice","namespace":"*","resource":"*","apiGroup":"*"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"devs","readonly":true,"namespace":"n","resource":"pods"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"*","group":"ops","nonResourcePath":"/x*"}}
{"user":"old","resource":"pods"}
"#;

    /// Whether the policy allows a verb on `/path` or on `namespace resource`.
    fn is_allowed(user: &str, groups: &[&str], verb: &str, target: &str) -> bool {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let identity = Identity { name: user.into(), groups, ..Identity::default() };
        let target = match target.split_once(' ') {
            None => Target::Path(target.into()),
            Some((namespace, resource)) => Target::Resource {
                group: String::new(),
                version: "v1".into(),
                resource: resource.into(),
                subresource: String::new(),
                namespace: namespace.into(),
                name: String::new(),
            },
        };
        let answer = Abac::parse(FILE).unwrap().decide(&identity, &Action { verb: verb.into(), target });
        matches!(answer, Answer::Now(Decision::Allowed))
    }

    #[test]
    fn abac_rule_matches_subject_verb_and_target() {
        assert!(is_allowed("alice", &[], "delete", "m secrets") && !is_allowed("alice", &[], "get", "/x"));
        assert!(is_allowed("bob", &["devs"], "list", "n pods"));
        assert!(
            !is_allowed("bob", &["devs"], "create", "n pods")
                && !is_allowed("bob", &["devs"], "list", "m pods")
        );
        assert!(is_allowed("bob", &["ops"], "post", "/xyz") && !is_allowed("bob", &["ops"], "get", "/y"));
        assert!(is_allowed("old", &[], "delete", "m pods") && !is_allowed("old", &[], "get", "m secrets"));
        assert!(!is_allowed("nobody", &[UNAUTHENTICATED], "get", "n pods"));
    }

    #[test]
    fn abac_parse_error_names_the_line() {
        assert!(Abac::parse("\n{").err().unwrap().starts_with("line 2: "));
        let unknown_version = r#"{"apiVersion":"x/v1","kind":"Policy"}"#;
        assert_eq!(Abac::parse(unknown_version).err().unwrap(), "line 1: Policy of x/v1 is not a policy");
    }
}
