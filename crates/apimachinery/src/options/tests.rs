use super::*;
use crate::limits::FIELD_ERROR_BYTES;
use crate::value::Value;

fn message<T: std::fmt::Debug>(result: status::Result<T>) -> (u16, String) {
    let status = result.unwrap_err();
    (status.code, status.message)
}

fn list(raw: &str) -> status::Result<()> {
    ListOptions::parse(&Query::parse(raw))?.validate(false)
}

#[test]
fn list_options_refuse_invalid_combinations() {
    let invalid = |detail: &str| (422, format!("ListOptions.meta.k8s.io \"\" is invalid: {detail}"));
    let table = [
        (
            "resourceVersionMatch=Exact",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        ),
        (
            "resourceVersionMatch=Nope&resourceVersion=5",
            "resourceVersionMatch: Unsupported value: \"Nope\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
        ),
        (
            "resourceVersionMatch=NotOlderThan&resourceVersion=5&continue=abc",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ),
        (
            "watch=1&resourceVersionMatch=Exact&resourceVersion=5",
            "[resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided, resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\"]",
        ),
        ("sendInitialEvents=true", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"),
        (
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        ),
    ];
    for (raw, detail) in table {
        assert_eq!(message(list(raw)), invalid(detail), "{raw}");
    }
    let ok = Query::parse("watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    assert!(ListOptions::parse(&ok).unwrap().validate(true).is_ok());
}

#[test]
fn list_options_report_the_first_error() {
    let query = "labelSelector=%3D&limit=x&timeoutSeconds=y";
    assert_eq!(message(list(query)), (400, r#"strconv.ParseInt: parsing "y": invalid syntax"#.into()));
    let selectors = "fieldSelector=bad&labelSelector=%3D";
    assert!(message(list(selectors)).1.starts_with("found '='"));
    assert!(list("limit=5&continue=x&resourceVersion=7&allowWatchBookmarks=1").is_ok());
}

#[test]
fn revision_accepts_only_decimal_numbers() {
    assert_eq!(revision("").unwrap(), None);
    assert_eq!(revision("42").unwrap(), Some(42));
    for (text, reason) in
        [("abc", "invalid syntax"), ("-5", "invalid syntax"), ("99999999999999999999", "value out of range")]
    {
        let expected = format!(
            "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": {reason}"
        );
        assert_eq!(message(revision(text)), (400, expected));
    }
    assert!(revision("+5").is_err());
}

#[test]
fn write_options_refuse_unknown_values() {
    let create = |raw| WriteOptions::create(&Query::parse(raw));
    for (query, mode) in
        [("dryRun=All", WriteMode::DryRun), ("dryRun=", WriteMode::Store), ("dryRun", WriteMode::Store)]
    {
        assert_eq!(create(query).unwrap().mode, mode, "{query}");
    }
    assert_eq!(create("fieldValidation=Strict").unwrap().field_validation, FieldValidation::Strict);
    assert_eq!(create("").unwrap(), WriteOptions::default());
    assert_eq!(
        message(create("dryRun=Some&dryRun=All")),
        (
            422,
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: []string{\"Some\", \"All\"}: supported values: \"All\"".into()
        )
    );
    assert_eq!(
        message(WriteOptions::update(&Query::parse("fieldValidation=Loud"))),
        (
            422,
            "UpdateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Loud\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"".into()
        )
    );
}

#[test]
fn apply_requires_field_manager_and_only_apply_allows_force() {
    let patch = |raw, apply| PatchOptions::parse(&Query::parse(raw), apply);
    assert_eq!(
        message(patch("", true)).1,
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    assert_eq!(
        message(patch("force=false", false)).1,
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
    );
    assert!(patch("force&fieldManager=me", true).unwrap().force);
    let long = format!("fieldManager={}", "x".repeat(129));
    assert_eq!(
        message(patch(&long, false)).1,
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes"
    );
}

#[test]
fn field_manager_must_be_printable() {
    let path = FieldPath::new("fieldManager");
    for valid in ["kubectl", "a b", "Ünï'\"\\"] {
        assert_eq!(field_manager_errors(valid, &path), [], "{valid}");
    }
    let errors = field_manager_errors("a\u{7}", &path);
    assert_eq!(errors[0].message, r#"Invalid value: "a\a": invalid character U+0007 (at position 1)"#);
    assert_eq!(field_manager_errors("\u{200b}\u{a0}", &path).len(), 2);
    // The errors of a long name do not grow with the square of its length.
    let errors = field_manager_errors(&"\u{1}".repeat(30_000), &path);
    let bytes: usize = errors.iter().map(|error| error.message.len()).sum();
    assert!(bytes < 2 * FIELD_ERROR_BYTES, "{bytes}");
    assert_eq!(errors.len(), 30_001);
}

#[test]
fn delete_options_of_body_override_the_query() {
    let query = Query::parse("gracePeriodSeconds=5&propagationPolicy=Orphan&uid=u&dryRun=All");
    let from_query = DeleteOptions::parse(&query, None, false).unwrap();
    let expected = DeleteOptions {
        dry_run: true,
        grace_period_seconds: Some(5),
        propagation: Some(Propagation::Orphan),
        uid: Some("u".into()),
        ..DeleteOptions::default()
    };
    assert_eq!(from_query, expected);
    assert_eq!(
        DeleteOptions::parse(&query, Some(&Value::object()), false).unwrap(),
        DeleteOptions::default()
    );
    let mut body = Value::object();
    body.set("gracePeriodSeconds", 0);
    body.set("dryRun", vec!["All"]);
    body.entry("preconditions").set("resourceVersion", "7");
    let from_body = DeleteOptions::parse(&query, Some(&body), false).unwrap();
    assert_eq!((from_body.grace_period_seconds, from_body.dry_run), (Some(0), true));
    assert_eq!((from_body.resource_version.as_deref(), from_body.uid), (Some("7"), None));
}

#[test]
fn delete_options_refuse_invalid_propagation_policies() {
    let delete = |raw| DeleteOptions::parse(&Query::parse(raw), None, false);
    assert_eq!(
        message(delete("propagationPolicy=Now")).1,
        "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Now\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
    );
    assert_eq!(
        message(delete("propagationPolicy=Orphan&orphanDependents=true")).1,
        "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set"
    );
    assert_eq!(message(delete("gracePeriodSeconds=soon")).0, 400);
}

#[test]
fn ignore_read_error_excludes_other_delete_options() {
    let force = |raw: &str, allowed| {
        DeleteOptions::parse(&Query::parse(&format!("{IGNORE_READ_ERROR}=true{raw}")), None, allowed)
    };
    assert!(force("", true).unwrap().unreadable);
    assert!(!force("&gracePeriodSeconds=5", false).unwrap().unreadable, "the option is ignored");
    let together = |field: &str| {
        let error = format!("{IGNORE_READ_ERROR}: Invalid value: true: cannot be set together with .{field}");
        (422, format!("DeleteOptions.meta.k8s.io \"\" is invalid: {error}"))
    };
    for (raw, field) in [
        ("&dryRun=All", "dryRun"),
        ("&propagationPolicy=Orphan", "propagationPolicy"),
        ("&orphanDependents=true", "orphanDependents"),
        ("&gracePeriodSeconds=0", "gracePeriodSeconds"),
        ("&uid=u", "preconditions"),
    ] {
        assert_eq!(message(force(raw, true)), together(field), "{raw}");
    }
    let mut body = Value::object();
    body.set(IGNORE_READ_ERROR, true);
    body.set("preconditions", Value::object());
    let parsed = DeleteOptions::parse(&Query::parse(""), Some(&body), true);
    assert_eq!(message(parsed), together("preconditions"));
}

#[test]
fn delete_options_round_trip_through_a_body() {
    let all = [
        DeleteOptions::default(),
        DeleteOptions {
            dry_run: true,
            grace_period_seconds: Some(0),
            propagation: Some(Propagation::Foreground),
            uid: Some("u".to_owned()),
            resource_version: Some("7".to_owned()),
            ..DeleteOptions::default()
        },
        DeleteOptions { orphan_dependents: Some(true), ..DeleteOptions::default() },
        DeleteOptions { unreadable: true, ..DeleteOptions::default() },
    ];
    for options in all {
        let read = DeleteOptions::parse(&Query::default(), Some(&options.to_value()), true);
        assert_eq!(read.unwrap(), options);
    }
}
