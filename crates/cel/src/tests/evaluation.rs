//! Results of operators, conversions, macros and library functions.

use super::assert_values;

#[test]
fn operators_evaluate_to_expected_values() {
    assert_values(&[
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
fn conversions_between_types_evaluate_to_expected_values() {
    assert_values(&[
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
fn object_fields_evaluate_by_declared_type() {
    assert_values(&[
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
fn macros_iterate_over_lists_and_maps() {
    assert_values(&[
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
fn optional_values_evaluate_to_expected_values() {
    assert_values(&[
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
fn string_functions_evaluate_to_expected_values() {
    assert_values(&[
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
fn library_functions_evaluate_to_expected_values() {
    assert_values(&[
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
        // A quantity with a fraction or a small unit is no integer, whatever its value.
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
