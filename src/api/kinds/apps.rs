//! The kinds that keep pods running: Deployment, ReplicaSet, StatefulSet, DaemonSet.

use super::check::{Node, fill, fill_text, same};
use super::core::{pod_default, template, volume_claim};
use super::{Errors, Occasion, Warned, say, selector};
use crate::api::field::{FieldError, Path, quoted};
use crate::api::meta;
use crate::api::names;
use crate::api::value::Value;

const ROLLING: &str = "RollingUpdate";

/// The defaults of a Deployment.
pub fn default_deployment(object: &mut Value) {
    let spec = object.entry("spec");
    pod_default::template(spec, "template");
    let strategy = spec.entry("strategy");
    fill_text(strategy, "type", ROLLING);
    if strategy.str("type") == ROLLING {
        let rolling = strategy.entry("rollingUpdate");
        fill(rolling, "maxUnavailable", "25%");
        fill(rolling, "maxSurge", "25%");
    }
}

/// The defaults of a ReplicaSet.
pub fn default_replica_set(object: &mut Value) {
    pod_default::template(object.entry("spec"), "template");
}

/// The defaults of a DaemonSet.
pub fn default_daemon_set(object: &mut Value) {
    let spec = object.entry("spec");
    pod_default::template(spec, "template");
    let strategy = spec.entry("updateStrategy");
    fill_text(strategy, "type", ROLLING);
    if strategy.str("type") == ROLLING {
        let rolling = strategy.entry("rollingUpdate");
        fill(rolling, "maxUnavailable", 1);
        fill(rolling, "maxSurge", 0);
    }
}

/// The defaults of a StatefulSet.
pub fn default_stateful_set(object: &mut Value) {
    let spec = object.entry("spec");
    pod_default::template(spec, "template");
    let strategy = spec.entry("updateStrategy");
    if strategy.str("type").is_empty() {
        strategy.set("type", ROLLING);
    }
    if strategy.str("type") == ROLLING {
        fill(strategy.entry("rollingUpdate"), "partition", 0);
    }
    let retention = spec.entry("persistentVolumeClaimRetentionPolicy");
    fill_text(retention, "whenDeleted", "Retain");
    fill_text(retention, "whenScaled", "Retain");
    for claim in super::check::items_mut(spec, "volumeClaimTemplates") {
        claim.set("kind", "PersistentVolumeClaim");
        claim.set("apiVersion", "v1");
        volume_claim::default_claim(claim);
    }
}

/// Checks a number, or a share of all in percent.
pub fn count_or_percent(node: &Node<'_>, errors: &mut Errors) {
    if node.value.as_str().is_some() {
        for wrong in names::percent(node.text()) {
            errors.push(FieldError::invalid(&node.path, &shown_percent(node), &wrong));
        }
    } else {
        node.not_negative(errors);
    }
}

/// Checks that a share is not more than all.
pub fn at_most_all(node: &Node<'_>, errors: &mut Errors) {
    if percent(node).is_some_and(|percent| percent > 100) {
        errors.push(FieldError::invalid(&node.path, &shown_percent(node), "must not be greater than 100%"));
    }
}

fn percent(node: &Node<'_>) -> Option<i64> {
    node.text().strip_suffix('%').and_then(|digits| digits.parse().ok())
}

fn count(node: &Node<'_>) -> i64 {
    percent(node).unwrap_or_else(|| node.number())
}

/// A number-or-text as messages print it: the whole structure.
fn shown_percent(node: &Node<'_>) -> String {
    format!("intstr.IntOrString{{Type:1, IntVal:0, StrVal:{}}}", quoted(node.text()))
}

fn need_selector(spec: &Node<'_>, kind: &str, errors: &mut Errors) {
    let chosen = spec.child("selector");
    if !chosen.is_set() {
        chosen.required(errors, "");
        return;
    }
    selector::validate(&chosen, errors);
    if selector::is_empty(chosen.value) {
        let wrong = format!("empty selector is invalid for {kind}");
        errors.push(FieldError::invalid(&chosen.path, "v1.LabelSelector{}", &wrong));
    }
}

fn same_selector(new: &Value, old: &Value, errors: &mut Errors) {
    let at = |object| Node::of(object, "spec").child("selector");
    say::same_structure(&at(new), &at(old), "v1.LabelSelector", errors);
}

/// Checks a Deployment.
pub fn validate_deployment(object: &Value, errors: &mut Errors) {
    let spec = Node::of(object, "spec");
    spec.child("replicas").not_negative(errors);
    need_selector(&spec, "deployment", errors);
    template::validate_for_controller(&spec, "ReplicaSet", errors);
    deployment_strategy(&spec.child("strategy"), errors);
    let ready = spec.child("minReadySeconds");
    ready.not_negative(errors);
    spec.child("revisionHistoryLimit").not_negative(errors);
    let deadline = spec.child("progressDeadlineSeconds");
    if deadline.is_set() {
        deadline.not_negative(errors);
        if deadline.number() <= ready.number() {
            deadline.invalid(errors, "must be greater than minReadySeconds");
        }
    }
}

fn deployment_strategy(strategy: &Node<'_>, errors: &mut Errors) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "Recreate" if rolling.is_set() => {
            rolling.forbidden(errors, "may not be specified when strategy `type` is 'Recreate'");
        }
        "Recreate" | "" => {}
        ROLLING => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            count_or_percent(&unavailable, errors);
            count_or_percent(&surge, errors);
            if rolling.is_set() && count(&unavailable) == 0 && count(&surge) == 0 {
                let shown = if unavailable.value.as_str().is_some() {
                    shown_percent(&unavailable)
                } else {
                    "intstr.IntOrString{}".to_owned()
                };
                let wrong = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(&unavailable.path, &shown, wrong));
            }
            at_most_all(&unavailable, errors);
        }
        _ => {
            errors.push(FieldError::not_supported(&strategy.path, &strategy.shown(), &["Recreate", ROLLING]));
        }
    }
}

/// Checks a changed Deployment.
pub fn validate_deployment_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_deployment(new, errors);
    same_selector(new, old, errors);
}

/// Checks the counters of a status: none below zero, and none above the number that there are.
fn counters(status: &Node<'_>, all: &[&str], of_all: &[&str], errors: &mut Errors) {
    for field in all {
        status.child(field).not_negative(errors);
    }
    let total = status.child("replicas").number();
    for field in of_all {
        say::no_more(&status.child(field), total, errors, "cannot be greater than status.replicas");
    }
}

fn no_fewer_collisions(new: &Value, old: &Value, errors: &mut Errors) {
    let at = |object| Node::of(object, "status").child("collisionCount");
    if at(old).is_set() {
        say::no_less(&at(new), &at(old), errors, "cannot be decremented");
    }
}

/// Checks a changed status of a Deployment.
pub fn validate_deployment_status(new: &Value, old: &Value, errors: &mut Errors) {
    let status = Node::of(new, "status");
    let all = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    counters(&status, &all, &["updatedReplicas", "readyReplicas", "availableReplicas"], errors);
    let ready = status.child("readyReplicas").number();
    say::no_more(&status.child("availableReplicas"), ready, errors, "cannot be greater than readyReplicas");
    no_fewer_collisions(new, old, errors);
}

/// Checks a changed status of a ReplicaSet.
pub fn validate_replica_set_status(new: &Value, _old: &Value, errors: &mut Errors) {
    let status = Node::of(new, "status");
    let of_all = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    let all = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    counters(&status, &all, &of_all, errors);
    let ready = status.child("readyReplicas").number();
    say::no_more(&status.child("availableReplicas"), ready, errors, "cannot be greater than readyReplicas");
}

/// Checks a changed status of a StatefulSet.
pub fn validate_stateful_set_status(new: &Value, old: &Value, errors: &mut Errors) {
    let status = Node::of(new, "status");
    let of_all = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    let all = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    counters(&status, &all, &of_all, errors);
    let (available, ready) = (status.child("availableReplicas"), status.child("readyReplicas").number());
    say::no_more(&available, ready, errors, "cannot be greater than status.readyReplicas");
    no_fewer_collisions(new, old, errors);
}

/// Checks a changed status of a DaemonSet.
pub fn validate_daemon_set_status(new: &Value, old: &Value, errors: &mut Errors) {
    let all = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    counters(&Node::of(new, "status"), &all, &[], errors);
    no_fewer_collisions(new, old, errors);
}

/// Warns of what is dubious in a kind whose name becomes part of the names of pods.
pub fn warn_named(object: &Value, old: Option<&Value>, warned: &mut Warned) {
    if old.is_none() {
        say::pod_names(object, warned);
    }
    say::template_of(object, old, warned);
}

/// Warns of what is dubious in a DaemonSet: only a new template is looked at.
pub fn warn_daemon_set(object: &Value, old: Option<&Value>, warned: &mut Warned) {
    let count = |object| meta::of(object).at(&["annotations", TEMPLATE_GENERATION]).cloned();
    if old.is_none_or(|old| count(old) != count(object)) {
        let at = |object| Node::of(object, "spec").child("template");
        say::template(&at(object), old.map(at).as_ref(), warned);
    }
}

/// Warns of what is dubious in a StatefulSet.
pub fn warn_stateful_set(object: &Value, old: Option<&Value>, warned: &mut Warned) {
    say::template_of(object, old, warned);
    let spec = Node::of(object, "spec");
    for claim in spec.child("volumeClaimTemplates").items() {
        let path = if old.is_some() { claim.path.child("Spec") } else { claim.path.clone() };
        volume_claim::warn_spec(&path, claim.child("spec").value, warned);
    }
    if spec.child("revisionHistoryLimit").number() < 0 {
        warned.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_owned(),
        );
    }
}

/// Checks a ReplicaSet.
pub fn validate_replica_set(object: &Value, errors: &mut Errors) {
    let spec = Node::of(object, "spec");
    spec.child("replicas").not_negative(errors);
    spec.child("minReadySeconds").not_negative(errors);
    need_selector(&spec, "deployment", errors);
    template::validate_for_controller(&spec, "ReplicaSet", errors);
}

/// Checks a changed ReplicaSet.
pub fn validate_replica_set_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_replica_set(new, errors);
    same_selector(new, old, errors);
}

fn stateful_set_spec(spec: &Node<'_>, errors: &mut Errors) {
    let policy = spec.child("podManagementPolicy");
    if policy.need(errors) && !matches!(policy.text(), "OrderedReady" | "Parallel") {
        policy.invalid(errors, "must be 'OrderedReady' or 'Parallel'");
    }
    let strategy = spec.child("updateStrategy");
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "OnDelete" if rolling.is_set() => {
            let why = "only allowed for updateStrategy 'RollingUpdate'";
            say::structure(&rolling.path, "apps.RollingUpdateStatefulSetStrategy", errors, why);
        }
        "OnDelete" => {}
        "" => strategy.required(errors, ""),
        ROLLING => {
            rolling.child("partition").not_negative(errors);
            let unavailable = rolling.child("maxUnavailable");
            if unavailable.is_set() {
                count_or_percent(&unavailable, errors);
                if count(&unavailable) == 0 {
                    say::structure(&unavailable.path, "intstr.IntOrString", errors, "cannot be 0");
                }
                at_most_all(&unavailable, errors);
            }
        }
        _ => {
            let why = "must be 'RollingUpdate' or 'OnDelete'";
            say::structure(&strategy.path, "apps.StatefulSetUpdateStrategy", errors, why);
        }
    }
    for when in ["whenDeleted", "whenScaled"] {
        let policy = spec.child("persistentVolumeClaimRetentionPolicy").child(when);
        if spec.child("persistentVolumeClaimRetentionPolicy").is_set() {
            policy.one_of(errors, &["Retain", "Delete"]);
        }
    }
    spec.child("replicas").not_negative(errors);
    spec.child("minReadySeconds").not_negative(errors);
    let start = spec.child("ordinals").child("start");
    Node { value: start.value, path: spec.child("ordinals.start").path }.not_negative(errors);
}

fn stateful_set_pods(spec: &Node<'_>, errors: &mut Errors) {
    need_selector(spec, "statefulset", errors);
    let (chosen, pods) = (spec.child("selector"), spec.child("template"));
    let labels = pods.child("metadata").child("labels");
    let everything = chosen.is_set() && selector::is_empty(chosen.value);
    if !everything && !selector::matches(Some(chosen.value), Some(labels.value)) {
        template::mismatch(&pods, errors);
    }
    template::validate_meta(&pods, errors);
    template::always_restarts(&pods, "StatefulSet", errors);
}

/// Checks a StatefulSet. The specs of its pods are looked at when the pods are made.
pub fn validate_stateful_set(object: &Value, errors: &mut Errors) {
    let spec = Node::of(object, "spec");
    stateful_set_spec(&spec, errors);
    spec.child("serviceName").syntax_if_set(errors, names::dns_label);
    stateful_set_pods(&spec, errors);
}

/// Checks a changed StatefulSet.
pub fn validate_stateful_set_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    stateful_set_spec(&spec, errors);
    stateful_set_pods(&spec, errors);
    let mut rest = spec.value.clone();
    for field in [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ] {
        meta::copy(&mut rest, was.value, field);
    }
    if !same(Some(&rest), Some(was.value)) {
        let wrong = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                     'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                     'minReadySeconds' are forbidden";
        spec.forbidden(errors, wrong);
    }
}

/// The share that may be missing during an update is dropped: the feature is off.
pub fn prepare_stateful_set(object: &mut Value, _: &Occasion<'_>) {
    drop_unavailable(object);
}

/// The same for a change, unless it was there before.
pub fn prepare_stateful_set_update(new: &mut Value, old: &Value, _: &Occasion<'_>) {
    if old.at(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"]).is_none() {
        drop_unavailable(new);
    }
}

fn drop_unavailable(object: &mut Value) {
    let strategy = object.entry("spec").entry("updateStrategy");
    if let Some(rolling) = super::check::present_mut(strategy, "rollingUpdate") {
        rolling.remove("maxUnavailable");
    }
}

/// The count of pods that are going away is dropped from a status that did not have it: the feature is off.
pub fn prepare_replicas_status(new: &mut Value, old: &Value, _: &Occasion<'_>) {
    if old.at(&["status", "terminatingReplicas"]).is_none()
        && let Some(status) = super::check::present_mut(new, "status")
    {
        status.remove("terminatingReplicas");
    }
}

/// A new template is the first of its line.
pub fn prepare_daemon_set(object: &mut Value, _: &Occasion<'_>) {
    let annotations = meta::of(object).get("annotations").cloned().unwrap_or_default();
    if annotations.get(TEMPLATE_GENERATION).is_none() {
        object.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, "1");
    }
}

/// The annotation in which a DaemonSet counts its templates.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// A changed template counts.
pub fn prepare_daemon_set_update(new: &mut Value, old: &Value, _: &Occasion<'_>) {
    let count = meta::of(old).get("annotations").map_or("", |all| all.str(TEMPLATE_GENERATION));
    let count: i64 = count.parse().unwrap_or(1);
    let template = ["spec", "template"];
    let moved = i64::from(!same(new.at(&template), old.at(&template)));
    new.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, (count + moved).to_string());
}

/// Checks a DaemonSet.
pub fn validate_daemon_set(object: &Value, errors: &mut Errors) {
    let spec = Node::of(object, "spec");
    let (chosen, pods) = (spec.child("selector"), spec.child("template"));
    selector::validate(&chosen, errors);
    let labels = pods.child("metadata").child("labels");
    if !selector::matches(Some(chosen.value), Some(labels.value)) {
        template::mismatch(&pods, errors);
    }
    if chosen.is_set() && selector::is_empty(chosen.value) {
        let wrong = "empty selector is invalid for daemonset";
        errors.push(FieldError::invalid(&chosen.path, "v1.LabelSelector{}", wrong));
    }
    template::validate(&pods, errors);
    template::always_restarts(&pods, "DaemonSet", errors);
    spec.child("minReadySeconds").not_negative(errors);
    daemon_strategy(&spec.child("updateStrategy"), errors);
    spec.child("revisionHistoryLimit").not_negative(errors);
}

fn daemon_strategy(strategy: &Node<'_>, errors: &mut Errors) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "OnDelete" | "" => {}
        ROLLING if !rolling.is_set() => rolling.required(errors, ""),
        ROLLING => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            for node in [&unavailable, &surge] {
                count_or_percent(node, errors);
            }
            for node in [&unavailable, &surge] {
                at_most_all(node, errors);
            }
            match (count(&unavailable) != 0, count(&surge) != 0) {
                (true, true) => {
                    let wrong = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(&surge.path, "intstr.IntOrString{}", wrong));
                }
                (false, false) => unavailable.required(errors, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => {
            errors.push(FieldError::not_supported(&strategy.path, &strategy.shown(), &[ROLLING, "OnDelete"]));
        }
    }
}

/// Checks a changed DaemonSet.
pub fn validate_daemon_set_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_daemon_set(new, errors);
    same_selector(new, old, errors);
}

/// Checks a ControllerRevision.
pub fn validate_revision(object: &Value, errors: &mut Errors) {
    Node::of(object, "revision").not_negative(errors);
    let data = Node::of(object, "data");
    match data.value {
        Value::Null => data.required(errors, "data is mandatory"),
        Value::Object(_) => {}
        _ => data.required(errors, "data must be a valid JSON object"),
    }
}

/// Checks a changed ControllerRevision: what it keeps stays.
pub fn validate_revision_update(new: &Value, old: &Value, errors: &mut Errors) {
    Node::of(new, "revision").not_negative(errors);
    if new.get("data") != old.get("data") {
        errors.push(FieldError::invalid(&Path::new("data"), "runtime.RawExtension{}", meta::IMMUTABLE));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOBODY, each_change_refused, each_refused, object, said};
    use super::*;

    fn base(default: fn(&mut Value)) -> Value {
        let mut object = object(
            r#"{"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},
                "spec":{"containers":[{"name":"c","image":"i"}],"restartPolicy":"Always"}}}}"#,
        );
        default(&mut object);
        object
    }

    #[test]
    fn each_rule_of_a_deployment_refuses() {
        let deployment = base(default_deployment);
        assert_eq!(
            deployment.at(&["spec", "strategy"]),
            Some(&object(
                r#"{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%","maxSurge":"25%"}}"#
            ))
        );
        each_refused(
            &deployment,
            validate_deployment,
            &[
                (
                    "spec.replicas",
                    "-1",
                    "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                ),
                (
                    "spec.selector",
                    "{}",
                    "spec.selector: Invalid value: v1.LabelSelector{}: empty selector is invalid for deployment",
                ),
                ("spec.selector.matchLabels.a", r#""c""#, "`selector` does not match template `labels`"),
                (
                    "spec.strategy.type",
                    r#""Recreate""#,
                    "may not be specified when strategy `type` is 'Recreate'",
                ),
                ("spec.strategy.type", r#""X""#, "supported values: \"Recreate\", \"RollingUpdate\""),
                ("spec.strategy.rollingUpdate.maxSurge", r#""x""#, "a valid percent string must be"),
                ("spec.strategy.rollingUpdate.maxSurge", "-1", "maxSurge: Invalid value: -1"),
                ("spec.strategy.rollingUpdate.maxUnavailable", r#""101%""#, "must not be greater than 100%"),
                (
                    "spec.strategy.rollingUpdate",
                    r#"{"maxSurge":0,"maxUnavailable":0}"#,
                    "may not be 0 when `maxSurge` is 0",
                ),
                ("spec.minReadySeconds", "-1", "spec.minReadySeconds: Invalid value: -1"),
                ("spec.revisionHistoryLimit", "-1", "spec.revisionHistoryLimit: Invalid value: -1"),
                ("spec.progressDeadlineSeconds", "0", "must be greater than minReadySeconds"),
            ],
        );
        each_change_refused(
            &deployment,
            validate_deployment_update,
            &[(
                "spec.selector.matchExpressions",
                r#"[{"key":"a","operator":"Exists"}]"#,
                "spec.selector: Invalid value: v1.LabelSelector{}: field is immutable",
            )],
        );
    }

    #[test]
    fn an_empty_deployment_says_all_that_it_lacks() {
        let mut empty = object(r#"{"spec":{"template":{}}}"#);
        default_deployment(&mut empty);
        let mut errors = Errors::new();
        validate_deployment(&empty, &mut errors);
        assert_eq!(
            said(&errors),
            [
                "spec.selector: Required value",
                "spec.template.metadata.labels: Invalid value: map[string]string(nil): `selector` does not match template `labels`",
                "spec.template.spec.containers: Required value",
            ]
        );
    }

    #[test]
    fn each_rule_of_a_stateful_set_refuses() {
        let set = base(default_stateful_set);
        assert_eq!(set.at(&["spec", "updateStrategy", "rollingUpdate", "partition"]), Some(&Value::Int(0)));
        let mut set = set;
        set.entry("spec").set("podManagementPolicy", "OrderedReady");
        each_refused(
            &set,
            validate_stateful_set,
            &[
                ("spec.podManagementPolicy", r#""X""#, "must be 'OrderedReady' or 'Parallel'"),
                (
                    "spec.updateStrategy.type",
                    r#""OnDelete""#,
                    "only allowed for updateStrategy 'RollingUpdate'",
                ),
                ("spec.updateStrategy.type", r#""X""#, "must be 'RollingUpdate' or 'OnDelete'"),
                ("spec.updateStrategy.rollingUpdate.partition", "-1", "partition: Invalid value: -1"),
                (
                    "spec.updateStrategy.rollingUpdate.maxUnavailable",
                    "0",
                    "maxUnavailable: Invalid value: intstr.IntOrString{}: cannot be 0",
                ),
                (
                    "spec.updateStrategy.rollingUpdate.maxUnavailable",
                    r#""101%""#,
                    "must not be greater than 100%",
                ),
                ("spec.podManagementPolicy", "null", "spec.podManagementPolicy: Required value"),
                (
                    "spec.persistentVolumeClaimRetentionPolicy.whenScaled",
                    r#""X""#,
                    "supported values: \"Retain\", \"Delete\"",
                ),
                ("spec.ordinals", r#"{"start":-1}"#, "spec.ordinals.start: Invalid value: -1"),
                ("spec.serviceName", r#""A""#, "spec.serviceName: Invalid value: \"A\""),
                ("spec.template.spec.restartPolicy", r#""Never""#, "supported values: \"Always\""),
            ],
        );
        each_change_refused(
            &set,
            validate_stateful_set_update,
            &[(
                "spec.serviceName",
                r#""x""#,
                "spec: Forbidden: updates to statefulset spec for fields other than 'replicas'",
            )],
        );
    }

    #[test]
    fn each_rule_of_a_daemon_set_refuses() {
        let set = base(default_daemon_set);
        each_refused(
            &set,
            validate_daemon_set,
            &[
                (
                    "spec.updateStrategy.rollingUpdate.maxSurge",
                    "1",
                    "may not be set when maxUnavailable is non-zero",
                ),
                ("spec.updateStrategy.rollingUpdate.maxUnavailable", "0", "cannot be 0 when maxSurge is 0"),
                (
                    "spec.updateStrategy.rollingUpdate",
                    "null",
                    "spec.updateStrategy.rollingUpdate: Required value",
                ),
                ("spec.updateStrategy.type", r#""X""#, "supported values: \"RollingUpdate\", \"OnDelete\""),
                ("spec.selector", "{}", "empty selector is invalid for daemonset"),
                ("spec.minReadySeconds", "-1", "spec.minReadySeconds"),
            ],
        );
        each_change_refused(
            &set,
            validate_daemon_set_update,
            &[(
                "spec.selector.matchExpressions",
                r#"[{"key":"a","operator":"Exists"}]"#,
                "field is immutable",
            )],
        );
        let occasion = Occasion { now: "", user: &NOBODY };
        let (mut old, mut new) = (set.clone(), set);
        prepare_daemon_set(&mut old, &occasion);
        prepare_daemon_set_update(&mut new, &old, &occasion);
        assert_eq!(meta::of(&new).at(&["annotations", TEMPLATE_GENERATION]), Some(&Value::from("1")));
        new.entry("spec").entry("template").entry("metadata").entry("labels").set("x", "y");
        prepare_daemon_set_update(&mut new, &old, &occasion);
        assert_eq!(meta::of(&new).at(&["annotations", TEMPLATE_GENERATION]), Some(&Value::from("2")));
    }

    #[test]
    fn counters_of_a_status_fit_together() {
        let deployment = object(r#"{"status":{"replicas":2,"collisionCount":1}}"#);
        each_change_refused(
            &deployment,
            validate_deployment_status,
            &[
                ("status.unavailableReplicas", "-1", "status.unavailableReplicas: Invalid value: -1"),
                (
                    "status.updatedReplicas",
                    "3",
                    "status.updatedReplicas: Invalid value: 3: cannot be greater than status.replicas",
                ),
                ("status.availableReplicas", "1", "cannot be greater than readyReplicas"),
                (
                    "status.collisionCount",
                    "0",
                    "status.collisionCount: Invalid value: 0: cannot be decremented",
                ),
                (
                    "status.collisionCount",
                    "null",
                    "status.collisionCount: Invalid value: 0: cannot be decremented",
                ),
            ],
        );
        let set = object(r#"{"status":{"replicas":2,"readyReplicas":1}}"#);
        each_change_refused(
            &set,
            validate_replica_set_status,
            &[
                ("status.fullyLabeledReplicas", "3", "cannot be greater than status.replicas"),
                ("status.availableReplicas", "2", "cannot be greater than readyReplicas"),
            ],
        );
        each_change_refused(
            &set,
            validate_stateful_set_status,
            &[
                ("status.currentReplicas", "3", "cannot be greater than status.replicas"),
                ("status.availableReplicas", "2", "cannot be greater than status.readyReplicas"),
            ],
        );
        each_change_refused(
            &object("{}"),
            validate_daemon_set_status,
            &[("status.numberReady", "-1", "status.numberReady: Invalid value: -1")],
        );
        let occasion = Occasion { now: "", user: &NOBODY };
        let mut status = object(r#"{"status":{"replicas":1,"terminatingReplicas":1}}"#);
        prepare_replicas_status(&mut status, &object("{}"), &occasion);
        assert_eq!(status, object(r#"{"status":{"replicas":1}}"#));
        let mut set = object(r#"{"spec":{"updateStrategy":{"rollingUpdate":{"maxUnavailable":1}}}}"#);
        let old = set.clone();
        prepare_stateful_set_update(&mut set, &old, &occasion);
        assert_eq!(set, old);
        prepare_stateful_set(&mut set, &occasion);
        assert_eq!(set, object(r#"{"spec":{"updateStrategy":{"rollingUpdate":{}}}}"#));
        let mut warned = Warned::new();
        let odd = object(r#"{"metadata":{"name":"a.b"},"spec":{"revisionHistoryLimit":-1}}"#);
        warn_named(&odd, None, &mut warned);
        warn_stateful_set(&odd, None, &mut warned);
        warn_daemon_set(&odd, None, &mut warned);
        assert_eq!(warned.len(), 2);
    }

    #[test]
    fn each_rule_of_the_others_refuses() {
        each_refused(
            &base(default_replica_set),
            validate_replica_set,
            &[
                ("spec.replicas", "-1", "spec.replicas"),
                ("spec.minReadySeconds", "-1", "spec.minReadySeconds"),
                (
                    "spec.template.spec.activeDeadlineSeconds",
                    "1",
                    "activeDeadlineSeconds in ReplicaSet is not Supported",
                ),
            ],
        );
        let revision = object(r#"{"data":{"x":1},"revision":1}"#);
        each_refused(
            &revision,
            validate_revision,
            &[
                ("data", "null", "data: Required value: data is mandatory"),
                ("data", "[1]", "data: Required value: data must be a valid JSON object"),
                ("revision", "-1", "revision: Invalid value: -1"),
            ],
        );
        each_change_refused(&revision, validate_revision_update, &[("data.x", "2", "field is immutable")]);
    }
}
