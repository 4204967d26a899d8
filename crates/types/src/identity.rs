//! Credentials and identities. Plain data; HTTP and TLS stay outside.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A user. Shared by everything that happens for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user name.
    pub name: String,
    /// Distinguishes users with the same name over time; empty if unknown.
    pub uid: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// Additional attributes from a verifier.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// Whether the user is a member of this group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|other| other == group)
    }
}

/// The credentials of a request.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The peer's certificates as DER, its own first. Not verified yet. Shared by all requests of a connection.
    pub certificates: Option<Arc<[Vec<u8>]>>,
    /// The bearer token of the request.
    pub bearer: Option<String>,
    /// The identity in front proxy headers. Not verified either: it counts only if a verifier knows that the sender is a
    /// trusted proxy.
    pub claimed: Option<Arc<Identity>>,
    /// The audiences that the credentials must be valid for; empty for this server's own.
    pub audiences: Arc<[String]>,
    /// Whether anonymous requests are refused at this path, even if they are allowed elsewhere.
    pub never_anonymous: bool,
}

/// Shows which credentials exist but never their contents: a token in a log is a leaked token.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("certificates", &self.certificates.as_ref().map_or(0, |chain| chain.len()))
            .field("bearer", &self.bearer.is_some())
            .field("claimed", &self.claimed.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_debug_hides_the_token() {
        let credentials = Credentials { bearer: Some("secret".into()), ..Credentials::default() };
        assert_eq!(
            format!("{credentials:?}"),
            "Credentials { certificates: 0, bearer: true, claimed: false }"
        );
    }
}
