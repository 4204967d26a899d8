//! The types that expressions can construct: parts of an object, named by their path (`Object.spec.template`), and JSON Patch
//! operations. Fields of the former are not type-checked.

use crate::types::Type;

/// The type of the object itself, and the prefix of the types of its parts.
pub const OBJECT: &str = "Object";
/// The type of JSON Patch operations.
pub const JSON_PATCH: &str = "JSONPatch";

/// The constructible type of this name.
pub fn type_named(name: &str) -> Option<Type> {
    let is_part = || name.strip_prefix(OBJECT).is_some_and(|rest| rest.starts_with('.'));
    let is_known = name == OBJECT || name == JSON_PATCH || is_part();
    is_known.then(|| Type::type_of(Type::Constructed(name.into())))
}

/// The type of a field; `None` for an unknown one.
pub fn field_type(object_type: &str, name: &str) -> Option<Type> {
    match (object_type, name) {
        (JSON_PATCH, "op" | "path" | "from") => Some(Type::String),
        (JSON_PATCH, "value") => Some(Type::Dyn),
        (JSON_PATCH, _) => None,
        _ => Some(Type::Dyn),
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::pattern::Patterns;

    use super::*;
    use crate::*;

    fn environment() -> Environment {
        let mut all = RecentLibraries::default().libraries();
        all.push(Library::JsonPatch);
        Environment::with_libraries(&all).variable("object", Type::Dyn).with_object_construction()
    }

    fn compile(text: &str) -> Program {
        environment().compile(text, &mut Patterns::default()).unwrap()
    }

    /// The result of an expression as text, and its cost.
    fn evaluate(text: &str) -> (String, u64) {
        let program = compile(text);
        let EvaluationResult { outcome, cost } = program.evaluate(&|_| None, 1_000_000);
        (outcome.map_or_else(|error| error.to_string(), |value| value.to_string()), cost)
    }

    #[test]
    fn object_construction_has_type_named_by_field_path() {
        for (text, kind) in [
            ("Object{}", "Object"),
            (".Object{spec: Object.spec{replicas: 3}}", "Object"),
            ("Object.spec{replicas: 3, a: [1]}", "Object.spec"),
            ("[JSONPatch{op: 'add', path: '/a', value: Object.a{}}]", "list(JSONPatch)"),
            ("true ? Object{} : null", "Object"),
            ("Object{}.spec", "dyn"),
            ("JSONPatch{}.op", "string"),
            ("Object.spec", "type(Object.spec)"),
        ] {
            assert_eq!(compile(text).result_type().to_string(), kind, "{text}");
        }
    }

    #[test]
    fn invalid_object_construction_is_a_compile_error() {
        for (text, expected) in [
            ("Objects{}", "1:8: undeclared reference to 'Objects' (in container '')"),
            ("Foo{a: x}", "1:4: undeclared reference to 'Foo' (in container '')\n | Foo{a: x}\n | ...^"),
            ("Object{a: x}", "1:11: undeclared reference to 'x' (in container '')"),
            ("JSONPatch{op: 1}", "1:13: expected type of field 'op' is 'string' but provided type is 'int'"),
            ("Object{?a: 1}", "1:12: expected type 'optional_type(int)' but found 'int'"),
            ("int{}", "1:4: 'int' is not a message type"),
            ("list{}", "1:5: 'list' is not a message type"),
            ("int{a: 1}", "1:6: undefined field 'a'"),
            ("object{a: 1}", "1:9: unexpected failed resolution of 'object'"),
            ("[Object.a{}, Object.b{}]", "expected type 'Object.a' but found 'Object.b'"),
        ] {
            let message = environment().compile(text, &mut Patterns::default()).unwrap_err();
            assert!(
                message.starts_with(&format!("ERROR: <input>:{expected}")) || message.contains(expected),
                "{message}"
            );
        }
        let plain = Environment::standard().compile("Object{}", &mut Patterns::default());
        assert!(
            plain.unwrap_err().contains("undeclared reference to 'Object'"),
            "object construction must be enabled"
        );
    }

    #[test]
    fn constructed_objects_support_selection_and_equality() {
        for (text, expected) in [
            ("string(Object{a: 3}.a)", "3"),
            ("string(has(Object{a: 3}.b))", "false"),
            ("string(Object{}.b == null)", "true"),
            ("string(Object{a: 1} == Object{a: 1})", "true"),
            ("string(dyn(Object.a{}) == dyn(Object.b{}))", "false"),
            ("string(type(Object.a{}) == Object.a)", "true"),
            ("JSONPatch{path: 'x'}.op + JSONPatch{path: 'x'}.path", "x"),
            ("string(has(JSONPatch{op: ''}.op))", "false"),
            ("string(optional.ofNonZeroValue(Object{}).hasValue())", "false"),
            ("string(has(Object{?a: optional.none(), ?b: optional.of(1)}.a))", "false"),
            ("jsonpatch.escapeKey('a/b~c~/')", "a~1b~0c~0~1"),
            ("JSONPatch{op: dyn(1)}.op", "unexpected type int64 for JSONPatchType 'op' field"),
            ("JSONPatch{foo: dyn(1)}.op", "unexpected JSONPatchType field: foo"),
        ] {
            assert_eq!(evaluate(text).0, expected, "{text}");
        }
        assert_eq!(evaluate("Object{}"), ("Object".to_owned(), 40));
        assert_eq!(evaluate("Object{a: Object.a{b: [1, 2]}, c: {'d': 1}}").1, 80);
    }

    #[test]
    fn constructed_objects_convert_to_json_within_size_budget() {
        let convert = |text: &str| {
            let program = compile(text);
            let value = program.evaluate(&|_| None, 1_000_000).outcome.unwrap();
            let render = |value: Result<_, _>| {
                value.map(|value| String::from_utf8(pilothouse_apimachinery::json::to_json(&value)).unwrap())
            };
            (render(SizeBudget::default().to_object(&value)), render(SizeBudget::default().to_json(&value)))
        };
        let expect_both = |text: &str, expected: &str| {
            assert_eq!(convert(text), (Ok(expected.to_owned()), Ok(expected.to_owned())), "{text}");
        };
        expect_both("Object{a: 1, b: [2.0, 2.5], c: {'d': true}}", r#"{"a":1,"b":[2,2.5],"c":{"d":true}}"#);
        let unsupported = |message: &str| Err(NativeError::Unsupported(message.to_owned()));
        assert_eq!(convert("9007199254740993").1, Ok("\"9007199254740993\"".to_owned()));
        let message = "a value of type google.protobuf.Duration cannot stand in an object";
        assert_eq!(
            convert("[duration('90s')]"),
            (unsupported(&format!("[0]: {message}")), Ok("[\"90s\"]".to_owned()))
        );
        assert_eq!(convert("b'hi'").1, Ok("\"aGk=\"".to_owned()));
        assert_eq!(convert("{1: 2}").1, unsupported("unsupported type conversion from 'int' to string"));
        assert_eq!(convert("Object{a: null}").1, unsupported("proto: invalid type: structpb.NullValue"));
        assert_eq!(
            convert("quantity('1')").1,
            unsupported("type conversion error from 'Quantity' to '*structpb.Value'")
        );
        // Each level costs little and doubles the size of the result.
        let mut text = "[1]".to_owned();
        for _ in 0..40 {
            text = format!("[{text}].map(x, [x, x])");
        }
        assert_eq!(convert(&text), (Err(NativeError::TooLarge), Err(NativeError::TooLarge)));
    }

    #[test]
    fn nested_object_type_must_match_field_path() {
        let type_path_errors = |text: &str| {
            let program = compile(text);
            match program.evaluate(&|_| None, 1_000_000).outcome {
                Ok(Val::Constructed(object)) => object.type_path_errors().unwrap().unwrap_or_default(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(type_path_errors("Object{a: Object.a{b: [Object.a.b{}], c: {'x': Object.a.c{}}}}"), "");
        assert_eq!(
            type_path_errors("Object{a: Object.b{c: [Object.b.c{}]}}"),
            "unexpected type name \"Object.b\", expected \"Object.a\", which matches field name path from root Object \
             type\nunexpected type name \"Object.b.c\", expected \"Object.a.c\", which matches field name path from root \
             Object type"
        );
    }
}
