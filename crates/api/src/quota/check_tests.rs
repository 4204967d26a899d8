use pilothouse_apimachinery::testing::object;
use proptest::prelude::*;

use super::super::{DEFAULT_FEATURES, Tally};
use super::*;

const PODS: GroupResource<'_> = GroupResource { group: "", resource: "pods" };
const CLAIMS: GroupResource<'_> = GroupResource { group: "", resource: "persistentvolumeclaims" };
const SERVICES: GroupResource<'_> = GroupResource { group: "", resource: "services" };
const SECRETS: GroupResource<'_> = GroupResource { group: "", resource: "secrets" };

/// A quota without scopes. `status` is `{"hard":{},"used":{}}`.
fn quota(name: &str, status: &str) -> Quota {
    scoped(name, status, "{}")
}

fn scoped(name: &str, status: &str, spec: &str) -> Quota {
    Quota::read(&object(&format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec},"status":{status}}}"#)))
}

fn create<'a>(resource: GroupResource<'a>, new: &'a Value) -> Request<'a> {
    Request { resource, subresource: "", change: Change::Create, new, old: &Value::Null, now: 0 }
}

fn update<'a>(
    resource: GroupResource<'a>,
    subresource: &'a str,
    new: &'a Value,
    old: &'a Value,
) -> Request<'a> {
    Request { resource, subresource, change: Change::Update, new, old, now: 0 }
}

fn pod(requests: &str) -> Value {
    object(&format!(
        r#"{{"spec":{{"containers":[{{"name":"c","resources":{{"requests":{{{requests}}}}}}}]}}}}"#
    ))
}

fn claim(size: &str) -> Value {
    object(&format!(r#"{{"spec":{{"resources":{{"requests":{{"storage":"{size}"}}}}}}}}"#))
}

/// The outcome of a check, as text.
fn outcome(quotas: &[Quota], request: &Request<'_>, limited: &[Limited]) -> String {
    match check(quotas, request, limited, DEFAULT_FEATURES) {
        Err(Refusal::Forbidden(message) | Refusal::Uncovered(message)) => message,
        Ok(charges) => {
            let rendered = charges.iter().map(|(index, used)| {
                let used: Vec<String> =
                    used.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
                format!("{}: {}", quotas[*index].name, used.join(","))
            });
            rendered.collect::<Vec<_>>().join("; ")
        }
    }
}

#[test]
fn quota_refuses_create_over_hard_limit() {
    let full = r#"{"hard":{"pods":"2","requests.cpu":"1","services":"1"},"used":{"pods":"2","requests.cpu":"900m","services":"0"}}"#;
    let free = r#"{"hard":{"pods":"2","requests.cpu":"1"},"used":{"pods":"1","requests.cpu":"0"}}"#;
    let (small, large) = (pod(r#""cpu":"100m""#), pod(r#""cpu":"2""#));
    for (status, new, expected) in [
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
        // A quota that its controller has not processed yet has no effect.
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
        assert_eq!(outcome(&[quota("q", status)], &create(PODS, new), &[]), expected, "{status}");
    }
}

#[test]
fn pod_without_requests_is_not_charged_to_compute_quotas() {
    let ephemeral =
        r#"{"hard":{"requests.ephemeral-storage":"1Gi"},"used":{"requests.ephemeral-storage":"0"}}"#;
    assert_eq!(outcome(&[quota("q", ephemeral)], &create(PODS, &pod("")), &[]), "");
}

#[test]
fn create_is_charged_to_every_matching_quota() {
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
fn update_is_charged_for_growth() {
    let storage = |used: &str| {
        quota(
            "q",
            &format!(r#"{{"hard":{{"requests.storage":"3Gi"}},"used":{{"requests.storage":"{used}"}}}}"#),
        )
    };
    let (one, two, five) = (claim("1Gi"), claim("2Gi"), claim("5Gi"));
    for (sub, new, old, expected) in [
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
        // A status update is charged and never refused.
        ("status", &five, &one, "q: requests.storage=5Gi"),
        ("other", &five, &one, ""),
    ] {
        assert_eq!(outcome(&[storage("1Gi")], &update(CLAIMS, sub, new, old), &[]), expected, "{sub}");
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
fn pod_resize_is_charged_for_the_difference() {
    let cpu =
        quota("q", r#"{"hard":{"requests.cpu":"2","pods":"1"},"used":{"requests.cpu":"1","pods":"1"}}"#);
    let (one, two, three) = (pod(r#""cpu":"1""#), pod(r#""cpu":"2""#), pod(r#""cpu":"3""#));
    let resize = |new: &Value| outcome(std::slice::from_ref(&cpu), &update(PODS, "resize", new, &one), &[]);
    assert_eq!(resize(&two), "q: pods=1,requests.cpu=2");
    assert!(resize(&three).starts_with("exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1"));
    assert_eq!(resize(&one), "");
}

#[test]
fn pod_that_enters_a_scope_is_charged_there_in_full() {
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
fn negative_usage_is_refused() {
    let quotas = [quota("q", r#"{"hard":{"cpu":"1"},"used":{"cpu":"0"}}"#)];
    let new = pod(r#""cpu":"-1""#);
    assert_eq!(
        outcome(&quotas, &create(PODS, &new), &[]),
        "quota usage is negative for resource(s): cpu,requests.cpu"
    );
}

#[test]
fn limited_resources_need_a_covering_quota() {
    let limited = Limited::read_all(&object(
        r#"{"limitedResources":[{"resource":"pods","matchContains":["cpu"]},
            {"resource":"pods","matchScopes":[{"scopeName":"PriorityClass","operator":"In","values":["high","top"]}]}]}"#,
    ));
    let with_cpu = pod(r#""cpu":"1""#);
    let mut high = pod("");
    high.entry("spec").set("priorityClassName", "high");
    let cpu = r#"{"hard":{"cpu":"5","requests.cpu":"5"},"used":{"cpu":"0","requests.cpu":"0"}}"#;
    let classes = r#"{"scopeSelector":{"matchExpressions":[{"scopeName":"PriorityClass","operator":"In","values":["high"]}]}}"#;
    let pods = r#"{"hard":{"pods":"5"},"used":{"pods":"0"}}"#;
    for (quotas, new, expected) in [
        (vec![], &with_cpu, "insufficient quota to consume: cpu,requests.cpu"),
        (vec![quota("q", cpu)], &with_cpu, "q: cpu=1,requests.cpu=1"),
        (vec![], &high, "insufficient quota to match these scopes: [{PriorityClass In [high top]}]"),
        (vec![scoped("q", pods, classes)], &high, "q: pods=1"),
        (
            vec![quota("q", pods)],
            &high,
            "insufficient quota to match these scopes: [{PriorityClass In [high top]}]",
        ),
        (vec![], &pod(""), ""),
    ] {
        assert_eq!(outcome(&quotas, &create(PODS, new), &limited), expected);
    }
    assert_eq!(outcome(&[], &create(SECRETS, &Value::object()), &limited), "");
}

proptest! {
    /// For any sequence of creates no hard limit is exceeded, and the charged usage equals a recount of the accepted objects.
    #[test]
    fn charged_usage_equals_recounted_usage(
        sizes in prop::collection::vec((0u32..900, 0u32..3), 0..40),
        (cpu, max_pods) in (0u32..5_000, 0u32..30),
    ) {
        let spec = object(&format!(r#"{{"hard":{{"requests.cpu":"{cpu}m","pods":"{max_pods}","count/pods":"99"}}}}"#));
        let mut object_with_status = Value::object();
        let mut tally = Tally::new(&spec, [PODS].into_iter(), DEFAULT_FEATURES);
        for (name, amount) in tally.clone().into_usage() {
            object_with_status.entry("status").entry("used").set(&name, amount.to_string());
        }
        object_with_status.entry("status").set("hard", spec.get("hard").cloned().unwrap_or_default());
        let mut quotas = [Quota::read(&object_with_status)];
        for (milli, copies) in sizes {
            let new = pod(&format!(r#""cpu":"{milli}m""#));
            for _ in 0..copies {
                if let Ok(charges) = check(&quotas, &create(PODS, &new), &[], DEFAULT_FEATURES) {
                    quotas[0].used = charges[&0].clone();
                    tally.add(PODS, &new, 0);
                }
                let quota = &quotas[0];
                prop_assert!(quota.used.iter().all(|(name, used)| *used <= quota.hard[name]), "{:?}", quota);
            }
        }
        prop_assert_eq!(&quotas[0].used, &tally.into_usage());
    }
}
