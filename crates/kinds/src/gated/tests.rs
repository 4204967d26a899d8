use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::schema::{Registry, Type, TypeId};
use pilothouse_apimachinery::testing::{object, said};

use super::super::batch::job_status;
use super::super::core::pod::quality;
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
fn what_is_off_goes_unless_it_was_there() {
    let row = Gated::by(Feature::ImageVolume, &["a.b", "a.c[].d"]);
    let new = r#"{"a":{"b":1,"c":[{"d":2},{"e":3}]}}"#;
    assert_eq!(dropped(row, new, None), object(r#"{"a":{"c":[{},{"e":3}]}}"#));
    assert_eq!(dropped(row, new, Some(r#"{"a":{}}"#)), object(r#"{"a":{"c":[{},{"e":3}]}}"#));
    assert_eq!(dropped(row, new, Some(r#"{"a":{"c":[{"d":null},{"d":7}]}}"#)), object(new));
    let mut kept = object(new);
    drop_disabled(&[row], NONE.with(Feature::ImageVolume), &mut kept, None);
    assert_eq!(kept, object(new));
}

#[test]
fn a_use_may_be_elsewhere_or_nowhere() {
    let row = Gated::by(Feature::ImageVolume, &["status.x"]).used_at(&["spec.y"]);
    let new = r#"{"spec":{},"status":{"x":1}}"#;
    assert_eq!(dropped(row, new, Some(new)), object(r#"{"spec":{},"status":{}}"#));
    assert_eq!(dropped(row, new, Some(r#"{"spec":{"y":[1]}}"#)), object(new));
    assert_eq!(dropped(row, new, Some(r#"{"spec":{"y":[]}}"#)), object(r#"{"spec":{},"status":{}}"#));
    assert_eq!(dropped(row.used_at(&[]), new, Some(new)), object(r#"{"spec":{},"status":{}}"#));
}

#[test]
fn what_is_left_empty_goes_only_where_the_table_says_so() {
    let row = Gated::by(Feature::ImageVolume, &["containers*.a?.b?.c"]);
    let new = r#"{"containers":[{"a":{"b":{"c":1}}},{"a":{"b":{"c":1,"d":2}}},{"a":{"c":{}}}],
        "initContainers":[{"n":0,"a":{"b":{"c":1}}}]}"#;
    let wanted = r#"{"containers":[{},{"a":{"b":{"d":2}}},{"a":{"c":{}}}],"initContainers":[{"n":0}]}"#;
    assert_eq!(dropped(row, new, None), object(wanted));
    let stays = Gated::by(Feature::ImageVolume, &["a.b"]);
    assert_eq!(dropped(stays, r#"{"a":{"b":1}}"#, None), object(r#"{"a":{}}"#));
}

#[test]
fn a_field_may_become_a_word() {
    let row = Gated::by(Feature::ImageVolume, &["c[].m"]).becoming("Default");
    let new = r#"{"c":[{"m":"Other"},{"m":"Default"},{}]}"#;
    let plain = r#"{"c":[{"m":"Default"},{"m":"Default"},{}]}"#;
    assert_eq!(dropped(row, new, None), object(plain));
    assert_eq!(dropped(row, new, Some(plain)), object(plain));
    assert_eq!(dropped(row, new, Some(new)), object(new));
}

#[test]
fn whatever_the_object_looks_like_nothing_breaks() {
    let row = Gated::by(Feature::ImageVolume, &["a.b[].c"]);
    for text in ["{}", "[]", "null", r#"{"a":1}"#, r#"{"a":{"b":{"c":1}}}"#, r#"{"a":{"b":[1,null]}}"#] {
        assert_eq!(dropped(row, text, Some(text)), object(text));
    }
}

/// Whether a path of the table leads to a field of a type.
fn leads_somewhere(registry: &Registry, ty: TypeId, path: &str) -> bool {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let mut one = [""];
    let (names, listed, _) = step(first, &mut one);
    names.iter().all(|name| {
        let Some(field) = registry.structure(ty).and_then(|structure| structure.field(name)) else {
            return false;
        };
        let below = match (listed, registry.get(field.ty)) {
            (true, Type::List(list)) => list.item,
            (true, _) => return false,
            (false, _) => field.ty,
        };
        rest.is_none_or(|rest| leads_somewhere(registry, below, rest))
    })
}

#[test]
fn every_path_of_the_table_is_a_field() {
    let registry = Registry::builtin().unwrap();
    let check = |group: &str, kind: &str, root: &[&str], rows: &[Gated]| {
        let types: Vec<TypeId> = registry
            .kinds()
            .filter(|(gvk, _)| gvk.group == group && gvk.kind == kind)
            .map(|(_, ty)| ty)
            .collect();
        for path in rows.iter().flat_map(|row| row.fields.iter().chain(row.used_at.unwrap_or_default())) {
            let path = root.iter().chain([path]).copied().collect::<Vec<_>>().join(".");
            assert!(types.iter().any(|ty| leads_somewhere(&registry, *ty, &path)), "{kind}: {path}");
        }
    };
    for (group, kind, rules) in TABLE {
        check(group, kind, &[], rules.gated);
        if !rules.pods_at.is_empty() {
            check(group, kind, rules.pods_at, rows::POD_SPEC);
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
fn a_new_pod_keeps_nothing_of_features_that_are_off() {
    let mut new = object(POD);
    drop_disabled(rows::POD_SPEC, EnabledFeatures::RELEASE, new.entry("spec"), None);
    let wanted = object(
        r#"{"dnsPolicy":"Default","restartPolicy":"Always","os":{"name":"linux"},
            "containers":[{"name":"c","image":"i:1","imagePullPolicy":"Always","terminationMessagePolicy":"File"}],
            "volumes":[{"name":"p","projected":{"sources":[{}]}}]}"#,
    );
    assert_eq!(new.get("spec"), Some(&wanted));
}

#[test]
fn a_pod_that_made_use_of_a_feature_keeps_it_when_its_gate_is_closed() {
    let mut old = object(POD);
    old.entry("spec").remove("resources");
    old.entry("spec").remove("resourceClaims");
    old.entry("spec").remove("volumes");
    let open = context_with(EnabledFeatures::RELEASE.with(Feature::ContainerStopSignals));
    assert_eq!(
        before_create(kind("Pod"), &mut old, &open).map_err(|errors| format!("{errors:?}")),
        Ok(WarningList::under(open.features))
    );
    let signal = |pod: &Value| {
        pod.at(&["spec", "containers"]).unwrap().items()[0].at(&["lifecycle", "stopSignal"]).is_some()
    };
    assert!(signal(&old));
    let mut new = old.clone();
    new.entry("metadata").entry("labels").set("a", "b");
    before_update(kind("Pod"), &mut new, &old, &context_with(EnabledFeatures::RELEASE)).unwrap();
    assert!(signal(&new), "stored while the gate was open");
    let mut fresh = object(POD);
    fresh.entry("spec").remove("volumes");
    before_create(kind("Pod"), &mut fresh, &context_with(EnabledFeatures::RELEASE)).unwrap();
    assert!(!signal(&fresh));
}

/// What is left of an object of a kind under terms, without and with an old state that had the same.
fn left(group: &str, name: &str, body: &str, features: EnabledFeatures) -> (Value, Value) {
    let (mut new, mut again, old) = (object(body), object(body), object(body));
    drop_disabled(rules(group, name).gated, features, &mut new, None);
    drop_disabled(rules(group, name).gated, features, &mut again, Some(&old));
    (new, again)
}

#[test]
fn each_kind_loses_what_belongs_to_its_features() {
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
        let (new, again) = left(group, name, body, EnabledFeatures::NONE);
        assert_eq!((new, again), (object(bare), object(body)), "{name}");
    }
}

#[test]
fn a_lease_keeps_each_field_for_itself() {
    let mut new = object(r#"{"spec":{"strategy":"s","preferredHolder":"p"}}"#);
    let old = object(r#"{"spec":{"strategy":"t"}}"#);
    drop_disabled(rows::LEASE, EnabledFeatures::RELEASE, &mut new, Some(&old));
    assert_eq!(new, object(r#"{"spec":{"strategy":"s"}}"#));
}

#[test]
fn what_the_status_of_a_pod_tells_goes_with_what_its_spec_uses() {
    let body = r#"{"spec":{"containers":[{"resizePolicy":[{}]}],"securityContext":{}},
        "status":{"containerStatuses":[{"resources":{},"user":{},"allocatedResourcesStatus":[{}]}]}}"#;
    let (new, again) = left("", "Pod", body, EnabledFeatures::NONE);
    let bare = r#"{"spec":{"containers":[{"resizePolicy":[{}]}],"securityContext":{}},"status":{"containerStatuses":[{}]}}"#;
    assert_eq!(new, object(bare));
    let kept = r#"{"spec":{"containers":[{"resizePolicy":[{}]}],"securityContext":{}},
        "status":{"containerStatuses":[{"resources":{}}]}}"#;
    assert_eq!(again, object(kept), "nothing else was in use");
}

/// Each rule that asks the terms, once with its feature on and once off: what is said of the object, or nothing.
#[test]
fn rules_ask_which_features_are_on() {
    type Check = fn(&Value, &mut ErrorList);
    let template: Check = |pod, errors| pod_spec::validate(&FieldValue::of(pod, "spec"), None, errors);
    let shrink: Check = |new, errors| {
        let mut old = new.clone();
        old.entry("spec").entry("resources").entry("requests").set("storage", "3Gi");
        volume_claim::validate_claim_update(new, &old, errors);
    };
    let grow: Check = |new, errors| {
        let old = object(r#"{"spec":{"drivers":[{"name":"d","nodeID":"n","allocatable":{"count":1}}]}}"#);
        rules("storage.k8s.io", "CSINode").check_update(new, &old, errors);
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
                let annotations = pod.at(&["metadata", "annotations"]).unwrap();
                pod_meta::validate(annotations, &FieldValue::of(pod, "spec"), &FieldPath::new("a"), errors);
            },
            r#"{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"x"}}}"#.to_owned(),
            "must be a 32bit integer",
            "",
        ),
        (Feature::RecoverVolumeExpansionFailure, shrink, claim.to_owned(), "", "can not be less than previous value"),
        (Feature::MutableCSINodeAllocatableCount, grow, node.to_owned(), "", "field is immutable"),
        (
            Feature::HPAScaleToZero,
            |object, errors| (rules("autoscaling", "HorizontalPodAutoscaler").validate)(object, errors),
            r#"{"apiVersion":"autoscaling/v2","metadata":{"name":"h","namespace":"n"},"spec":{"minReplicas":0,"maxReplicas":1,
                "scaleTargetRef":{"kind":"D","name":"d"},"metrics":[{"type":"Object","object":{"describedObject":
                {"kind":"K","name":"k"},"target":{"type":"Value","value":"1"},"metric":{"name":"m"}}}]}}"#
                .to_owned(),
            "",
            "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
        ),
    ];
    for (feature, check, body, when_on, when_off) in table {
        let value = object(&body);
        for (features, wanted) in [
            (EnabledFeatures::RELEASE.with(feature), when_on),
            (EnabledFeatures::RELEASE.without(feature), when_off),
        ] {
            let mut errors = ErrorList::under(features);
            check(&value, &mut errors);
            let found = said(&errors);
            let right = if wanted.is_empty() {
                found.is_empty()
            } else {
                found.len() == 1 && found[0].contains(wanted)
            };
            assert!(right, "{feature:?} {}: {found:?}", features.has(feature));
        }
    }
}

#[test]
fn pods_that_ask_as_a_whole_are_judged_as_a_whole() {
    let class = |pod: &str, on: bool| quality(&object(pod), on);
    let pod = r#"{"spec":{"resources":{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}},
        "containers":[{"name":"c"}]}}"#;
    assert_eq!((class(pod, true), class(pod, false)), ("Guaranteed", "BestEffort"));
    let part = r#"{"spec":{"resources":{"requests":{"cpu":"1"}},"containers":[]}}"#;
    assert_eq!(class(part, true), "Burstable");
}

#[test]
fn a_new_job_says_only_what_is_on() {
    let body = r#"{"metadata":{"name":"j","uid":"u"},"spec":{"managedBy":"a.b/c","template":{}}}"#;
    for (features, kept) in [(EnabledFeatures::RELEASE, true), (EnabledFeatures::NONE, false)] {
        let mut job = object(body);
        apply_defaults(rules("batch", "Job"), &mut job, features);
        assert_eq!(job.at(&["spec", "podReplacementPolicy"]).is_some(), kept);
        job.entry("spec").set("podReplacementPolicy", "Failed");
        (rules("batch", "Job").prepare_create)(&mut job, &context_with(features));
        for field in ["managedBy", "podReplacementPolicy"] {
            assert_eq!(job.at(&["spec", field]).is_some(), kept, "{field}");
        }
    }
}

#[test]
fn jobs_that_nobody_else_runs_are_looked_at_less_closely() {
    let job =
        |status: &str| object(&format!(r#"{{"spec":{{"completionMode":"NonIndexed"}},"status":{status}}}"#));
    let found = |features, new: &str| {
        let mut errors = ErrorList::under(features);
        job_status::validate(&job(new), &job(r#"{"failed":2}"#), &mut errors);
        said(&errors)
    };
    let fewer = r#"{"failed":1}"#;
    let met = r#"{"failed":2,"conditions":[{"type":"SuccessCriteriaMet","status":"True"}]}"#;
    assert_eq!(found(EnabledFeatures::RELEASE, fewer).len(), 1);
    assert_eq!(found(EnabledFeatures::RELEASE.without(Feature::JobManagedBy), fewer), [""; 0]);
    assert_eq!(found(EnabledFeatures::RELEASE.without(Feature::JobManagedBy), met), [""; 0]);
    let strict = found(EnabledFeatures::NONE, met);
    assert!(strict.len() == 2 && strict[0].contains("to NonIndexed Job"), "{strict:?}");
}

#[test]
fn a_node_that_is_made_tells_no_features_where_they_are_off() {
    for (features, kept) in [(EnabledFeatures::RELEASE, true), (EnabledFeatures::NONE, false)] {
        let mut node = object(r#"{"status":{"features":{"supplementalGroupsPolicy":true}}}"#);
        (rules("", "Node").prepare_create)(&mut node, &context_with(features));
        assert_eq!(node.at(&["status", "features"]).is_some(), kept);
    }
}
