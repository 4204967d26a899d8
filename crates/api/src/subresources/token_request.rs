//! TokenRequests of service accounts.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Status};
use pilothouse_apimachinery::value::Value;

/// The shortest life that can be asked for.
const SHORTEST_SECONDS: i64 = 600;
/// The longest life that can be asked for.
const LONGEST_SECONDS: i64 = 1 << 32;

/// What a token can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A pod of the account.
    Pod,
    /// A node.
    Node,
    /// A secret beside the account.
    Secret,
}

/// Checks that the name in a request is that of the account, if it has one.
pub fn validate_name(request: &Value, account: &str, errors: &mut ErrorList) {
    let name = meta::name(request);
    if !name.is_empty() && name != account {
        let path = FieldPath::new("metadata").child("name");
        errors.push(FieldError::invalid(
            &path,
            &quoted(name),
            "must match the service account name if specified",
        ));
    }
}

/// Checks a request.
pub fn validate(request: &Value, errors: &mut ErrorList) {
    let (seconds, path) = (seconds(request), FieldPath::new("spec").child("expirationSeconds"));
    let mut wrong = |detail| errors.push(FieldError::invalid(&path, &seconds.to_string(), detail));
    if seconds < SHORTEST_SECONDS {
        wrong("may not specify a duration less than 10 minutes");
    }
    if seconds > LONGEST_SECONDS {
        wrong("may not specify a duration larger than 2^32 seconds");
    }
}

/// How long the token shall hold.
pub fn seconds(request: &Value) -> i64 {
    request.at(&["spec", "expirationSeconds"]).and_then(Value::as_int).unwrap_or_default()
}

/// Whom the token shall be meant for.
pub fn audiences(request: &Value) -> Vec<String> {
    let named = request.at(&["spec", "audiences"]).map(Value::items).unwrap_or_default();
    named.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// What kind of object the token shall be bound to. The error says that it cannot be.
pub fn binding(reference: &Value) -> Result<Binding, Box<Status>> {
    let kind = reference.str("kind");
    let (group, version) = split(reference.str("apiVersion"));
    match (group, kind) {
        ("", "Pod") => Ok(Binding::Pod),
        ("", "Node") => Ok(Binding::Node),
        ("", "Secret") => Ok(Binding::Secret),
        _ => {
            let what = format!("{group}/{version}, Kind={kind}");
            Err(Status::bad_request(format!("cannot bind token to object of type {what}")))
        }
    }
}

/// The group and version of a text; neither, if it is none.
fn split(api_version: &str) -> (&str, &str) {
    match api_version.split_once('/') {
        None => ("", api_version),
        Some((_, version)) if version.contains('/') => ("", ""),
        Some(both) => both,
    }
}

/// 409: the object is not the one that the request means.
pub fn other_object(kind: &str, name: &str, wanted: &str) -> Box<Status> {
    let why = format!(
        "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
    );
    Status::conflict(GroupResource { group: "", resource: kind }, name, &why)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{object, said};

    use super::*;

    #[test]
    fn a_life_has_bounds() {
        for (seconds, wrong) in [
            (
                599,
                Some(
                    "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
                ),
            ),
            (600, None),
            (1 << 32, None),
            (
                (1 << 32) + 1,
                Some(
                    "spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds",
                ),
            ),
        ] {
            let mut request = Value::object();
            request.entry("spec").set("expirationSeconds", seconds);
            let mut errors = ErrorList::new();
            validate(&request, &mut errors);
            assert_eq!(said(&errors).first().map(String::as_str), wrong, "{seconds}");
        }
    }

    #[test]
    fn a_request_may_name_its_account_and_no_other() {
        for (name, count) in [("", 0), ("sa", 0), ("other", 1)] {
            let request = object(&format!(r#"{{"metadata":{{"name":"{name}"}}}}"#));
            let mut errors = ErrorList::new();
            validate_name(&request, "sa", &mut errors);
            assert_eq!(errors.len(), count, "{name}");
        }
    }

    #[test]
    fn tokens_are_bound_to_pods_nodes_and_secrets() {
        let asked = |api: &str, kind: &str| {
            binding(&object(&format!(r#"{{"apiVersion":"{api}","kind":"{kind}"}}"#)))
                .map_err(|status| status.message)
        };
        assert_eq!(asked("v1", "Pod"), Ok(Binding::Pod));
        assert_eq!(asked("", "Node"), Ok(Binding::Node));
        assert_eq!(asked("v7", "Secret"), Ok(Binding::Secret));
        assert_eq!(asked("a/b/c", "Pod"), Ok(Binding::Pod));
        let refused = |what: &str| Err(format!("cannot bind token to object of type {what}"));
        assert_eq!(asked("v1", "ConfigMap"), refused("/v1, Kind=ConfigMap"));
        assert_eq!(asked("apps/v1", "Pod"), refused("apps/v1, Kind=Pod"));
    }
}
