//! Pods: preparation and validation.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::{FieldValue, items_mut, present_mut, same};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::nano_quantity::NanoQuantity;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{APPARMOR, MIRROR};

use super::{container, pod_change, pod_default, pod_meta, pod_resources, pod_spec, pod_status, pod_warn};
use crate::{
    DefaultingRules, DeletionRules, KindRules, MetadataRules, PodSpecPath, PreparationRules, ResetFields,
    StatusMeta, StatusRules, ValidationRules, WarningRules, WriteContext, gated,
};

/// The rules of a Pod.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    pod_spec: PodSpecPath(&["spec"]),
    defaulting: DefaultingRules {
        default: pod_default::default_pod,
        default_by_feature: pod_resources::default,
        ..DefaultingRules::DEFAULT
    },
    gated: gated::rows::POD,
    preparation: PreparationRules { prepare_create, ..PreparationRules::DEFAULT },
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    warnings: WarningRules { warn: pod_warn::warn_pod, warn_early },
    status: StatusRules {
        metadata: StatusMeta::MutableExcept(&["ownerReferences"]),
        prepare: pod_status::prepare,
        validate: pod_status::validate,
        warn: pod_warn::warn_status,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields {
        status: &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
        subresources: &[("ephemeralcontainers", &[&["status"]])],
        ..ResetFields::DEFAULT
    },
    deletion: DeletionRules { grace_period, ..DeletionRules::RETURNS_OBJECT },
    ..KindRules::DEFAULT
};

/// The grace period of a pod without `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The grace period of a deletion. Pods that were never scheduled or have ended are removed at once.
fn grace_period(pod: &Value, requested: Option<i64>) -> Option<i64> {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let own_seconds =
        spec.get("terminationGracePeriodSeconds").and_then(Value::as_int).unwrap_or(DEFAULT_GRACE_SECONDS);
    let has_ended =
        matches!(pod.get_path(&["status", "phase"]).and_then(Value::as_str), Some("Failed" | "Succeeded"));
    if spec.str("nodeName").is_empty() || has_ended {
        return Some(0);
    }
    let seconds = requested.unwrap_or(own_seconds);
    Some(if seconds < 0 { 1 } else { seconds })
}

/// A new pod is Pending and gets its QoS class.
fn prepare_create(pod: &mut Value, context: &WriteContext<'_>) {
    let mut status = Value::object();
    status.set("phase", "Pending");
    status.set("qosClass", qos_class(pod, context.features.has(Feature::PodLevelResources)));
    if pod.get_path(&["spec", "schedulingGates"]).is_some_and(|gates| !gates.items().is_empty()) {
        let mut condition = Value::object();
        condition.set("type", "PodScheduled");
        condition.set("status", "False");
        condition.set("reason", "SchedulingGated");
        condition.set("message", "Scheduling is blocked due to non-empty scheduling gates");
        condition.set("lastProbeTime", Value::Null);
        condition.set("lastTransitionTime", context.now);
        status.set("conditions", vec![condition]);
    }
    pod.set("status", status);
    if pod.get_path(&["spec", "affinity"]).is_some() {
        merge_label_keys(pod);
    }
    sync_apparmor_profiles(pod);
}

/// Merges matchLabelKeys and mismatchLabelKeys into the label selectors of the pod.
fn merge_label_keys(pod: &mut Value) {
    let labels = meta::metadata(pod).get("labels").cloned().unwrap_or_default();
    let Some(affinity) = pod.get_mut("spec").and_then(|spec| present_mut(spec, "affinity")) else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = present_mut(affinity, kind) else { continue };
        for term in items_mut(pods, "preferredDuringSchedulingIgnoredDuringExecution") {
            if let Some(term) = present_mut(term, "podAffinityTerm") {
                merge_term_label_keys(term, &labels);
            }
        }
        for term in items_mut(pods, "requiredDuringSchedulingIgnoredDuringExecution") {
            merge_term_label_keys(term, &labels);
        }
    }
}

fn merge_term_label_keys(term: &mut Value, labels: &Value) {
    let mut added = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in term.get(field).map(Value::items).unwrap_or_default().iter().filter_map(Value::as_str) {
            let Some(value) = labels.get(key) else { continue };
            let mut requirement = Value::object();
            requirement.set("key", key);
            requirement.set("operator", operator);
            requirement.set("values", Value::Array(vec![value.clone()].into()));
            added.push(requirement);
        }
    }
    let Some(selector) = present_mut(term, "labelSelector").filter(|_| !added.is_empty()) else { return };
    let expressions = selector.entry("matchExpressions");
    if !matches!(expressions, Value::Array(_)) {
        *expressions = Value::array();
    }
    if let Value::Array(expressions) = expressions {
        expressions.append(&mut added);
    }
}

/// Keeps AppArmor annotations and fields in sync, because kubelets of older releases read the annotations.
fn sync_apparmor_profiles(pod: &mut Value) {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let annotations = meta::metadata(pod).get("annotations").unwrap_or(&Value::Null);
    let has_annotation = annotations
        .fields()
        .is_some_and(|annotations| annotations.keys().any(|key| key.starts_with(APPARMOR)));
    let in_containers = CONTAINER_LISTS.iter().any(|kind| {
        let list = spec.get(kind).map(Value::items).unwrap_or_default();
        list.iter().any(|container| container.get_path(&["securityContext", "appArmorProfile"]).is_some())
    });
    let pod_profile = spec.get_path(&["securityContext", "appArmorProfile"]).cloned();
    let is_windows = spec.get_path(&["os", "name"]).and_then(Value::as_str) == Some("windows");
    if is_windows || !(has_annotation || in_containers || pod_profile.is_some()) {
        return;
    }
    let annotations = annotations.clone();
    let mut names = Vec::new();
    for kind in CONTAINER_LISTS {
        for container in items_mut(pod.entry("spec"), kind) {
            let key = format!("{APPARMOR}{}", container.str("name"));
            let container_profile = container.get_path(&["securityContext", "appArmorProfile"]);
            match annotations.get(&key).and_then(Value::as_str) {
                None => names.extend(
                    container_profile
                        .or(pod_profile.as_ref())
                        .and_then(pod_meta::profile_to_annotation)
                        .map(|name| (key, name)),
                ),
                Some(name) if container_profile.is_none() => {
                    let profile = pod_meta::profile_from_annotation(name);
                    if let Some(profile) =
                        profile.filter(|profile| !same(Some(profile), pod_profile.as_ref()))
                    {
                        container.entry("securityContext").set("appArmorProfile", profile);
                    }
                }
                Some(_) => {}
            }
        }
    }
    for (key, name) in names {
        pod.entry("metadata").entry("annotations").set(&key, name);
    }
}

/// Warns about deprecated annotations without their field.
pub fn warn_early(pod: &Value, warnings: &mut WarningList) {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let Some(annotations) = annotations(pod).fields() else { return };
    if spec.get_path(&["os", "name"]).and_then(Value::as_str) == Some("windows") {
        return;
    }
    let pod_profile = spec.get_path(&["securityContext", "appArmorProfile"]);
    for kind in CONTAINER_LISTS {
        for container in spec.get(kind).map(Value::items).unwrap_or_default() {
            let key = format!("{APPARMOR}{}", container.str("name"));
            let Some(name) = annotations.get(&key).and_then(Value::as_str) else { continue };
            let is_repeated = container.get_path(&["securityContext", "appArmorProfile"]).is_some()
                || pod_meta::profile_from_annotation(name)
                    .is_some_and(|profile| same(Some(&profile), pod_profile));
            if !is_repeated {
                warnings.push(format!(
                    "{}: deprecated since v1.30; use the \"appArmorProfile\" field instead",
                    annotations_path().key(&key)
                ));
            }
        }
    }
}

/// The QoS class: Guaranteed if requests equal limits in every container, BestEffort if there are none. With `with_pod_level`,
/// pod-level resources count instead, if set.
pub fn qos_class(pod: &Value, with_pod_level: bool) -> &'static str {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let pod_level = spec.get("resources").filter(|_| with_pod_level);
    let containers = || {
        let lists = ["containers", "initContainers"].iter().filter_map(|list| spec.get(list));
        lists.flat_map(Value::items).map(|container| container.get("resources").unwrap_or(&Value::Null))
    };
    let (mut has_resources, mut is_guaranteed, mut has_containers) = (false, true, false);
    for resources in pod_level.into_iter().chain(containers().filter(|_| pod_level.is_none())) {
        has_containers = true;
        let amount = |kind: &str, name: &str| -> Option<NanoQuantity> {
            let amount = resources.get_path(&[kind, name]).and_then(NanoQuantity::from_value);
            amount.filter(|amount| !amount.is_zero())
        };
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount("requests", name), amount("limits", name));
            has_resources |= request.is_some() || limit.is_some();
            is_guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (has_resources, is_guaranteed && has_containers) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// The annotations of an object, or null.
pub fn annotations(object: &Value) -> &Value {
    meta::metadata(object).get("annotations").unwrap_or(&Value::Null)
}

/// The path of the annotations.
pub fn annotations_path() -> FieldPath {
    FieldPath::new("metadata").child("annotations")
}

/// Validates what new and updated pods have in common.
pub fn validate_any(pod: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(pod, "spec");
    let annotations = annotations(pod);
    if annotations.fields().is_some() {
        pod_meta::validate(annotations, &spec, &annotations_path(), errors);
    }
    if annotations.get(MIRROR).is_some() {
        let detail = "static pods do not support resource claims";
        let claims = spec.read("resourceClaims").items();
        claims.iter().for_each(|_| errors.push(FieldError::forbidden(&FieldPath::nameless(), detail)));
    }
    pod_spec::validate(&spec, Some(meta::name(pod)), errors);
    if spec.str("serviceAccountName").is_empty() {
        for volume in spec.child("volumes").items().filter(|volume| volume.has("projected")) {
            for source in volume.child("projected").child("sources").items() {
                if let Some(token) = source.opt("serviceAccountToken") {
                    token.forbidden(errors, "must not be specified when serviceAccountName is not set");
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        let has_padding = |container: &Value| container.str("image").trim() != container.str("image");
        if spec.read(list).items().iter().any(has_padding) {
            for container in spec.child(list).items() {
                container::validate_image_whitespace(&container, errors);
            }
        }
    }
}

/// Checks a new pod.
fn validate(pod: &Value, errors: &mut ErrorList) {
    validate_any(pod, errors);
    let spec = FieldValue::top_level(pod, "spec");
    if !spec.child("ephemeralContainers").is_empty() {
        spec.child("ephemeralContainers").forbidden(errors, "cannot be set on create");
    }
    if !spec.str("nodeName").is_empty() && !spec.child("schedulingGates").is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        spec.child("nodeName").forbidden(errors, detail);
    }
    pod_meta::validate_profiles_match(annotations(pod), &spec, errors);
}

/// Validates an updated pod.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    pod_change::validate(new, old, errors);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::super::super::testing::context;
    use super::*;

    fn base() -> Value {
        object(
            r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i:1"}],"restartPolicy":"Always",
                "activeDeadlineSeconds":9,"tolerations":[{"key":"k","operator":"Exists"}]}}"#,
        )
    }

    #[test]
    fn grace_period_applies_only_to_running_pods() {
        let running = r#"{"spec":{"nodeName":"n","terminationGracePeriodSeconds":9}}"#;
        let table = [
            (running, None, Some(9)),
            (running, Some(5), Some(5)),
            (running, Some(-5), Some(1)),
            (r#"{"spec":{}}"#, Some(5), Some(0)),
            (r#"{"spec":{"nodeName":"n"}}"#, None, Some(DEFAULT_GRACE_SECONDS)),
            (r#"{"spec":{"nodeName":"n"},"status":{"phase":"Failed"}}"#, None, Some(0)),
        ];
        for (pod, requested, expected) in table {
            assert_eq!(grace_period(&object(pod), requested), expected, "{pod}");
        }
    }

    #[test]
    fn pod_create_validation_refuses_each_violation() {
        each_refused(
            &base(),
            validate,
            &[
                ("spec.ephemeralContainers", r#"[{"name":"e","image":"i"}]"#, "cannot be set on create"),
                ("spec.containers.0.image", r#"" i""#, "must not have leading or trailing whitespace"),
                (
                    "metadata.annotations",
                    r#"{"kubernetes.io/config.mirror":"x"}"#,
                    "must set spec.nodeName if mirror",
                ),
                (
                    "metadata.annotations",
                    r#"{"controller.kubernetes.io/pod-deletion-cost":"x"}"#,
                    "must be a 32bit integer",
                ),
                (
                    "spec.volumes",
                    r#"[{"name":"t","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}]"#,
                    "serviceAccountName is not set",
                ),
            ],
        );
    }

    #[test]
    fn qos_class_follows_requests_and_limits() {
        let table = [
            ("{}", "BestEffort"),
            (r#"{"requests":{"cpu":"1"}}"#, "Burstable"),
            (
                r#"{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"1","memory":"1024Mi"}}"#,
                "Guaranteed",
            ),
            (r#"{"limits":{"cpu":"1","memory":"1Gi"}}"#, "Burstable"),
            (r#"{"requests":{"cpu":"0"}}"#, "BestEffort"),
        ];
        for (resources, expected) in table {
            let mut pod = base();
            pod.entry("spec")
                .set("containers", object(&format!(r#"[{{"name":"c","resources":{resources}}}]"#)));
            prepare_create(&mut pod, &context(""));
            assert_eq!(pod.get_path(&["status", "qosClass"]), Some(&Value::from(expected)), "{resources}");
            assert_eq!(pod.get_path(&["status", "phase"]), Some(&Value::from("Pending")));
        }
    }

    #[test]
    fn gated_pod_gets_a_scheduling_condition() {
        let mut pod = object(r#"{"spec":{"schedulingGates":[{"name":"g"}]}}"#);
        prepare_create(&mut pod, &context("2024-01-01T00:00:00Z"));
        let conditions = pod.get_path(&["status", "conditions"]).unwrap().items();
        assert_eq!(conditions[0].str("reason"), "SchedulingGated");
        assert_eq!(conditions[0].str("lastTransitionTime"), "2024-01-01T00:00:00Z");
    }

    #[test]
    fn match_label_keys_are_merged_into_the_selector() {
        let mut pod = object(
            r#"{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"affinity":{"podAffinity":{
                "requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"z","labelSelector":{},
                    "matchLabelKeys":["a","c"],"mismatchLabelKeys":["b"]}]}}}}"#,
        );
        prepare_create(&mut pod, &context(""));
        let terms = pod.get_path(&[
            "spec",
            "affinity",
            "podAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ]);
        let selector =
            terms.and_then(|terms| terms.items().first()).and_then(|term| term.get("labelSelector"));
        let expected = object(
            r#"{"matchExpressions":[{"key":"a","operator":"In","values":["1"]},{"key":"b","operator":"NotIn","values":["2"]}]}"#,
        );
        assert_eq!(selector, Some(&expected));
    }

    #[test]
    fn apparmor_annotation_and_field_are_synchronized() {
        let key = "container.apparmor.security.beta.kubernetes.io/c";
        let mut by_field = object(
            r#"{"spec":{"containers":[{"name":"c","securityContext":{"appArmorProfile":{"type":"Localhost","localhostProfile":"p"}}}]}}"#,
        );
        sync_apparmor_profiles(&mut by_field);
        assert_eq!(by_field.get_path(&["metadata", "annotations", key]), Some(&Value::from("localhost/p")));
        let mut by_annotation = object(&format!(
            r#"{{"metadata":{{"annotations":{{"{key}":"unconfined"}}}},"spec":{{"containers":[{{"name":"c"}}]}}}}"#
        ));
        let mut warnings = WarningList::new();
        warn_early(&by_annotation, &mut warnings);
        let expected = format!(
            "metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
        );
        assert_eq!(warnings.first(), Some(&expected));
        assert_eq!(warnings.len(), 1);
        sync_apparmor_profiles(&mut by_annotation);
        let containers = by_annotation.get_path(&["spec", "containers"]).unwrap().items();
        assert_eq!(
            containers[0].get_path(&["securityContext", "appArmorProfile", "type"]),
            Some(&Value::from("Unconfined"))
        );
        // With the field set there is no warning.
        let mut warnings = WarningList::new();
        warn_early(&by_annotation, &mut warnings);
        assert!(warnings.is_empty());
    }
}
