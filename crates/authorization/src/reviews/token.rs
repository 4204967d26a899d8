//! TokenReview: verifies tokens of this cluster for other servers.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::authentication::{Authenticated, Refusal, UNKNOWN_TOKEN};

use super::{describe, texts};
use crate::bearer::bearer;

/// The question of a review.
#[derive(Debug, PartialEq, Eq)]
pub struct Question {
    /// The token as a header would contain it; `None` if it is empty.
    pub bearer: Option<String>,
    /// The required audiences; empty for this server's own.
    pub audiences: Arc<[String]>,
}

/// Parses the review.
pub fn question(review: &Value) -> Result<Question> {
    let spec = review.get("spec").unwrap_or(&Value::Null);
    let token = spec.str("token");
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = spec.get("audiences").map(Value::items).unwrap_or_default();
    let audiences = audiences.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    // The token is treated as if it came in a header.
    let shown = format!("Bearer {token}");
    Ok(Question { bearer: bearer(&shown).token.map(str::to_owned), audiences })
}

/// Writes the response into the review.
pub fn answer(review: &mut Value, found: std::result::Result<Authenticated, Refusal>) {
    let mut status = Value::object();
    match found {
        Ok(found) => {
            status.set("authenticated", true);
            describe(status.entry("user"), &found.identity);
            if !found.audiences.is_empty() {
                status.set("audiences", texts(found.audiences));
            }
        }
        Err(Refusal::Anonymous) => {}
        // The reference's first authenticator, for its own loopback token, always reports an unknown token.
        Err(Refusal::Refused(reasons)) => {
            let all = [UNKNOWN_TOKEN.to_owned()].into_iter().chain(reasons).collect();
            status.set("error", together(all));
        }
    }
    review.set("status", status);
}

/// Joins reasons without duplicates.
fn together(mut reasons: Vec<String>) -> String {
    let mut said = BTreeSet::new();
    reasons.retain(|reason| said.insert(reason.clone()));
    match reasons.as_slice() {
        [one] => one.clone(),
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
            review.entry("spec").set("audiences", texts(audiences.iter().map(|name| (*name).to_owned())));
        }
        review
    }

    #[test]
    fn a_token_is_read_as_headers_are() {
        let asked = |token: &str| question(&review(token, &["a"])).unwrap();
        assert_eq!(asked("t"), Question { bearer: Some("t".into()), audiences: ["a".to_owned()].into() });
        assert_eq!(asked("t u").bearer.as_deref(), Some("t"));
        assert_eq!(asked("  ").bearer, None);
        let missing = question(&review("", &[])).unwrap_err();
        assert_eq!(
            (missing.code, &*missing.message),
            (400, "token is required for TokenReview in authentication")
        );
    }

    #[test]
    fn the_answer_says_who_or_why_nobody() {
        let identity = Identity { name: "u".into(), groups: vec!["g".into()], ..Identity::default() };
        let mut one = review("t", &[]);
        one.entry("status").set("error", "what the client wrote");
        answer(
            &mut one,
            Ok(Authenticated {
                identity: Arc::new(identity),
                audiences: vec!["a".into()],
                remarks: Vec::new(),
            }),
        );
        let status = one.get("status").unwrap();
        assert_eq!(status.get("authenticated"), Some(&Value::Bool(true)));
        assert_eq!((status.get("user").unwrap().str("username"), status.str("error")), ("u", ""));
        assert_eq!(status.get("audiences").unwrap().items().len(), 1);

        let mut refused = |reasons: &[&str]| {
            let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            answer(&mut one, Err(Refusal::Refused(reasons)));
            let status = one.get("status").unwrap();
            assert_eq!((status.get("authenticated"), status.get("user")), (None, None));
            status.str("error").to_owned()
        };
        assert_eq!(refused(&[UNKNOWN_TOKEN]), "invalid bearer token");
        assert_eq!(refused(&["a"]), "[invalid bearer token, a]");
        assert_eq!(refused(&["a", "b", "a"]), "[invalid bearer token, a, b]");
    }
}
