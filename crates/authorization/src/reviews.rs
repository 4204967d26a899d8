//! Access reviews and token reviews: validation and responses.
//!
//! Pure: `verbs::review` finds the answers.

pub mod access;
pub mod token;

use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::authorization::{Grant, Grants};
use pilothouse_types::identity::Identity;

/// The group of reviews about identities.
pub const IDENTITY_GROUP: &str = "authentication.k8s.io";

fn texts(words: impl IntoIterator<Item = String>) -> Value {
    Value::Array(words.into_iter().map(Value::String).collect())
}

/// The namespace of a SelfSubjectRulesReview.
pub fn namespace_of(review: &Value) -> Result<&str> {
    match review.get("spec").unwrap_or(&Value::Null).str("namespace") {
        "" => Err(Status::bad_request("no namespace on request")),
        namespace => Ok(namespace),
    }
}

/// The response to a SelfSubjectRulesReview. It repeats nothing of the request.
pub fn all_rights(review: &Value, grants: Grants) -> Value {
    let mut answer = bare(review);
    // Both lists are always present, even if empty.
    let list = |rules: Vec<Value>| Value::Array(rules.into());
    let (on_paths, on_resources): (Vec<Grant>, Vec<Grant>) =
        grants.grants.into_iter().partition(|grant| !grant.paths.is_empty());
    let resource_rules = on_resources.into_iter().filter(|grant| !grant.resources.is_empty()).map(|grant| {
        let mut rule = Value::object();
        rule.set("verbs", texts(grant.verbs));
        rule.set("apiGroups", texts(grant.groups));
        rule.set("resources", texts(grant.resources));
        if !grant.names.is_empty() {
            rule.set("resourceNames", texts(grant.names));
        }
        rule
    });
    let path_rules = on_paths.into_iter().map(|grant| {
        let mut rule = Value::object();
        rule.set("verbs", texts(grant.verbs));
        rule.set("nonResourceURLs", texts(grant.paths));
        rule
    });
    let status = answer.entry("status");
    status.set("resourceRules", list(resource_rules.collect()));
    status.set("nonResourceRules", list(path_rules.collect()));
    status.set("incomplete", grants.incomplete);
    match grants.errors.as_slice() {
        [] => {}
        [one] => status.set("evaluationError", one.as_str()),
        several => status.set("evaluationError", format!("[{}]", several.join(", "))),
    }
    answer
}

/// The response to a SelfSubjectReview.
pub fn myself(review: &Value, who: &Identity, now: &str) -> Value {
    let mut answer = bare(review);
    answer.remove("spec");
    answer.entry("metadata").set("creationTimestamp", now);
    describe(answer.entry("status").entry("userInfo"), who);
    answer
}

/// Writes the UserInfo of a user.
fn describe(info: &mut Value, who: &Identity) {
    info.set("username", who.name.as_str());
    if !who.uid.is_empty() {
        info.set("uid", who.uid.as_str());
    }
    if !who.groups.is_empty() {
        info.set("groups", texts(who.groups.iter().cloned()));
    }
    for (key, values) in &who.extra {
        info.entry("extra").set(key, texts(values.iter().cloned()));
    }
}

/// An object with only kind and apiVersion.
fn bare(review: &Value) -> Value {
    let mut answer = Value::object();
    answer.set("kind", review.str("kind"));
    answer.set("apiVersion", review.str("apiVersion"));
    answer.set("metadata", Value::object());
    answer.set("spec", Value::object());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_listed_by_what_they_are_about() {
        let words = |word: &str| vec![word.to_owned()];
        let grants = vec![
            Grant { verbs: words("get"), groups: words(""), resources: words("pods"), ..Grant::default() },
            Grant { verbs: words("get"), paths: words("/x"), ..Grant::default() },
        ];
        let grants = Grants { grants, incomplete: true, errors: vec!["a".into(), "b".into()] };
        let answer = all_rights(&Value::object(), grants);
        let status = answer.get("status").unwrap();
        assert_eq!(status.get("resourceRules").unwrap().items().len(), 1);
        assert_eq!(status.get("nonResourceRules").unwrap().items().len(), 1);
        assert_eq!(
            (status.str("evaluationError"), status.get("incomplete")),
            ("[a, b]", Some(&Value::Bool(true)))
        );
    }
}
