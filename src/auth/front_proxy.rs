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
use crate::config::external_authenticators as config;
use crate::config::values::non_empty_list;

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
        let normalized = |all: &[String]| all.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
        Headers {
            names: normalized(names),
            uids: normalized(uids),
            groups: normalized(groups),
            prefixes: normalized(prefixes),
        }
    }

    /// The configured headers; `None` without a CA.
    pub fn configured(flags: &config::FrontProxy) -> Option<Headers> {
        flags.requestheader_client_ca_file.as_ref()?;
        Some(Headers::new(
            &non_empty_list(&flags.requestheader_username_headers),
            &non_empty_list(&flags.requestheader_uid_headers),
            &non_empty_list(&flags.requestheader_group_headers),
            &non_empty_list(&flags.requestheader_extra_headers_prefix),
        ))
    }

    /// The default headers. They are never passed on to backends, whatever is configured.
    pub fn standard() -> Headers {
        let only = |name: &str| vec![name.to_owned()];
        Headers {
            names: only("x-remote-user"),
            uids: only("x-remote-uid"),
            groups: only("x-remote-group"),
            prefixes: only("x-remote-extra-"),
        }
    }

    /// Whether a lower-case header name is one of them.
    pub fn has(&self, name: &str) -> bool {
        let all = self.names.iter().chain(&self.uids).chain(&self.groups);
        all.into_iter().any(|header| header == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// The identity in the headers of a request. Names are in lower case, in the order of their arrival. `None` without a user
    /// name.
    pub fn claimed<'a>(&self, headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Option<Identity> {
        let headers: Vec<_> = headers.filter(|(name, _)| self.has(name)).collect();
        let headers = headers.iter().copied();
        // The first of several equal headers is used, so that one appended later has no effect.
        let first =
            |header: &String| headers.clone().find(|(name, _)| name == header).map(|(_, value)| text(value));
        let first_nonempty =
            |names: &[String]| names.iter().filter_map(first).find(|value| !value.is_empty());
        let name = first_nonempty(&self.names)?;
        let values = |header: &String| {
            let header = header.clone();
            headers.clone().filter(move |(name, _)| *name == header).map(|(_, value)| text(value))
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
            uid: first_nonempty(&self.uids).unwrap_or_default(),
            groups: self.groups.iter().flat_map(values).filter(|group| !group.is_empty()).collect(),
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
            Err(reason) => Verification::Refused(reason),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claimed(headers: &Headers, request: &[(&str, &str)]) -> Option<Identity> {
        headers.claimed(request.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    fn strings(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn front_proxy_headers_yield_identity() {
        let headers = Headers::new(
            &strings(&["X-Remote-User", " X-Other "]),
            &strings(&["X-Remote-Uid"]),
            &strings(&["X-Remote-Group", "X-Team"]),
            &strings(&["X-Remote-Extra-", "x-more-"]),
        );
        let request = [
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
        let identity = claimed(&headers, &request).unwrap();
        assert_eq!(
            (identity.name.as_str(), identity.uid.as_str()),
            ("ann", "u"),
            "the first nonempty header"
        );
        assert_eq!(identity.groups, ["a", "b", "t"]);
        let extra: Vec<_> =
            identity.extra.iter().map(|(key, values)| (key.as_str(), values.join(","))).collect();
        let expected = [("%zz", "bad"), ("acme.com/project", "p"), ("scope", "1,2,3")];
        assert_eq!(extra, expected.map(|(key, values)| (key, values.to_owned())));
        assert_eq!(claimed(&headers, &[("x-remote-group", "a")]), None, "nobody without a name");
        assert_eq!(claimed(&headers, &[("x_remote_user", "eve"), ("x-remote-user2", "eve")]), None);
    }

    #[test]
    fn default_front_proxy_headers_are_recognized() {
        let standard = Headers::standard();
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-", "x-remote-extra-a"]
        {
            assert!(standard.has(name), "{name}");
        }
        assert!(!standard.has("x-remote-users") && !standard.has("authorization"));
    }

    proptest! {
        /// Whatever else is sent, the first value of the first nonempty header is the name.
        #[test]
        fn front_proxy_name_is_first_nonempty_user_header(
            before in prop::collection::vec(("[a-z_-]{1,12}", ".*"), 0..6),
            after in prop::collection::vec(("(x-remote-user|x_remote_user|[a-z-]{1,12})", ".*"), 0..6),
        ) {
            let before: Vec<_> = before.into_iter().filter(|(name, _)| name != "x-remote-user").collect();
            let user = [("x-remote-user".to_owned(), "ann".to_owned())];
            let request: Vec<_> = before.iter().chain(&user).chain(&after).collect();
            let request: Vec<_> = request.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            prop_assert_eq!(claimed(&Headers::standard(), &request).unwrap().name, "ann");
        }
    }
}
