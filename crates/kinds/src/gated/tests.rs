use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::schema::{Registry, Type, TypeId};
use pilothouse_apimachinery::testing::{error_messages, object};

use super::super::batch::job_status;
use super::super::core::pod::qos_class;
use super::super::core::{pod_meta, pod_spec, volume_claim};
use super::super::table::TABLE;
use super::super::testing::context;
use super::super::{Kind, WriteContext, apply_defaults, before_create, before_update, rules};
use super::*;

const NONE: EnabledFeatures = EnabledFeatures::NONE;

fn dropped(row: Gated, new: &str, old: Option<&str>) -> Value {
    let mut new = object(new);
    drop_disabled(&[row], NONE, &mut new, old.map(object).as_ref());
    new
}

#[test]
fn disabled_fields_are_dropped_unless_the_old_object_had_them() {
    let row = Gated::new(Feature::ImageVolume, &["a.b", "a.c[].d"]);
    let new = r#"{"a":{"b":1,"c":[{"d":2},{"e":3}]}}"#;
    assert_eq!(dropped(row, new, None), object(r#"{"a":{"c":[{},{"e":3}]}}"#));
    assert_eq!(dropped(row, new, Some(r#"{"a":{}}"#)), object(r#"{"a":{"c":[{},{"e":3}]}}"#));
    assert_eq!(dropped(row, new, Some(r#"{"a":{"c":[{"d":null},{"d":7}]}}"#)), object(new));
    let mut kept_object = object(new);
    drop_disabled(&[row], NONE.with(Feature::ImageVolume), &mut kept_object, None);
    assert_eq!(kept_object, object(new));
}

#[test]
fn used_at_fields_decide_whether_a_feature_was_used() {
    let row = Gated::new(Feature::ImageVolume, &["status.x"]).used_at(&["spec.y"]);
    let new = r#"{"spec":{},"status":{"x":1}}"#;
    assert_eq!(dropped(row, new, Some(new)), object(r#"{"spec":{},"status":{}}"#));
    assert_eq!(dropped(row, new, Some(r#"{"spec":{"y":[1]}}"#)), object(new));
    assert_eq!(dropped(row, new, Some(r#"{"spec":{"y":[]}}"#)), object(r#"{"spec":{},"status":{}}"#));
    assert_eq!(dropped(row.used_at(&[]), new, Some(new)), object(r#"{"spec":{},"status":{}}"#));
}

#[test]
fn emptied_parents_are_dropped_only_with_question_mark() {
    let row = Gated::new(Feature::ImageVolume, &["containers*.a?.b?.c"]);
    let new = r#"{"containers":[{"a":{"b":{"c":1}}},{"a":{"b":{"c":1,"d":2}}},{"a":{"c":{}}}],
        "initContainers":[{"n":0,"a":{"b":{"c":1}}}]}"#;
    let expected = r#"{"containers":[{},{"a":{"b":{"d":2}}},{"a":{"c":{}}}],"initContainers":[{"n":0}]}"#;
    assert_eq!(dropped(row, new, None), object(expected));
    let stays = Gated::new(Feature::ImageVolume, &["a.b"]);
    assert_eq!(dropped(stays, r#"{"a":{"b":1}}"#, None), object(r#"{"a":{}}"#));
}

#[test]
fn disabled_field_is_replaced_with_its_value() {
    let row = Gated::new(Feature::ImageVolume, &["c[].m"]).replaced_with("Default");
    let new = r#"{"c":[{"m":"Other"},{"m":"Default"},{}]}"#;
    let plain = r#"{"c":[{"m":"Default"},{"m":"Default"},{}]}"#;
    assert_eq!(dropped(row, new, None), object(plain));
    assert_eq!(dropped(row, new, Some(plain)), object(plain));
    assert_eq!(dropped(row, new, Some(new)), object(new));
}

#[test]
fn drop_disabled_ignores_objects_of_other_shape() {
    let row = Gated::new(Feature::ImageVolume, &["a.b[].c"]);
    for text in ["{}", "[]", "null", r#"{"a":1}"#, r#"{"a":{"b":{"c":1}}}"#, r#"{"a":{"b":[1,null]}}"#] {
        assert_eq!(dropped(row, text, Some(text)), object(text));
    }
}

/// Whether a path of the table is a field of a type.
fn is_field(registry: &Registry, ty: TypeId, path: &str) -> bool {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let mut buffer = [""];
    let (names, is_list, _) = parse_element(first, &mut buffer);
    names.iter().all(|name| {
        let Some(field) = registry.structure(ty).and_then(|structure| structure.field(name)) else {
            return false;
        };
        let inner = match (is_list, registry.get(field.ty)) {
            (true, Type::List(list)) => list.item,
            (true, _) => return false,
            (false, _) => field.ty,
        };
        rest.is_none_or(|rest| is_field(registry, inner, rest))
    })
}

#[test]
fn table_paths_are_fields_of_the_schema() {
    let registry = Registry::builtin().unwrap();
    let check = |group: &str, kind: &str, root: &[&str], rows: &[Gated]| {
        let types: Vec<TypeId> = registry
            .kinds()
            .filter(|(gvk, _)| gvk.group == group && gvk.kind == kind)
            .map(|(_, ty)| ty)
            .collect();
        for path in rows.iter().flat_map(|row| row.fields.iter().chain(row.used_at.unwrap_or_default())) {
            let path = root.iter().chain([path]).copied().collect::<Vec<_>>().join(".");
            assert!(types.iter().any(|ty| is_field(&registry, *ty, &path)), "{kind}: {path}");
        }
    };
    for (group, kind, rules) in TABLE {
        check(group, kind, &[], rules.gated);
        if !rules.pod_spec.0.is_empty() {
            check(group, kind, rules.pod_spec.0, rows::POD_SPEC);
        }
    }
}

fn context_with(features: EnabledFeatures) -> WriteContext<'static> {
    WriteContext { features, ..context("2024-01-01T00:00:00Z") }
}

fn kind(name: &str) -> Kind {
    Kind { rules: rules("", name), namespaced: true, has_status: true }
}

const POD: &str = r#"{"metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"1"},"spec":{"dnsPolicy":"Default",
    "restartPolicy":"Always","containers":[{"name":"c","image":"i:1","imagePullPolicy":"Always",
        "terminationMessagePolicy":"File","lifecycle":{"stopSignal":"SIGTERM"},"resources":{"claims":[{"name":"r"}]}}],
    "os":{"name":"linux"},"resources":{"limits":{"cpu":"1"}},"resourceClaims":[{"name":"r","resourceClaimName":"r"}],
    "volumes":[{"name":"p","projected":{"sources":[{"clusterTrustBundle":{"name":"b","path":"p"}}]}}]}}"#;

#[test]
fn new_pod_loses_fields_of_disabled_features() {
    let mut new = object(POD);
    drop_disabled(rows::POD_SPEC, EnabledFeatures::RELEASE, new.entry("spec"), None);
    let expected = object(
        r#"{"dnsPolicy":"Default","restartPolicy":"Always","os":{"name":"linux"},
            "containers":[{"name":"c","image":"i:1","imagePullPolicy":"Always","terminationMessagePolicy":"File"}],
            "volumes":[{"name":"p","projected":{"sources":[{}]}}]}"#,
    );
    assert_eq!(new.get("spec"), Some(&expected));
}

#[test]
fn pod_keeps_fields_of_a_feature_disabled_later() {
    let mut old = object(POD);
    old.entry("spec").remove("resources");
    old.entry("spec").remove("resourceClaims");
    old.entry("spec").remove("volumes");
    let enabled = context_with(EnabledFeatures::RELEASE.with(Feature::ContainerStopSignals));
    assert_eq!(
        before_create(kind("Pod"), &mut old, &enabled).map_err(|errors| format!("{errors:?}")),
        Ok(WarningList::with_features(enabled.features))
    );
    let has_signal = |pod: &Value| {
        pod.get_path(&["spec", "containers"]).unwrap().items()[0]
            .get_path(&["lifecycle", "stopSignal"])
            .is_some()
    };
    assert!(has_signal(&old));
    let mut new = old.clone();
    new.entry("metadata").entry("labels").set("a", "b");
    before_update(kind("Pod"), &mut new, &old, &context_with(EnabledFeatures::RELEASE)).unwrap();
    assert!(has_signal(&new), "stored while the gate was open");
    let mut created = object(POD);
    created.entry("spec").remove("volumes");
    before_create(kind("Pod"), &mut created, &context_with(EnabledFeatures::RELEASE)).unwrap();
    assert!(!has_signal(&created));
}

/// The object after dropping disabled fields, as a new object and as an update of the same object.
fn after_drop(group: &str, name: &str, body: &str, features: EnabledFeatures) -> (Value, Value) {
    let (mut new, mut updated, old) = (object(body), object(body), object(body));
    drop_disabled(rules(group, name).gated, features, &mut new, None);
    drop_disabled(rules(group, name).gated, features, &mut updated, Some(&old));
    (new, updated)
}

#[test]
fn each_kind_loses_fields_of_disabled_features() {
    for (group, name, body, bare) in [
        ("apps", "Deployment", r#"{"status":{"terminatingReplicas":1}}"#, r#"{"status":{}}"#),
        (
            "coordination.k8s.io",
            "Lease",
            r#"{"spec":{"strategy":"s","preferredHolder":"p","h":1}}"#,
            r#"{"spec":{"h":1}}"#,
        ),
        (
            "apps",
            "StatefulSet",
            r#"{"spec":{"updateStrategy":{"rollingUpdate":{"maxUnavailable":1}}}}"#,
            r#"{"spec":{"updateStrategy":{"rollingUpdate":{}}}}"#,
        ),
        (
            "autoscaling",
            "HorizontalPodAutoscaler",
            r#"{"spec":{"behavior":{"scaleUp":{"tolerance":"1"},"scaleDown":{"tolerance":"1"}}}}"#,
            r#"{"spec":{"behavior":{"scaleUp":{},"scaleDown":{}}}}"#,
        ),
        (
            "discovery.k8s.io",
            "EndpointSlice",
            r#"{"endpoints":[{"hints":{"forNodes":[{"name":"n"}]}}]}"#,
            r#"{"endpoints":[{"hints":{}}]}"#,
        ),
        (
            "storage.k8s.io",
            "CSIDriver",
            r#"{"spec":{"seLinuxMount":false,"nodeAllocatableUpdatePeriodSeconds":10}}"#,
            r#"{"spec":{}}"#,
        ),
        (
            "storage.k8s.io",
            "VolumeAttachment",
            r#"{"status":{"attachError":{"errorCode":1},"detachError":{"errorCode":1}}}"#,
            r#"{"status":{"attachError":{},"detachError":{}}}"#,
        ),
        (
            "",
            "PersistentVolumeClaim",
            r#"{"spec":{"volumeAttributesClassName":"c"},"status":{"currentVolumeAttributesClassName":"c",
                "modifyVolumeStatus":{},"allocatedResources":{"storage":"1"},"allocatedResourceStatuses":{"storage":"x"}}}"#,
            r#"{"spec":{},"status":{}}"#,
        ),
        (
            "resource.k8s.io",
            "ResourceClaim",
            r#"{"spec":{"devices":{"requests":[{"name":"a","adminAccess":true},{"name":"b","firstAvailable":[{}]}]}},
                "status":{"allocation":{"devices":{"results":[{"adminAccess":true}]}},"devices":[{}]}}"#,
            r#"{"spec":{"devices":{"requests":[{"name":"a"},{"name":"b"}]}},
                "status":{"allocation":{"devices":{"results":[{}]}}}}"#,
        ),
        (
            "resource.k8s.io",
            "ResourceSlice",
            r#"{"spec":{"sharedCounters":[{}],"perDeviceNodeSelection":true,"devices":[{"basic":{"taints":[{}],
                "consumesCounters":[{}],"nodeName":"n","nodeSelector":{},"allNodes":true}}]}}"#,
            r#"{"spec":{"devices":[{"basic":{}}]}}"#,
        ),
    ] {
        let (new, updated) = after_drop(group, name, body, EnabledFeatures::NONE);
        assert_eq!((new, updated), (object(bare), object(body)), "{name}");
    }
}

#[test]
fn lease_fields_are_gated_separately() {
    let mut new = object(r#"{"spec":{"strategy":"s","preferredHolder":"p"}}"#);
    let old = object(r#"{"spec":{"strategy":"t"}}"#);
    drop_disabled(rows::LEASE, EnabledFeatures::RELEASE, &mut new, Some(&old));
    assert_eq!(new, object(r#"{"spec":{"strategy":"s"}}"#));
}

#[test]
fn pod_status_fields_depend_on_features_used_in_the_spec() {
    let body = r#"{"spec":{"containers":[{"resizePolicy":[{}]}],"securityContext":{}},
        "status":{"containerStatuses":[{"resources":{},"user":{},"allocatedResourcesStatus":[{}]}]}}"#;
    let (new, updated) = after_drop("", "Pod", body, EnabledFeatures::NONE);
    let bare = r#"{"spec":{"containers":[{"resizePolicy":[{}]}],"securityContext":{}},"status":{"containerStatuses":[{}]}}"#;
    assert_eq!(new, object(bare));
    let expected = r#"{"spec":{"containers":[{"resizePolicy":[{}]}],"securityContext":{}},
        "status":{"containerStatuses":[{"resources":{}}]}}"#;
    assert_eq!(updated, object(expected), "nothing else was in use");
}

/// Each validation that depends on a feature, with the feature enabled and disabled.
#[test]
fn validation_depends_on_enabled_features() {
    type Check = fn(&Value, &mut ErrorList);
    let template: Check = |pod, errors| pod_spec::validate(&FieldValue::top_level(pod, "spec"), None, errors);
    let shrink: Check = |new, errors| {
        let mut old = new.clone();
        old.entry("spec").entry("resources").entry("requests").set("storage", "3Gi");
        volume_claim::validate_claim_update(new, &old, errors);
    };
    let grow: Check = |new, errors| {
        let old = object(r#"{"spec":{"drivers":[{"name":"d","nodeID":"n","allocatable":{"count":1}}]}}"#);
        rules("storage.k8s.io", "CSINode").validation.check_update(new, &old, errors);
    };
    let spec = |rest: &str| {
        format!(
            r#"{{"spec":{{"restartPolicy":"Always","dnsPolicy":"Default","terminationGracePeriodSeconds":30,{rest}}}}}"#
        )
    };
    let container = |rest: &str| {
        format!(
            r#""containers":[{{"name":"c","image":"i","imagePullPolicy":"Always","terminationMessagePolicy":"File"{rest}}}]"#
        )
    };
    let plain = container("");
    let claim = r#"{"metadata":{"name":"c","namespace":"n"},"spec":{"accessModes":["ReadWriteOnce"],"volumeMode":"Filesystem",
        "resources":{"requests":{"storage":"2Gi"}}},"status":{"phase":"Bound","capacity":{"storage":"1Gi"}}}"#;
    let node = r#"{"spec":{"drivers":[{"name":"d","nodeID":"n","allocatable":{"count":2}}]}}"#;
    let table: [(Feature, Check, String, &str, &str); 9] = [
        (
            Feature::PodLifecycleSleepActionAllowZero,
            template,
            spec(&container(r#","lifecycle":{"preStop":{"sleep":{"seconds":0}}}"#)),
            "",
            "must be greater than 0 and less than terminationGracePeriodSeconds (30). Enable",
        ),
        (
            Feature::RelaxedEnvironmentVariableValidation,
            template,
            spec(&container(r#","env":[{"name":"1 b"}]"#)),
            "",
            "a valid environment variable name must consist of alphabetic characters",
        ),
        (
            Feature::RelaxedDNSSearchValidation,
            template,
            spec(&format!(r#"{plain},"dnsConfig":{{"nameservers":["10.0.0.1"],"searches":["a_b"]}}"#)),
            "",
            "spec.dnsConfig.searches[0]: Invalid value: \"a_b\"",
        ),
        (
            Feature::SELinuxMount,
            template,
            spec(&format!(r#"{plain},"securityContext":{{"seLinuxChangePolicy":"MountOption"}}"#)),
            "",
            "Unsupported value: \"MountOption\": supported values: \"Recursive\"",
        ),
        (
            Feature::SELinuxMount,
            template,
            spec(&format!(r#"{plain},"securityContext":{{"seLinuxChangePolicy":"X"}}"#)),
            "supported values: \"MountOption\", \"Recursive\"",
            "supported values: \"Recursive\"",
        ),
        (
            Feature::PodDeletionCost,
            |pod, errors| {
                let annotations = pod.get_path(&["metadata", "annotations"]).unwrap();
                pod_meta::validate(annotations, &FieldValue::top_level(pod, "spec"), &FieldPath::new("a"), errors);
            },
            r#"{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"x"}}}"#.to_owned(),
            "must be a 32bit integer",
            "",
        ),
        (Feature::RecoverVolumeExpansionFailure, shrink, claim.to_owned(), "", "can not be less than previous value"),
        (Feature::MutableCSINodeAllocatableCount, grow, node.to_owned(), "", "field is immutable"),
        (
            Feature::HPAScaleToZero,
            |object, errors| (rules("autoscaling", "HorizontalPodAutoscaler").validation.validate)(object, errors),
            r#"{"apiVersion":"autoscaling/v2","metadata":{"name":"h","namespace":"n"},"spec":{"minReplicas":0,"maxReplicas":1,
                "scaleTargetRef":{"kind":"D","name":"d"},"metrics":[{"type":"Object","object":{"describedObject":
                {"kind":"K","name":"k"},"target":{"type":"Value","value":"1"},"metric":{"name":"m"}}}]}}"#
                .to_owned(),
            "",
            "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
        ),
    ];
    for (feature, check, body, if_enabled, if_disabled) in table {
        let value = object(&body);
        for (features, expected) in [
            (EnabledFeatures::RELEASE.with(feature), if_enabled),
            (EnabledFeatures::RELEASE.without(feature), if_disabled),
        ] {
            let mut errors = ErrorList::with_features(features);
            check(&value, &mut errors);
            let messages = error_messages(&errors);
            let is_expected = if expected.is_empty() {
                messages.is_empty()
            } else {
                messages.len() == 1 && messages[0].contains(expected)
            };
            assert!(is_expected, "{feature:?} {}: {messages:?}", features.has(feature));
        }
    }
}

#[test]
fn qos_class_uses_pod_level_resources() {
    let class = |pod: &str, is_enabled: bool| qos_class(&object(pod), is_enabled);
    let pod = r#"{"spec":{"resources":{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}},
        "containers":[{"name":"c"}]}}"#;
    assert_eq!((class(pod, true), class(pod, false)), ("Guaranteed", "BestEffort"));
    let part = r#"{"spec":{"resources":{"requests":{"cpu":"1"}},"containers":[]}}"#;
    assert_eq!(class(part, true), "Burstable");
}

#[test]
fn new_job_loses_fields_of_disabled_features() {
    let body = r#"{"metadata":{"name":"j","uid":"u"},"spec":{"managedBy":"a.b/c","template":{}}}"#;
    for (features, is_kept) in [(EnabledFeatures::RELEASE, true), (EnabledFeatures::NONE, false)] {
        let mut job = object(body);
        apply_defaults(rules("batch", "Job"), &mut job, features);
        assert_eq!(job.get_path(&["spec", "podReplacementPolicy"]).is_some(), is_kept);
        job.entry("spec").set("podReplacementPolicy", "Failed");
        (rules("batch", "Job").preparation.prepare_create)(&mut job, &context_with(features));
        for field in ["managedBy", "podReplacementPolicy"] {
            assert_eq!(job.get_path(&["spec", field]).is_some(), is_kept, "{field}");
        }
    }
}

#[test]
fn job_status_validation_is_lenient_without_managed_by() {
    let job =
        |status: &str| object(&format!(r#"{{"spec":{{"completionMode":"NonIndexed"}},"status":{status}}}"#));
    let validation_errors = |features, new: &str| {
        let mut errors = ErrorList::with_features(features);
        job_status::validate(&job(new), &job(r#"{"failed":2}"#), &mut errors);
        error_messages(&errors)
    };
    let fewer = r#"{"failed":1}"#;
    let met = r#"{"failed":2,"conditions":[{"type":"SuccessCriteriaMet","status":"True"}]}"#;
    assert_eq!(validation_errors(EnabledFeatures::RELEASE, fewer).len(), 1);
    assert_eq!(validation_errors(EnabledFeatures::RELEASE.without(Feature::JobManagedBy), fewer), [""; 0]);
    assert_eq!(validation_errors(EnabledFeatures::RELEASE.without(Feature::JobManagedBy), met), [""; 0]);
    let strict = validation_errors(EnabledFeatures::NONE, met);
    assert!(strict.len() == 2 && strict[0].contains("to NonIndexed Job"), "{strict:?}");
}

#[test]
fn new_node_loses_status_features_of_disabled_feature() {
    for (features, is_kept) in [(EnabledFeatures::RELEASE, true), (EnabledFeatures::NONE, false)] {
        let mut node = object(r#"{"status":{"features":{"supplementalGroupsPolicy":true}}}"#);
        (rules("", "Node").preparation.prepare_create)(&mut node, &context_with(features));
        assert_eq!(node.get_path(&["status", "features"]).is_some(), is_kept);
    }
}
