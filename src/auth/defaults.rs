//! What everybody may do: health, version and discovery, as the default roles of the reference grant them.

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::{Action, Decision, Policy, Target};
use pilothouse_actors::identity::Identity;

use crate::api::words::{AUTHENTICATED, UNAUTHENTICATED};
use crate::auth::service_account::claims::ALL_ACCOUNTS;

/// A grant of read access to paths. A path that ends in `/*` stands for everything below it.
struct PathGrant {
    groups: &'static [&'static str],
    paths: &'static [&'static str],
}

/// The default roles that speak of paths: `system:public-info-viewer`, `system:discovery` and
/// `system:service-account-issuer-discovery`.
const PATH_GRANTS: [PathGrant; 3] = [
    PathGrant {
        groups: &[AUTHENTICATED, UNAUTHENTICATED],
        paths: &["/healthz", "/livez", "/readyz", "/version", "/version/"],
    },
    PathGrant {
        groups: &[AUTHENTICATED],
        paths: &["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"],
    },
    PathGrant {
        groups: &[ALL_ACCOUNTS],
        paths: &[
            "/.well-known/openid-configuration",
            "/.well-known/openid-configuration/",
            "/openid/v1/jwks",
            "/openid/v1/jwks/",
        ],
    },
];

/// The grants of the default roles.
pub struct DefaultRoles;

impl Policy for DefaultRoles {
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision> {
        let Target::Path(path) = &action.target else {
            return Answer::Now(Decision::NoOpinion(String::new()));
        };
        let allowed = action.verb == "get"
            && PATH_GRANTS.iter().any(|grant| {
                grant.paths.iter().any(|granted| covers(granted, path))
                    && identity.groups.iter().any(|group| grant.groups.contains(&group.as_str()))
            });
        Answer::Now(if allowed { Decision::Allowed } else { Decision::NoOpinion(String::new()) })
    }
}

fn covers(granted: &str, path: &str) -> bool {
    match granted.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => granted == path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_covers_what_is_below() {
        assert!(covers("/api/*", "/api/v1"));
        assert!(covers("/api/*", "/api/"));
        assert!(!covers("/api/*", "/api"));
        assert!(!covers("/livez", "/livez/etcd"));
    }
}
