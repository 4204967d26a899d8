//! Bodies of the maximum size with lists that validation compares: validation takes linear time, and its errors are bounded.
//! `heavy/requests.rs` sends such bodies to a server.

#![allow(clippy::disallowed_methods, reason = "how long the work takes is real time")]

mod requests;

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

/// The time limit of a write: a multiple of the decoding time, plus some seconds. A busy machine is slow in both; quadratic work
/// takes minutes.
const TIME_LIMIT: (u32, Duration) = (40, Duration::from_secs(5));

/// A list of items of `bytes` bytes in all. `#` in an item is replaced by its index.
fn repeated(bytes: usize, item: &str) -> String {
    let mut list = String::with_capacity(bytes + item.len());
    for index in 0.. {
        if list.len() + item.len() + 10 > bytes {
            break;
        }
        if index > 0 {
            list.push(',');
        }
        list.push_str(&item.replace('#', &index.to_string()));
    }
    list
}

const WHOLE: usize = BODY_BYTES - 2_048;
const HALF: usize = WHOLE / 2;
const THIRD: usize = WHOLE / 3;

fn assert_bounded(case: &str, outcome: Result<WarningList, ErrorList>) {
    match outcome {
        Ok(warnings) => {
            assert!(warnings.iter().len() <= WARNINGS, "{case}: {} warnings", warnings.iter().len());
        }
        Err(errors) => {
            let bytes: usize = errors.iter().map(|error| error.path.len() + error.message.len()).sum();
            assert!(errors.iter().len() <= FIELD_ERRORS, "{case}: {} errors", errors.iter().len());
            assert!(bytes <= FIELD_ERROR_BYTES + 2 * BODY_BYTES, "{case}: {bytes} bytes of errors");
        }
    }
}

/// Validates a create, an update and a status update of an object, which must take linear time.
#[track_caller]
fn assert_linear_time(api: (&str, &str, &str), case: &str, fields: &str) {
    // A machine may be busy once; quadratic work is slow each time.
    let slow = (0..3).map_while(|_| slow_durations(api, case, fields)).collect::<Vec<_>>();
    assert!(slow.len() < 3, "{case}: {slow:?}");
}

/// The durations of the writes, if one exceeded the limit.
fn slow_durations(api: (&str, &str, &str), case: &str, fields: &str) -> Option<String> {
    let (group, version, kind) = api;
    let body = format!("{{\"metadata\":{{\"name\":\"a.b\",\"namespace\":\"n\",\"uid\":\"u\"}},{fields}}}");
    let body = if fields.starts_with("\"metadata\"") { format!("{{{fields}}}") } else { body };
    assert!(body.len() <= BODY_BYTES, "{case}: {}", body.len());
    let start = Instant::now();
    let expected = GroupVersionKind::new(group, version, kind);
    let mut value = codec::decode_object(body.as_bytes(), &expected, &REGISTRY).unwrap().value;
    let limit = start.elapsed() * TIME_LIMIT.0 + TIME_LIMIT.1;
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
    assert_bounded(case, before_create(kind, &mut new, &context));
    let created = start.elapsed();
    new.clone_from(&value);
    assert_bounded(case, before_update(kind, &mut new, &value, &context));
    let updated = start.elapsed() - created;
    new.clone_from(&value);
    assert_bounded(case, before_status_update(kind, &mut new, &value, &context));
    let status = start.elapsed() - created - updated;
    let longest = created.max(updated).max(status);
    (longest >= limit).then(|| format!("{created:?} {updated:?} {status:?}, at most {limit:?}"))
}

const POD: (&str, &str, &str) = ("", "v1", "Pod");
const DEFINITION: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
const CONTAINER: &str = r#""name":"c","image":"i","terminationMessagePolicy":"File""#;

#[test]
fn pods_with_many_containers_validate_in_linear_time() {
    let pod = |case: &str, spec: String| assert_linear_time(POD, case, &format!("\"spec\":{{{spec}}}"));
    pod("empty containers", format!("\"containers\":[{}]", repeated(WHOLE, "{}")));
    pod(
        "mounts and devices",
        format!(
            "\"containers\":[{{{CONTAINER},\"volumeMounts\":[{}],\"volumeDevices\":[{}]}}]",
            repeated(HALF, r##"{"name":"m#","mountPath":"/m#"}"##),
            repeated(HALF, r##"{"name":"d#","devicePath":"/d#"}"##)
        ),
    );
    pod(
        "ports that overlap",
        format!("\"containers\":[{{{CONTAINER},\"ports\":[{}]}}]", repeated(WHOLE, r#"{"containerPort":1}"#)),
    );
    pod(
        "ports that do not",
        format!(
            "\"containers\":[{{{CONTAINER},\"ports\":[{}]}}]",
            repeated(WHOLE, r##"{"name":"p#","containerPort":#}"##)
        ),
    );
    assert_linear_time(
        POD,
        "annotations of containers",
        &format!(
            "\"metadata\":{{\"name\":\"a\",\"namespace\":\"n\",\"annotations\":{{{}}}}},\"spec\":{{\"containers\":[{}]}}",
            repeated(HALF, r##""container.apparmor.security.beta.kubernetes.io/a#":"unconfined""##),
            repeated(HALF, r##"{"name":"c#"}"##)
        ),
    );
    assert_linear_time(
        POD,
        "statuses",
        &format!(
            "\"spec\":{{\"restartPolicy\":\"Never\",\"initContainers\":[{}]}},\"status\":{{\"containerStatuses\":[{}]}}",
            repeated(HALF, r##"{"name":"c#"}"##),
            repeated(HALF, r#"{"name":"x","state":{"terminated":{}}},{"name":"x"}"#)
        ),
    );
}

#[test]
fn pods_with_many_volumes_validate_in_linear_time() {
    let pod = |case: &str, spec: String| assert_linear_time(POD, case, &format!("\"spec\":{{{spec}}}"));
    pod(
        "images that are mounted",
        format!(
            "\"containers\":[{{{CONTAINER},\"volumeMounts\":[{}]}}],\"volumes\":[{}]",
            repeated(HALF, r##"{"name":"m#","mountPath":"/m#"}"##),
            repeated(HALF, r##"{"name":"v#","image":{}}"##)
        ),
    );
    pod(
        "paths that may overlap",
        format!(
            "\"containers\":[{{{CONTAINER}}}],\"volumes\":[{{\"name\":\"v\",\"configMap\":{{\"name\":\"{}\",\"items\":[{}]}}}}]",
            "n".repeat(HALF),
            repeated(HALF, r##"{"key":"k","path":"a#"}"##)
        ),
    );
    pod(
        "paths that conflict",
        format!(
            "\"containers\":[{{{CONTAINER}}}],\"volumes\":[{{\"name\":\"v\",\"projected\":{{\"sources\":[{{\"configMap\":{{\"name\":\"{}\",\"items\":[{}]}}}}]}}}}]",
            "n".repeat(HALF),
            repeated(HALF, r#"{"key":"k","path":"a"}"#)
        ),
    );
    assert_linear_time(
        POD,
        "claims named after a pod",
        &format!(
            "\"metadata\":{{\"name\":\"{}\",\"namespace\":\"n\"}},\"spec\":{{\"containers\":[{{{CONTAINER}}}],\"volumes\":[{}]}}",
            "n".repeat(HALF),
            repeated(HALF, r##"{"name":"v#","ephemeral":{}}"##)
        ),
    );
    assert_linear_time(
        POD,
        "owners",
        &format!(
            "\"metadata\":{{\"name\":\"a\",\"namespace\":\"n\",\"ownerReferences\":[{{\"name\":\"{}\",\"controller\":true}},{}]}}",
            "n".repeat(HALF),
            repeated(HALF, r##"{"name":"n#","controller":true}"##)
        ),
    );
}

#[test]
fn pods_with_many_scheduling_constraints_validate_in_linear_time() {
    let pod = |case: &str, spec: String| {
        let fields = format!("\"spec\":{{\"containers\":[{{{CONTAINER}}}],{spec}}}");
        assert_linear_time(POD, case, &fields);
    };
    pod(
        "spread",
        format!(
            "\"topologySpreadConstraints\":[{}]",
            repeated(WHOLE, r##"{"maxSkew":1,"topologyKey":"k#"}"##)
        ),
    );
    pod(
        "spread by labels",
        format!(
            "\"topologySpreadConstraints\":[{{\"labelSelector\":{{\"matchExpressions\":[{}]}},\"matchLabelKeys\":[{}]}}]",
            repeated(HALF, r##"{"key":"e#","operator":"Exists"}"##),
            repeated(HALF, r##""k#""##)
        ),
    );
    pod(
        "affinity by labels",
        format!(
            "\"affinity\":{{\"podAffinity\":{{\"requiredDuringSchedulingIgnoredDuringExecution\":[{{\"labelSelector\":{{\"matchExpressions\":[{}]}},\"matchLabelKeys\":[{}],\"mismatchLabelKeys\":[{}]}}]}}}}",
            repeated(THIRD, r##"{"key":"e#","operator":"Exists"}"##),
            repeated(THIRD, r##""k#""##),
            repeated(THIRD, r##""m#""##)
        ),
    );
    pod(
        "tolerations and gates",
        format!(
            "\"tolerations\":[{}],\"schedulingGates\":[{}]",
            repeated(HALF, r##"{"key":"k#","operator":"Exists"}"##),
            repeated(HALF, r##"{"name":"g#"}"##)
        ),
    );
}

#[test]
fn crds_with_many_parts_validate_in_linear_time() {
    let crd = |case: &str, spec: String| {
        let fields = format!(
            "\"spec\":{{\"group\":\"b\",\"names\":{{\"plural\":\"a\",\"kind\":\"A\"}},\"scope\":\"Cluster\",{spec}}}"
        );
        assert_linear_time(DEFINITION, case, &fields);
    };
    let schema = |inner: String| {
        format!(
            "\"versions\":[{{\"name\":\"v1\",\"storage\":true,\"schema\":{{\"openAPIV3Schema\":{{\"type\":\"object\",{inner}}}}}}}]"
        )
    };
    crd("versions", format!("\"versions\":[{}]", repeated(WHOLE, r##"{"name":"v#","storage":true}"##)));
    crd(
        "a schema that says nothing",
        format!(
            "\"versions\":[{{\"schema\":{{\"openAPIV3Schema\":{{\"properties\":{{{}}}}}}}}},{}]",
            repeated(HALF, r##""p#":{}"##),
            repeated(HALF, r##"{"name":"v#"}"##)
        ),
    );
    crd(
        "below a long name",
        schema(format!(
            "\"properties\":{{\"{}\":{{\"type\":\"object\",\"properties\":{{{}}}}}}}",
            "p".repeat(HALF),
            repeated(HALF / 4, r##""p#":{"type":"x"}"##)
        )),
    );
    crd(
        "keys of a list",
        schema(format!(
            "\"properties\":{{\"l\":{{\"type\":\"array\",\"x-kubernetes-list-type\":\"map\",\"x-kubernetes-list-map-keys\":[{}],\"items\":{{\"type\":\"object\",\"required\":[{}],\"properties\":{{{}}}}}}}}}",
            repeated(THIRD / 2, r##""k#""##),
            repeated(THIRD, r##""r#""##),
            repeated(THIRD, r##""k#":{}"##)
        )),
    );
    assert_linear_time(
        DEFINITION,
        "stored versions",
        &format!(
            "\"spec\":{{\"versions\":[{}]}},\"status\":{{\"storedVersions\":[{}]}}",
            repeated(HALF, r##"{"name":"v#","storage":true}"##),
            repeated(HALF, r##""s#""##)
        ),
    );
}

#[test]
fn lists_compared_with_lists_validate_in_linear_time() {
    assert_linear_time(
        ("storage.k8s.io", "v1", "StorageClass"),
        "topologies",
        &format!(
            "\"provisioner\":\"p\",\"allowedTopologies\":[{}]",
            repeated(WHOLE, r##"{"matchLabelExpressions":[{"key":"k#","values":["v"]}]}"##)
        ),
    );
    assert_linear_time(
        ("storage.k8s.io", "v1", "StorageClass"),
        "expressions of a topology",
        &format!(
            "\"provisioner\":\"p\",\"allowedTopologies\":[{{\"matchLabelExpressions\":[{}]}}]",
            repeated(WHOLE, r##"{"key":"k#","values":["v"]}"##)
        ),
    );
    assert_linear_time(
        ("", "v1", "Service"),
        "addresses",
        &format!(
            "\"spec\":{{\"type\":\"LoadBalancer\",\"ipFamilies\":[{}],\"externalIPs\":[{}],\"loadBalancerSourceRanges\":[{}]}}",
            repeated(THIRD, r##""f#""##),
            repeated(THIRD, r##""1.1.1.#""##),
            repeated(THIRD, r##""1.1.1.1/#""##)
        ),
    );
    assert_linear_time(
        ("", "v1", "ResourceQuota"),
        "scopes",
        &format!(
            "\"spec\":{{\"scopes\":[{}],\"hard\":{{{}}}}}",
            repeated(HALF, r#""BestEffort""#),
            repeated(HALF, r##""requests.hugepages-#":"1""##)
        ),
    );
}

#[test]
fn device_lists_validate_in_linear_time() {
    assert_linear_time(
        ("resource.k8s.io", "v1beta2", "ResourceClaim"),
        "requests",
        &format!(
            "\"spec\":{{\"devices\":{{\"requests\":[{}],\"constraints\":[{{\"requests\":[{}]}}]}}}}",
            repeated(HALF, r##"{"name":"r#"}"##),
            repeated(HALF, r##""c#""##)
        ),
    );
    assert_linear_time(
        ("resource.k8s.io", "v1beta2", "ResourceClaim"),
        "allocated devices",
        &format!(
            "\"status\":{{\"allocation\":{{\"devices\":{{\"results\":[{}]}}}},\"devices\":[{}]}}",
            repeated(HALF, r##"{"driver":"d","pool":"p","device":"r#"}"##),
            repeated(HALF, r##"{"driver":"d","pool":"p","device":"d#"}"##)
        ),
    );
    assert_linear_time(
        ("resource.k8s.io", "v1beta2", "ResourceSlice"),
        "counters",
        &format!(
            "\"spec\":{{\"sharedCounters\":[{}],\"devices\":[{{\"name\":\"d\",\"consumesCounters\":[{}]}}]}}",
            repeated(HALF, r##"{"name":"s#"}"##),
            repeated(HALF, r##"{"counterSet":"c#"}"##)
        ),
    );
    assert_linear_time(
        ("internal.apiserver.k8s.io", "v1alpha1", "StorageVersion"),
        "served versions",
        &format!(
            "\"status\":{{\"storageVersions\":[{{\"decodableVersions\":[{}],\"servedVersions\":[{}]}}]}}",
            repeated(HALF, r##""d#""##),
            repeated(HALF, r##""s#""##)
        ),
    );
}

#[test]
fn unterminated_pem_blocks_validate_in_linear_time() {
    let blocks = |bytes: usize| STANDARD.encode("-----BEGIN X-----\n".repeat(bytes / 18));
    assert_linear_time(
        ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
        "a request",
        &format!("\"spec\":{{\"request\":\"{}\",\"signerName\":\"a.b/c\"}}", blocks(WHOLE / 4 * 3)),
    );
    assert_linear_time(
        ("", "v1", "Secret"),
        "a secret",
        &format!(
            "\"type\":\"kubernetes.io/tls\",\"data\":{{\"tls.crt\":\"{}\",\"tls.key\":\"\"}}",
            blocks(1_000_000)
        ),
    );
}
