//! Compile errors, in the words of the reference.

use super::compile_errors;

#[test]
fn syntax_errors_match_the_reference() {
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
    for (text, expected) in table {
        let errors = compile_errors(text);
        assert!(errors.starts_with(&expected), "{text}: {errors}");
    }
    assert_eq!(compile_errors("").lines().count(), 1, "an empty source has no snippet");
    for good in
        ["1", "-1", "- 1", "{'a': 1,}", "[1,]", "[,] == []", "{,} == {}", "1 // note", "'a' + \"b\" + r'c'"]
    {
        assert_eq!(compile_errors(good), "", "{good}");
    }
}

#[test]
fn type_errors_match_the_reference() {
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
    for (text, expected) in table {
        let errors = compile_errors(text);
        assert!(errors.starts_with(expected), "{text}: {errors}");
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
        assert_eq!(compile_errors(text), "", "{text}");
    }
}
