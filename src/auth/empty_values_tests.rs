//! What empty, absent and wildcard values mean in identities and permissions, one table for each source. Whatever is left out
//! must mean nobody or nothing, except where the reference says otherwise.

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
use super::certificate::tests::{NOW, Says, party, root};
use super::front_proxy::{FrontProxy, Headers};
use super::impersonation::ImpersonatedUser;
use super::node::node_of;
use super::service_account::claims;
use super::token_file::TokenFile;

fn who(name: &str, groups: &[&str]) -> Identity {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Identity { name: name.into(), groups, ..Identity::default() }
}

fn now<T>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(known) => known,
        Answer::Later(_) => panic!("at once"),
    }
}

fn path(verb: &str, path: &str) -> Action {
    Action { verb: verb.into(), target: Target::Path(path.into()) }
}

#[test]
fn subjects_of_bindings() {
    let account = r#"{"kind":"ServiceAccount","name":"s"}"#;
    let of_account = |user: &'static str| who(user, &[]);
    for (namespace, subjects, user, is_meant) in [
        ("", String::new(), who("", &[""]), false),
        ("", r#"{"kind":"User","name":"ann"}"#.into(), who("ann", &[]), true),
        // Writing an empty name is refused. A stored one means who has that name, and not everybody.
        ("", r#"{"kind":"User","name":""}"#.into(), who("ann", &[]), false),
        ("", r#"{"kind":"User"}"#.into(), who("ann", &[]), false),
        ("", r#"{"kind":"User","name":"*"}"#.into(), who("ann", &[]), false),
        ("", r#"{"kind":"User","name":"ann","namespace":"m"}"#.into(), who("ann", &[]), true),
        ("", r#"{"kind":"Group","name":""}"#.into(), who("ann", &[]), false),
        ("", r#"{"kind":"Group","name":"*"}"#.into(), who("ann", &["devs"]), false),
        ("", r#"{"kind":"Group","name":"ann"}"#.into(), who("ann", &[]), false),
        ("", r#"{"kind":"User","name":"devs"}"#.into(), who("ann", &["devs"]), false),
        ("", r#"{"name":"ann"}"#.into(), who("ann", &[]), false),
        ("", r#"{"kind":"user","name":"ann"}"#.into(), who("ann", &[]), false),
        // An account without a namespace is one of the binding's namespace, and nobody if that has none.
        ("", account.into(), of_account("system:serviceaccount::s"), false),
        ("", account.into(), of_account("system:serviceaccount:n:s"), false),
        ("n", account.into(), of_account("system:serviceaccount:n:s"), true),
        ("n", account.into(), of_account("system:serviceaccount:m:s"), false),
        ("n", account.into(), of_account("s"), false),
        ("n", r#"{"kind":"ServiceAccount"}"#.into(), of_account("system:serviceaccount:n:s"), false),
        (
            "n",
            r#"{"kind":"ServiceAccount","name":"*"}"#.into(),
            of_account("system:serviceaccount:n:s"),
            false,
        ),
    ] {
        let mut index = Index::default();
        index.put_role("", "r", Role::new(vec![rule("get", "core", "pods", "")]));
        let text = format!(r#"{{"roleRef":{{"kind":"ClusterRole","name":"r"}},"subjects":[{subjects}]}}"#);
        index.put_binding(read_binding(namespace, "b", text.as_bytes()).unwrap());
        let found = index.decide(&user, &action("get", "", "pods", "n", "a"));
        assert_eq!(matches!(found, RuleLookup::Allowed(_)), is_meant, "{namespace:?} {subjects} {user:?}");
    }
    let odd = br#"{"roleRef":{"kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":null}]}"#;
    assert!(read_binding("", "b", odd).is_none(), "what cannot be read binds nobody");
}

#[test]
fn rules_of_roles() {
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
        // The empty group is the core group, and no others.
        (r#"{"verbs":["*"],"apiGroups":[""],"resources":["*"]}"#, action("get", "apps", "x", "", ""), false),
        // No names are all names; the empty name is that of requests without one.
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
        let found = index.decide(&who("u", &[]), &action);
        assert_eq!(matches!(found, RuleLookup::Allowed(_)), is_allowed, "{rules} {action:?}");
    }
}

#[test]
fn names_of_nodes_and_accounts() {
    for (name, groups, node) in [
        ("system:node:a", &[NODES][..], Some("a")),
        ("system:node:a", &[], None),
        ("system:node:a", &[""], None),
        // A node, but an unknown one: the Node authorizer allows it nothing and NodeRestriction refuses its writes.
        ("system:node:", &[NODES], Some("")),
        ("system:node", &[NODES], None),
        ("", &[NODES], None),
    ] {
        assert_eq!(node_of(&who(name, groups)), node, "{name} {groups:?}");
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
        assert_eq!(claims::split(user), account, "{user}");
    }
}

#[test]
fn lines_of_token_files() {
    let file =
        TokenFile::parse(",root,0,system:masters\n\"\",root,0\nt,,\nu,ann,1,\nv,bob,2,\",,devs,\"").unwrap();
    let found = |token: &str| {
        let credentials = Credentials { bearer: Some(token.to_owned()), ..Credentials::default() };
        match now(file.verify(&credentials)) {
            Verification::Known(identity) => Some((identity.name.clone(), identity.groups.clone())),
            _ => None,
        }
    };
    assert_eq!(found(""), None, "an empty token is nobody's");
    assert_eq!(found("t"), Some((String::new(), vec![])), "a user without a name, whom no binding can name");
    assert_eq!(found("u"), Some(("ann".into(), vec![])));
    assert_eq!(found("v"), Some(("bob".into(), vec!["devs".into()])));
}

#[test]
fn headers_of_front_proxies() {
    let claimed = |sent: &[(&str, &str)]| {
        let sent = sent.iter().map(|(name, value)| (*name, value.as_bytes()));
        Headers::usual().claimed(sent).map(|identity| (identity.name, identity.groups))
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
fn certificates_of_front_proxies() {
    let (authority, stranger) = (root("proxies"), root("others"));
    let claimed = Arc::new(who("ann", &[]));
    let verdict = |allowed: &[&str], subject: &[(&str, &str)], issuer, claimed: Option<&Arc<Identity>>| {
        let clock = Clock::manual(Timestamp(NOW * 1_000_000));
        let allowed = allowed.iter().map(|name| (*name).to_owned()).collect();
        let proxy = FrontProxy::new(&authority.certificate.to_pem().unwrap(), allowed, clock).unwrap();
        let shown = party(&Says { subject, ..Says::default() }, Some(issuer)).certificate.to_der().unwrap();
        let certificates: Arc<[Vec<u8>]> = [shown].into();
        let claimed = claimed.cloned();
        now(proxy.verify(&Credentials {
            certificates: Some(certificates),
            claimed,
            ..Credentials::default()
        }))
    };
    let proxy: &[(&str, &str)] = &[("CN", "proxy")];
    let nameless: &[(&str, &str)] = &[("O", "proxy")];
    assert_eq!(verdict(&["proxy"], proxy, &authority, None), Verification::NoOpinion, "it claims nothing");
    for (allowed, subject, issuer, speaks) in [
        (&["proxy"][..], proxy, &authority, true),
        (&["proxy"], proxy, &stranger, false),
        (&["other"], proxy, &authority, false),
        (&["*"], proxy, &authority, false),
        (&["proxy"], nameless, &authority, false),
        // An empty list allows all names, and also none; an empty flag is an empty list.
        (&[], proxy, &authority, true),
        (&[], nameless, &authority, true),
        (&[], proxy, &stranger, false),
    ] {
        let found = verdict(allowed, subject, issuer, Some(&claimed));
        assert_eq!(matches!(found, Verification::Known(_)), speaks, "{allowed:?} {subject:?}: {found:?}");
    }
}

#[test]
fn headers_of_impersonation() {
    let found = |headers: &[(&str, &str)]| ImpersonatedUser::of(headers.iter().copied());
    for nobody in [&[][..], &[("user", "")], &[("user", ""), ("uid", "")], &[("other", "x")]] {
        assert_eq!(found(nobody).unwrap(), None, "{nobody:?}: the request is the caller's own");
    }
    for refused in
        [&[("group", "")][..], &[("user", ""), ("group", "g")], &[("extra-a", "")], &[("uid", "u")]]
    {
        assert!(found(refused).is_err(), "{refused:?}: something is asked for, and nobody named");
    }
    // Stricter than the reference, which acts as the caller if the first of several users is empty.
    assert!(found(&[("user", ""), ("user", "ann")]).unwrap().is_some());
    let group = found(&[("user", "ann"), ("group", "")]).unwrap().unwrap();
    let is_of_group = |action: &Action| matches!(&action.target, Target::Resource { resource, name, .. } if resource == "groups" && name.is_empty());
    assert!(group.actions().iter().any(is_of_group), "the group without a name needs a right, too");
    assert_eq!(group.into_identity().groups, ["", AUTHENTICATED]);
    let account = found(&[("user", "system:serviceaccount:n:s"), ("group", "")]).unwrap().unwrap();
    assert_eq!(
        account.into_identity().groups,
        ["", AUTHENTICATED],
        "a group was named, so no others are added"
    );
    let odd = found(&[("user", "system:serviceaccount::s")]).unwrap().unwrap();
    let is_of_user =
        |action: &Action| matches!(&action.target, Target::Resource { resource, .. } if resource == "users");
    assert!(odd.actions().iter().all(is_of_user), "no account has such a name");
}

#[test]
fn lines_of_abac_policies() {
    let versioned = |spec: &str| {
        format!(
            r#"{{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{{{spec}}}}}"#
        )
    };
    let all = r#""namespace":"*","resource":"*","apiGroup":"*","nonResourcePath":"*""#;
    let ann = || who("ann", &["devs", AUTHENTICATED]);
    let anonymous = || who(ANONYMOUS, &[UNAUTHENTICATED]);
    let pods = || action("get", "", "pods", "n", "a");
    for (line, user, action, is_allowed) in [
        (String::new(), ann(), pods(), false),
        // A line that names nobody means nobody.
        (versioned(all), ann(), pods(), false),
        (versioned(all), who("", &[""]), pods(), false),
        (versioned(&format!(r#"{all},"user":"","group":"""#)), who("", &[""]), pods(), false),
        (versioned(&format!(r#"{all},"user":"ann","group":"ops""#)), ann(), pods(), false),
        (versioned(&format!(r#"{all},"user":"ann","group":"""#)), ann(), pods(), true),
        // A wildcard means everybody, also those who are not authenticated.
        (versioned(&format!(r#"{all},"user":"*""#)), anonymous(), pods(), true),
        (versioned(&format!(r#"{all},"group":"*""#)), anonymous(), pods(), true),
        // What is left out matches only what has none.
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
        // In lines without a version what is left out matches everything, as in the reference: all authenticated users.
        ("{}".into(), ann(), pods(), true),
        ("{}".into(), ann(), path("get", "/x"), true),
        ("{}".into(), anonymous(), pods(), false),
        (r#"{"user":"*"}"#.into(), anonymous(), pods(), false),
        (r#"{"group":"*"}"#.into(), anonymous(), pods(), false),
        (r#"{"user":"bob"}"#.into(), ann(), pods(), false),
        (r#"{"user":"ann","resource":"pods"}"#.into(), ann(), path("get", "/x"), false),
        (r#"{"user":"ann","namespace":"n"}"#.into(), ann(), path("get", "/x"), false),
    ] {
        let decision = now(Abac::parse(&line).unwrap().decide(&user, &action));
        assert_eq!(decision == Decision::Allowed, is_allowed, "{line} {user:?} {action:?}");
    }
}
