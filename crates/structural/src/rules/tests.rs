//! Rules of definitions, and their evaluation for objects.

use pilothouse_apimachinery::features::EnabledFeatures;

use super::super::check_rules::{self, StoredExpressions};
use super::*;

fn value(text: &str) -> Value {
    json::read(text.as_bytes()).unwrap()
}

/// The errors of an object, and then its warnings.
fn evaluate_rules(schema: &str, new: &str, old: Option<&str>) -> Vec<String> {
    let rules = Rules::compile(&value(schema), &mut Patterns::default()).unwrap();
    let (mut errors, mut warnings) = (ErrorList::new(), WarningList::new());
    let old = old.map(value);
    let parsed = Schema::read(&value(schema));
    rules.check(&parsed, &value(new), old.as_ref(), &mut errors, &mut warnings);
    let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
    errors.iter().map(ToString::to_string).chain(warnings).collect()
}

fn check_schema_rules(schema: &str) -> Vec<String> {
    let mut errors = ErrorList::new();
    check_rules::check(&value(schema), &FieldPath::new("s"), &StoredExpressions::default(), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn only_stored_rules_may_use_functions_that_the_previous_release_lacks() {
    let schema = |rule: &str| value(&schema_with_rules(&format!(r#"{{"rule":"{rule}"}}"#)));
    let (two_variables, semver) = ("self.m.all(k, v, v != 'bad')", "isSemver(self.name)");
    let features = EnabledFeatures::RELEASE;
    let refused = |rule: &str, features, stored: &StoredExpressions<'_>| {
        let mut errors = ErrorList::with_features(features);
        check_rules::check(&schema(rule), &FieldPath::new("s"), stored, &mut errors);
        !errors.is_empty()
    };
    for (rule, compatibility, expected) in [
        (two_variables, (1, 31), true),
        (two_variables, (1, 32), false),
        (semver, (1, 32), true),
        (semver, (1, 33), false),
    ] {
        let features = features.compatible_with(compatibility);
        assert_eq!(
            refused(rule, features, &StoredExpressions::default()),
            expected,
            "{rule} {compatibility:?}"
        );
        let old = schema(rule);
        let mut stored = StoredExpressions::default();
        stored.add(&old);
        assert!(!refused(rule, features, &stored), "{rule} was accepted before");
    }
}

/// A schema whose spec has these rules.
fn schema_with_rules(rules: &str) -> String {
    format!(
        r#"{{"type":"object","properties":{{"spec":{{"type":"object","x-kubernetes-validations":[{rules}],"properties":{{
        "min":{{"type":"integer"}},"max":{{"type":"integer"}},"name":{{"type":"string","maxLength":20}},
        "port":{{"x-kubernetes-int-or-string":true}},"a-b":{{"type":"string"}},
        "m":{{"type":"object","maxProperties":5,"additionalProperties":{{"type":"string"}}}}}}}}}}}}"#
    )
}

#[test]
fn objects_with_undescribed_fields_are_not_ratcheted() {
    let schema = schema_with_rules(r#"{"rule":"self.min > 1","message":"more"}"#);
    let error = r#"spec: Invalid value: "object": more"#;
    let object = r#"{"spec":{"min":1}}"#;
    assert_eq!(evaluate_rules(&schema, object, Some(object)), [format!("warning: {error}")]);
    let object = r#"{"spec":{"min":1,"unknown":1}}"#;
    assert_eq!(evaluate_rules(&schema, object, Some(object)), [error]);
}

#[test]
fn rules_with_optional_old_self_are_not_ratcheted() {
    let schema =
        schema_with_rules(r#"{"rule":"!oldSelf.hasValue()","optionalOldSelf":true,"message":"new only"}"#);
    let object = r#"{"spec":{"min":1}}"#;
    assert_eq!(evaluate_rules(&schema, object, None), [""; 0]);
    assert_eq!(evaluate_rules(&schema, object, Some(object)), [r#"spec: Invalid value: "object": new only"#]);
}

#[test]
fn rule_failures_match_the_reference() {
    let table: &[(&str, &str, &[&str])] = &[
        (r#"{"rule":"self.min <= self.max"}"#, r#"{"spec":{"min":1,"max":2}}"#, &[]),
        (
            r#"{"rule":"self.min <= self.max"}"#,
            r#"{"spec":{"min":3,"max":2}}"#,
            &[r#"spec: Invalid value: "object": failed rule: self.min <= self.max"#],
        ),
        (
            r#"{"rule":"self.min <= self.max","message":" too large "}"#,
            r#"{"spec":{"min":3,"max":2}}"#,
            &[r#"spec: Invalid value: "object": too large"#],
        ),
        (
            r#"{"rule":"self.min <= self.max","message":"m","messageExpression":"'%d is more than %d'.format([self.min, self.max])"}"#,
            r#"{"spec":{"min":3,"max":2}}"#,
            &[r#"spec: Invalid value: "object": 3 is more than 2"#],
        ),
        (
            r#"{"rule":"self.min <= self.max","message":"m","messageExpression":"self.name"}"#,
            r#"{"spec":{"min":3,"max":2}}"#,
            &[r#"spec: Invalid value: "object": m"#],
        ),
        (
            r#"{"rule":"self.min <= self.max","reason":"FieldValueForbidden","fieldPath":".min"}"#,
            r#"{"spec":{"min":3,"max":2}}"#,
            &["spec.min: Forbidden: failed rule: self.min <= self.max"],
        ),
        (
            r#"{"rule":"has(self.name)","reason":"FieldValueRequired","fieldPath":".name","message":"name it"}"#,
            r#"{"spec":{}}"#,
            &["spec.name: Required value: name it"],
        ),
        (
            r#"{"rule":"false","reason":"FieldValueDuplicate"}"#,
            r#"{"spec":{}}"#,
            &[r#"spec: Duplicate value: "object""#],
        ),
        (
            r#"{"rule":"self.name == 'x'"}"#,
            r#"{"spec":{}}"#,
            &[r#"spec: Invalid value: "object": no such key: name evaluating rule: self.name == 'x'"#],
        ),
        (
            r#"{"rule":"self.port > 5"}"#,
            r#"{"spec":{"port":"a"}}"#,
            &[
                r#"spec: Invalid value: "object": 'no such overload': call arguments did not match a supported operator, function or macro signature for rule: self.port > 5"#,
            ],
        ),
        (
            r#"{"rule":"self.a__dash__b == 'c' && self.m.k == 'v'"}"#,
            r#"{"spec":{"a-b":"c","m":{"k":"v"}}}"#,
            &[],
        ),
        (r#"{"rule":"oldSelf.min == self.min"}"#, r#"{"spec":{"min":1}}"#, &[]),
    ];
    for (rule, object, expected) in table {
        assert_eq!(evaluate_rules(&schema_with_rules(rule), object, None), *expected, "{rule} {object}");
    }
    let root = r#"{"type":"object","x-kubernetes-validations":[{"rule":"self.metadata.name.size() < 3"}]}"#;
    assert_eq!(
        evaluate_rules(root, r#"{"metadata":{"name":"kite"}}"#, None),
        [r#"<nil>: Invalid value: "object": failed rule: self.metadata.name.size() < 3"#]
    );
}

#[test]
fn transition_rules_compare_with_old_self() {
    let fixed = schema_with_rules(r#"{"rule":"self.name == oldSelf.name","message":"stays"}"#);
    let (a, b) = (r#"{"spec":{"name":"a"}}"#, r#"{"spec":{"name":"b"}}"#);
    assert!(evaluate_rules(&fixed, a, None).is_empty() && evaluate_rules(&fixed, a, Some(a)).is_empty());
    assert_eq!(evaluate_rules(&fixed, b, Some(a)), [r#"spec: Invalid value: "object": stays"#]);
    let optional = schema_with_rules(
        r#"{"rule":"!oldSelf.hasValue() || oldSelf.value().name == self.name","optionalOldSelf":true,"message":"stays"}"#,
    );
    assert!(evaluate_rules(&optional, a, None).is_empty());
    assert_eq!(evaluate_rules(&optional, b, Some(a)), [r#"spec: Invalid value: "object": stays"#]);
    let lists = |kind: &str| {
        format!(
            r#"{{"type":"object","properties":{{"l":{{"type":"array",{kind}"items":{{"type":"object","properties":{{
            "k":{{"type":"string"}},"v":{{"type":"integer"}}}},"x-kubernetes-validations":[{{"rule":"self.v >= oldSelf.v","message":"grows"}}]}}}}}}}}"#
        )
    };
    let old = r#"{"l":[{"k":"a","v":5},{"k":"b","v":5}]}"#;
    let new = r#"{"l":[{"k":"c","v":1},{"k":"b","v":6},{"k":"a","v":4}]}"#;
    let keyed = lists(r#""x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"#);
    assert_eq!(evaluate_rules(&keyed, new, Some(old)), [r#"l[2]: Invalid value: "object": grows"#]);
    assert!(
        evaluate_rules(&lists(""), new, Some(old)).is_empty(),
        "items of atomic lists are not correlated"
    );
}

#[test]
fn rules_on_items_of_non_lists_refuse_the_items() {
    let schema = r#"{"type":"object","properties":{"spec":{"type":"object","properties":{"l":{"type":"object",
        "items":{"type":"object","properties":{"v":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"self.v > 0"}]}}}}}}"#;
    let object = r#"{"spec":{"l":[{"v":1}]}}"#;
    // Also if the object existed before: a new version of a definition may change the type of a field.
    for old in [None, Some(object)] {
        let message =
            "rule compiler initialization error: failed to convert to declType for CEL validation rules";
        assert_eq!(
            evaluate_rules(schema, object, old),
            [format!(r#"spec.l[0]: Invalid value: "object": {message}"#)]
        );
    }
    assert!(evaluate_rules(schema, r#"{"spec":{"l":{}}}"#, None).is_empty());
}

#[test]
fn failures_of_unchanged_values_are_warnings() {
    let schema = r#"{"type":"object","properties":{"spec":{"type":"object","properties":{
        "a":{"type":"string","x-kubernetes-validations":[{"rule":"self == 'good'"}]},
        "l":{"type":"array","items":{"type":"string","x-kubernetes-validations":[{"rule":"self == 'good'"}]}},
        "n":{"type":"integer"}}}}}"#;
    let old = r#"{"spec":{"a":"bad","l":["bad"],"n":1}}"#;
    assert_eq!(evaluate_rules(schema, old, None).len(), 2);
    assert_eq!(
        evaluate_rules(schema, r#"{"spec":{"a":"bad","l":["bad"],"n":2}}"#, Some(old)),
        [
            r#"warning: spec.a: Invalid value: "string": failed rule: self == 'good'"#,
            r#"warning: spec.l[0]: Invalid value: "string": failed rule: self == 'good'"#,
        ]
    );
    assert_eq!(
        evaluate_rules(schema, r#"{"spec":{"a":"worse","l":["bad","good"],"n":2}}"#, Some(old)),
        [
            r#"spec.a: Invalid value: "string": failed rule: self == 'good'"#,
            r#"spec.l[0]: Invalid value: "string": failed rule: self == 'good'"#,
        ]
    );
}

#[test]
fn rules_are_skipped_for_invalid_objects() {
    let rules =
        Rules::compile(&value(&schema_with_rules(r#"{"rule":"false"}"#)), &mut Patterns::default()).unwrap();
    let mut errors = ErrorList::new();
    errors.push(FieldError::required(&FieldPath::new("spec"), ""));
    rules.check(&Schema::default(), &value("{}"), None, &mut errors, &mut WarningList::new());
    let last = errors.iter().next_back().unwrap().to_string();
    assert!(
        last.starts_with("<nil>: Invalid value: \"null\": some validation rules were not checked"),
        "{last}"
    );
}

#[test]
fn rule_evaluation_stops_at_cost_budget() {
    let schema = r#"{"type":"object","properties":{"l":{"type":"array","items":{"type":"integer"},
        "x-kubernetes-validations":[{"rule":"self.all(x, self.all(y, x != y || x == y))"},{"rule":"false"}]}}}"#;
    let items: Vec<String> = (0..2_000).map(|index| index.to_string()).collect();
    assert_eq!(
        evaluate_rules(schema, &format!(r#"{{"l":[{}]}}"#, items.join(",")), None),
        [
            r#"l: Invalid value: "array": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: self.all(x, self.all(y, x != y || x == y))"#
        ]
    );
    let many = r#"{"type":"object","properties":{"l":{"type":"array","items":{"type":"object","properties":{
        "w":{"type":"array","items":{"type":"integer"},"x-kubernetes-validations":[{"rule":"self.all(x, self.all(y, true))"}]}}}}}}"#;
    let item = format!(r#"{{"w":[{}]}}"#, vec!["1"; 500].join(","));
    let errors = evaluate_rules(many, &format!(r#"{{"l":[{}]}}"#, vec![item; 20].join(",")), None);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].ends_with(
            "validation failed due to running out of cost budget, no further validation rules will be run"
        ),
        "{errors:?}"
    );
}

#[test]
fn invalid_rules_are_errors_of_the_definition() {
    let check_rule = |rule: &str| check_schema_rules(&schema_with_rules(rule));
    let rule_path = "s.properties[spec].x-kubernetes-validations[0]";
    let table: &[(&str, &[&str])] = &[
        (r#"{"rule":"self.min > 1"}"#, &[]),
        (
            r#"{"rule":"self.nope > 1"}"#,
            &["compilation failed: ERROR: <input>:1:5: undefined field 'nope'\n | self.nope > 1\n | ....^"],
        ),
        (r#"{"rule":"self.min"}"#, &["cel expression must evaluate to a bool"]),
        (r#"{"rule":"true","messageExpression":"1"}"#, &["messageExpression must evaluate to a string"]),
        (
            r#"{"rule":"true","messageExpression":"'a"}"#,
            &["messageExpression compilation failed: ERROR: <input>:1:1: Syntax error"],
        ),
        (
            r#"{"rule":"true","optionalOldSelf":true}"#,
            &["optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule"],
        ),
        (
            r#"{"rule":"self.a__dash__b.matches('^a{100}$') && self.a__dash__b.contains(self.a__dash__b)"}"#,
            &[
                "Forbidden: estimated rule cost exceeds budget by factor of more than 100x",
                "contributed to estimated",
                "s: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x",
            ],
        ),
    ];
    for (rule, expected) in table {
        let errors = check_rule(rule);
        assert_eq!(errors.len(), expected.len(), "{rule}: {errors:?}");
        for (error, expected) in errors.iter().zip(*expected) {
            assert!(
                error.contains(expected) && (error.starts_with(rule_path) || error.starts_with("s:")),
                "{rule}: {error}"
            );
        }
    }
    let error = &check_rule(r#"{"rule":"self.min"}"#)[0];
    assert!(
        error.contains(r#"Invalid value: apiextensions.ValidationRule{Rule:"self.min", Message:"", "#),
        "{error}"
    );
    let uncorrelatable = r#"{"type":"object","properties":{"l":{"type":"array","maxItems":9,"items":{"type":"string",
        "maxLength":9,"x-kubernetes-validations":[{"rule":"self == oldSelf"}]}}}}"#;
    assert!(check_schema_rules(uncorrelatable)[0].ends_with(
        r#"rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]"#
    ));
    let nested_list = |max_items: &str| {
        format!(
            r#"{{"type":"object","properties":{{"l":{{"type":"array"{max_items},"items":{{"type":"object","properties":{{
            "w":{{"type":"array","maxItems":1000,"items":{{"type":"integer"}},"x-kubernetes-validations":[{{"rule":"self.all(x, x > 0)"}}]}}}}}}}}}}}}"#
        )
    };
    assert!(check_schema_rules(&nested_list(r#","maxItems":100"#)).is_empty());
    assert!(
        check_schema_rules(&nested_list(r#","maxItems":3000"#))[0]
            .contains("exceeds budget by factor of 1.5x"),
        "{:?}",
        check_schema_rules(&nested_list(r#","maxItems":3000"#))
    );
    assert!(check_schema_rules(&nested_list(""))[0].contains("exceeds budget by factor of more than 100x"));
}

#[test]
fn rule_cost_estimates_match_the_reference() {
    let array = |items: &str| format!(r#"{{"type":"array","items":{items}}}"#);
    let map = |values: &str| format!(r#"{{"type":"object","additionalProperties":{values}}}"#);
    let (number, text) = (r#"{"type":"number"}"#, r#"{"type":"string"}"#);
    let (date, day) = (r#"{"type":"string","format":"date-time"}"#, r#"{"type":"string","format":"date"}"#);
    let either = r#"{"x-kubernetes-int-or-string":true}"#;
    let object = r#"{"type":"object","required":["required"],"properties":{"required":{"type":"string"},"optional":{"type":"string"}}}"#;
    let table: Vec<(String, &str, u64)> = vec![
        (array(number), "self.all(x, true)", 4_718_591),
        (array(text), "self.all(x, true)", 3_145_727),
        (array(&array(number)), "self.all(x, true)", 3_145_727),
        (array(object), "self.all(x, true)", 555_128),
        (array(day), "self.all(x, true)", 725_936),
        (array(date), "self.all(x, true)", 428_963),
        (array(either), "self[0] == 5", 3),
        (array(number), "self[1] == 0.0", 2),
        (array(text), "self[1] == self[1]", 314_577),
        (array(number), "self.all(x, x == 0.0)", 6_291_454),
        (array(object), "self[0] == null", 2),
        (array(date), "self[2].getMinutes() == 45", 4),
        (array(&map(object)), r#"self.all(x, x["y"].required == "z")"#, 7_340_027),
        (array(&map(number)), "self.all(x, x.y == 25.2)", 6_291_452),
        (map(number), "self.all(x, true)", 1_348_169),
        (map(either), "self.all(x, true)", 1_348_169),
        (map(text), "self.all(x, x.contains(self[x]))", 2_752_507),
        (map(date), r#"self["a"] == self["b"]"#, 8),
        (map(number), "oldSelf.size() == self.size()", 5),
        (text.to_owned(), "self.contains('test')", 314_574),
        (text.to_owned(), "self.startsWith('test')", 2),
        (text.to_owned(), r#"size(self + "hello") > size("hello")"#, 314_578),
        (text.to_owned(), r#"self.matches("x")"#, 314_574),
        (text.to_owned(), r#""".matches("(((((((((())))))))))[0-9]")"#, 7),
        (text.to_owned(), "self.find('[0-9]+') == ''", 629_147),
        (r#"{"type":"string","maxLength":10}"#.to_owned(), "self.find('[0-9]+') == ''", 11),
        (r#"{"type":"string","enum":["A","LongValue"]}"#.to_owned(), "self.contains('A')", 2),
        (r#"{"type":"array","maxItems":10,"items":{"type":"number"}}"#.to_owned(), "self.all(x, self.all(y, true))", 352),
        (
            r#"{"type":"object","properties":{"str":{"type":"string"},"before":{"type":"string"},"after":{"type":"string"}}}"#.to_owned(),
            "self.str.replace(self.before, self.after) == 'does not matter'",
            629_154,
        ),
    ];
    for (schema, rule, expected) in table {
        let (schema, mut rule_value) = (value(&schema), Value::object());
        rule_value.set("rule", rule);
        let decl_type = decl_types::from_schema(&schema, false, "selfType").unwrap();
        let compiled = CompiledRule::compile(
            &rule_value,
            &schema,
            &decl_type,
            RuleLibraries::STORED,
            &mut Patterns::default(),
        );
        assert_eq!((compiled.compile_error, compiled.max_cost), (None, expected), "{rule} of {schema:?}");
    }
}

#[test]
fn defaults_must_satisfy_rules() {
    let check = |schema: &str| {
        let schema = value(schema);
        let mut errors = ErrorList::new();
        let path = FieldPath::new("d");
        check_default(
            &schema,
            schema.get("default").unwrap(),
            &path,
            &mut CostBudget::default(),
            &mut errors,
        );
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let schema_with_rule = |rule: &str| {
        format!(
            r#"{{"type":"object","default":{{"n":5}},"properties":{{"n":{{"type":"integer","x-kubernetes-validations":[{rule}]}}}}}}"#
        )
    };
    assert!(check(&schema_with_rule(r#"{"rule":"self > 1"}"#)).is_empty());
    assert!(check(&schema_with_rule(r#"{"rule":"self == oldSelf"}"#)).is_empty());
    assert_eq!(
        check(&schema_with_rule(r#"{"rule":"self < 1"}"#)),
        [r#"d.n: Invalid value: "integer": failed rule: self < 1"#]
    );
    assert_eq!(
        check(&schema_with_rule(r#"{"rule":"oldSelf.hasValue()","optionalOldSelf":true}"#)),
        [r#"d.n: Invalid value: "integer": failed rule: oldSelf.hasValue()"#]
    );
}

#[test]
fn reserved_words_may_be_field_names() {
    let schema = |rule: &str| {
        format!(
            r#"{{"type":"object","properties":{{"namespace":{{"type":"string"}}}},"x-kubernetes-validations":[{{"rule":"{rule}"}}]}}"#
        )
    };
    for rule in ["self.namespace == 'a'", "self.__namespace__ == 'a'", "has(self.namespace)"] {
        assert_eq!(check_schema_rules(&schema(rule)), Vec::<String>::new(), "{rule}");
        assert_eq!(
            evaluate_rules(&schema(rule), r#"{"namespace":"a"}"#, None),
            Vec::<String>::new(),
            "{rule}"
        );
    }
    assert_eq!(evaluate_rules(&schema("self.namespace == 'a'"), r#"{"namespace":"b"}"#, None).len(), 1);
    assert_eq!(check_schema_rules(&schema("self.package == 'a'")).len(), 1, "only if there is such a field");
}
