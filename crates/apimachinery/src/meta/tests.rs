//! The rules of metadata, one by one.

use super::*;
use crate::testing::{error_messages, object};

const RULES: MetaRules = MetaRules {
    name: names::subdomain_name,
    validate_name: any_name,
    namespaced: true,
    requires_standard_finalizers: true,
};

fn create_errors(meta: &str) -> Vec<String> {
    let mut errors = ErrorList::new();
    validate(&object(&format!(r#"{{"metadata":{meta}}}"#)), RULES, &mut errors);
    error_messages(&errors)
}

#[test]
fn take_prefix_as_name_uses_generate_name() {
    let mut value = Value::object();
    assert!(!take_prefix_as_name(&mut value));
    assert_eq!(name(&value), "");
    value.entry("metadata").set("generateName", "10.0.0.1");
    assert!(!take_prefix_as_name(&mut value), "no random suffix");
    assert_eq!(name(&value), "10.0.0.1");
}

#[test]
fn valid_metadata_is_accepted() {
    let meta = r#"{"name":"a","namespace":"n","labels":{"a/b":"c"},"annotations":{"UPPER":"x"},
            "finalizers":["orphan","example.com/f"],
            "ownerReferences":[{"apiVersion":"apps/v1","kind":"K","name":"o","uid":"u","controller":true}]}"#;
    assert_eq!(create_errors(meta), Vec::<String>::new());
}

#[test]
fn invalid_metadata_is_refused() {
    let table = [
        (r#"{"namespace":"n"}"#, "metadata.name: Required value: name or generateName is required"),
        (
            r#"{"name":"A","namespace":"n"}"#,
            "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain",
        ),
        (r#"{"name":"a"}"#, "metadata.namespace: Required value"),
        (
            r#"{"name":"a","namespace":"n.m"}"#,
            "metadata.namespace: Invalid value: \"n.m\": must not contain dots",
        ),
        (
            r#"{"name":"a","namespace":"n","generation":-1}"#,
            "metadata.generation: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            r#"{"name":"a","namespace":"n","labels":{"a":"-"}}"#,
            "metadata.labels: Invalid value: \"-\": a valid label",
        ),
        (
            r#"{"name":"a","namespace":"n","annotations":{"A B":""}}"#,
            "metadata.annotations: Invalid value: \"A B\"",
        ),
        (
            r#"{"name":"a","namespace":"n","finalizers":["plain"]}"#,
            "metadata.finalizers[0]: Invalid value: \"plain\": name is neither a standard finalizer name",
        ),
        (
            r#"{"name":"a","namespace":"n","finalizers":["orphan","foregroundDeletion"]}"#,
            "metadata.finalizers: Invalid value: []string{\"orphan\", \"foregroundDeletion\"}: finalizer orphan",
        ),
        (
            r#"{"name":"a","namespace":"n","ownerReferences":[{"apiVersion":"a/b/c","kind":"K","name":"o","uid":"u"}]}"#,
            "metadata.ownerReferences.apiVersion: Invalid value: \"a/b/c\": version must not be empty",
        ),
        (
            r#"{"name":"a","namespace":"n","ownerReferences":[{"apiVersion":"v1","kind":"Event","name":"o","uid":"u"}]}"#,
            "/v1, Kind=Event is disallowed from being an owner",
        ),
        (
            r#"{"name":"a","namespace":"n","ownerReferences":[
                    {"apiVersion":"v1","kind":"K","name":"o","uid":"u","controller":true},
                    {"apiVersion":"v1","kind":"K","name":"p","uid":"v","controller":true}]}"#,
            "Found \"true\" in references for K/o and K/p",
        ),
        (
            r#"{"name":"a","namespace":"n","managedFields":[{"operation":"X"}]}"#,
            "metadata.managedFields[0].operation: Invalid value: \"X\": must be `Apply` or `Update`",
        ),
    ];
    for (meta, expected) in table {
        let errors = create_errors(meta);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{meta}: {errors:?}");
    }
}

#[test]
fn annotations_over_total_size_are_refused() {
    let mut meta = object(r#"{"metadata":{"name":"a","namespace":"n"}}"#);
    let text = "x".repeat(ANNOTATION_BYTES - 1);
    meta.entry("metadata").entry("annotations").set("a", text.clone());
    let mut errors = ErrorList::new();
    validate(&meta, RULES, &mut errors);
    assert!(errors.is_empty());
    meta.entry("metadata").entry("annotations").set("a", text + "y");
    validate(&meta, RULES, &mut errors);
    assert_eq!(
        error_messages(&errors),
        ["metadata.annotations: Too long: may not be more than 262144 bytes"]
    );
}

#[test]
fn update_of_immutable_metadata_is_refused() {
    let old = object(
        r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"1","generation":2,
                "deletionTimestamp":"2001-01-01T00:00:00Z","finalizers":["a/b"]}}"#,
    );
    let table = [
        ("name", Value::from("b"), "metadata.name: Invalid value: \"b\": field is immutable"),
        ("namespace", Value::from("m"), "metadata.namespace: Invalid value: \"m\": field is immutable"),
        ("uid", Value::from("v"), "metadata.uid: Invalid value: \"v\": field is immutable"),
        ("generation", Value::Int(1), "metadata.generation: Invalid value: 1: must not be decremented"),
        ("resourceVersion", Value::Null, "metadata.resourceVersion: Invalid value: \"\": must be specified"),
        (
            "deletionTimestamp",
            Value::from("2002-01-01T00:00:00Z"),
            "metadata.deletionTimestamp: Invalid value: 2002-01-01 00:00:00 +0000 UTC: field is immutable",
        ),
        ("deletionGracePeriodSeconds", Value::Int(3), "Invalid value: 3: field is immutable"),
        (
            "finalizers",
            Value::from(vec!["a/b", "a/c"]),
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found \
             new finalizers []string{\"a/c\"}",
        ),
    ];
    for (field, value, expected) in table {
        let mut new = old.clone();
        new.entry("metadata").set(field, value);
        let mut errors = ErrorList::new();
        validate_update(&new, &old, true, &mut errors);
        let errors = error_messages(&errors);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{field}: {errors:?}");
    }
    let mut errors = ErrorList::new();
    validate_update(&old, &old, true, &mut errors);
    assert!(errors.is_empty());
}

#[test]
fn generated_names_keep_their_prefix_and_fit_a_label() {
    let mut object = object(r#"{"metadata":{"generateName":"web-"}}"#);
    let mut next = 0;
    assert!(generate_name(&mut object, &mut |below| {
        next += 1;
        next % below
    }));
    assert_eq!(name(&object), "web-cdfgh");
    assert!(!generate_name(&mut object, &mut |_| 0));
    let mut long = Value::object();
    long.entry("metadata").set("generateName", "ä".repeat(50));
    generate_name(&mut long, &mut |_| 0);
    assert_eq!(name(&long), "ä".repeat(29) + "bbbbb");
}

#[test]
fn name_namespace_and_version_of_body_must_match_the_request() {
    let mut body = object(r#"{"metadata":{"namespace":"a","name":"x"}}"#);
    assert!(ensure_namespace(&mut body, "a").is_ok());
    assert_eq!(ensure_namespace(&mut body, "b").unwrap_err().code, 400);
    assert!(ensure_namespace(&mut body, "").is_ok());
    assert_eq!(metadata(&body).str("namespace"), "");
    assert!(ensure_namespace(&mut body, "b").is_ok());
    assert_eq!(metadata(&body).str("namespace"), "b");
    assert_eq!(
        check_name(&body, "y").unwrap_err().message,
        "the name of the object (x) does not match the name on the URL (y)"
    );
    assert!(check_name(&body, "x").is_ok());
    assert!(check_name(&Value::object(), "x").unwrap_err().message.ends_with("name must be provided"));
    let mut versioned = object(r#"{"metadata":{"resourceVersion":"5"}}"#);
    assert!(check_unversioned(&versioned).is_err());
    for none in ["", "0", "v1", "-1", "+5", "18446744073709551616"] {
        versioned.entry("metadata").set("resourceVersion", none);
        assert!(check_unversioned(&versioned).is_ok(), "{none}");
    }
    set_system_fields(&mut versioned, "u", "t");
    assert_eq!(metadata(&versioned).str("uid"), "u");
}

#[test]
fn duplicate_owner_references_are_removed_with_a_warning() {
    let owner = r#"{"apiVersion":"v1","kind":"K","name":"o","uid":"u"}"#;
    let mut twice = object(&format!(r#"{{"metadata":{{"ownerReferences":[{owner},{owner}]}}}}"#));
    assert!(dedupe_owners(&mut twice).is_some_and(|warning| warning.ends_with("observed: u")));
    assert_eq!(metadata(&twice).get("ownerReferences").map(|owners| owners.items().len()), Some(1));
    assert_eq!(dedupe_owners(&mut twice), None);
}
