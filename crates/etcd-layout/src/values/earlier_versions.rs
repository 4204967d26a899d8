//! Values that earlier releases have stored.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::testing::object;

use super::testing::{builtin, codec};
use super::*;

/// A value of an earlier version, and what a store has of it: group, version and kind, the store, both objects without their
/// kind and metadata.
const VALUES: &[(&str, &str, &str, &str, &str)] = &[
    (
        "networking.k8s.io/v1beta1",
        "Ingress",
        "ingresses.networking.k8s.io",
        r#"{"spec":{"backend":{"serviceName":"d","servicePort":"web"},"rules":[{"http":{"paths":[{"backend":{"serviceName":"s","servicePort":80}}]}}]}}"#,
        r#"{"spec":{"defaultBackend":{"service":{"name":"d","port":{"name":"web"}}},"rules":[{"http":{"paths":[{"pathType":"ImplementationSpecific","backend":{"service":{"name":"s","port":{"number":80}}}}]}}]}}"#,
    ),
    (
        "extensions/v1beta1",
        "Ingress",
        "ingresses.networking.k8s.io",
        r#"{"spec":{"backend":{"resource":{"kind":"K","name":"n"}}}}"#,
        r#"{"spec":{"defaultBackend":{"resource":{"kind":"K","name":"n"}}}}"#,
    ),
    (
        "discovery.k8s.io/v1beta1",
        "EndpointSlice",
        "endpointslices.discovery.k8s.io",
        r#"{"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.4"],"nodeName":"n","topology":{"kubernetes.io/hostname":"n","topology.kubernetes.io/zone":"z"}},{"addresses":["1.2.3.5"],"topology":{"a":"b"}}]}"#,
        r#"{"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.4"],"nodeName":"n","zone":"z"},{"addresses":["1.2.3.5"],"deprecatedTopology":{"a":"b"}}]}"#,
    ),
    (
        "policy/v1beta1",
        "PodDisruptionBudget",
        "poddisruptionbudgets.policy",
        r#"{"spec":{"selector":{}}}"#,
        r#"{"spec":{"selector":{"matchExpressions":[{"key":"pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match","operator":"Exists"}]}}}"#,
    ),
    (
        "policy/v1beta1",
        "PodDisruptionBudget",
        "poddisruptionbudgets.policy",
        r#"{"spec":{"selector":{"matchExpressions":[{"key":"pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match","operator":"DoesNotExist"}]}}}"#,
        r#"{"spec":{"selector":{}}}"#,
    ),
    (
        "policy/v1beta1",
        "PodDisruptionBudget",
        "poddisruptionbudgets.policy",
        r#"{"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}"#,
        r#"{"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}"#,
    ),
    (
        "flowcontrol.apiserver.k8s.io/v1beta2",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
        r#"{"spec":{"type":"Limited","limited":{"assuredConcurrencyShares":7,"limitResponse":{"type":"Reject"}}}}"#,
        r#"{"spec":{"type":"Limited","limited":{"lendablePercent":0,"nominalConcurrencyShares":7,"limitResponse":{"type":"Reject"}}}}"#,
    ),
    (
        "flowcontrol.apiserver.k8s.io/v1beta3",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
        r#"{"metadata":{"annotations":{"flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares":""}},"spec":{"type":"Limited","limited":{"lendablePercent":1,"limitResponse":{"type":"Reject"}}}}"#,
        r#"{"spec":{"type":"Limited","limited":{"lendablePercent":1,"nominalConcurrencyShares":0,"limitResponse":{"type":"Reject"}}}}"#,
    ),
    (
        "batch/v1beta1",
        "CronJob",
        "cronjobs.batch",
        r#"{"spec":{"schedule":"* * * * *","concurrencyPolicy":"Forbid","suspend":false,"successfulJobsHistoryLimit":1,"failedJobsHistoryLimit":1,"jobTemplate":{"spec":{"template":{}}}}}"#,
        "",
    ),
    (
        "autoscaling/v1",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers.autoscaling",
        r#"{"spec":{"maxReplicas":3,"minReplicas":1,"scaleTargetRef":{"kind":"Deployment","name":"d"},"targetCPUUtilizationPercentage":80}}"#,
        r#"{"spec":{"maxReplicas":3,"minReplicas":1,"scaleTargetRef":{"kind":"Deployment","name":"d"},"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":80}}}]}}"#,
    ),
    (
        "node.k8s.io/v1alpha1",
        "RuntimeClass",
        "runtimeclasses.node.k8s.io",
        r#"{"spec":{"runtimeHandler":"h"}}"#,
        r#"{"handler":"h"}"#,
    ),
    (
        "rbac.authorization.k8s.io/v1alpha1",
        "RoleBinding",
        "rolebindings.rbac.authorization.k8s.io",
        r#"{"subjects":[{"kind":"User","apiVersion":"rbac.authorization.k8s.io/v1alpha1","name":"*"},{"kind":"ServiceAccount","name":"a","namespace":"ns"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"}}"#,
        r#"{"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"system:authenticated"},{"kind":"ServiceAccount","name":"a","namespace":"ns"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"}}"#,
    ),
    (
        "certificates.k8s.io/v1beta1",
        "CertificateSigningRequest",
        "certificatesigningrequests.certificates.k8s.io",
        r#"{"spec":{"request":"YQ==","usages":["digital signature"]},"status":{"conditions":[{"type":"Approved"}]}}"#,
        r#"{"spec":{"request":"YQ==","signerName":"kubernetes.io/legacy-unknown","usages":["digital signature"]},"status":{"conditions":[{"type":"Approved","status":"True"}]}}"#,
    ),
    (
        "events.k8s.io/v1beta1",
        "Event",
        "events",
        r#"{"regarding":{"name":"p"},"note":"n","type":"Normal"}"#,
        r#"{"involvedObject":{"name":"p"},"message":"n","type":"Normal","reportingComponent":"","reportingInstance":""}"#,
    ),
];

#[test]
fn values_of_earlier_releases_are_converted() {
    let codec = codec(MediaType::Json);
    for (api_version, kind, store, value, expected) in VALUES {
        let with_kind = |text: &str, api_version: &str| {
            let mut value = object(text);
            value.set("apiVersion", api_version);
            value.set("kind", *kind);
            value
        };
        let resource = builtin(store);
        let stored_version = resource.stored().unwrap().version.to_string();
        let text = json::to_json(&with_kind(value, api_version));
        let decoded = codec.decode(&resource, &Key::namespaced("ns", "a"), &text).unwrap();
        assert!(decoded.is_stale, "{api_version} {kind}");
        let expected = if expected.is_empty() { value } else { expected };
        let expected = json::to_json(&with_kind(expected, &stored_version));
        // What this version would be read as if it had been stored in the version of today.
        let today = codec.decode(&resource, &Key::namespaced("ns", "a"), &expected).unwrap();
        let text = |decoded: &DecodedObject| String::from_utf8(decoded.draft.bytes.to_vec()).unwrap();
        let without_annotations = |text: String| text.replace(r#","annotations":{}"#, "");
        assert_eq!(without_annotations(text(&decoded)), text(&today), "{api_version} {kind}");
    }
}

#[test]
fn workloads_of_extensions_keep_what_apps_has_as_annotations() {
    let codec = codec(MediaType::Json);
    for (kind, store, spec, annotation) in [
        (
            "DaemonSet",
            "daemonsets.apps",
            r#"{"templateGeneration":3}"#,
            r#""deprecated.daemonset.template.generation":"3""#,
        ),
        (
            "Deployment",
            "deployments.apps",
            r#"{"rollbackTo":{"revision":2}}"#,
            r#""deprecated.deployment.rollback.to":"2""#,
        ),
    ] {
        let value = format!(r#"{{"kind":"{kind}","apiVersion":"extensions/v1beta1","spec":{spec}}}"#);
        let decoded = codec.decode(&builtin(store), &Key::namespaced("ns", "a"), value.as_bytes()).unwrap();
        let text = String::from_utf8(decoded.draft.bytes.to_vec()).unwrap();
        assert!(text.contains(annotation) && text.contains(r#""apiVersion":"apps/v1""#), "{text}");
    }
}

#[test]
fn webhooks_of_v1beta1_have_the_defaults_of_v1beta1() {
    let value = r#"{"kind":"ValidatingWebhookConfiguration","apiVersion":"admissionregistration.k8s.io/v1beta1","webhooks":[{"name":"w"}]}"#;
    let store = "validatingwebhookconfigurations.admissionregistration.k8s.io";
    let decoded =
        codec(MediaType::Json).decode(&builtin(store), &Key::cluster("a"), value.as_bytes()).unwrap();
    let text = String::from_utf8(decoded.draft.bytes.to_vec()).unwrap();
    for field in [
        r#""failurePolicy":"Ignore""#,
        r#""matchPolicy":"Exact""#,
        r#""sideEffects":"Unknown""#,
        r#""timeoutSeconds":30"#,
        r#""admissionReviewVersions":["v1beta1"]"#,
    ] {
        assert!(text.contains(field), "{text}");
    }
}

#[test]
fn version_that_cannot_be_converted_is_named() {
    let value = r#"{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2beta1"}"#;
    let store = "horizontalpodautoscalers.autoscaling";
    let error = codec(MediaType::Json)
        .decode(&builtin(store), &Key::namespaced("ns", "a"), value.as_bytes())
        .unwrap_err();
    assert_eq!(
        error.reason,
        ValueErrorReason::UnknownVersion {
            version: "autoscaling/v2beta1".to_owned(),
            kind: "HorizontalPodAutoscaler".to_owned()
        }
    );
    assert!(error.to_string().starts_with("horizontalpodautoscalers.autoscaling ns/a: "), "{error}");
}

#[test]
fn definitions_of_v1beta1_round_trip() {
    let store = "customresourcedefinitions.apiextensions.k8s.io";
    let codec = codec(MediaType::Protobuf);
    let names = r#""names":{"plural":"kites","singular":"kite","kind":"Kite","listKind":"KiteList"},"scope":"Cluster""#;
    let head = r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"kites.toys.example","creationTimestamp":null},"spec":{"group":"toys.example","version":"v1","#;
    let tail =
        r#"},"status":{"conditions":null,"acceptedNames":{"plural":"","kind":""},"storedVersions":["v1"]}}"#;
    for rest in [
        // Everything is the same in both versions.
        r#""validation":{"openAPIV3Schema":{"type":"object"}},"subresources":{"status":{}},"versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":true,"storage":false}],"additionalPrinterColumns":[{"name":"C","type":"string","JSONPath":".c"}],"selectableFields":[{"jsonPath":".spec.c"}],"conversion":{"strategy":"None"},"preserveUnknownFields":false"#,
        // Nothing is.
        r#""versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}},"subresources":{"status":{}},"additionalPrinterColumns":[{"name":"C","type":"string","JSONPath":".c"}],"selectableFields":[{"jsonPath":".spec.c"}]},{"name":"v2","served":true,"storage":false}],"conversion":{"strategy":"None"},"preserveUnknownFields":false"#,
        // A webhook converts them.
        r#""versions":[{"name":"v1","served":true,"storage":true}],"conversion":{"strategy":"Webhook","webhookClientConfig":{"service":{"namespace":"n","name":"s","port":443}},"conversionReviewVersions":["v1","v1beta1"]},"preserveUnknownFields":true"#,
    ] {
        let value = format!("{head}{names},{rest}{tail}\n");
        let key = Key::cluster("kites.toys.example");
        let decoded = codec.decode(&builtin(store), &key, value.as_bytes()).unwrap();
        let written = String::from_utf8(codec.encode(&builtin(store), &decoded.draft).unwrap()).unwrap();
        assert_eq!(written, value);
        assert!(!decoded.is_stale, "{rest}");
    }
}

#[test]
fn definition_of_the_first_releases_has_one_version_and_preserves_fields() {
    let value = r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"kites.toys.example"},"spec":{"group":"toys.example","version":"v1","names":{"plural":"kites","kind":"Kite"}}}"#;
    let store = "customresourcedefinitions.apiextensions.k8s.io";
    let key = Key::cluster("kites.toys.example");
    let decoded = codec(MediaType::Protobuf).decode(&builtin(store), &key, value.as_bytes()).unwrap();
    let text = String::from_utf8(decoded.draft.bytes.to_vec()).unwrap();
    assert!(decoded.is_stale);
    for part in [
        r#""apiVersion":"apiextensions.k8s.io/v1""#,
        r#""scope":"Namespaced""#,
        r#""versions":[{"name":"v1","served":true,"storage":true}]"#,
        r#""preserveUnknownFields":true"#,
        r#""conversion":{"strategy":"None"}"#,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
