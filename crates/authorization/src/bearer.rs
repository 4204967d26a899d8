//! Parses the Authorization header.

/// The warning about extra space before a token; the reference's words.
const EXTRA_SPACE: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// The contents of an Authorization header.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AuthorizationHeader<'a> {
    /// The bearer token. Other schemes and an empty token count as no credentials.
    pub token: Option<&'a str>,
    /// A warning for the client.
    pub warning: Option<&'static str>,
}

/// Parses an Authorization header. Text after the token and a space is ignored, as in the reference.
pub fn bearer(header: &str) -> AuthorizationHeader<'_> {
    let mut words = header.trim().splitn(3, ' ');
    let (scheme, token) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !scheme.eq_ignore_ascii_case("bearer") {
        return AuthorizationHeader::default();
    }
    match token {
        "" => AuthorizationHeader { token: None, warning: words.next().map(|_| EXTRA_SPACE) },
        token => AuthorizationHeader { token: Some(token), warning: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_parses_bearer_tokens_only() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            (" bearer abc ", Some("abc")),
            ("Bearer a b", Some("a")),
            ("", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic dTpw", None),
        ] {
            assert_eq!(bearer(header), AuthorizationHeader { token, warning: None }, "{header:?}");
        }
        assert_eq!(bearer("Bearer  abc"), AuthorizationHeader { token: None, warning: Some(EXTRA_SPACE) });
    }
}
