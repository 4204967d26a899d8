use pilothouse_apimachinery::testing::object;
use proptest::prelude::*;

use super::super::{Tally, USUAL};
use super::*;

const PODS: GroupResource<'_> = GroupResource { group: "", resource: "pods" };
const CLAIMS: GroupResource<'_> = GroupResource { group: "", resource: "persistentvolumeclaims" };
const SERVICES: GroupResource<'_> = GroupResource { group: "", resource: "services" };
const SECRETS: GroupResource<'_> = GroupResource { group: "", resource: "secrets" };

/// A quota that is about everything, `{"hard":{},"used":{}}`.
fn quota(name: &str, status: &str) -> Quota {
    scoped(name, status, "{}")
}

fn scoped(name: &str, status: &str, spec: &str) -> Quota {
    Quota::read(&object(&format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec},"status":{status}}}"#)))
}

fn create<'a>(of: GroupResource<'a>, new: &'a Value) -> Request<'a> {
    Request { of, subresource: "", change: Change::Create, new, old: &Value::Null, now: 0 }
}

fn update<'a>(of: GroupResource<'a>, subresource: &'a str, new: &'a Value, old: &'a Value) -> Request<'a> {
    Request { of, subresource, change: Change::Update, new, old, now: 0 }
}

fn pod(requests: &str) -> Value {
    object(&format!(
        r#"{{"spec":{{"containers":[{{"name":"c","resources":{{"requests":{{{requests}}}}}}}]}}}}"#
    ))
}

fn claim(size: &str) -> Value {
    object(&format!(r#"{{"spec":{{"resources":{{"requests":{{"storage":"{size}"}}}}}}}}"#))
}

/// What comes of a check, as text.
fn outcome(quotas: &[Quota], request: &Request<'_>, limited: &[Limited]) -> String {
    match check(quotas, request, limited, USUAL) {
        Err(Refusal::Forbidden(why) | Refusal::Uncovered(why)) => why,
        Ok(charges) => {
            let shown = charges.iter().map(|(index, used)| {
                let used: Vec<String> =
                    used.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
                format!("{}: {}", quotas[*index].name, used.join(","))
            });
            shown.collect::<Vec<_>>().join("; ")
        }
    }
}

#[test]
fn creates_are_charged_until_the_quota_is_used_up() {
    let full = r#"{"hard":{"pods":"2","requests.cpu":"1","services":"1"},"used":{"pods":"2","requests.cpu":"900m","services":"0"}}"#;
    let free = r#"{"hard":{"pods":"2","requests.cpu":"1"},"used":{"pods":"1","requests.cpu":"0"}}"#;
    let (small, large) = (pod(r#""cpu":"100m""#), pod(r#""cpu":"2""#));
    for (status, new, wanted) in [
        (free, &small, "q: pods=2,requests.cpu=100m"),
        (
            free,
            &large,
            "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1",
        ),
        (full, &small, "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"),
        (
            full,
            &large,
            "exceeded quota: q, requested: pods=1,requests.cpu=2, used: pods=2,requests.cpu=900m, limited: \
             pods=2,requests.cpu=1",
        ),
        // A quota that nobody has looked at yet binds nobody.
        ("{}", &large, ""),
        (r#"{"hard":{"services":"0"},"used":{"services":"0"}}"#, &large, ""),
        (
            r#"{"hard":{"pods":"2","cpu":"1"},"used":{"pods":"1"}}"#,
            &small,
            "status unknown for quota: q, resources: cpu,pods",
        ),
        (
            r#"{"hard":{"limits.cpu":"1","pods":"5"},"used":{"pods":"0"}}"#,
            &small,
            "failed quota: q: must specify limits.cpu for: c",
        ),
    ] {
        assert_eq!(outcome(&[quota("q", status)], &create(PODS, new), &[]), wanted, "{status}");
    }
}

#[test]
fn what_has_no_requests_leaves_compute_quotas_alone() {
    let ephemeral =
        r#"{"hard":{"requests.ephemeral-storage":"1Gi"},"used":{"requests.ephemeral-storage":"0"}}"#;
    assert_eq!(outcome(&[quota("q", ephemeral)], &create(PODS, &pod("")), &[]), "");
}

#[test]
fn every_quota_must_agree() {
    let quotas = [
        quota("a", r#"{"hard":{"secrets":"5"},"used":{"secrets":"1"}}"#),
        quota("b", r#"{"hard":{"pods":"5"},"used":{"pods":"1"}}"#),
        quota("c", r#"{"hard":{"count/secrets":"2"},"used":{"count/secrets":"1","other":"3"}}"#),
        scoped("d", r#"{"hard":{"secrets":"0"},"used":{"secrets":"0"}}"#, r#"{"scopes":["BestEffort"]}"#),
    ];
    let secret = Value::object();
    assert_eq!(outcome(&quotas, &create(SECRETS, &secret), &[]), "a: secrets=2; c: count/secrets=2,other=3");
    let mut full = quotas;
    full[2].used = full[2].hard.clone();
    assert_eq!(
        outcome(&full, &create(SECRETS, &secret), &[]),
        "exceeded quota: c, requested: count/secrets=1, used: count/secrets=2, limited: count/secrets=2"
    );
}

#[test]
fn updates_are_charged_for_what_grows() {
    let storage = |used: &str| {
        quota(
            "q",
            &format!(r#"{{"hard":{{"requests.storage":"3Gi"}},"used":{{"requests.storage":"{used}"}}}}"#),
        )
    };
    let (one, two, five) = (claim("1Gi"), claim("2Gi"), claim("5Gi"));
    for (sub, new, old, wanted) in [
        ("", &two, &one, "q: requests.storage=2Gi"),
        ("", &one, &two, ""),
        ("", &one, &one, ""),
        (
            "",
            &five,
            &one,
            "exceeded quota: q, requested: requests.storage=4Gi, used: requests.storage=1Gi, limited: \
             requests.storage=3Gi",
        ),
        // What a status tells is counted and never refused.
        ("status", &five, &one, "q: requests.storage=5Gi"),
        ("other", &five, &one, ""),
    ] {
        assert_eq!(outcome(&[storage("1Gi")], &update(CLAIMS, sub, new, old), &[]), wanted, "{sub}");
    }
    let ports = quota(
        "q",
        r#"{"hard":{"services.nodeports":"2","services":"9"},"used":{"services.nodeports":"1","services":"3"}}"#,
    );
    let inside = object(r#"{"spec":{"type":"ClusterIP","ports":[{},{}]}}"#);
    let outside = object(r#"{"spec":{"type":"NodePort","ports":[{},{}]}}"#);
    assert_eq!(
        outcome(std::slice::from_ref(&ports), &update(SERVICES, "", &outside, &inside), &[]),
        "exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=1, limited: services.nodeports=2"
    );
    assert_eq!(outcome(std::slice::from_ref(&ports), &update(SERVICES, "", &inside, &outside), &[]), "");
    let secrets = quota("q", r#"{"hard":{"secrets":"0"},"used":{"secrets":"5"}}"#);
    assert_eq!(outcome(&[secrets], &update(SECRETS, "", &Value::object(), &Value::object()), &[]), "");
}

#[test]
fn a_resize_is_charged_for_the_difference() {
    let cpu =
        quota("q", r#"{"hard":{"requests.cpu":"2","pods":"1"},"used":{"requests.cpu":"1","pods":"1"}}"#);
    let (one, two, three) = (pod(r#""cpu":"1""#), pod(r#""cpu":"2""#), pod(r#""cpu":"3""#));
    let of = |new: &Value| outcome(std::slice::from_ref(&cpu), &update(PODS, "resize", new, &one), &[]);
    assert_eq!(of(&two), "q: pods=1,requests.cpu=2");
    assert!(of(&three).starts_with("exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1"));
    assert_eq!(of(&one), "");
}

#[test]
fn a_pod_that_changes_its_scope_is_charged_there_in_full() {
    let quotas = [
        scoped("ending", r#"{"hard":{"pods":"1"},"used":{"pods":"0"}}"#, r#"{"scopes":["Terminating"]}"#),
        scoped("staying", r#"{"hard":{"pods":"1"},"used":{"pods":"1"}}"#, r#"{"scopes":["NotTerminating"]}"#),
        quota("all", r#"{"hard":{"pods":"1"},"used":{"pods":"1"}}"#),
    ];
    let stays = pod("");
    let mut ends = stays.clone();
    ends.entry("spec").set("activeDeadlineSeconds", 5);
    assert_eq!(outcome(&quotas, &update(PODS, "", &ends, &stays), &[]), "ending: pods=1");
    assert_eq!(outcome(&quotas, &update(PODS, "", &stays, &stays), &[]), "");
    assert!(outcome(&quotas, &create(PODS, &stays), &[]).starts_with("exceeded quota: staying"));
}

#[test]
fn negative_amounts_are_refused() {
    let quotas = [quota("q", r#"{"hard":{"cpu":"1"},"used":{"cpu":"0"}}"#)];
    let new = pod(r#""cpu":"-1""#);
    assert_eq!(
        outcome(&quotas, &create(PODS, &new), &[]),
        "quota usage is negative for resource(s): cpu,requests.cpu"
    );
}

#[test]
fn what_is_limited_needs_a_quota() {
    let limited = Limited::read_all(&object(
        r#"{"limitedResources":[{"resource":"pods","matchContains":["cpu"]},
            {"resource":"pods","matchScopes":[{"scopeName":"PriorityClass","operator":"In","values":["high","top"]}]}]}"#,
    ));
    let asking = pod(r#""cpu":"1""#);
    let mut high = pod("");
    high.entry("spec").set("priorityClassName", "high");
    let cpu = r#"{"hard":{"cpu":"5","requests.cpu":"5"},"used":{"cpu":"0","requests.cpu":"0"}}"#;
    let classes = r#"{"scopeSelector":{"matchExpressions":[{"scopeName":"PriorityClass","operator":"In","values":["high"]}]}}"#;
    let pods = r#"{"hard":{"pods":"5"},"used":{"pods":"0"}}"#;
    for (quotas, new, wanted) in [
        (vec![], &asking, "insufficient quota to consume: cpu,requests.cpu"),
        (vec![quota("q", cpu)], &asking, "q: cpu=1,requests.cpu=1"),
        (vec![], &high, "insufficient quota to match these scopes: [{PriorityClass In [high top]}]"),
        (vec![scoped("q", pods, classes)], &high, "q: pods=1"),
        (
            vec![quota("q", pods)],
            &high,
            "insufficient quota to match these scopes: [{PriorityClass In [high top]}]",
        ),
        (vec![], &pod(""), ""),
    ] {
        assert_eq!(outcome(&quotas, &create(PODS, new), &limited), wanted);
    }
    assert_eq!(outcome(&[], &create(SECRETS, &Value::object()), &limited), "");
}

proptest! {
    /// Whatever comes in whatever order: nothing is ever overdrawn, what is refused leaves no trace, and what was charged is
    /// what counting anew finds.
    #[test]
    fn what_was_charged_is_what_is_counted(
        sizes in prop::collection::vec((0u32..900, 0u32..3), 0..40),
        (cpu, most) in (0u32..5_000, 0u32..30),
    ) {
        let spec = object(&format!(r#"{{"hard":{{"requests.cpu":"{cpu}m","pods":"{most}","count/pods":"99"}}}}"#));
        let mut whole = Value::object();
        let mut tally = Tally::begin(&spec, [PODS].into_iter(), USUAL);
        for (name, amount) in tally.clone().end() {
            whole.entry("status").entry("used").set(&name, amount.to_string());
        }
        whole.entry("status").set("hard", spec.get("hard").cloned().unwrap_or_default());
        let mut quotas = [Quota::read(&whole)];
        for (milli, copies) in sizes {
            let new = pod(&format!(r#""cpu":"{milli}m""#));
            for _ in 0..copies {
                if let Ok(charges) = check(&quotas, &create(PODS, &new), &[], USUAL) {
                    quotas[0].used = charges[&0].clone();
                    tally.add(PODS, &new, 0);
                }
                let quota = &quotas[0];
                prop_assert!(quota.used.iter().all(|(name, used)| *used <= quota.hard[name]), "{:?}", quota);
            }
        }
        prop_assert_eq!(&quotas[0].used, &tally.end());
    }
}
