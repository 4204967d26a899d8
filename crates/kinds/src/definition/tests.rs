use pilothouse_apimachinery::testing::{each_change_refused, each_refused, error_messages, object};

use super::super::testing::context;
use super::*;

fn base() -> Value {
    let mut definition = object(
        r#"{"metadata":{"name":"kites.a.b"},"spec":{"group":"a.b","scope":"Namespaced","names":{"plural":"kites","kind":"Kite"},
            "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
            "spec":{"type":"object","properties":{"size":{"type":"string"},"list":{"type":"array","items":{"type":"string"}}}}}}}}]}}"#,
    );
    default(&mut definition);
    prepare_create(&mut definition, &context("t"));
    definition
}

#[test]
fn storage_version_is_recorded_in_stored_versions() {
    let mut definition = object(
        r#"{"spec":{"names":{"kind":"Kite"},"versions":[{"name":"v1","storage":true}]},"status":{"storedVersions":["v0"]}}"#,
    );
    default(&mut definition);
    prepare_create(&mut definition, &context("t"));
    assert_eq!(definition.get_path(&["status", "storedVersions"]), Some(&object(r#"["v0","v1"]"#)));
    assert_eq!(
        definition.get_path(&["spec", "names"]),
        Some(&object(r#"{"kind":"Kite","singular":"kite","listKind":"KiteList"}"#))
    );
    assert_eq!(definition.get_path(&["spec", "conversion", "strategy"]), Some(&Value::from("None")));
    let mut without_status = object(r#"{"spec":{"versions":[{"name":"v1"},{"name":"v2","storage":true}]}}"#);
    default(&mut without_status);
    assert_eq!(without_status.get_path(&["status", "storedVersions"]), Some(&object(r#"["v2"]"#)));
}

#[test]
fn definition_name_must_be_plural_and_group() {
    let definition = object(r#"{"spec":{"group":"y.z","names":{"plural":"x"}}}"#);
    assert_eq!(validate_name(&definition, "x.y.z"), None);
    let detail = "must be spec.names.plural+\".\"+spec.group";
    assert_eq!(validate_name(&definition, "x").as_deref(), Some(detail));
}

#[test]
fn empty_definition_reports_all_required_fields() {
    let mut empty = object(r#"{"metadata":{"name":"x.y.z"}}"#);
    default(&mut empty);
    let mut errors = ErrorList::new();
    validate(&empty, &mut errors);
    assert_eq!(
        error_messages(&errors),
        [
            "spec.group: Required value",
            "spec.scope: Required value",
            "spec.versions: Invalid value: []apiextensions.CustomResourceDefinitionVersion(nil): must have exactly one version marked as storage version",
            "spec.names.plural: Required value",
            "spec.names.singular: Required value",
            "spec.names.kind: Required value",
            "spec.names.listKind: Required value",
            "status.storedVersions: Invalid value: []string(nil): must have at least one stored version",
        ]
    );
}

#[test]
fn definition_validation_refuses_each_violation() {
    let column = |rest: &str| format!("[{{\"name\":\"c\",\"type\":\"string\",\"jsonPath\":\".a\",{rest}}}]");
    let (format, kind) = (column("\"format\":\"x\""), column("\"type\":\"x\""));
    each_refused(
        &base(),
        validate,
        &[
            (
                "spec.scope",
                r#""X""#,
                "spec.scope: Unsupported value: \"X\": supported values: \"Cluster\", \"Namespaced\"",
            ),
            ("spec.names.listKind", r#""Kite""#, "kind and listKind may not be the same"),
            (
                "spec.names.kind",
                r#""a b""#,
                "may have mixed case, but should otherwise match: a DNS-1035 label",
            ),
            ("spec.names.shortNames", r#"["A"]"#, "spec.names.shortNames[0]: Invalid value: \"A\""),
            ("spec.names.categories", r#"["A"]"#, "spec.names.categories[0]: Invalid value: \"A\""),
            (
                "spec.versions.0.schema",
                "null",
                "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
            ),
            (
                "spec.versions.0.schema.openAPIV3Schema.type",
                r#""string""#,
                "spec.validation.openAPIV3Schema.type: Invalid value: \"string\": must be object at the root",
            ),
            ("spec.versions.0.deprecationWarning", r#""x""#, "can only be set for deprecated versions"),
            (
                "spec.versions.0.subresources",
                r#"{"scale":{"statusReplicasPath":".status.a"}}"#,
                "spec.subresources.scale.specReplicasPath: Required value",
            ),
            (
                "spec.versions.0.subresources",
                r#"{"scale":{"specReplicasPath":".a","statusReplicasPath":".status.a"}}"#,
                "should be a json path under .spec",
            ),
            (
                "spec.versions.0.subresources",
                r#"{"scale":{"specReplicasPath":"x","statusReplicasPath":".status.a"}}"#,
                "must be a simple json path starting with .",
            ),
            (
                "spec.versions.0.additionalPrinterColumns",
                r#"[{"name":"c","type":"string"}]"#,
                "spec.additionalPrinterColumns[0].JSONPath: Required value",
            ),
            (
                "spec.versions.0.additionalPrinterColumns",
                &kind,
                "must be one of boolean,date,integer,number,string",
            ),
            (
                "spec.versions.0.additionalPrinterColumns",
                &format,
                "must be one of byte,date,date-time,double,float,int32,int64,password",
            ),
            (
                "spec.versions.0.selectableFields",
                r#"[{"jsonPath":".spec.x"}]"#,
                "spec.selectableFields[0].jsonPath: Invalid value: \".spec.x\": is an invalid path: does not refer to a valid field",
            ),
            (
                "spec.versions.0.selectableFields",
                r#"[{"jsonPath":".spec.list"}]"#,
                "must point to a field of type string, boolean or integer",
            ),
            (
                "spec.versions.0.selectableFields",
                r#"[{"jsonPath":".spec.size"},{"jsonPath":".spec.size"}]"#,
                "selectableFields[1].jsonPath: Duplicate value",
            ),
            (
                "spec.conversion.webhook",
                r#"{"conversionReviewVersions":["v1"]}"#,
                "spec.conversion.conversionReviewVersions: Forbidden: should not be set when",
            ),
            ("spec.conversion", r#"{"strategy":"X"}"#, "supported values: \"None\", \"Webhook\""),
            (
                "spec.conversion",
                r#"{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"]}}"#,
                "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            ),
            (
                "spec.conversion",
                r#"{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v9"],"clientConfig":{"url":"https://x"}}}"#,
                "must include at least one of v1, v1beta1",
            ),
            (
                "spec.preserveUnknownFields",
                "true",
                "cannot set to true, set x-kubernetes-preserve-unknown-fields",
            ),
            (
                "status.storedVersions",
                r#"["v1","v0"]"#,
                "status.storedVersions[1]: Invalid value: \"v0\": missing from spec.versions; v0 was previously",
            ),
            (
                "status.acceptedNames",
                r#"{"plural":"A"}"#,
                "status.acceptedNames.plural: Invalid value: \"A\"",
            ),
        ],
    );
    let mut duplicate = base();
    let second = object(r#"{"name":"v1","served":true,"schema":{"openAPIV3Schema":{"type":"object"}}}"#);
    if let Some(Value::Array(versions)) = duplicate.entry("spec").get_mut("versions") {
        versions.push(second);
    }
    let mut errors = ErrorList::new();
    validate(&duplicate, &mut errors);
    assert!(error_messages(&errors)[0].ends_with("must contain unique version names"));
    let mut protected = base();
    protected.entry("spec").set("group", "x.k8s.io");
    protected.entry("metadata").set("name", "kites.x.k8s.io");
    let mut errors = ErrorList::new();
    validate(&protected, &mut errors);
    assert!(
        error_messages(&errors)[0].starts_with(
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups"
        )
    );
}

#[test]
fn established_definition_keeps_names_and_scope() {
    let mut old = base();
    old.entry("status").set("conditions", object(r#"[{"type":"Established","status":"True"}]"#));
    each_change_refused(
        &old,
        validate_update,
        &[
            ("spec.scope", r#""Cluster""#, "spec.scope: Invalid value: \"Cluster\": field is immutable"),
            ("spec.names.kind", r#""Kate""#, "spec.names.kind: Invalid value: \"Kate\": field is immutable"),
            ("spec.group", r#""a.c""#, "spec.group: Invalid value: \"a.c\": field is immutable"),
            (
                "spec.names.plural",
                r#""kates""#,
                "spec.names.plural: Invalid value: \"kates\": field is immutable",
            ),
        ],
    );
}
