//! Front proxy authentication: a proxy authenticates its clients and passes their identity in headers.
//!
//! Anybody can send such headers. They count only on a connection with a client certificate from the CA of the front proxy, and
//! with an allowed common name.

use std::collections::BTreeMap;
use std::sync::Arc;

use openssl::error::ErrorStack;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_apimachinery::query;
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::{Credentials, Identity};

use super::certificate::common_name;
use super::chain_verifier::ChainVerifier;
use crate::config::external_authenticators::{self as config, listed};

/// The names of the identity headers, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    names: Vec<String>,
    uids: Vec<String>,
    groups: Vec<String>,
    prefixes: Vec<String>,
}

impl Headers {
    /// Headers of these names, in any case.
    pub fn new(names: &[String], uids: &[String], groups: &[String], prefixes: &[String]) -> Headers {
        let small = |all: &[String]| all.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
        Headers { names: small(names), uids: small(uids), groups: small(groups), prefixes: small(prefixes) }
    }

    /// The configured headers; `None` without a CA.
    pub fn configured(flags: &config::FrontProxy) -> Option<Headers> {
        flags.requestheader_client_ca_file.as_ref()?;
        Some(Headers::new(
            &listed(&flags.requestheader_username_headers),
            &listed(&flags.requestheader_uid_headers),
            &listed(&flags.requestheader_group_headers),
            &listed(&flags.requestheader_extra_headers_prefix),
        ))
    }

    /// The default headers. They are never passed on to backends, whatever is configured.
    pub fn usual() -> Headers {
        let one = |name: &str| vec![name.to_owned()];
        Headers {
            names: one("x-remote-user"),
            uids: one("x-remote-uid"),
            groups: one("x-remote-group"),
            prefixes: one("x-remote-extra-"),
        }
    }

    /// Whether a lower-case header name is one of them.
    pub fn has(&self, name: &str) -> bool {
        let all = self.names.iter().chain(&self.uids).chain(&self.groups);
        all.into_iter().any(|known| known == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// The identity in the headers of a request. Names are in lower case, in the order of their arrival. `None` without a user
    /// name.
    pub fn claimed<'a>(&self, headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Option<Identity> {
        let headers: Vec<_> = headers.filter(|(name, _)| self.has(name)).collect();
        let headers = headers.iter().copied();
        // The first of several equal headers counts, so another one cannot be appended behind it.
        let first =
            |wanted: &String| headers.clone().find(|(name, _)| name == wanted).map(|(_, value)| text(value));
        let one = |all: &[String]| all.iter().filter_map(first).find(|value| !value.is_empty());
        let name = one(&self.names)?;
        let all = |wanted: &String| {
            let wanted = wanted.clone();
            headers.clone().filter(move |(name, _)| *name == wanted).map(|(_, value)| text(value))
        };
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for prefix in &self.prefixes {
            for (name, value) in headers.clone() {
                if let Some(key) = name.strip_prefix(prefix.as_str()) {
                    let key = query::unescape(key, false).map_or_else(|| key.to_owned(), Into::into);
                    extra.entry(key).or_default().push(text(value));
                }
            }
        }
        Some(Identity {
            name,
            uid: one(&self.uids).unwrap_or_default(),
            groups: self.groups.iter().flat_map(all).filter(|group| !group.is_empty()).collect(),
            extra,
        })
    }
}

/// A value as text. Invalid UTF-8 becomes a replacement character that no rule names.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Accepts identity headers from the proxy.
pub struct FrontProxy {
    /// The common names of verified connections.
    chains: ChainVerifier<Arc<str>>,
    /// The allowed common names; empty for all.
    allowed: Vec<String>,
}

impl FrontProxy {
    /// Trusts certificates that these CAs (PEM) issued to one of the names.
    pub fn new(authorities_pem: &[u8], allowed: Vec<String>, clock: Clock) -> Result<FrontProxy, ErrorStack> {
        Ok(FrontProxy { chains: ChainVerifier::new(authorities_pem, clock)?, allowed })
    }

    /// Replaces the trusted CAs.
    pub fn trust(&self, authorities_pem: &[u8]) -> Result<(), ErrorStack> {
        self.chains.trust(authorities_pem)
    }
}

impl Verifier for FrontProxy {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let chain = credentials.certificates.as_deref().filter(|chain| !chain.is_empty());
        // A certificate without headers is left to the certificate verifier.
        let (Some(chain), Some(claimed)) = (chain, &credentials.claimed) else {
            return Answer::Now(Verification::NoOpinion);
        };
        let name = self.chains.check(chain, |certificate| Ok(common_name(certificate).into()));
        Answer::Now(match name {
            Ok((name, _))
                if self.allowed.is_empty() || self.allowed.iter().any(|allowed| **allowed == *name) =>
            {
                Verification::Known(Arc::clone(claimed))
            }
            Ok((name, _)) => Verification::Refused(format!("{name:?} may not speak for others")),
            Err(why) => Verification::Refused(why),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claimed(headers: &Headers, sent: &[(&str, &str)]) -> Option<Identity> {
        headers.claimed(sent.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    fn words(all: &[&str]) -> Vec<String> {
        all.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn headers_make_an_identity() {
        let headers = Headers::new(
            &words(&["X-Remote-User", " X-Other "]),
            &words(&["X-Remote-Uid"]),
            &words(&["X-Remote-Group", "X-Team"]),
            &words(&["X-Remote-Extra-", "x-more-"]),
        );
        let sent = [
            ("x-team", "t"),
            ("x-remote-group", "a"),
            ("x-remote-group", ""),
            ("x-remote-group", "b"),
            ("x-remote-user", ""),
            ("x-other", "ann"),
            ("x-other", "bob"),
            ("x-remote-uid", "u"),
            ("x-more-scope", "3"),
            ("x-remote-extra-scope", "1"),
            ("x-remote-extra-acme.com%2fproject", "p"),
            ("x-remote-extra-scope", "2"),
            ("x-remote-extra-%zz", "bad"),
            ("x_remote_user", "eve"),
        ];
        let found = claimed(&headers, &sent).unwrap();
        assert_eq!((found.name.as_str(), found.uid.as_str()), ("ann", "u"), "the first that says something");
        assert_eq!(found.groups, ["a", "b", "t"]);
        let extra: Vec<_> =
            found.extra.iter().map(|(key, values)| (key.as_str(), values.join(","))).collect();
        let wanted = [("%zz", "bad"), ("acme.com/project", "p"), ("scope", "1,2,3")];
        assert_eq!(extra, wanted.map(|(key, values)| (key, values.to_owned())));
        assert_eq!(claimed(&headers, &[("x-remote-group", "a")]), None, "nobody without a name");
        assert_eq!(claimed(&headers, &[("x_remote_user", "eve"), ("x-remote-user2", "eve")]), None);
    }

    #[test]
    fn the_usual_headers_are_known_by_name() {
        let usual = Headers::usual();
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-", "x-remote-extra-a"]
        {
            assert!(usual.has(name), "{name}");
        }
        assert!(!usual.has("x-remote-users") && !usual.has("authorization"));
    }

    proptest! {
        /// Whatever else is sent, the first value of the first nonempty header is the name.
        #[test]
        fn no_other_header_changes_the_name(
            before in prop::collection::vec(("[a-z_-]{1,12}", ".*"), 0..6),
            after in prop::collection::vec(("(x-remote-user|x_remote_user|[a-z-]{1,12})", ".*"), 0..6),
        ) {
            let before: Vec<_> = before.into_iter().filter(|(name, _)| name != "x-remote-user").collect();
            let own = [("x-remote-user".to_owned(), "ann".to_owned())];
            let sent: Vec<_> = before.iter().chain(&own).chain(&after).collect();
            let sent: Vec<_> = sent.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            prop_assert_eq!(claimed(&Headers::usual(), &sent).unwrap().name, "ann");
        }
    }
}
