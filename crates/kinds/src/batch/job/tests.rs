//! Tests of the rules of Jobs.

use pilothouse_apimachinery::testing::{each_change_refused, each_refused, error_messages, object};

use super::super::super::testing::context;
use super::*;

fn base() -> Value {
    let mut job = object(
        r#"{"metadata":{"name":"j","uid":"u"},"spec":{"template":{"spec":{"restartPolicy":"Never",
                "containers":[{"name":"c","image":"i"}]}}}}"#,
    );
    default(&mut job);
    prepare_create(&mut job, &context(""));
    job
}

#[test]
fn generated_labels_appear_on_job_with_default_labels() {
    let label_count = |own: &str| {
        let mut job = object(&format!(
            r#"{{"metadata":{{"name":"j","uid":"u"{own}}},"spec":{{"template":{{"metadata":{{"labels":{{"a":"b"}}}},
                    "spec":{{"containers":[]}}}}}}}}"#
        ));
        default(&mut job);
        prepare_create(&mut job, &context(""));
        job.get_path(&["metadata", "labels"]).and_then(Value::fields).unwrap().len()
    };
    assert_eq!(label_count(""), 5);
    assert_eq!(label_count(r#","labels":{"a":"b"}"#), 1, "the client set them");
    assert_eq!(label_count(r#","labels":{"c":"d"}"#), 1);
}

#[test]
fn copy_node_affinity_replaces_only_node_affinity() {
    let node = r#"{"affinity":{"nodeAffinity":{"x":[1]}}}"#;
    let table = [
        ("null", node, "{}"),
        (
            "null",
            r#"{"affinity":{"podAffinity":{},"nodeAffinity":{}}}"#,
            r#"{"affinity":{"podAffinity":{}}}"#,
        ),
        (r#"{"nodeAffinity":{"x":[1]}}"#, "{}", node),
        ("{}", "{}", r#"{"affinity":{}}"#),
        (
            r#"{"podAffinity":{},"nodeAffinity":{"y":[2]}}"#,
            node,
            r#"{"affinity":{"nodeAffinity":{"y":[2]}}}"#,
        ),
    ];
    for (new, old, expected) in table {
        let mut spec = object(old);
        copy_node_affinity(&mut spec, &object(new));
        assert_eq!(spec, object(expected), "{old} like {new}");
    }
}

#[test]
fn job_gets_generated_labels_selector_and_defaults() {
    let mut job = base();
    assert_eq!(
        job.get_path(&["metadata", "labels"]),
        None,
        "defaulted at decoding, so that validation reports label errors once"
    );
    default_labels(&mut job);
    let labels = object(
        r#"{"batch.kubernetes.io/controller-uid":"u","batch.kubernetes.io/job-name":"j","controller-uid":"u","job-name":"j"}"#,
    );
    assert_eq!(job.get_path(&["metadata", "labels"]), Some(&labels));
    assert_eq!(job.get_path(&["spec", "template", "metadata", "labels"]), Some(&labels));
    assert_eq!(
        job.get_path(&["spec", "selector"]),
        Some(&object(r#"{"matchLabels":{"batch.kubernetes.io/controller-uid":"u"}}"#))
    );
    for (field, expected) in [("completions", 1), ("parallelism", 1), ("backoffLimit", 6)] {
        assert_eq!(job.get_path(&["spec", field]), Some(&Value::Int(expected)), "{field}");
    }
}

#[test]
fn job_validation_refuses_each_violation() {
    each_refused(
        &base(),
        validate,
        &[
            (
                "spec.parallelism",
                "-1",
                "spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
            ),
            ("spec.backoffLimit", "-1", "spec.backoffLimit"),
            ("spec.completionMode", r#""X""#, "supported values: \"NonIndexed\", \"Indexed\""),
            ("spec.backoffLimitPerIndex", "1", "requires indexed completion mode"),
            ("spec.managedBy", r#""x""#, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
            ("spec.successPolicy", r#"{"rules":[]}"#, NEEDS_INDEX),
            ("spec.podReplacementPolicy", r#""X""#, "supported values: \"Failed\", \"TerminatingOrFailed\""),
            (
                "spec.template.spec.restartPolicy",
                r#""Always""#,
                "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
            ),
            ("spec.template.metadata.labels.job-name", r#""x""#, "must be 'j'"),
        ],
    );
    each_change_refused(
        &base(),
        validate_update,
        &[
            (
                "spec.template.spec.hostname",
                r#""h""#,
                "spec.template: Invalid value: core.PodTemplateSpec{}: field is immutable",
            ),
            ("spec.completions", "2", "spec.completions: Invalid value: 2: field is immutable"),
            ("spec.managedBy", r#""a.b/c""#, "spec.managedBy: Invalid value: \"a.b/c\": field is immutable"),
        ],
    );
}

#[test]
fn explicit_selector_needs_manual_selector() {
    let mut job = base();
    job.entry("spec")
        .set("selector", object(r#"{"matchLabels":{"x":"y","batch.kubernetes.io/controller-uid":"u"}}"#));
    let mut errors = ErrorList::new();
    validate(&job, &mut errors);
    let errors = error_messages(&errors);
    assert_eq!(errors.len(), 2);
    assert!(errors[0].ends_with("`selector` not auto-generated"));
    assert!(errors[1].starts_with("spec.template.metadata.labels: Invalid value: map[string]string{"));
}

#[test]
fn large_indexed_job_has_limits_and_tandem_updates() {
    let mut job = base();
    let spec = job.entry("spec");
    for (field, value) in [("completions", 200_000), ("parallelism", 10), ("backoffLimitPerIndex", 1)] {
        spec.set(field, value);
    }
    spec.set("completionMode", INDEXED);
    spec.set("maxFailedIndexes", 5);
    each_refused(
        &job,
        validate,
        &[
            ("spec.maxFailedIndexes", "null", "must be specified when completions is above 100000"),
            (
                "spec.maxFailedIndexes",
                "10001",
                "must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index",
            ),
            ("spec.parallelism", "10001", "must be less than or equal to 10000 when completions are above"),
            ("spec.successPolicy", r#"{"rules":[]}"#, "at least one rules must be specified"),
        ],
    );
    let mut without_limits = job.clone();
    without_limits.entry("spec").remove("maxFailedIndexes");
    without_limits.entry("spec").remove("backoffLimitPerIndex");
    without_limits.entry("spec").set("completions", -1);
    let mut errors = ErrorList::new();
    validate(&without_limits, &mut errors);
    assert_eq!(
        error_messages(&errors),
        ["spec.completions: Invalid value: -1: must be greater than or equal to 0"]
    );
    each_change_refused(
        &job,
        validate_update,
        &[("spec.completions", "5", "can only be modified in tandem with spec.parallelism")],
    );
    let mut warnings = WarningList::new();
    job.entry("spec").set("parallelism", 20_000);
    warn(&job, None, &mut warnings);
    assert!(warnings[0].starts_with("spec: In Indexed Jobs with a number of completions"));
}

#[test]
fn suspended_job_may_drop_template_metadata() {
    let mut old = base();
    old.entry("spec").set("suspend", true);
    let mut new = old.clone();
    new.entry("spec").entry("template").remove("metadata");
    let mut errors = ErrorList::new();
    template_change(
        &FieldValue::top_level(&new, "spec"),
        &FieldValue::top_level(&old, "spec"),
        &old,
        &mut errors,
    );
    assert_eq!(error_messages(&errors), Vec::<String>::new());
}

#[test]
fn suspended_job_may_change_node_selector() {
    let mut old = base();
    old.entry("spec").set("suspend", true);
    let mut new = old.clone();
    new.entry("spec").entry("template").entry("spec").entry("nodeSelector").set("a", "b");
    let mut errors = ErrorList::new();
    validate_update(&new, &old, &mut errors);
    assert_eq!(errors, []);
}
