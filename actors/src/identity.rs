//! Who is asking: what they showed, and who that makes them. Plain data; HTTP and TLS stay outside.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Someone who may ask for things. Shared as a pointer by everything that happens for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The name that policies speak of.
    pub name: String,
    /// Tells two bearers of one name apart over time; empty if unknown.
    pub uid: String,
    /// The groups that policies speak of.
    pub groups: Vec<String>,
    /// Further facts that a verifier knows.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// Whether they belong to this group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|known| known == group)
    }
}

/// What came with a request.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The certificates that the peer showed, each in DER, its own first. Nobody has checked them yet. Shared by all
    /// requests of a connection.
    pub certificates: Option<Arc<[Vec<u8>]>>,
    /// The bearer token of the request.
    pub bearer: Option<String>,
    /// Whom the request says it comes from. Nobody has checked that either: it counts only where a verifier knows that
    /// whoever sent the request may speak for others.
    pub claimed: Option<Arc<Identity>>,
    /// What the credentials must be meant for; nothing: for this server.
    pub audiences: Arc<[String]>,
    /// Whether they are shown at a place where nobody may be anonymous, whatever holds elsewhere.
    pub never_anonymous: bool,
}

/// Says what there is and never what it is: a token in a log is a token lost.
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
    fn a_token_is_never_printed() {
        let shown = Credentials { bearer: Some("secret".into()), ..Credentials::default() };
        assert_eq!(format!("{shown:?}"), "Credentials { certificates: 0, bearer: true, claimed: false }");
    }
}
