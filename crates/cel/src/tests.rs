//! The language as a whole: what is refused and in which words, what comes out, what it costs.

use std::sync::Arc;

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;
use proptest::prelude::*;

use super::types::{DeclKind, DeclType, ListKind, ObjectType, Property, Type};
use super::*;

const LIMIT: u64 = 1_000_000;

fn shape(form: DeclKind, most: u64) -> Arc<DeclType> {
    Arc::new(DeclType { form, most, least: 2 })
}

/// An object with one field of each kind.
fn thing() -> DeclType {
    let text = || shape(DeclKind::String, 40);
    let inner = ObjectType {
        name: "Thing.inner".to_owned(),
        fields: [(
            "a__dash__b".to_owned(),
            Property { name: "a-b".to_owned(), shape: shape(DeclKind::Int, 0) },
        )]
        .into(),
    };
    let fields: Vec<(&str, Arc<DeclType>)> = vec![
        ("name", text()),
        ("size", shape(DeclKind::Int, 0)),
        ("ratio", shape(DeclKind::Double, 0)),
        ("on", shape(DeclKind::Bool, 0)),
        ("tags", shape(DeclKind::List(text(), ListKind::Set), 10)),
        ("words", shape(DeclKind::List(text(), ListKind::Ordered), 1_000)),
        ("labels", shape(DeclKind::Map(text()), 20)),
        ("when", shape(DeclKind::Timestamp, 32)),
        ("wait", shape(DeclKind::Duration, 32)),
        ("data", shape(DeclKind::Bytes, 100)),
        ("any", shape(DeclKind::Dyn, 100)),
        ("inner", shape(DeclKind::Object(Arc::new(inner)), 0)),
    ];
    let fields = fields
        .into_iter()
        .map(|(name, shape)| (name.to_owned(), Property { name: name.to_owned(), shape }))
        .collect();
    DeclType {
        form: DeclKind::Object(Arc::new(ObjectType { name: "Thing".to_owned(), fields })),
        most: 0,
        least: 2,
    }
}

const OBJECT: &str = r#"{"name":"kite","size":3,"ratio":1,"on":true,"tags":["a","b"],"words":["x","y","z"],
    "labels":{"k":"v","app":"web"},"when":"2024-02-29T12:30:45.5Z","wait":"90s","data":"aGk=","any":"5","inner":{"a-b":7}}"#;

fn environment(thing: &DeclType) -> Environment {
    let all = [&Library::NEW[..], &[Library::Semver]].concat();
    Environment::with_libraries(&all).variable("self", thing.kind()).variable("free", Type::Dyn)
}

/// What is wrong with an expression, or nothing.
fn wrong(text: &str) -> String {
    let thing = thing();
    environment(&thing).compile(text, &mut Patterns::default()).err().unwrap_or_default()
}

fn shown(value: &Val<'_>) -> String {
    match value {
        Val::Null => "null".to_owned(),
        Val::String(text) => format!("{:?}", &**text),
        Val::Uint(number) => format!("{number}u"),
        Val::Double(number) => format!("{number:?}"),
        Val::Bytes(bytes) => format!("b{bytes:?}"),
        Val::List(list) => {
            let items: Vec<String> = list.iter().map(|item| shown(&item.unwrap())).collect();
            format!("[{}]", items.join(", "))
        }
        Val::Map(map) => {
            let entry =
                |key: Val<'_>| format!("{}: {}", shown(&key), shown(&map.get(&key).unwrap().unwrap()));
            format!("{{{}}}", map.keys().into_iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        Val::Timestamp(instant) => instant.text(),
        Val::Duration(nanos) => timestamps::duration_text(*nanos),
        Val::Type(name) => format!("type {name}"),
        Val::Optional(None) => "none".to_owned(),
        Val::Optional(Some(inner)) => format!("some {}", shown(inner)),
        Val::Quantity(amount) => amount.to_string(),
        Val::Ip(address) => address.to_string(),
        Val::Cidr(address, bits) => format!("{address}/{bits}"),
        other => other.to_string(),
    }
}

/// What comes out of an expression, and what it costs.
fn evaluated(text: &str, limit: u64) -> (String, u64) {
    let thing = thing();
    let object = json::read(OBJECT.as_bytes()).unwrap();
    let program = match environment(&thing).compile(text, &mut Patterns::default()) {
        Ok(program) => program,
        Err(why) => return (format!("refused: {why}"), 0),
    };
    let resolve = |name: &str| match name {
        "self" => Some(Val::given(&object, &thing)),
        "free" => Some(Ok(Val::free(&object))),
        _ => None,
    };
    let Evaluated { outcome, cost } = program.evaluate(&resolve, limit);
    let shown = match outcome {
        Ok(value) => shown(&value),
        Err(fault) => format!("error: {fault}"),
    };
    (shown, cost)
}

fn value(text: &str) -> String {
    evaluated(text, LIMIT).0
}

fn check_all(table: &[(&str, &str)]) {
    for (text, wanted) in table {
        assert_eq!(value(text), *wanted, "{text}");
    }
}

#[test]
fn syntax_errors_are_told_in_the_words_of_the_reference() {
    const BEGINS: &str = "'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER";
    let table: Vec<(&str, String)> = vec![
        (
            "1 +",
            format!("ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {{{BEGINS}}}\n | 1 +\n | ...^"),
        ),
        ("", format!("ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting {{{BEGINS}}}")),
        ("1 + $", "ERROR: <input>:1:5: Syntax error: token recognition error at: '$'".to_owned()),
        ("self.name = 1", "ERROR: <input>:1:11: Syntax error: token recognition error at: '= '".to_owned()),
        ("(1 + 2", "ERROR: <input>:1:7: Syntax error: missing ')' at '<EOF>'\n | (1 + 2\n | ......^".to_owned()),
        ("1 2", "ERROR: <input>:1:3: Syntax error: extraneous input '2' expecting <EOF>".to_owned()),
        ("1 2 3", "ERROR: <input>:1:3: Syntax error: mismatched input '2' expecting <EOF>".to_owned()),
        ("self.in", "ERROR: <input>:1:6: Syntax error: mismatched input 'in' expecting IDENTIFIER".to_owned()),
        ("self.", "ERROR: <input>:1:6: Syntax error: no viable alternative at input '.'".to_owned()),
        ("[1", "ERROR: <input>:1:3: Syntax error: mismatched input '<EOF>' expecting {']', ','}".to_owned()),
        (
            "{",
            "ERROR: <input>:1:2: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '}', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}".to_owned(),
        ),
        ("while", "ERROR: <input>:1:1: reserved identifier: while\n | while\n | ^".to_owned()),
        ("has(a)", "ERROR: <input>:1:5: invalid argument to has() macro".to_owned()),
        ("[1].all(1, true)", "ERROR: <input>:1:9: argument must be a simple name".to_owned()),
        ("[1].map(1, true)", "ERROR: <input>:1:9: argument is not an identifier".to_owned()),
        ("'abc", "ERROR: <input>:1:1: Syntax error: token recognition error at: ''abc'".to_owned()),
        ("99999999999999999999", "ERROR: <input>:1:1: invalid int literal".to_owned()),
        (
            "/abs",
            format!("ERROR: <input>:1:1: Syntax error: extraneous input '/' expecting {{{BEGINS}}}\n | /abs\n | ^"),
        ),
        (
            "f(,)",
            "ERROR: <input>:1:3: Syntax error: extraneous input ',' expecting {'[', '{', '(', ')', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | f(,)\n | ..^".to_owned(),
        ),
        ("../x", "ERROR: <input>:1:2: Syntax error: no viable alternative at input '..'".to_owned()),
        (".", "ERROR: <input>:1:2: Syntax error: no viable alternative at input '.'".to_owned()),
        ("[1,,2]", "ERROR: <input>:1:4: Syntax error: mismatched input ',' expecting ']'".to_owned()),
        ("{'a' 1}", "ERROR: <input>:1:6: Syntax error: missing ':' at '1'\n | {'a' 1}\n | .....^".to_owned()),
        ("true ? 1", "ERROR: <input>:1:9: Syntax error: mismatched input '<EOF>' expecting ':'".to_owned()),
        (
            "*",
            format!(
                "ERROR: <input>:1:1: Syntax error: mismatched input '*' expecting {{{BEGINS}}}\n | *\n | ^\n\
                 ERROR: <input>:1:2: Syntax error: mismatched input '<EOF>' expecting {{{BEGINS}}}\n | *\n | .^"
            ),
        ),
        (
            "1 + * * 2",
            format!(
                "ERROR: <input>:1:5: Syntax error: mismatched input '*' expecting {{{BEGINS}}}\n | 1 + * * 2\n | ....^\n\
                 ERROR: <input>:1:7: Syntax error: extraneous input '*' expecting {{{BEGINS}}}\n | 1 + * * 2\n | ......^"
            ),
        ),
        (
            "- / 1",
            format!(
                "ERROR: <input>:1:3: Syntax error: no viable alternative at input '- /'\n | - / 1\n | ..^\n\
                 ERROR: <input>:1:3: Syntax error: extraneous input '/' expecting {{{BEGINS}}}\n | - / 1\n | ..^"
            ),
        ),
        ("!", format!("ERROR: <input>:1:2: Syntax error: extraneous input '<EOF>' expecting {{{BEGINS}}}")),
        (
            "has(a",
            "ERROR: <input>:1:5: invalid argument to has() macro\n | has(a\n | ....^\n\
             ERROR: <input>:1:6: Syntax error: missing ')' at '<EOF>'".to_owned(),
        ),
    ];
    for (text, wanted) in table {
        let told = wrong(text);
        assert!(told.starts_with(&wanted), "{text}: {told}");
    }
    assert_eq!(wrong("").lines().count(), 1, "nothing is not shown");
    for good in [
        "1",
        "-1",
        "- 1",
        "a-1".trim_start_matches("a-"),
        "{'a': 1,}",
        "[1,]",
        "[,] == []",
        "{,} == {}",
        "1 // note",
        "'a' + \"b\" + r'c'",
    ] {
        assert_eq!(wrong(good), "", "{good}");
    }
}

#[test]
fn nesting_and_size_are_bounded() {
    let nested = |count: usize| format!("{}1{}", "(".repeat(count), ")".repeat(count));
    assert_eq!(wrong(&nested(CEL_DEPTH - 1)), "");
    assert!(wrong(&nested(CEL_DEPTH)).contains("expression recursion limit exceeded: 250"));
    assert!(wrong(&vec!["1"; 2_000].join(" + ")).contains("max recursion depth exceeded"));
    assert_eq!(value(&vec!["true"; 5_000].join(" && ")), "true", "rows of conditions are no nesting");
    assert!(
        wrong(&" ".repeat(100_001))
            .contains("expression code point size exceeds limit: size: 100001, limit 100000")
    );
    let deep = format!("{}true{}", "[1].all(x, ".repeat(70), ")".repeat(70));
    assert_eq!(value(&deep), "true");
    assert!(
        wrong(&format!("{}true{}", "[1].all(x, ".repeat(160), ")".repeat(160))).contains("depth exceeded")
    );
    for sign in ["!", "-", "%", "% !", "*-"] {
        let told = wrong(&format!("/{}x", sign.repeat(99_000 / sign.len())));
        assert!(told.starts_with("ERROR: <input>:1:1: Syntax error: "), "{sign}");
    }
    let doubled = format!("optional.of(1){}", ".optMap(x, x)".repeat(40));
    assert!(wrong(&doubled).contains("depth exceeded"), "copies of copies end");
}

#[test]
fn types_are_checked_before_there_are_values() {
    let table: &[(&str, &str)] = &[
        ("self.foo == 1", "ERROR: <input>:1:5: undefined field 'foo'\n | self.foo == 1\n | ....^"),
        (
            "self.size + self.name",
            "ERROR: <input>:1:11: found no matching overload for '_+_' applied to '(int, string)'\n | self.size + self.name\n | ..........^",
        ),
        ("x == 1", "ERROR: <input>:1:1: undeclared reference to 'x' (in container '')\n | x == 1\n | ^"),
        ("foo(1)", "ERROR: <input>:1:4: undeclared reference to 'foo' (in container '')"),
        ("self.name.foo()", "ERROR: <input>:1:14: undeclared reference to 'foo' (in container '')"),
        (
            "self.size.startsWith('a')",
            "ERROR: <input>:1:21: found no matching overload for 'startsWith' applied to 'int.(string)'",
        ),
        ("self.size && true", "ERROR: <input>:1:5: expected type 'bool' but found 'int'"),
        (
            "self.size.all(x, true)",
            "ERROR: <input>:1:5: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        (
            "true ? 1 : 'a'",
            "ERROR: <input>:1:6: found no matching overload for '_?_:_' applied to '(bool, int, string)'",
        ),
        ("[1, 'a']", "ERROR: <input>:1:5: expected type 'int' but found 'string'"),
        ("{'a': 1, 'b': 'c'}", "ERROR: <input>:1:15: expected type 'int' but found 'string'"),
        (
            "self.name == null",
            "ERROR: <input>:1:11: found no matching overload for '_==_' applied to '(string, null)'",
        ),
        ("self.size.foo", "ERROR: <input>:1:10: type 'int' does not support field selection"),
        ("duration('x')", "ERROR: <input>:1:10: invalid duration argument"),
        ("timestamp('x') == self.when", "ERROR: <input>:1:11: invalid timestamp argument"),
        ("self.name.matches('[')", "ERROR: <input>:1:19: invalid matches argument"),
        (
            "'%d'.format(['a'])",
            "ERROR: <input>:1:14: error during formatting: decimal clause can only be used on integers, was given string",
        ),
        ("'%d %d'.format([1])", "ERROR: <input>:1:15: index 1 out of range"),
        (
            "'%d'.format([1, 2])",
            "ERROR: <input>:1:12: too many arguments supplied to string.format (expected 1, got 2)",
        ),
        (
            "'%q'.format([1])",
            "ERROR: <input>:1:12: could not parse formatting clause: unrecognized formatting clause \"q\"",
        ),
        ("[1, dyn('a')]", "ERROR: <input>:1:8: expected type 'int' but found 'dyn'"),
        ("Foo{a: 1}", "ERROR: <input>:1:4: undeclared reference to 'Foo' (in container '')"),
        (
            "self.labels[1]",
            "ERROR: <input>:1:12: found no matching overload for '_[_]' applied to '(map(string, string), int)'",
        ),
        (
            "self.tags.exists(t, t > 1)",
            "ERROR: <input>:1:23: found no matching overload for '_>_' applied to '(string, int)'",
        ),
    ];
    for (text, wanted) in table {
        let told = wrong(text);
        assert!(told.starts_with(wanted), "{text}: {told}");
    }
    let good = [
        "self.size == 1",
        "self.any == 5 || self.any == 'a'",
        "self.inner.a__dash__b > 1",
        "has(self.name)",
        "self.when < timestamp('2024-01-01T00:00:00Z')",
        "type(self.any) == string",
        "self.inner == null",
        "1 < 2.5 && 1u < 2",
        "self.?name.orValue('x') == 'a'",
        "self.labels.all(k, v, k != v)",
        "'%s %d'.format(['a', 1])",
        "self.tags.map(t, size(t)).sum() == 2",
        "self.words.filter(w, w != '')[?0].hasValue()",
        "[] == [1]",
        "{} == {'a': 1}",
    ];
    for text in good {
        assert_eq!(wrong(text), "", "{text}");
    }
}

#[test]
fn operators_work_as_the_language_says() {
    check_all(&[
        ("1 + 2 * 3 - 4 / 2 % 2", "7"),
        ("-7 / 2", "-3"),
        ("-7 % 3", "-1"),
        ("7u / 2u", "3u"),
        ("1.5 * 2.0", "3.0"),
        ("9223372036854775807 + 1", "error: integer overflow"),
        ("0u - 1u", "error: unsigned integer overflow"),
        ("1 / 0", "error: division by zero"),
        ("1 % 0", "error: modulus by zero"),
        ("1.0 / 0.0", "inf"),
        ("-(-9223372036854775807 - 1)", "error: integer overflow"),
        ("'a' + 'b' + \"c\"", "\"abc\""),
        ("b'a' + b'\\xff'", "b[97, 255]"),
        ("[1] + [2, 3]", "[1, 2, 3]"),
        ("dyn(1) == dyn(1.0) && dyn(1u) == dyn(1) && 2.5 > 2", "true"),
        ("dyn(1) == dyn('1')", "false"),
        ("dyn([1, 2]) == dyn([1.0, 2.0])", "true"),
        ("{'a': [1]} == {'a': [1]}", "true"),
        ("'b' > 'a' && !('b' < 'a')", "true"),
        ("false && 1 / 0 == 1", "false"),
        ("1 / 0 == 1 && false", "false"),
        ("1 / 0 == 1 || true", "true"),
        ("1 / 0 == 1 || false", "error: division by zero"),
        ("true ? 1 : 1 / 0", "1"),
        ("2 in [1, 2] && 'k' in {'k': 1} && !(3 in [1, 2])", "true"),
        ("[1, 2, 3][1]", "2"),
        ("[1][5]", "error: index out of bounds: 5"),
        ("{'a': 1}['b']", "error: no such key: b"),
        ("{1: 'a'}[dyn(1u)]", "\"a\""),
        ("{'a': 1, 'a': 2}['a']", "2"),
        ("{'a': 1, ?'a': optional.none()}.size()", "0"),
        ("size('äö') + size(b'ä') + size([1]) + size({})", "5"),
        ("!true || !!true", "true"),
        ("dyn(1) && true", "error: no such overload"),
        ("double('NaN') < 1.0", "error: NaN values cannot be ordered"),
        ("dyn(9007199254740993) == dyn(9007199254740992.0)", "false"),
    ]);
}

#[test]
fn conversions_keep_what_they_can() {
    check_all(&[
        ("int('-5') + int(2.9) + int(3u)", "0"),
        ("int('x')", "error: type conversion error from 'string' to 'int'"),
        ("int(1e30)", "error: integer overflow"),
        ("uint(-1)", "error: unsigned integer overflow"),
        ("string(1.0) + string(1.5) + string(true) + string(2u) + string(1e30)", "\"11.5true21e+30\""),
        (
            "string(123456.0) + ' ' + string(1234567.0) + ' ' + string(0.00001)",
            "\"123456 1.234567e+06 1e-05\"",
        ),
        ("string(b'\\xff')", "error: invalid UTF-8 in bytes, cannot convert to string"),
        ("bool('true') && !bool('0')", "true"),
        ("bytes('hi')", "b[104, 105]"),
        ("type(1) == int && type('a') == string && type([]) == list && type(null) == null_type", "true"),
        ("type(self.any) == string && type(type(1)) == type", "true"),
        ("string(duration('1h30m'))", "\"5400s\""),
        ("timestamp('2024-01-01T00:00:00Z') + duration('36h')", "2024-01-02T12:00:00Z"),
        ("timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z')", "86400s"),
        ("self.when.getFullYear() * 10000 + self.when.getMonth() * 100 + self.when.getDate()", "20240129"),
        ("self.when.getHours('+01:30') * 60 + self.when.getMinutes('+01:30')", "840"),
        ("timestamp('2024-07-01T02:00:00Z').getDate('America/Los_Angeles')", "30"),
        ("self.wait.getSeconds() + duration('2s').getMilliseconds()", "2090"),
        ("timestamp(0) == timestamp('1970-01-01T00:00:00Z')", "true"),
        ("duration('1s') + duration('1ms') > duration('1s')", "true"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s')", "error: timestamp overflow"),
        ("self.when.getHours('Mars/Base')", "error: unknown time zone Mars/Base"),
    ]);
}

#[test]
fn objects_are_read_by_their_shapes() {
    check_all(&[
        ("self.name + '-' + string(self.size)", "\"kite-3\""),
        ("self.ratio", "1.0"),
        ("self.inner.a__dash__b", "7"),
        ("self.labels.app", "\"web\""),
        ("self.labels['k']", "\"v\""),
        ("self.labels.none", "error: no such key: none"),
        ("has(self.labels.none) || has(self.name)", "true"),
        ("self.data", "b[104, 105]"),
        ("self.tags == ['a', 'b']", "true"),
        ("self.tags + ['b', 'c']", "[\"a\", \"b\", \"c\"]"),
        ("self.words + ['z']", "[\"x\", \"y\", \"z\", \"z\"]"),
        ("free.inner", "{\"a-b\": 7}"),
        ("free.size + 1", "4"),
        ("free.missing", "error: no such key: missing"),
        ("self == self && self.inner == self.inner", "true"),
        ("int(self.any) == 5", "true"),
        ("self.words.size()", "3"),
    ]);
}

#[test]
fn macros_walk_over_lists_and_maps() {
    check_all(&[
        ("[1, 2, 3].all(x, x > 0) && ![1, 2].all(x, x > 1)", "true"),
        (
            "[1, 2].exists(x, x == 2) && [1, 2, 2].exists_one(x, x == 1) && ![2, 2].existsOne(x, x == 2)",
            "true",
        ),
        ("[1, 0].exists(x, 1 / x == 1)", "true"),
        ("[0, 1].exists(x, 1 / x == 1)", "true"),
        ("[0, 1].all(x, 1 / x == 1)", "error: division by zero"),
        ("[0, 2].all(x, 1 / x == 1)", "false"),
        ("[1, 2, 3].map(x, x * x)", "[1, 4, 9]"),
        ("[1, 2, 3].map(x, x > 1, x * x)", "[4, 9]"),
        ("[1, 2, 3].filter(x, x != 2)", "[1, 3]"),
        ("[[1, 2], [3]].map(l, l.map(x, x + 1))", "[[2, 3], [4]]"),
        ("{'a': 1, 'b': 2}.map(k, k)", "[\"a\", \"b\"]"),
        ("{'a': 1, 'b': 2}.all(k, v, v < 3 && k != 'c')", "true"),
        ("[5, 6].exists(i, v, i == 1 && v == 6)", "true"),
        ("[1, 2, 3].transformList(i, v, i > 0, i * v)", "[2, 6]"),
        ("{'a': 1}.transformMap(k, v, v + 1)", "{\"a\": 2}"),
        ("[7, 8].transformMap(i, v, i == 1, v)", "{1: 8}"),
        ("{'a': 'b'}.transformMapEntry(k, v, {v: k})", "{\"b\": \"a\"}"),
        (
            "{'a': 'x', 'b': 'x'}.transformMapEntry(k, v, {v: k})",
            "error: insert failed: key x already exists",
        ),
        ("[1].map(x, 1 / 0)", "error: division by zero"),
        ("self.tags.all(t, self.words.all(w, t != w))", "true"),
        ("[1, 2].map(x, [3, 4].map(x, x))", "[[3, 4], [3, 4]]"),
    ]);
}

#[test]
fn optionals_may_be_nothing() {
    check_all(&[
        ("self.?name", "some \"kite\""),
        ("self.labels[?'nope']", "none"),
        ("self.?labels.nope", "none"),
        ("self.labels[?'nope'].orValue('d')", "\"d\""),
        ("optional.none().or(optional.of(1)).value()", "1"),
        ("optional.none().value()", "error: optional.none() dereference"),
        ("optional.ofNonZeroValue('').hasValue()", "false"),
        ("self.?size.optMap(s, s + 1)", "some 4"),
        ("self.labels[?'nope'].optMap(s, s + '!')", "none"),
        ("optional.of(2).optFlatMap(x, optional.of(x * 2))", "some 4"),
        ("[?optional.of(1), ?optional.none(), 2]", "[1, 2]"),
        ("{?'a': optional.none(), 'b': 1}", "{\"b\": 1}"),
        ("[1, 2].first().value() + [1, 2].last().value()", "3"),
        ("[1][?3].hasValue()", "false"),
        ("optional.unwrap([optional.of(1), optional.none()])", "[1]"),
        ("optional.of(1).orValue(1 / 0)", "1"),
        ("optional.of([1, 2])[1]", "some 2"),
    ]);
}

#[test]
fn texts_have_their_functions() {
    check_all(&[
        ("'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')", "true"),
        ("'tacocat'.charAt(3) + 'a'.charAt(1)", "\"o\""),
        ("'a'.charAt(2)", "error: index out of range: 2"),
        ("'hello mellow'.indexOf('ello') * 100 + 'hello mellow'.indexOf('ello', 2)", "107"),
        ("'hello mellow'.lastIndexOf('ello') * 100 + 'hello mellow'.lastIndexOf('ello', 6)", "701"),
        ("'äbä'.lastIndexOf('ä') * 10 + 'äbä'.lastIndexOf('ä', 1)", "20"),
        ("'TacoCät'.lowerAscii() + 'TacoCät'.upperAscii()", "\"tacocätTACOCäT\""),
        (
            "'hello hello'.replace('he', 'we') + 'hello hello'.replace('he', 'we', 1)",
            "\"wello wellowello hello\"",
        ),
        ("'ab'.replace('', '-')", "\"-a-b-\""),
        ("'a b c'.split(' ')", "[\"a\", \"b\", \"c\"]"),
        ("'a b c'.split(' ', 2)", "[\"a\", \"b c\"]"),
        ("'abc'.split('')", "[\"a\", \"b\", \"c\"]"),
        ("'abc'.split('', 2)", "[\"a\", \"bc\"]"),
        ("'tacocat'.substring(4) + 'tacocat'.substring(0, 4)", "\"cattaco\""),
        ("'a'.substring(2, 1)", "error: invalid substring range. start: 2, end: 1"),
        ("'  x\\n'.trim()", "\"x\""),
        ("['a', 'b'].join('-') + ['c'].join()", "\"a-bc\""),
        ("strings.quote('a\"b\\n')", "\"\\\"a\\\\\\\"b\\\\n\\\"\""),
        (
            "'%s is %d, %.2f, %x, %b, %o, %%'.format(['a', 5, 1.005, 255, 5, 8])",
            "\"a is 5, 1.00, ff, 101, 10, %\"",
        ),
        ("'%s'.format([[1, 'a', 2.5, null]])", "\"[1, \\\"a\\\", 2.500000, null]\""),
        ("'%s'.format([{'b': 1, 'a': true}])", "\"{\\\"a\\\":true, \\\"b\\\":1}\""),
        ("'%s %s'.format([duration('1s'), type(1)])", "\"1s int\""),
        ("'abc123def45'.find('[0-9]+')", "\"123\""),
        ("'abc123def45'.findAll('[0-9]+')", "[\"123\", \"45\"]"),
        ("'abc123def45'.findAll('[0-9]+', 1)", "[\"123\"]"),
        ("'abc'.matches('^[a-c]+$') && matches('abc', 'b') && !'abc'.matches('^b$')", "true"),
        ("self.name.matches(self.name + '[')", "error: error parsing regexp: \"kite[\""),
    ]);
}

#[test]
fn libraries_answer() {
    check_all(&[
        ("[1, 2, 2].isSorted() && ![2, 1].isSorted() && ['a', 'b'].isSorted()", "true"),
        ("[1, 2, 3].sum() + [4, 9, 2].max() + [4, 9, 2].min()", "17"),
        ("[1].filter(x, x > 1).max()", "error: max called on empty list"),
        ("[1, 2, 1].indexOf(1) * 10 + [1, 2, 1].lastIndexOf(1)", "2"),
        (
            "sets.contains([1, 2], [2]) && sets.intersects([1], [1, 3]) && sets.equivalent([1, 1], [1])",
            "true",
        ),
        ("url('https://user@a.example:80/p q?x=1&x=2&y=%20').getHost()", "\"a.example:80\""),
        ("url('https://a.example:80/p?x=1&x=2&y=%20').getQuery()", "{\"x\": [\"1\", \"2\"], \"y\": [\" \"]}"),
        ("url('https://[::1]:80/').getHostname() + url('https://[::1]:80/').getPort()", "\"::180\""),
        ("url('/a b').getEscapedPath() + url('https://a').getScheme()", "\"/a%20bhttps\""),
        ("isURL('/a') && isURL('https://a') && !isURL('../a') && !isURL('https://a:b/')", "true"),
        ("quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('1k').asInteger() == 1000", "true"),
        ("quantity('50k').add(20).sub(quantity('20')).compareTo(quantity('50k'))", "0"),
        ("quantity('500m').isInteger() || sign(quantity('-1')) != -1", "false"),
        // What is written with a fraction or a small unit is no integer, whatever it amounts to.
        (
            "quantity('1.5Gi').isInteger() || quantity('1000m').isInteger() || quantity('1.0').isInteger()",
            "false",
        ),
        ("quantity('1.5Gi').asInteger()", "error: cannot convert value to integer"),
        ("quantity('1').add(quantity('500m')).add(quantity('500m')).isInteger()", "false"),
        ("quantity('1').add(2).asInteger()", "3"),
        ("dyn(quantity('1')) == 'a'", "error: no such overload"),
        ("dyn(ip('1.2.3.4')) != 'a' && dyn('a') != ip('1.2.3.4')", "true"),
        ("dyn(cidr('1.2.3.0/24')) == null", "false"),
        ("quantity('1.5').asApproximateFloat()", "1.5"),
        ("isQuantity('1x')", "false"),
        (
            "quantity('1Kx')",
            "error: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("ip('10.0.0.1').family() + ip('::1').family()", "10"),
        ("isIP('::ffff:1.2.3.4') || isIP('a') || !ip.isCanonical('2001:db8::1')", "false"),
        (
            "ip('127.0.0.1').isLoopback() && ip('224.0.0.1').isLinkLocalMulticast() && ip('10.0.0.1').isGlobalUnicast()",
            "true",
        ),
        (
            "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsCIDR('10.0.0.0/7')",
            "true",
        ),
        ("string(cidr('10.1.2.3/8').masked()) + string(cidr('10.1.2.3/8').ip())", "\"10.0.0.0/810.1.2.3\""),
        (
            "cidr('::/0').prefixLength() == 0 && isCIDR('1.2.3.4/32') && !isCIDR('1.2.3.4/33') && !isCIDR('1.2.3.4/08')",
            "true",
        ),
        (
            "format.dns1123Label().validate('a-b').hasValue() || !format.named('uuid').value().validate('x').hasValue()",
            "false",
        ),
        ("format.named('nope').hasValue()", "false"),
        ("format.labelValue().validate('-').value().size() > 0", "true"),
        (
            "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('v1.2', true).minor() == 2 && !isSemver('1.2')",
            "true",
        ),
    ]);
}

#[test]
fn costs_are_those_of_the_reference() {
    for (text, wanted) in [
        ("1 + 1", 1),
        ("self.size == 3", 3),
        ("has(self.inner.a__dash__b)", 2),
        ("self.words.all(w, true)", 12),
        ("self.name.contains('i')", 3),
        ("self.name.matches('i')", 3),
        ("[self.size]", 12),
        ("self.words.map(w, w)", 42),
        ("self.words.exists_one(w, w == 'x')", 2 + 3 * 2 + 2 + 2),
        ("double(5) < 10.0", 1),
        ("self.name in ['kite', 'b']", 2),
        ("'x' in self.words", 5),
        ("self.labels.all(k, self.labels[k] != 'x')", 17),
        ("self.labels.transformMap(k, v, v + 'x').size() == 2", 15),
        ("self.labels == {'k': 'v', 'app': 'web'}", 3),
        ("'%d %s'.format([1, 'abc']) == '1 abc'", 2),
    ] {
        assert_eq!(evaluated(text, LIMIT).1, wanted, "{text}");
    }
    let thing = thing();
    let sizes = |path: &[String]| thing.most_at(path.iter().skip(1).map(String::as_str));
    for (text, wanted) in [
        ("self.size == 3", 2),
        ("self.name == 'abcdefghijk'", 4),
        ("self.words.all(w, w == 'a')", 2 + 1 + 1_000 * (2 + 1 + 2)),
        ("self.words.all(w, self.words.all(v, v != w))", 3 + 1_000 * (3 + 3 + 1_000 * (3 + 2 + 4))),
        ("has(self.name)", 1),
        ("self.labels.all(k, k != '')", 3 + 20 * 4),
        ("self.?words.orValue([]).size() > 1", 15),
        ("self.tags.map(t, t + 'x').join(',').size() < 10", 1_844_674_407_370_955_459),
    ] {
        let program = environment(&thing).compile(text, &mut Patterns::default()).unwrap();
        assert_eq!(program.most_cost(&sizes), wanted, "{text}");
    }
}

#[test]
fn an_evaluation_ends_at_its_budget() {
    let items: Vec<String> = (0..2_000).map(|at| format!("\"{at}\"")).collect();
    let object = json::read(format!(r#"{{"words":[{}]}}"#, items.join(",")).as_bytes()).unwrap();
    let thing = thing();
    let limited = |text: &str| {
        let program = environment(&thing).compile(text, &mut Patterns::default()).unwrap();
        let resolve = |_: &str| Some(Val::given(&object, &thing));
        let Evaluated { outcome, cost } = program.evaluate(&resolve, LIMIT);
        (outcome.map(|value| shown(&value)), cost)
    };
    let (outcome, cost) = limited("self.words.all(a, self.words.all(b, a != 'x' || b != 'y'))");
    assert_eq!(outcome, Err(Fault::Budget));
    assert!(cost <= LIMIT + 100, "{cost}");
    for text in [
        "self.words.all(a, self.words.all(b, self.words == self.words))",
        "self.words.all(a, self.words.map(b, b).size() > 0)",
        "self.words.exists(a, self.words.exists(b, a + b == 'never'))",
        "true || self.words.all(a, self.words.all(b, true)) ",
    ] {
        let (outcome, _) = limited(text);
        assert!(outcome == Err(Fault::Budget) || text.starts_with("true"), "{text}: {outcome:?}");
    }
    assert_eq!(
        limited("self.words.all(a, self.words.all(b, true)) || true").0,
        Err(Fault::Budget),
        "nothing makes up for it"
    );
    assert_eq!(
        limited("self.words.join(',').replace('', self.words.join(',')).size() > 1").0,
        Err(Fault::Budget)
    );
}

fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("1".to_owned()),
        Just("'a'".to_owned()),
        Just("self.words".to_owned()),
        Just("self.any".to_owned()),
        Just("free".to_owned()),
        Just("[1, 2]".to_owned()),
        Just("true".to_owned()),
        Just("1.5".to_owned()),
        Just("x".to_owned()),
        Just("self.labels".to_owned()),
        Just("b'a'".to_owned()),
        Just("null".to_owned()),
        Just("9223372036854775807".to_owned()),
        Just("optional.none()".to_owned()),
        Just("dyn(1)".to_owned()),
    ];
    leaf.prop_recursive(5, 40, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        prop_oneof![
            (two.clone(), prop::sample::select(vec!["+", "-", "*", "/", "%", "==", "<", "&&", "||", "in"]))
                .prop_map(|((a, b), op)| format!("({a} {op} {b})")),
            (
                two.clone(),
                prop::sample::select(vec!["all", "exists", "map", "filter", "exists_one", "optMap"])
            )
                .prop_map(|((a, b), name)| format!("{a}.{name}(x, {b})")),
            (
                two.clone(),
                prop::sample::select(vec![
                    "indexOf",
                    "split",
                    "join",
                    "matches",
                    "format",
                    "orValue",
                    "substring"
                ])
            )
                .prop_map(|((a, b), name)| format!("{a}.{name}({b})")),
            (
                inner.clone(),
                prop::sample::select(vec![
                    "size",
                    "string",
                    "int",
                    "type",
                    "dyn",
                    "duration",
                    "timestamp",
                    "-",
                    "!"
                ])
            )
                .prop_map(|(a, name)| format!("{name}({a})")),
            two.prop_map(|(a, b)| format!("{a}[{b}]")),
            inner.prop_map(|a| format!("dyn({a})")),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_panics(text in expressions()) {
        let (shown, cost) = evaluated(&text, 10_000);
        prop_assert!(cost <= 20_000 || shown.contains("cost"), "{text}: {shown} {cost}");
    }

    #[test]
    fn no_text_panics(text in "[-a-z0-9+*/%.,:?!<>=&|'\"\\\\(){}\\[\\] ]{0,40}") {
        let _ = wrong(&text);
    }

    /// Whole numbers come out as they do elsewhere.
    #[test]
    fn arithmetic_is_that_of_numbers(a in any::<i64>(), b in any::<i64>()) {
        let wanted = |number: Option<i64>| number.map_or("error: integer overflow".to_owned(), |number| number.to_string());
        prop_assert_eq!(value(&format!("({a}) + ({b})")), wanted(a.checked_add(b)));
        prop_assert_eq!(value(&format!("({a}) * ({b})")), wanted(a.checked_mul(b)));
        prop_assert_eq!(value(&format!("({a}) < ({b})")), (a < b).to_string());
    }
}

#[test]
fn programs_are_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let program = Environment::standard().compile("1 + 1 == 2", &mut Patterns::default()).unwrap();
    shared(&program);
    let value: Value = Value::Null;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let outcome = program.evaluate(&|_| Some(Ok(Val::free(&value))), 10).outcome;
                assert!(matches!(outcome, Ok(Val::Bool(true))));
            });
        }
    });
}

use crate::limits::CEL_DEPTH;
