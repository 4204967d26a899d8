//! The expected messages were recorded from the reference's parser.

use super::find;

#[test]
fn valid_documents_have_no_fault() {
    let valid = [
        "",
        "a: 1\n",
        "{}: a\n",
        "a: &x {b: *x}\n",
        "? k\n: v\n",
        "- a\n-\n- b\n",
        "a:\n- b\n- c\nd: e\n",
        "a: b\n...\n[",
        "--- |\n x\n",
        "a: 'it''s\n  more'\n",
        "%TAG !e! tag:x,2000:\n---\na: !e!b c\n",
        "[a, b: c, ? d : e, ]\n",
        "a: b\r\nc: d\r\n",
    ];
    for text in valid {
        assert_eq!(find(text), None, "{text:?}");
    }
}

#[test]
fn faults_have_the_reference_message() {
    let table = [
        ("{", "line 1: did not find expected node content"),
        ("{a: b", "line 1: did not find expected ',' or '}'"),
        ("a: [1\n", "line 1: did not find expected ',' or ']'"),
        ("[{]", "did not find expected node content"),
        ("a: @x\n", "found character that cannot start any token"),
        ("a: \"\\q\"\n", "found unknown escape character"),
        ("a: |x\n  b\n", "did not find expected comment or line break"),
        ("a: *x\n", "unknown anchor 'x' referenced"),
        ("a: &\\ b\n", "did not find expected alphabetic or numeric character"),
        ("a: }\n", "did not find expected node content"),
        ("a: ,\n", "did not find expected node content"),
        ("- a\n- []\n - b\n", "line 2: did not find expected '-' indicator"),
        ("---\n'\n", "line 3: found unexpected end of stream"),
        ("a: 1\nb\n", "line 3: could not find expected ':'"),
        ("\"", "found unexpected end of stream"),
        ("a: 'x\n", "line 2: found unexpected end of stream"),
        ("a:\n\tb: c\n", "line 2: found character that cannot start any token"),
        ("a: 1\nb: 'it's'\n", "line 1: did not find expected key"),
        ("{\"a\":\"b\" \"c\":1}", "did not find expected ',' or '}'"),
        ("%YAML 1.2\n---\na: b\n", "found incompatible YAML document"),
    ];
    for (text, expected) in table {
        assert_eq!(find(text).as_deref(), Some(expected), "{text:?}");
    }
}

#[test]
fn simple_keys_need_their_colon_on_the_same_line() {
    let table = [
        ("\"two\n lines\": v\n", "line 2: mapping values are not allowed in this context"),
        ("a: b: c\n", "mapping values are not allowed in this context"),
        ("key with spaces\nx: y\n", "line 2: mapping values are not allowed in this context"),
        ("a: 1\n- b\n", "line 1: did not find expected key"),
        ("a: b\n c: d\n", "line 2: mapping values are not allowed in this context"),
        ("- a\n- b: c\n  d: ---\n[", "line 5: could not find expected ':'"),
    ];
    for (text, expected) in table {
        assert_eq!(find(text).as_deref(), Some(expected), "{text:?}");
    }
    let distant = format!("{}: v\n", "k".repeat(1025));
    assert_eq!(find(&distant).as_deref(), Some("mapping values are not allowed in this context"));
}

#[test]
fn malformed_brackets_tabs_and_indicators_are_reported_as_in_the_reference() {
    let table = [
        ("key: [a, b}\n", "did not find expected ',' or ']'"),
        ("a:\n b: x\n\tc: d\n", "line 3: found a tab character that violates indentation"),
        ("a: |\n\tb\n", "line 2: found a tab character where an indentation space is expected"),
        ("a: - b\n", "block sequence entries are not allowed in this context"),
        ("a: |0\n  b\n", "found an indentation indicator equal to 0"),
        ("a: \"\\x4\"\n", "did not find expected hexdecimal number"),
        ("a: \"\\ud83d\"\n", "found invalid Unicode character escape code"),
        ("a: !x!y z\n", "found undefined tag handle"),
        ("%FOO\n---\n", "found unknown directive name"),
        ("a: 'x\n---\ny'\n", "line 2: found unexpected document indicator"),
        ("a: \u{1}\n", "control characters are not allowed"),
    ];
    for (text, expected) in table {
        assert_eq!(find(text).as_deref(), Some(expected), "{text:?}");
    }
}

#[test]
fn nesting_depth_is_bounded() {
    assert!(find(&"[".repeat(20_000)).unwrap().ends_with("exceeded max depth of 10000"));
    assert!(find(&"- ".repeat(20_000)).unwrap().ends_with("exceeded max depth of 10000"));
    assert_eq!(find(&format!("{}{}", "[".repeat(9_000), "]".repeat(9_000))), None);
}
