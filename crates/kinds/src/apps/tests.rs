//! Tests of the rules of the apps group.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::testing::{each_change_refused, each_refused, error_messages, object};
use pilothouse_apimachinery::value::Value;

use super::super::rules;
use super::super::testing::{context, filled};
use super::common::*;
use super::daemon_set::TEMPLATE_GENERATION;
use super::daemon_set::*;
use super::deployment::*;
use super::stateful_set::*;

const APPS: (&str, &str) = ("apps", "v1");

fn base(kind: &str) -> Value {
    filled(
        APPS,
        kind,
        r#"{"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},
            "spec":{"containers":[{"name":"c","image":"i"}],"restartPolicy":"Always"}}}}"#,
    )
}

#[test]
fn deployment_validation_refuses_each_violation() {
    let deployment = base("Deployment");
    assert_eq!(
        deployment.get_path(&["spec", "strategy"]),
        Some(&object(
            r#"{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%","maxSurge":"25%"}}"#
        ))
    );
    each_refused(
        &deployment,
        validate_deployment,
        &[
            ("spec.replicas", "-1", "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
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
            (
                "spec.strategy",
                r#"{"type":"X"}"#,
                "Unsupported value: apps.DeploymentStrategy{Type:\"X\", RollingUpdate:(*apps.RollingUpdateDeployment)(nil)}: \
                 supported values: \"Recreate\", \"RollingUpdate\"",
            ),
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
        validate_selector_unchanged,
        &[(
            "spec.selector.matchExpressions",
            r#"[{"key":"a","operator":"Exists"}]"#,
            "spec.selector: Invalid value: v1.LabelSelector{}: field is immutable",
        )],
    );
}

#[test]
fn empty_deployment_reports_all_required_fields() {
    let empty = filled(APPS, "Deployment", r#"{"spec":{"template":{}}}"#);
    let mut errors = ErrorList::new();
    validate_deployment(&empty, &mut errors);
    assert_eq!(
        error_messages(&errors),
        [
            "spec.selector: Required value",
            "spec.template.metadata.labels: Invalid value: map[string]string(nil): `selector` does not match template `labels`",
            "spec.template.spec.containers: Required value",
        ]
    );
}

#[test]
fn explicit_update_strategy_gets_no_rolling_update_default() {
    let rolling_update = |strategy: &str| {
        let set = filled(APPS, "StatefulSet", &format!(r#"{{"spec":{{"updateStrategy":{strategy}}}}}"#));
        set.get_path(&["spec", "updateStrategy", "rollingUpdate"]).cloned()
    };
    assert_eq!(rolling_update(r#"{"type":"RollingUpdate"}"#), None);
    let defaults = object(r#"{"partition":0}"#);
    assert_eq!(rolling_update(r#"{"type":"RollingUpdate","rollingUpdate":{}}"#), Some(defaults.clone()));
    assert_eq!(rolling_update("{}"), Some(defaults));
}

#[test]
fn int_or_string_without_percent_counts_as_its_number() {
    let details = |surge: &str, unavailable: &str| {
        let mut set = base("DaemonSet");
        let rolling = set.entry("spec").entry("updateStrategy").entry("rollingUpdate");
        rolling.set("maxSurge", object(surge));
        rolling.set("maxUnavailable", object(unavailable));
        let mut errors = ErrorList::new();
        validate_daemon_set(&set, &mut errors);
        error_messages(&errors)
            .into_iter()
            .map(|error| error.rsplit(": ").next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let form = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for \
                validation is '[0-9]+%')";
    assert_eq!(details(r#""-5%""#, "1"), [form], "neither a percentage nor a number");
    assert_eq!(details(r#""50""#, "1"), [form, "may not be set when maxUnavailable is non-zero"]);
    assert_eq!(details("0", r#""-5%""#), [form, "cannot be 0 when maxSurge is 0"]);
    assert_eq!(details("0", r#""50""#), [form]);
    let mut deployment = base("Deployment");
    let rolling = deployment.entry("spec").entry("strategy").entry("rollingUpdate");
    rolling.set("maxSurge", "x");
    rolling.set("maxUnavailable", "-1%");
    let mut errors = ErrorList::new();
    validate_deployment(&deployment, &mut errors);
    let last = error_messages(&errors).pop().unwrap_or_default();
    assert_eq!(
        last,
        "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: intstr.IntOrString{Type:1, IntVal:0, StrVal:\"-1%\"}: \
         may not be 0 when `maxSurge` is 0"
    );
}

#[test]
fn stateful_set_validation_refuses_each_violation() {
    let set = base("StatefulSet");
    assert_eq!(set.get_path(&["spec", "updateStrategy", "rollingUpdate", "partition"]), Some(&Value::Int(0)));
    let mut set = set;
    set.entry("spec").set("podManagementPolicy", "OrderedReady");
    each_refused(
        &set,
        validate_stateful_set,
        &[
            ("spec.podManagementPolicy", r#""X""#, "must be 'OrderedReady' or 'Parallel'"),
            ("spec.updateStrategy.type", r#""OnDelete""#, "only allowed for updateStrategy 'RollingUpdate'"),
            ("spec.updateStrategy.type", r#""X""#, "must be 'RollingUpdate' or 'OnDelete'"),
            ("spec.updateStrategy.rollingUpdate.partition", "-1", "partition: Invalid value: -1"),
            (
                "spec.updateStrategy.rollingUpdate.maxUnavailable",
                "0",
                "maxUnavailable: Invalid value: intstr.IntOrString{Type:0, IntVal:0, StrVal:\"\"}: cannot be 0",
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
fn daemon_set_validation_refuses_each_violation() {
    let set = base("DaemonSet");
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
        validate_selector_unchanged,
        &[("spec.selector.matchExpressions", r#"[{"key":"a","operator":"Exists"}]"#, "field is immutable")],
    );
    let context = context("");
    let (mut old, mut new) = (set.clone(), set);
    prepare_daemon_set(&mut old, &context);
    prepare_daemon_set_update(&mut new, &old, &context);
    assert_eq!(meta::metadata(&new).get_path(&["annotations", TEMPLATE_GENERATION]), Some(&Value::from("1")));
    new.entry("spec").entry("template").entry("metadata").entry("labels").set("x", "y");
    prepare_daemon_set_update(&mut new, &old, &context);
    assert_eq!(meta::metadata(&new).get_path(&["annotations", TEMPLATE_GENERATION]), Some(&Value::from("2")));
}

#[test]
fn status_counters_must_be_consistent() {
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
            ("status.collisionCount", "0", "status.collisionCount: Invalid value: 0: cannot be decremented"),
            (
                "status.collisionCount",
                "null",
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ),
        ],
    );
    each_change_refused(
        &object(r#"{"status":{"collisionCount":0}}"#),
        validate_deployment_status,
        &[(
            "status.collisionCount",
            "null",
            "status.collisionCount: Invalid value: 0: cannot be decremented",
        )],
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
    let mut warnings = WarningList::new();
    let invalid = object(r#"{"metadata":{"name":"a.b"},"spec":{"revisionHistoryLimit":-1}}"#);
    warn_name_and_template(&invalid, None, &mut warnings);
    warn_stateful_set(&invalid, None, &mut warnings);
    warn_daemon_set(&invalid, None, &mut warnings);
    assert_eq!(warnings.len(), 2);
}

#[test]
fn replica_set_and_controller_revision_validation_refuses_each_violation() {
    each_refused(
        &base("ReplicaSet"),
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

#[test]
fn unusable_selector_is_not_matched_with_the_template() {
    type Row = (&'static str, fn(&Value, &mut ErrorList), usize);
    let table: [Row; 4] = [
        ("Deployment", validate_deployment, 2),
        ("ReplicaSet", validate_replica_set, 2),
        ("StatefulSet", validate_stateful_set, 2),
        ("DaemonSet", validate_daemon_set, 1),
    ];
    for (kind, check, expected) in table {
        let mut object = base(kind);
        object.entry("spec").set("podManagementPolicy", "Parallel");
        object.entry("spec").entry("selector").entry("matchLabels").set("a", "b c");
        let mut errors = ErrorList::new();
        check(&object, &mut errors);
        let messages = error_messages(&errors);
        assert_eq!(messages.len(), expected, "{messages:?}");
        assert!(!messages.iter().any(|message| message.contains("does not match template")), "{messages:?}");
        let about_selector = messages
            .iter()
            .filter(|message| message.starts_with("spec.selector: Invalid value: v1.LabelSelector{}"));
        assert_eq!(about_selector.count(), expected - 1, "{messages:?}");
    }
}

#[test]
fn update_validation_repeats_errors_as_often_as_the_reference() {
    let table = [("Deployment", 1), ("ReplicaSet", 2), ("DaemonSet", 2)];
    for (kind, expected) in table {
        let (old, mut new) = (base(kind), base(kind));
        new.entry("spec").set("minReadySeconds", -1);
        let mut errors = ErrorList::new();
        rules("apps", kind).validation.check_update(&new, &old, &mut errors);
        let count = error_messages(&errors)
            .iter()
            .filter(|message| message.starts_with("spec.minReadySeconds"))
            .count();
        assert_eq!(count, expected);
    }
}

#[test]
fn on_delete_strategy_gets_zero_rolling_update() {
    let json = r#"{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":{}}}}"#;
    let set = filled(APPS, "DaemonSet", json);
    let rolling = set.get_path(&["spec", "updateStrategy", "rollingUpdate"]);
    assert_eq!(rolling, Some(&object(r#"{"maxUnavailable":0,"maxSurge":0}"#)));
}

#[test]
fn daemon_set_writes_maintain_the_template_generation() {
    let generation = |object: &Value| {
        meta::metadata(object)
            .get_path(&["annotations", TEMPLATE_GENERATION])
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let context = context("");
    let mut set = base("DaemonSet");
    assert_eq!(generation(&set).as_deref(), Some("0"));
    prepare_daemon_set(&mut set, &context);
    assert_eq!(generation(&set).as_deref(), Some("1"));
    let mut status_update = base("DaemonSet");
    prepare_daemon_set_status(&mut status_update, &set, &context);
    assert_eq!(generation(&status_update).as_deref(), Some("1"));
}
