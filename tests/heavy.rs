//! Bodies as large as the server takes, made of what rules hold against each other: whatever a client sends, the work is
//! as long as the body, and what is found in it is bounded. `heavy/requests.rs` sends such bodies to a server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "how long the work takes is real time")]

#[path = "heavy/requests.rs"]
mod requests;
mod support;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::limits::{BODY_BYTES, FIELD_ERROR_BYTES, FIELD_ERRORS, WARNINGS};
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry, default};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::{
    Kind, UserInfo, WriteContext, apply_defaults, before_create, before_status_update, before_update, rules,
};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::complete().unwrap());

/// How many times as long as the reading of a body each write of it may take, and some seconds: a busy machine is slow in
/// both. Work that grows with the square takes minutes.
const PATIENCE: (u32, Duration) = (40, Duration::from_secs(5));

/// A list of so many bytes. `#` in an item is its number.
fn many(bytes: usize, item: &str) -> String {
    let mut out = String::with_capacity(bytes + item.len());
    for index in 0.. {
        if out.len() + item.len() + 10 > bytes {
            break;
        }
        if index > 0 {
            out.push(',');
        }
        out.push_str(&item.replace('#', &index.to_string()));
    }
    out
}

const WHOLE: usize = BODY_BYTES - 2_048;
const HALF: usize = WHOLE / 2;
const THIRD: usize = WHOLE / 3;

fn is_bounded(what: &str, found: Result<WarningList, ErrorList>) {
    match found {
        Ok(warned) => assert!(warned.iter().len() <= WARNINGS, "{what}: {} warnings", warned.iter().len()),
        Err(errors) => {
            let bytes: usize = errors.iter().map(|error| error.path.len() + error.message.len()).sum();
            assert!(errors.iter().len() <= FIELD_ERRORS, "{what}: {} errors", errors.iter().len());
            assert!(bytes <= FIELD_ERROR_BYTES + 2 * BODY_BYTES, "{what}: {bytes} bytes of errors");
        }
    }
}

/// Creates an object of a kind, and writes it and its status over itself.
#[track_caller]
fn takes_its_time(api: (&str, &str, &str), what: &str, fields: &str) {
    // A machine may be busy once; work that grows with the square is slow each time.
    let slow = (0..3).map_while(|_| too_slow(api, what, fields)).collect::<Vec<_>>();
    assert!(slow.len() < 3, "{what}: {slow:?}");
}

/// How long the writes took, if that was too long.
fn too_slow(api: (&str, &str, &str), what: &str, fields: &str) -> Option<String> {
    let (group, version, kind) = api;
    let body = format!("{{\"metadata\":{{\"name\":\"a.b\",\"namespace\":\"n\",\"uid\":\"u\"}},{fields}}}");
    let body = if fields.starts_with("\"metadata\"") { format!("{{{fields}}}") } else { body };
    assert!(body.len() <= BODY_BYTES, "{what}: {}", body.len());
    let start = Instant::now();
    let expected = GroupVersionKind::new(group, version, kind);
    let mut value = codec::decode_object(body.as_bytes(), &expected, &REGISTRY).unwrap().value;
    let patience = start.elapsed() * PATIENCE.0 + PATIENCE.1;
    let start = Instant::now();
    let kind = Kind { rules: rules(group, kind), namespaced: true, has_status: true };
    let context = WriteContext {
        now: "2024-01-01T00:00:00Z",
        user: &UserInfo::default(),
        features: EnabledFeatures::RELEASE,
    };
    apply_defaults(kind.rules, &mut value, context.features);
    default::apply(&REGISTRY, REGISTRY.lookup(&expected).unwrap(), &mut value);
    let mut new: Value = value.clone();
    is_bounded(what, before_create(kind, &mut new, &context));
    let created = start.elapsed();
    new.clone_from(&value);
    is_bounded(what, before_update(kind, &mut new, &value, &context));
    let updated = start.elapsed() - created;
    new.clone_from(&value);
    is_bounded(what, before_status_update(kind, &mut new, &value, &context));
    let status = start.elapsed() - created - updated;
    let longest = created.max(updated).max(status);
    (longest >= patience).then(|| format!("{created:?} {updated:?} {status:?}, at most {patience:?}"))
}

const POD: (&str, &str, &str) = ("", "v1", "Pod");
const DEFINITION: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
const CONTAINER: &str = r#""name":"c","image":"i","terminationMessagePolicy":"File""#;

#[test]
fn pods_with_many_containers() {
    let pod = |what: &str, spec: String| takes_its_time(POD, what, &format!("\"spec\":{{{spec}}}"));
    pod("empty containers", format!("\"containers\":[{}]", many(WHOLE, "{}")));
    pod(
        "mounts and devices",
        format!(
            "\"containers\":[{{{CONTAINER},\"volumeMounts\":[{}],\"volumeDevices\":[{}]}}]",
            many(HALF, r##"{"name":"m#","mountPath":"/m#"}"##),
            many(HALF, r##"{"name":"d#","devicePath":"/d#"}"##)
        ),
    );
    pod(
        "ports that overlap",
        format!("\"containers\":[{{{CONTAINER},\"ports\":[{}]}}]", many(WHOLE, r#"{"containerPort":1}"#)),
    );
    pod(
        "ports that do not",
        format!(
            "\"containers\":[{{{CONTAINER},\"ports\":[{}]}}]",
            many(WHOLE, r##"{"name":"p#","containerPort":#}"##)
        ),
    );
    takes_its_time(
        POD,
        "annotations of containers",
        &format!(
            "\"metadata\":{{\"name\":\"a\",\"namespace\":\"n\",\"annotations\":{{{}}}}},\"spec\":{{\"containers\":[{}]}}",
            many(HALF, r##""container.apparmor.security.beta.kubernetes.io/a#":"unconfined""##),
            many(HALF, r##"{"name":"c#"}"##)
        ),
    );
    takes_its_time(
        POD,
        "statuses",
        &format!(
            "\"spec\":{{\"restartPolicy\":\"Never\",\"initContainers\":[{}]}},\"status\":{{\"containerStatuses\":[{}]}}",
            many(HALF, r##"{"name":"c#"}"##),
            many(HALF, r#"{"name":"x","state":{"terminated":{}}},{"name":"x"}"#)
        ),
    );
}

#[test]
fn pods_with_many_volumes() {
    let pod = |what: &str, spec: String| takes_its_time(POD, what, &format!("\"spec\":{{{spec}}}"));
    pod(
        "images that are mounted",
        format!(
            "\"containers\":[{{{CONTAINER},\"volumeMounts\":[{}]}}],\"volumes\":[{}]",
            many(HALF, r##"{"name":"m#","mountPath":"/m#"}"##),
            many(HALF, r##"{"name":"v#","image":{}}"##)
        ),
    );
    pod(
        "paths that may overlap",
        format!(
            "\"containers\":[{{{CONTAINER}}}],\"volumes\":[{{\"name\":\"v\",\"configMap\":{{\"name\":\"{}\",\"items\":[{}]}}}}]",
            "n".repeat(HALF),
            many(HALF, r##"{"key":"k","path":"a#"}"##)
        ),
    );
    pod(
        "paths that conflict",
        format!(
            "\"containers\":[{{{CONTAINER}}}],\"volumes\":[{{\"name\":\"v\",\"projected\":{{\"sources\":[{{\"configMap\":{{\"name\":\"{}\",\"items\":[{}]}}}}]}}}}]",
            "n".repeat(HALF),
            many(HALF, r#"{"key":"k","path":"a"}"#)
        ),
    );
    takes_its_time(
        POD,
        "claims named after a pod",
        &format!(
            "\"metadata\":{{\"name\":\"{}\",\"namespace\":\"n\"}},\"spec\":{{\"containers\":[{{{CONTAINER}}}],\"volumes\":[{}]}}",
            "n".repeat(HALF),
            many(HALF, r##"{"name":"v#","ephemeral":{}}"##)
        ),
    );
    takes_its_time(
        POD,
        "owners",
        &format!(
            "\"metadata\":{{\"name\":\"a\",\"namespace\":\"n\",\"ownerReferences\":[{{\"name\":\"{}\",\"controller\":true}},{}]}}",
            "n".repeat(HALF),
            many(HALF, r##"{"name":"n#","controller":true}"##)
        ),
    );
}

#[test]
fn pods_with_many_wishes() {
    let pod = |what: &str, spec: String| {
        let fields = format!("\"spec\":{{\"containers\":[{{{CONTAINER}}}],{spec}}}");
        takes_its_time(POD, what, &fields);
    };
    pod(
        "spread",
        format!("\"topologySpreadConstraints\":[{}]", many(WHOLE, r##"{"maxSkew":1,"topologyKey":"k#"}"##)),
    );
    pod(
        "spread by labels",
        format!(
            "\"topologySpreadConstraints\":[{{\"labelSelector\":{{\"matchExpressions\":[{}]}},\"matchLabelKeys\":[{}]}}]",
            many(HALF, r##"{"key":"e#","operator":"Exists"}"##),
            many(HALF, r##""k#""##)
        ),
    );
    pod(
        "affinity by labels",
        format!(
            "\"affinity\":{{\"podAffinity\":{{\"requiredDuringSchedulingIgnoredDuringExecution\":[{{\"labelSelector\":{{\"matchExpressions\":[{}]}},\"matchLabelKeys\":[{}],\"mismatchLabelKeys\":[{}]}}]}}}}",
            many(THIRD, r##"{"key":"e#","operator":"Exists"}"##),
            many(THIRD, r##""k#""##),
            many(THIRD, r##""m#""##)
        ),
    );
    pod(
        "tolerations and gates",
        format!(
            "\"tolerations\":[{}],\"schedulingGates\":[{}]",
            many(HALF, r##"{"key":"k#","operator":"Exists"}"##),
            many(HALF, r##"{"name":"g#"}"##)
        ),
    );
}

#[test]
fn definitions_with_many_parts() {
    let crd = |what: &str, spec: String| {
        let fields = format!(
            "\"spec\":{{\"group\":\"b\",\"names\":{{\"plural\":\"a\",\"kind\":\"A\"}},\"scope\":\"Cluster\",{spec}}}"
        );
        takes_its_time(DEFINITION, what, &fields);
    };
    let schema = |inner: String| {
        format!(
            "\"versions\":[{{\"name\":\"v1\",\"storage\":true,\"schema\":{{\"openAPIV3Schema\":{{\"type\":\"object\",{inner}}}}}}}]"
        )
    };
    crd("versions", format!("\"versions\":[{}]", many(WHOLE, r##"{"name":"v#","storage":true}"##)));
    crd(
        "a schema that says nothing",
        format!(
            "\"versions\":[{{\"schema\":{{\"openAPIV3Schema\":{{\"properties\":{{{}}}}}}}}},{}]",
            many(HALF, r##""p#":{}"##),
            many(HALF, r##"{"name":"v#"}"##)
        ),
    );
    crd(
        "below a long name",
        schema(format!(
            "\"properties\":{{\"{}\":{{\"type\":\"object\",\"properties\":{{{}}}}}}}",
            "p".repeat(HALF),
            many(HALF / 4, r##""p#":{"type":"x"}"##)
        )),
    );
    crd(
        "keys of a list",
        schema(format!(
            "\"properties\":{{\"l\":{{\"type\":\"array\",\"x-kubernetes-list-type\":\"map\",\"x-kubernetes-list-map-keys\":[{}],\"items\":{{\"type\":\"object\",\"required\":[{}],\"properties\":{{{}}}}}}}}}",
            many(THIRD / 2, r##""k#""##),
            many(THIRD, r##""r#""##),
            many(THIRD, r##""k#":{}"##)
        )),
    );
    takes_its_time(
        DEFINITION,
        "stored versions",
        &format!(
            "\"spec\":{{\"versions\":[{}]}},\"status\":{{\"storedVersions\":[{}]}}",
            many(HALF, r##"{"name":"v#","storage":true}"##),
            many(HALF, r##""s#""##)
        ),
    );
}

#[test]
fn lists_that_are_held_against_lists() {
    takes_its_time(
        ("storage.k8s.io", "v1", "StorageClass"),
        "topologies",
        &format!(
            "\"provisioner\":\"p\",\"allowedTopologies\":[{}]",
            many(WHOLE, r##"{"matchLabelExpressions":[{"key":"k#","values":["v"]}]}"##)
        ),
    );
    takes_its_time(
        ("storage.k8s.io", "v1", "StorageClass"),
        "expressions of a topology",
        &format!(
            "\"provisioner\":\"p\",\"allowedTopologies\":[{{\"matchLabelExpressions\":[{}]}}]",
            many(WHOLE, r##"{"key":"k#","values":["v"]}"##)
        ),
    );
    takes_its_time(
        ("", "v1", "Service"),
        "addresses",
        &format!(
            "\"spec\":{{\"type\":\"LoadBalancer\",\"ipFamilies\":[{}],\"externalIPs\":[{}],\"loadBalancerSourceRanges\":[{}]}}",
            many(THIRD, r##""f#""##),
            many(THIRD, r##""1.1.1.#""##),
            many(THIRD, r##""1.1.1.1/#""##)
        ),
    );
    takes_its_time(
        ("", "v1", "ResourceQuota"),
        "scopes",
        &format!(
            "\"spec\":{{\"scopes\":[{}],\"hard\":{{{}}}}}",
            many(HALF, r#""BestEffort""#),
            many(HALF, r##""requests.hugepages-#":"1""##)
        ),
    );
    takes_its_time(
        ("resource.k8s.io", "v1beta2", "ResourceClaim"),
        "requests",
        &format!(
            "\"spec\":{{\"devices\":{{\"requests\":[{}],\"constraints\":[{{\"requests\":[{}]}}]}}}}",
            many(HALF, r##"{"name":"r#"}"##),
            many(HALF, r##""c#""##)
        ),
    );
    takes_its_time(
        ("resource.k8s.io", "v1beta2", "ResourceClaim"),
        "allocated devices",
        &format!(
            "\"status\":{{\"allocation\":{{\"devices\":{{\"results\":[{}]}}}},\"devices\":[{}]}}",
            many(HALF, r##"{"driver":"d","pool":"p","device":"r#"}"##),
            many(HALF, r##"{"driver":"d","pool":"p","device":"d#"}"##)
        ),
    );
    takes_its_time(
        ("resource.k8s.io", "v1beta2", "ResourceSlice"),
        "counters",
        &format!(
            "\"spec\":{{\"sharedCounters\":[{}],\"devices\":[{{\"name\":\"d\",\"consumesCounters\":[{}]}}]}}",
            many(HALF, r##"{"name":"s#"}"##),
            many(HALF, r##"{"counterSet":"c#"}"##)
        ),
    );
    takes_its_time(
        ("internal.apiserver.k8s.io", "v1alpha1", "StorageVersion"),
        "served versions",
        &format!(
            "\"status\":{{\"storageVersions\":[{{\"decodableVersions\":[{}],\"servedVersions\":[{}]}}]}}",
            many(HALF, r##""d#""##),
            many(HALF, r##""s#""##)
        ),
    );
}

#[test]
fn blocks_that_begin_and_do_not_end() {
    let blocks = |bytes: usize| STANDARD.encode("-----BEGIN X-----\n".repeat(bytes / 18));
    takes_its_time(
        ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
        "a request",
        &format!("\"spec\":{{\"request\":\"{}\",\"signerName\":\"a.b/c\"}}", blocks(WHOLE / 4 * 3)),
    );
    takes_its_time(
        ("", "v1", "Secret"),
        "a secret",
        &format!(
            "\"type\":\"kubernetes.io/tls\",\"data\":{{\"tls.crt\":\"{}\",\"tls.key\":\"\"}}",
            blocks(1_000_000)
        ),
    );
}
