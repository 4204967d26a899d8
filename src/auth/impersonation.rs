//! Impersonation: parses the headers, lists the required permissions, and makes the impersonated identity.
//!
//! Each part of the identity needs a permission of its own. Free of I/O: the caller asks the authorizer.

use std::collections::BTreeMap;

use pilothouse_apimachinery::query;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::well_known::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED};
use pilothouse_authorization::reviews::IDENTITY_GROUP;
use pilothouse_types::authorization::{Action, Target};
use pilothouse_types::identity::Identity;

use crate::auth::service_account::claims;

/// The prefix of the headers, in lower case.
pub const PREFIX: &str = "impersonate-";
const USER: &str = "user";
const GROUP: &str = "group";
const UID: &str = "uid";
const EXTRA: &str = "extra-";

/// The requested identity.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImpersonatedUser {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl ImpersonatedUser {
    /// Parses the headers: lower-case names without [`PREFIX`], and values. `None` without any. Other parts without a user are an
    /// error.
    pub fn from_headers<'a>(
        headers: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Option<ImpersonatedUser>> {
        let mut user = ImpersonatedUser::default();
        for (name, value) in headers {
            // The first of several equal headers is used, as in kube-apiserver.
            match name {
                USER if user.user.is_empty() => value.clone_into(&mut user.user),
                UID if user.uid.is_empty() => value.clone_into(&mut user.uid),
                GROUP => user.groups.push(value.to_owned()),
                _ => {
                    if let Some(key) = name.strip_prefix(EXTRA) {
                        user.extra.entry(decode_extra_key(key)).or_default().push(value.to_owned());
                    }
                }
            }
        }
        if !user.user.is_empty() {
            return Ok(Some(user));
        }
        let parts: Vec<&str> = [
            (!user.groups.is_empty()).then_some("groups"),
            (!user.extra.is_empty()).then_some("extra"),
            (!user.uid.is_empty()).then_some("a uid"),
        ]
        .into_iter()
        .flatten()
        .collect();
        match parts.as_slice() {
            [] => Ok(None),
            parts => Err(Status::bad_request(format!(
                "requested {} without impersonating a user",
                parts.join(" and ")
            ))),
        }
    }

    /// The permissions that the caller needs, in the order in which they are checked.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions = vec![match claims::parse_user(&self.user) {
            Some((namespace, name)) => {
                impersonate(&Impersonated { resource: "serviceaccounts", namespace, name, ..CORE })
            }
            None => impersonate(&Impersonated { resource: "users", name: &self.user, ..CORE }),
        }];
        for name in &self.groups {
            actions.push(impersonate(&Impersonated { resource: "groups", name, ..CORE }));
        }
        for (subresource, values) in &self.extra {
            for name in values {
                let resource = "userextras";
                actions.push(impersonate(&Impersonated { resource, subresource, name, ..IDENTITY }));
            }
        }
        if !self.uid.is_empty() {
            actions.push(impersonate(&Impersonated { resource: "uids", name: &self.uid, ..IDENTITY }));
        }
        actions
    }

    /// The impersonated identity. It has exactly the named groups, plus system:authenticated or system:unauthenticated.
    pub fn into_identity(self) -> Identity {
        let mut groups = self.groups;
        if groups.is_empty()
            && let Some((namespace, name)) = claims::parse_user(&self.user)
        {
            groups = claims::account(namespace, name, "").groups;
        }
        let is_in = |group: &str| groups.iter().any(|known| known == group);
        let missing = match self.user.as_str() {
            ANONYMOUS => (!is_in(UNAUTHENTICATED)).then_some(UNAUTHENTICATED),
            _ => (!is_in(AUTHENTICATED) && !is_in(UNAUTHENTICATED)).then_some(AUTHENTICATED),
        };
        groups.extend(missing.map(str::to_owned));
        Identity { name: self.user, uid: self.uid, groups, extra: self.extra }
    }
}

/// A part of an impersonated identity, as permissions name it.
struct Impersonated<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

/// Parts that permissions name in the core group.
const CORE: Impersonated<'_> =
    Impersonated { group: "", version: "", resource: "", subresource: "", namespace: "", name: "" };
/// Parts that permissions name in the group of authentication.
const IDENTITY: Impersonated<'_> = Impersonated { group: IDENTITY_GROUP, version: "v1", ..CORE };

fn impersonate(part: &Impersonated<'_>) -> Action {
    let Impersonated { group, version, resource, subresource, namespace, name } = *part;
    let target = Target::Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    Action { verb: "impersonate".to_owned(), target }
}

/// A percent-decoded key. One that cannot be decoded is taken as it is.
fn decode_extra_key(key: &str) -> String {
    query::unescape(key, false).map_or_else(|| key.to_owned(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(headers: &[(&str, &str)]) -> Result<Option<ImpersonatedUser>> {
        ImpersonatedUser::from_headers(headers.iter().copied())
    }

    fn impersonated_identity(headers: &[(&str, &str)]) -> Identity {
        parse(headers).unwrap().unwrap().into_identity()
    }

    fn required_actions(headers: &[(&str, &str)]) -> Vec<String> {
        let render = |action: Action| match action.target {
            Target::Resource { resource, subresource, namespace, name, .. } => {
                format!("{resource} {subresource} {namespace} {name}")
            }
            Target::Path(path) => path,
        };
        parse(headers).unwrap().unwrap().actions().into_iter().map(render).collect()
    }

    #[test]
    fn impersonation_requires_permission_for_each_part() {
        let headers = [
            ("uid", "u"),
            ("extra-b%2fc", "2"),
            ("group", "g"),
            ("user", "ann"),
            ("group", "h"),
            ("extra-a", "1"),
        ];
        let expected =
            ["users   ann", "groups   g", "groups   h", "userextras a  1", "userextras b/c  2", "uids   u"];
        assert_eq!(required_actions(&headers), expected);
        assert_eq!(required_actions(&[("user", "system:serviceaccount:n:a")]), ["serviceaccounts  n a"]);
        assert_eq!(
            required_actions(&[("user", "system:serviceaccount:n")]),
            ["users   system:serviceaccount:n"]
        );
    }

    #[test]
    fn impersonation_without_user_is_refused_unless_no_header_is_set() {
        assert_eq!(parse(&[]).unwrap(), None);
        assert_eq!(parse(&[("user", "")]).unwrap(), None);
        let error = parse(&[("group", "g"), ("uid", "u")]).unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (400, "requested groups and a uid without impersonating a user")
        );
    }

    #[test]
    fn impersonated_identity_gets_authenticated_group() {
        assert_eq!(impersonated_identity(&[("user", "ann")]).groups, [AUTHENTICATED]);
        assert_eq!(impersonated_identity(&[("user", "ann"), ("group", "g")]).groups, ["g", AUTHENTICATED]);
        assert_eq!(
            impersonated_identity(&[("user", "ann"), ("group", AUTHENTICATED)]).groups,
            [AUTHENTICATED]
        );
        assert_eq!(
            impersonated_identity(&[("user", "ann"), ("group", UNAUTHENTICATED)]).groups,
            [UNAUTHENTICATED]
        );
        assert_eq!(impersonated_identity(&[("user", ANONYMOUS)]).groups, [UNAUTHENTICATED]);
        assert_eq!(
            impersonated_identity(&[("user", ANONYMOUS), ("group", AUTHENTICATED)]).groups,
            [AUTHENTICATED, UNAUTHENTICATED]
        );
        let account = impersonated_identity(&[("user", "system:serviceaccount:n:a")]);
        assert_eq!(account.groups, ["system:serviceaccounts", "system:serviceaccounts:n", AUTHENTICATED]);
        assert_eq!(
            impersonated_identity(&[("user", "system:serviceaccount:n:a"), ("group", "g")]).groups,
            ["g", AUTHENTICATED]
        );
    }
}
