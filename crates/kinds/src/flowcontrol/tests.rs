use pilothouse_apimachinery::testing::{each_refused, object};

use super::*;

#[test]
fn flow_control_validation_refuses_each_violation() {
    let schema = object(
        r#"{"metadata":{"name":"a"},"spec":{"matchingPrecedence":1000,"priorityLevelConfiguration":{"name":"x"},
            "distinguisherMethod":{"type":"ByUser"},"rules":[{"subjects":[{"kind":"User","user":{"name":"u"}}],
            "resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"namespaces":["*"]}],
            "nonResourceRules":[{"verbs":["get"],"nonResourceURLs":["/x"]}]}]}}"#,
    );
    each_refused(
        &schema,
        validate_schema,
        &[
            (
                "spec.matchingPrecedence",
                "20000",
                "spec.matchingPrecedence: Invalid value: 20000: must not be greater than 10000",
            ),
            ("spec.matchingPrecedence", "-1", "must be a positive value"),
            ("spec.matchingPrecedence", "1", "only the schema named 'exempt' may have matchingPrecedence 1"),
            ("spec.distinguisherMethod.type", r#""X""#, "supported values: \"ByNamespace\", \"ByUser\""),
            (
                "spec.priorityLevelConfiguration.name",
                "null",
                "Required value: must reference a priority level",
            ),
            ("spec.rules.0.subjects", "[]", "subjects must contain at least one value"),
            ("spec.rules.0.subjects.0.kind", r#""X""#, "\"Group\", \"ServiceAccount\", \"User\""),
            (
                "spec.matchingPrecedence",
                "null",
                "spec.matchingPrecedence: Invalid value: 0: must be a positive value",
            ),
            (
                "spec.rules.0.subjects.0.user",
                "null",
                "subjects[0].user: Required value: user is required when subject kind is 'User'",
            ),
            ("spec.rules.0.subjects.0.user.name", "null", "subjects[0].user.name: Required value"),
            (
                "spec.rules.0.subjects.0.group",
                r#"{"name":"g"}"#,
                "group is forbidden when subject kind is not 'Group'",
            ),
            (
                "spec.rules.0.subjects.0",
                r#"{"kind":"ServiceAccount","serviceAccount":{"name":"*"}}"#,
                "must specify namespace for service account",
            ),
            (
                "spec.rules.0.subjects.0",
                r#"{"kind":"ServiceAccount","serviceAccount":{"name":"A","namespace":"n"}}"#,
                "serviceAccount.name: Invalid value: \"A\"",
            ),
            (
                "spec.rules.0.resourceRules.0.verbs",
                r#"["get","x"]"#,
                "verbs: Unsupported value: []string{\"get\", \"x\"}: supported values: \"create\"",
            ),
            (
                "spec.rules.0.resourceRules.0.verbs",
                r#"["*","get"]"#,
                "if '*' is present, must not specify other verbs",
            ),
            (
                "spec.rules.0.resourceRules.0.apiGroups",
                "[]",
                "resource rules must supply at least one api group",
            ),
            (
                "spec.rules.0.resourceRules.0.resources",
                r#"["*","x"]"#,
                "if '*' is present, must not specify other resources",
            ),
            (
                "spec.rules.0.resourceRules.0.namespaces",
                "[]",
                "resource rules that are not cluster scoped must supply at least one namespace",
            ),
            (
                "spec.rules.0.resourceRules.0.namespaces",
                r#"["A"]"#,
                "each member of this list must be '*' or a DNS-1123 label; a lowercase",
            ),
            (
                "spec.rules.0.nonResourceRules.0.nonResourceURLs",
                "[]",
                "nonResourceURLs must contain at least one value",
            ),
            ("spec.rules.0.nonResourceRules.0.nonResourceURLs", r#"["x"]"#, "must start with slash"),
            (
                "spec.rules.0.nonResourceRules.0.nonResourceURLs",
                r#"["/x*"]"#,
                "wildcard can only do suffix matching",
            ),
            (
                "spec.distinguisherMethod.type",
                r#""X""#,
                "Unsupported value: flowcontrol.FlowDistinguisherMethod{Type:\"X\"}: supported values: \"ByNamespace\", \"ByUser\"",
            ),
            (
                "status.conditions",
                r#"[{"type":"A"},{"type":"A"}]"#,
                "status.conditions[1].type: Duplicate value: \"A\"",
            ),
            ("spec.rules.0.resourceRules.0.verbs", "[]", "verbs must contain at least one value"),
        ],
    );
    let level = object(
        r#"{"metadata":{"name":"a"},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,
            "limitResponse":{"type":"Queue","queuing":{"queues":64,"handSize":8,"queueLengthLimit":50}}}}}"#,
    );
    each_refused(
        &level,
        validate_level,
        &[
            ("spec.limited", "null", "spec.limited: Required value: must not be empty when type is Limited"),
            ("spec.exempt", "{}", "spec.exempt: Forbidden: must be nil if the type is Limited"),
            ("spec.limited.nominalConcurrencyShares", "-1", "must be a non-negative integer"),
            ("spec.limited.lendablePercent", "101", "must be between 0 and 100, inclusive"),
            (
                "spec.limited.limitResponse.type",
                r#""Reject""#,
                "must be nil if limited.limitResponse.type is not Limited",
            ),
            ("spec.limited.limitResponse.type", r#""X""#, "supported values: \"Queue\", \"Reject\""),
            (
                "metadata.annotations",
                r#"{"flowcontrol.k8s.io/concurrency-shares-defaults-to-zero":""}"#,
                "metadata.annotations: Forbidden: annotation",
            ),
            ("spec.limited.lendablePercent", "101", "must be between 0 and 100, inclusive"),
            (
                "spec.limited.limitResponse.queuing.queueLengthLimit",
                "null",
                "queueLengthLimit: Invalid value: 0: must be positive",
            ),
            (
                "spec.limited.limitResponse.queuing.handSize",
                "11",
                "required entropy bits of deckSize 64 and handSize 11 should not be greater than 60",
            ),
            ("spec.limited.limitResponse.queuing.handSize", "65", "should not be greater than queues (64)"),
        ],
    );
}

#[test]
fn mandatory_flow_control_objects_have_fixed_specs() {
    for name in [EXEMPT, CATCH_ALL] {
        let mut schema = Value::object();
        schema.entry("metadata").set("name", name);
        schema.set("spec", mandatory_schema(name).unwrap());
        let mut errors = ErrorList::new();
        validate_schema(&schema, &mut errors);
        assert_eq!(errors, [], "{name}");
        schema.entry("spec").set("distinguisherMethod", object_of(vec![("type", "ByNamespace".into())]));
        validate_schema(&schema, &mut errors);
        assert_eq!(errors.len(), 1, "{name}");
    }
    let mut level = object_of(vec![("spec", catch_all_level())]);
    level.entry("metadata").set("name", CATCH_ALL);
    each_refused(
        &level,
        validate_level,
        &[("spec.limited.nominalConcurrencyShares", "6", "spec of 'catch-all' must equal the fixed value")],
    );
    let exempt = object(
        r#"{"metadata":{"name":"exempt"},"spec":{"type":"Exempt","exempt":{"nominalConcurrencyShares":5}}}"#,
    );
    each_refused(
        &exempt,
        validate_level,
        &[("spec.exempt.lendablePercent", "-1", "must be between 0 and 100")],
    );
}
