//! ABAC: a policy file with one JSON object per line. Read once, at start.

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_apimachinery::well_known::AUTHENTICATED;
use pilothouse_types::authorization::{Action, Decision, Grant, Grants, Target};
use pilothouse_types::identity::Identity;
use serde::Deserialize;

/// The apiVersion of versioned lines.
const API_VERSION: &str = "abac.authorization.kubernetes.io/v1beta1";

/// One rule. An empty field matches nothing, except for user and group, of which one suffices.
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
                ("", "") => rules.push(without_version(parsed)),
                (version, kind) => {
                    return Err(format!("line {}: {kind} of {version} is no Policy", number + 1));
                }
            }
        }
        Ok(Abac(rules))
    }
}

/// Converts an unversioned line, whose empty fields match everything.
fn without_version(line: Line) -> Rule {
    let all = |text: String| if text.is_empty() { "*".to_owned() } else { text };
    let anybody = (line.user.is_empty() && line.group.is_empty()) || line.user == "*" || line.group == "*";
    let narrow = !line.namespace.is_empty() || !line.resource.is_empty();
    Rule {
        user: if anybody { String::new() } else { line.user },
        // In unversioned lines "everybody" means all authenticated users.
        group: if anybody { AUTHENTICATED.to_owned() } else { line.group },
        readonly: line.readonly,
        api_group: "*".to_owned(),
        resource: all(line.resource),
        namespace: all(line.namespace),
        non_resource_path: if narrow { String::new() } else { "*".to_owned() },
    }
}

fn is(rule: &str, word: &str) -> bool {
    rule == "*" || rule == word
}

impl Rule {
    fn is_about(&self, who: &Identity) -> bool {
        let user = self.user == "*" || self.user == who.name;
        let group = self.group == "*" || who.is_in(&self.group);
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
                is(&self.namespace, namespace) && is(&self.resource, resource) && is(&self.api_group, group)
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
        let allowed = self.0.iter().any(|rule| rule.is_about(identity) && rule.allows(action));
        let none = || Decision::NoOpinion("No policy matched.".to_owned());
        Answer::Now(if allowed { Decision::Allowed } else { none() })
    }

    fn grants(&self, identity: &Identity, namespace: &str) -> Answer<Grants> {
        let mut grants = Vec::new();
        for rule in self.0.iter().filter(|rule| rule.is_about(identity) && is(&rule.namespace, namespace)) {
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

    fn may(user: &str, groups: &[&str], verb: &str, what: &str) -> bool {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let who = Identity { name: user.into(), groups, ..Identity::default() };
        let target = match what.split_once(' ') {
            None => Target::Path(what.into()),
            Some((namespace, resource)) => Target::Resource {
                group: String::new(),
                version: "v1".into(),
                resource: resource.into(),
                subresource: String::new(),
                namespace: namespace.into(),
                name: String::new(),
            },
        };
        let answer = Abac::parse(FILE).unwrap().decide(&who, &Action { verb: verb.into(), target });
        matches!(answer, Answer::Now(Decision::Allowed))
    }

    #[test]
    fn rules_match_who_and_what() {
        assert!(may("alice", &[], "delete", "m secrets") && !may("alice", &[], "get", "/x"));
        assert!(may("bob", &["devs"], "list", "n pods"));
        assert!(!may("bob", &["devs"], "create", "n pods") && !may("bob", &["devs"], "list", "m pods"));
        assert!(may("bob", &["ops"], "post", "/xyz") && !may("bob", &["ops"], "get", "/y"));
        assert!(may("old", &[], "delete", "m pods") && !may("old", &[], "get", "m secrets"));
        assert!(!may("nobody", &[UNAUTHENTICATED], "get", "n pods"));
    }

    #[test]
    fn a_broken_line_is_named() {
        assert!(Abac::parse("\n{").err().unwrap().starts_with("line 2: "));
        let odd = r#"{"apiVersion":"x/v1","kind":"Policy"}"#;
        assert_eq!(Abac::parse(odd).err().unwrap(), "line 1: Policy of x/v1 is no Policy");
    }
}
