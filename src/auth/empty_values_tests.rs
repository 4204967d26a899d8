//! The meaning of empty, absent and wildcard values in identities and permissions, one table for each source. An absent value
//! must match nobody and nothing, except where kube-apiserver differs.

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_actors::authorizer::Policy;
use pilothouse_apimachinery::well_known::{ANONYMOUS, AUTHENTICATED, NODES, UNAUTHENTICATED};
use pilothouse_authorization::rbac::index::{Index, RuleLookup, read_binding, read_role};
use pilothouse_authorization::rbac::role::Role;
use pilothouse_authorization::testing::{action, rule};
use pilothouse_types::authorization::{Action, Decision, Target};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::identity::{Credentials, Identity};

use super::abac::Abac;
use super::certificate::tests::{CertificateSpec, NOW, issue, root};
use super::front_proxy::{FrontProxy, Headers};
use super::impersonation::ImpersonatedUser;
use super::node::node_of;
use super::service_account::claims;
use super::token_file::TokenFile;

fn identity(name: &str, groups: &[&str]) -> Identity {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Identity { name: name.into(), groups, ..Identity::default() }
}

fn resolve_now<T>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(value) => value,
        Answer::Later(_) => panic!("the answer is not immediate"),
    }
}

fn path(verb: &str, path: &str) -> Action {
    Action { verb: verb.into(), target: Target::Path(path.into()) }
}

#[test]
fn binding_subject_without_name_or_kind_matches_nobody() {
    let account = r#"{"kind":"ServiceAccount","name":"s"}"#;
    let account_identity = |user: &'static str| identity(user, &[]);
    for (namespace, subjects, user, is_subject) in [
        ("", String::new(), identity("", &[""]), false),
        ("", r#"{"kind":"User","name":"ann"}"#.into(), identity("ann", &[]), true),
        // An empty name cannot be written. A stored one matches only the empty user name, not everybody.
        ("", r#"{"kind":"User","name":""}"#.into(), identity("ann", &[]), false),
        ("", r#"{"kind":"User"}"#.into(), identity("ann", &[]), false),
        ("", r#"{"kind":"User","name":"*"}"#.into(), identity("ann", &[]), false),
        ("", r#"{"kind":"User","name":"ann","namespace":"m"}"#.into(), identity("ann", &[]), true),
        ("", r#"{"kind":"Group","name":""}"#.into(), identity("ann", &[]), false),
        ("", r#"{"kind":"Group","name":"*"}"#.into(), identity("ann", &["devs"]), false),
        ("", r#"{"kind":"Group","name":"ann"}"#.into(), identity("ann", &[]), false),
        ("", r#"{"kind":"User","name":"devs"}"#.into(), identity("ann", &["devs"]), false),
        ("", r#"{"name":"ann"}"#.into(), identity("ann", &[]), false),
        ("", r#"{"kind":"user","name":"ann"}"#.into(), identity("ann", &[]), false),
        // A service account without a namespace is in the binding's namespace; in a ClusterRoleBinding it matches nobody.
        ("", account.into(), account_identity("system:serviceaccount::s"), false),
        ("", account.into(), account_identity("system:serviceaccount:n:s"), false),
        ("n", account.into(), account_identity("system:serviceaccount:n:s"), true),
        ("n", account.into(), account_identity("system:serviceaccount:m:s"), false),
        ("n", account.into(), account_identity("s"), false),
        ("n", r#"{"kind":"ServiceAccount"}"#.into(), account_identity("system:serviceaccount:n:s"), false),
        (
            "n",
            r#"{"kind":"ServiceAccount","name":"*"}"#.into(),
            account_identity("system:serviceaccount:n:s"),
            false,
        ),
    ] {
        let mut index = Index::default();
        index.put_role("", "r", Role::new(vec![rule("get", "core", "pods", "")]));
        let text = format!(r#"{{"roleRef":{{"kind":"ClusterRole","name":"r"}},"subjects":[{subjects}]}}"#);
        index.put_binding(read_binding(namespace, "b", text.as_bytes()).unwrap());
        let lookup = index.decide(&user, &action("get", "", "pods", "n", "a"));
        assert_eq!(matches!(lookup, RuleLookup::Allowed(_)), is_subject, "{namespace:?} {subjects} {user:?}");
    }
    let malformed =
        br#"{"roleRef":{"kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":null}]}"#;
    assert!(read_binding("", "b", malformed).is_none(), "an unreadable binding binds nobody");
}

#[test]
fn role_rule_with_empty_field_matches_nothing() {
    let (pods, nameless) = (action("get", "", "pods", "n", "a"), action("get", "", "pods", "n", ""));
    for (rules, action, is_allowed) in [
        ("", pods.clone(), false),
        ("{}", pods.clone(), false),
        (r#"{"verbs":["*"]}"#, pods.clone(), false),
        (r#"{"verbs":["*"],"resources":["*"]}"#, pods.clone(), false),
        (r#"{"verbs":["*"],"apiGroups":["*"]}"#, pods.clone(), false),
        (r#"{"apiGroups":["*"],"resources":["*"]}"#, pods.clone(), false),
        (r#"{"verbs":[""],"apiGroups":[""],"resources":["pods"]}"#, pods.clone(), false),
        (r#"{"verbs":["get"],"apiGroups":[""],"resources":[""]}"#, pods.clone(), false),
        (r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods/"]}"#, pods.clone(), false),
        (r#"{"verbs":["get"],"apiGroups":[""],"resources":["*/"]}"#, pods.clone(), false),
        (r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}"#, pods.clone(), true),
        // The empty group is only the core group.
        (r#"{"verbs":["*"],"apiGroups":[""],"resources":["*"]}"#, action("get", "apps", "x", "", ""), false),
        // No resourceNames allow all names; the empty name is that of requests without one.
        (r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"resourceNames":[]}"#, pods.clone(), true),
        (r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"resourceNames":null}"#, pods.clone(), true),
        (r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"resourceNames":[""]}"#, pods.clone(), false),
        (
            r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"resourceNames":[""]}"#,
            nameless.clone(),
            true,
        ),
        (r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"resourceNames":["*"]}"#, pods, false),
        (r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"resourceNames":["a"]}"#, nameless, false),
        (r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}"#, path("get", "/x"), false),
        (r#"{"verbs":["get"],"nonResourceURLs":[""]}"#, path("get", "/x"), false),
        (r#"{"nonResourceURLs":["*"]}"#, path("get", "/x"), false),
        (r#"{"verbs":["get"],"nonResourceURLs":["*"]}"#, path("get", "/x"), true),
    ] {
        let mut index = Index::default();
        index.put_role("", "r", read_role(format!(r#"{{"rules":[{rules}]}}"#).as_bytes()).unwrap());
        let binding =
            br#"{"roleRef":{"kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":"u"}]}"#;
        index.put_binding(read_binding("", "b", binding).unwrap());
        let lookup = index.decide(&identity("u", &[]), &action);
        assert_eq!(matches!(lookup, RuleLookup::Allowed(_)), is_allowed, "{rules} {action:?}");
    }
}

#[test]
fn node_and_service_account_names_with_empty_parts_are_not_parsed() {
    for (name, groups, node) in [
        ("system:node:a", &[NODES][..], Some("a")),
        ("system:node:a", &[], None),
        ("system:node:a", &[""], None),
        // A node, but an unknown one: the Node authorizer allows it nothing and NodeRestriction refuses its writes.
        ("system:node:", &[NODES], Some("")),
        ("system:node", &[NODES], None),
        ("", &[NODES], None),
    ] {
        assert_eq!(node_of(&identity(name, groups)), node, "{name} {groups:?}");
    }
    for (user, account) in [
        ("system:serviceaccount:n:s", Some(("n", "s"))),
        ("system:serviceaccount::", None),
        ("system:serviceaccount::s", None),
        ("system:serviceaccount:n:", None),
        ("system:serviceaccount:n", None),
        ("system:serviceaccount:n:s:x", None),
        ("system:serviceaccount:*:*", None),
        ("", None),
    ] {
        assert_eq!(claims::parse_user(user), account, "{user}");
    }
}

#[test]
fn token_file_ignores_empty_tokens_and_groups() {
    let file =
        TokenFile::parse(",root,0,system:masters\n\"\",root,0\nt,,\nu,ann,1,\nv,bob,2,\",,devs,\"").unwrap();
    let lookup = |token: &str| {
        let credentials = Credentials { bearer: Some(token.to_owned()), ..Credentials::default() };
        match resolve_now(file.verify(&credentials)) {
            Verification::Known(identity) => Some((identity.name.clone(), identity.groups.clone())),
            _ => None,
        }
    };
    assert_eq!(lookup(""), None, "an empty token is nobody's");
    assert_eq!(lookup("t"), Some((String::new(), vec![])), "a user without a name, whom no binding can name");
    assert_eq!(lookup("u"), Some(("ann".into(), vec![])));
    assert_eq!(lookup("v"), Some(("bob".into(), vec!["devs".into()])));
}

#[test]
fn front_proxy_headers_without_user_name_claim_nobody() {
    let claimed = |headers: &[(&str, &str)]| {
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        Headers::standard().claimed(headers).map(|identity| (identity.name, identity.groups))
    };
    let (user, group) = ("x-remote-user", "x-remote-group");
    for nobody in [&[][..], &[(user, "")], &[(group, "system:masters")], &[(user, ""), (group, "g")]] {
        assert_eq!(claimed(nobody), None, "{nobody:?}");
    }
    assert_eq!(claimed(&[(user, ""), (user, "eve")]), None, "the first counts");
    assert_eq!(claimed(&[(user, "ann"), (group, "")]), Some(("ann".into(), vec![])));
    assert_eq!(claimed(&[(user, "*"), (group, "*")]), Some(("*".into(), vec!["*".into()])));
}

#[test]
fn front_proxy_certificate_needs_trusted_ca_and_allowed_name() {
    let (authority, stranger) = (root("proxies"), root("others"));
    let claimed = Arc::new(identity("ann", &[]));
    let verdict = |allowed: &[&str], subject: &[(&str, &str)], issuer, claimed: Option<&Arc<Identity>>| {
        let clock = Clock::manual(Timestamp(NOW * 1_000_000));
        let allowed = allowed.iter().map(|name| (*name).to_owned()).collect();
        let proxy = FrontProxy::new(&authority.certificate.to_pem().unwrap(), allowed, clock).unwrap();
        let certificate = issue(&CertificateSpec { subject, ..CertificateSpec::default() }, Some(issuer))
            .certificate
            .to_der()
            .unwrap();
        let certificates: Arc<[Vec<u8>]> = [certificate].into();
        let claimed = claimed.cloned();
        resolve_now(proxy.verify(&Credentials {
            certificates: Some(certificates),
            claimed,
            ..Credentials::default()
        }))
    };
    let proxy: &[(&str, &str)] = &[("CN", "proxy")];
    let nameless: &[(&str, &str)] = &[("O", "proxy")];
    assert_eq!(verdict(&["proxy"], proxy, &authority, None), Verification::NoOpinion, "no identity headers");
    for (allowed, subject, issuer, is_accepted) in [
        (&["proxy"][..], proxy, &authority, true),
        (&["proxy"], proxy, &stranger, false),
        (&["other"], proxy, &authority, false),
        (&["*"], proxy, &authority, false),
        (&["proxy"], nameless, &authority, false),
        // An empty list allows all names, and certificates without one; an empty flag is an empty list.
        (&[], proxy, &authority, true),
        (&[], nameless, &authority, true),
        (&[], proxy, &stranger, false),
    ] {
        let verification = verdict(allowed, subject, issuer, Some(&claimed));
        assert_eq!(
            matches!(verification, Verification::Known(_)),
            is_accepted,
            "{allowed:?} {subject:?}: {verification:?}"
        );
    }
}

#[test]
fn impersonation_headers_without_user_are_refused() {
    let parse = |headers: &[(&str, &str)]| ImpersonatedUser::from_headers(headers.iter().copied());
    for nobody in [&[][..], &[("user", "")], &[("user", ""), ("uid", "")], &[("other", "x")]] {
        assert_eq!(parse(nobody).unwrap(), None, "{nobody:?}: the request is the caller's own");
    }
    for refused in
        [&[("group", "")][..], &[("user", ""), ("group", "g")], &[("extra-a", "")], &[("uid", "u")]]
    {
        assert!(parse(refused).is_err(), "{refused:?}: a part is requested without a user");
    }
    // Stricter than kube-apiserver, which acts as the caller if the first of several users is empty.
    assert!(parse(&[("user", ""), ("user", "ann")]).unwrap().is_some());
    let group = parse(&[("user", "ann"), ("group", "")]).unwrap().unwrap();
    let requires_group = |action: &Action| matches!(&action.target, Target::Resource { resource, name, .. } if resource == "groups" && name.is_empty());
    assert!(group.actions().iter().any(requires_group), "the group without a name needs a right, too");
    assert_eq!(group.into_identity().groups, ["", AUTHENTICATED]);
    let account = parse(&[("user", "system:serviceaccount:n:s"), ("group", "")]).unwrap().unwrap();
    assert_eq!(
        account.into_identity().groups,
        ["", AUTHENTICATED],
        "a group was named, so no others are added"
    );
    let malformed = parse(&[("user", "system:serviceaccount::s")]).unwrap().unwrap();
    let requires_user =
        |action: &Action| matches!(&action.target, Target::Resource { resource, .. } if resource == "users");
    assert!(malformed.actions().iter().all(requires_user), "no account has such a name");
}

#[test]
fn abac_policy_with_empty_fields_matches_only_empty_values() {
    let versioned = |spec: &str| {
        format!(
            r#"{{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{{{spec}}}}}"#
        )
    };
    let all = r#""namespace":"*","resource":"*","apiGroup":"*","nonResourcePath":"*""#;
    let ann = || identity("ann", &["devs", AUTHENTICATED]);
    let anonymous = || identity(ANONYMOUS, &[UNAUTHENTICATED]);
    let pods = || action("get", "", "pods", "n", "a");
    for (line, user, action, is_allowed) in [
        (String::new(), ann(), pods(), false),
        // A line without user and group matches nobody.
        (versioned(all), ann(), pods(), false),
        (versioned(all), identity("", &[""]), pods(), false),
        (versioned(&format!(r#"{all},"user":"","group":"""#)), identity("", &[""]), pods(), false),
        (versioned(&format!(r#"{all},"user":"ann","group":"ops""#)), ann(), pods(), false),
        (versioned(&format!(r#"{all},"user":"ann","group":"""#)), ann(), pods(), true),
        // A wildcard matches everybody, including unauthenticated users.
        (versioned(&format!(r#"{all},"user":"*""#)), anonymous(), pods(), true),
        (versioned(&format!(r#"{all},"group":"*""#)), anonymous(), pods(), true),
        // An absent field matches only requests without that value.
        (versioned(r#""user":"ann""#), ann(), pods(), false),
        (versioned(r#""user":"ann""#), ann(), path("get", "/x"), false),
        (versioned(r#""user":"ann","namespace":"*","apiGroup":"*""#), ann(), pods(), false),
        (versioned(r#""user":"ann","resource":"*","apiGroup":"*""#), ann(), pods(), false),
        (
            versioned(r#""user":"ann","resource":"*","apiGroup":"*""#),
            ann(),
            action("get", "", "nodes", "", ""),
            true,
        ),
        (versioned(r#""user":"ann","resource":"*","namespace":"*""#), ann(), pods(), true),
        (
            versioned(r#""user":"ann","resource":"*","namespace":"*""#),
            ann(),
            action("get", "apps", "deployments", "n", "a"),
            false,
        ),
        (versioned(r#""user":"ann","resource":"*","namespace":"*""#), ann(), path("get", "/x"), false),
        // In unversioned lines an absent field matches everything, as in kube-apiserver: all authenticated users.
        ("{}".into(), ann(), pods(), true),
        ("{}".into(), ann(), path("get", "/x"), true),
        ("{}".into(), anonymous(), pods(), false),
        (r#"{"user":"*"}"#.into(), anonymous(), pods(), false),
        (r#"{"group":"*"}"#.into(), anonymous(), pods(), false),
        (r#"{"user":"bob"}"#.into(), ann(), pods(), false),
        (r#"{"user":"ann","resource":"pods"}"#.into(), ann(), path("get", "/x"), false),
        (r#"{"user":"ann","namespace":"n"}"#.into(), ann(), path("get", "/x"), false),
    ] {
        let decision = resolve_now(Abac::parse(&line).unwrap().decide(&user, &action));
        assert_eq!(decision == Decision::Allowed, is_allowed, "{line} {user:?} {action:?}");
    }
}
