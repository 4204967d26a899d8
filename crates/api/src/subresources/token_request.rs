//! TokenRequests of service accounts.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Status};
use pilothouse_apimachinery::value::Value;

/// The shortest lifetime that can be requested.
const MIN_SECONDS: i64 = 600;
/// The longest lifetime that can be requested.
const MAX_SECONDS: i64 = 1 << 32;

/// The object that a token is bound to.
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

/// Validates a TokenRequest.
pub fn validate(request: &Value, errors: &mut ErrorList) {
    let (seconds, path) = (expiration_seconds(request), FieldPath::new("spec").child("expirationSeconds"));
    let mut invalid = |detail| errors.push(FieldError::invalid(&path, &seconds.to_string(), detail));
    if seconds < MIN_SECONDS {
        invalid("may not specify a duration less than 10 minutes");
    }
    if seconds > MAX_SECONDS {
        invalid("may not specify a duration larger than 2^32 seconds");
    }
}

/// The requested lifetime in seconds.
pub fn expiration_seconds(request: &Value) -> i64 {
    request.get_path(&["spec", "expirationSeconds"]).and_then(Value::as_int).unwrap_or_default()
}

/// The requested audiences.
pub fn audiences(request: &Value) -> Vec<String> {
    let audiences = request.get_path(&["spec", "audiences"]).map(Value::items).unwrap_or_default();
    audiences.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The kind of the bound object, or an error if tokens cannot be bound to it.
pub fn binding(reference: &Value) -> Result<Binding, Box<Status>> {
    let kind = reference.str("kind");
    let (group, version) = split(reference.str("apiVersion"));
    match (group, kind) {
        ("", "Pod") => Ok(Binding::Pod),
        ("", "Node") => Ok(Binding::Node),
        ("", "Secret") => Ok(Binding::Secret),
        _ => {
            let gvk = format!("{group}/{version}, Kind={kind}");
            Err(Status::bad_request(format!("cannot bind token to object of type {gvk}")))
        }
    }
}

/// The group and version of an apiVersion; both empty if it is invalid.
fn split(api_version: &str) -> (&str, &str) {
    match api_version.split_once('/') {
        None => ("", api_version),
        Some((_, version)) if version.contains('/') => ("", ""),
        Some(both) => both,
    }
}

/// 409: the bound object has another UID than the request states.
pub fn uid_conflict(kind: &str, name: &str, uid: &str) -> Box<Status> {
    let message = format!(
        "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
    );
    Status::conflict(GroupResource { group: "", resource: kind }, name, &message)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{error_messages, object};

    use super::*;

    #[test]
    fn token_lifetime_has_limits() {
        for (seconds, expected) in [
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
            assert_eq!(error_messages(&errors).first().map(String::as_str), expected, "{seconds}");
        }
    }

    #[test]
    fn token_request_name_must_match_the_account() {
        for (name, count) in [("", 0), ("sa", 0), ("other", 1)] {
            let request = object(&format!(r#"{{"metadata":{{"name":"{name}"}}}}"#));
            let mut errors = ErrorList::new();
            validate_name(&request, "sa", &mut errors);
            assert_eq!(errors.len(), count, "{name}");
        }
    }

    #[test]
    fn tokens_are_bound_to_pods_nodes_and_secrets() {
        let parse = |api: &str, kind: &str| {
            binding(&object(&format!(r#"{{"apiVersion":"{api}","kind":"{kind}"}}"#)))
                .map_err(|status| status.message)
        };
        assert_eq!(parse("v1", "Pod"), Ok(Binding::Pod));
        assert_eq!(parse("", "Node"), Ok(Binding::Node));
        assert_eq!(parse("v7", "Secret"), Ok(Binding::Secret));
        assert_eq!(parse("a/b/c", "Pod"), Ok(Binding::Pod));
        let refused = |gvk: &str| Err(format!("cannot bind token to object of type {gvk}"));
        assert_eq!(parse("v1", "ConfigMap"), refused("/v1, Kind=ConfigMap"));
        assert_eq!(parse("apps/v1", "Pod"), refused("apps/v1, Kind=Pod"));
    }
}
