//! Access reviews and token reviews: validation and responses.
//!
//! Pure: `verbs::review` makes the decisions.

pub mod access;
pub mod token;

use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::authorization::{Grant, Grants};
use pilothouse_types::identity::Identity;

/// The group of reviews about identities.
pub const IDENTITY_GROUP: &str = "authentication.k8s.io";

fn string_array(words: impl IntoIterator<Item = String>) -> Value {
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
pub fn self_subject_rules_review(review: &Value, grants: Grants) -> Value {
    let mut response = empty_review(review);
    // Both lists are always present, even if empty.
    let list = |rules: Vec<Value>| Value::Array(rules.into());
    let (path_grants, resource_grants): (Vec<Grant>, Vec<Grant>) =
        grants.grants.into_iter().partition(|grant| !grant.paths.is_empty());
    let resource_rules =
        resource_grants.into_iter().filter(|grant| !grant.resources.is_empty()).map(|grant| {
            let mut rule = Value::object();
            rule.set("verbs", string_array(grant.verbs));
            rule.set("apiGroups", string_array(grant.groups));
            rule.set("resources", string_array(grant.resources));
            if !grant.names.is_empty() {
                rule.set("resourceNames", string_array(grant.names));
            }
            rule
        });
    let path_rules = path_grants.into_iter().map(|grant| {
        let mut rule = Value::object();
        rule.set("verbs", string_array(grant.verbs));
        rule.set("nonResourceURLs", string_array(grant.paths));
        rule
    });
    let status = response.entry("status");
    status.set("resourceRules", list(resource_rules.collect()));
    status.set("nonResourceRules", list(path_rules.collect()));
    status.set("incomplete", grants.incomplete);
    match grants.errors.as_slice() {
        [] => {}
        [one] => status.set("evaluationError", one.as_str()),
        several => status.set("evaluationError", format!("[{}]", several.join(", "))),
    }
    response
}

/// The response to a SelfSubjectReview.
pub fn self_subject_review(review: &Value, user: &Identity, now: &str) -> Value {
    let mut response = empty_review(review);
    response.remove("spec");
    response.entry("metadata").set("creationTimestamp", now);
    set_user_info(response.entry("status").entry("userInfo"), user);
    response
}

/// Writes the UserInfo of a user.
fn set_user_info(info: &mut Value, user: &Identity) {
    info.set("username", user.name.as_str());
    if !user.uid.is_empty() {
        info.set("uid", user.uid.as_str());
    }
    if !user.groups.is_empty() {
        info.set("groups", string_array(user.groups.iter().cloned()));
    }
    for (key, values) in &user.extra {
        info.entry("extra").set(key, string_array(values.iter().cloned()));
    }
}

/// An object with only kind and apiVersion.
fn empty_review(review: &Value) -> Value {
    let mut response = Value::object();
    response.set("kind", review.str("kind"));
    response.set("apiVersion", review.str("apiVersion"));
    response.set("metadata", Value::object());
    response.set("spec", Value::object());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_review_lists_resource_and_path_rules() {
        let words = |word: &str| vec![word.to_owned()];
        let grants = vec![
            Grant { verbs: words("get"), groups: words(""), resources: words("pods"), ..Grant::default() },
            Grant { verbs: words("get"), paths: words("/x"), ..Grant::default() },
        ];
        let grants = Grants { grants, incomplete: true, errors: vec!["a".into(), "b".into()] };
        let response = self_subject_rules_review(&Value::object(), grants);
        let status = response.get("status").unwrap();
        assert_eq!(status.get("resourceRules").unwrap().items().len(), 1);
        assert_eq!(status.get("nonResourceRules").unwrap().items().len(), 1);
        assert_eq!(
            (status.str("evaluationError"), status.get("incomplete")),
            ("[a, b]", Some(&Value::Bool(true)))
        );
    }
}
