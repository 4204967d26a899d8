//! TokenReview: verifies tokens of this cluster for other servers.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::authentication::{Authenticated, Refusal, UNKNOWN_TOKEN};

use super::{set_user_info, string_array};
use crate::bearer::bearer;

/// The token of a review, and the audiences that it must have.
#[derive(Debug, PartialEq, Eq)]
pub struct ReviewedToken {
    /// The token as a header would contain it; `None` if it is empty.
    pub bearer: Option<String>,
    /// The required audiences; empty for this server's own.
    pub audiences: Arc<[String]>,
}

/// Parses the review.
pub fn parse(review: &Value) -> Result<ReviewedToken> {
    let spec = review.get("spec").unwrap_or(&Value::Null);
    let token = spec.str("token");
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = spec.get("audiences").map(Value::items).unwrap_or_default();
    let audiences = audiences.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    // The token is treated as if it came in a header.
    let header = format!("Bearer {token}");
    Ok(ReviewedToken { bearer: bearer(&header).token.map(str::to_owned), audiences })
}

/// Writes the response into the review.
pub fn set_status(review: &mut Value, result: std::result::Result<Authenticated, Refusal>) {
    let mut status = Value::object();
    match result {
        Ok(authenticated) => {
            status.set("authenticated", true);
            set_user_info(status.entry("user"), &authenticated.identity);
            if !authenticated.audiences.is_empty() {
                status.set("audiences", string_array(authenticated.audiences));
            }
        }
        Err(Refusal::Anonymous) => {}
        // The reference's first authenticator, for its own loopback token, always reports an unknown token.
        Err(Refusal::Refused(reasons)) => {
            let all = [UNKNOWN_TOKEN.to_owned()].into_iter().chain(reasons).collect();
            status.set("error", join_reasons(all));
        }
    }
    review.set("status", status);
}

/// Joins reasons without duplicates.
fn join_reasons(mut reasons: Vec<String>) -> String {
    let mut seen = BTreeSet::new();
    reasons.retain(|reason| seen.insert(reason.clone()));
    match reasons.as_slice() {
        [reason] => reason.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {

    use pilothouse_types::identity::Identity;

    use super::*;

    fn review(token: &str, audiences: &[&str]) -> Value {
        let mut review = Value::object();
        review.entry("spec").set("token", token);
        if !audiences.is_empty() {
            review
                .entry("spec")
                .set("audiences", string_array(audiences.iter().map(|name| (*name).to_owned())));
        }
        review
    }

    #[test]
    fn token_is_parsed_like_a_bearer_header() {
        let parse_token = |token: &str| parse(&review(token, &["a"])).unwrap();
        assert_eq!(
            parse_token("t"),
            ReviewedToken { bearer: Some("t".into()), audiences: ["a".to_owned()].into() }
        );
        assert_eq!(parse_token("t u").bearer.as_deref(), Some("t"));
        assert_eq!(parse_token("  ").bearer, None);
        let missing = parse(&review("", &[])).unwrap_err();
        assert_eq!(
            (missing.code, &*missing.message),
            (400, "token is required for TokenReview in authentication")
        );
    }

    #[test]
    fn token_review_status_has_user_or_error() {
        let identity = Identity { name: "u".into(), groups: vec!["g".into()], ..Identity::default() };
        let mut review_value = review("t", &[]);
        review_value.entry("status").set("error", "what the client wrote");
        set_status(
            &mut review_value,
            Ok(Authenticated {
                identity: Arc::new(identity),
                audiences: vec!["a".into()],
                remarks: Vec::new(),
            }),
        );
        let status = review_value.get("status").unwrap();
        assert_eq!(status.get("authenticated"), Some(&Value::Bool(true)));
        assert_eq!((status.get("user").unwrap().str("username"), status.str("error")), ("u", ""));
        assert_eq!(status.get("audiences").unwrap().items().len(), 1);

        let mut error_for = |reasons: &[&str]| {
            let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            set_status(&mut review_value, Err(Refusal::Refused(reasons)));
            let status = review_value.get("status").unwrap();
            assert_eq!((status.get("authenticated"), status.get("user")), (None, None));
            status.str("error").to_owned()
        };
        assert_eq!(error_for(&[UNKNOWN_TOKEN]), "invalid bearer token");
        assert_eq!(error_for(&["a"]), "[invalid bearer token, a]");
        assert_eq!(error_for(&["a", "b", "a"]), "[invalid bearer token, a, b]");
    }
}
