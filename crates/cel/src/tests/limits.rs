//! Limits of expressions, and the cost of their evaluation.

use super::*;
use crate::limits::CEL_DEPTH;

#[test]
fn compile_limits_nesting_and_size() {
    let nested = |count: usize| format!("{}1{}", "(".repeat(count), ")".repeat(count));
    assert_eq!(compile_errors(&nested(CEL_DEPTH - 1)), "");
    assert!(compile_errors(&nested(CEL_DEPTH)).contains("expression recursion limit exceeded: 250"));
    assert!(compile_errors(&vec!["1"; 2_000].join(" + ")).contains("max recursion depth exceeded"));
    assert_eq!(
        evaluate_value(&vec!["true"; 5_000].join(" && ")),
        "true",
        "chains of conditions are balanced, not nested"
    );
    assert!(
        compile_errors(&" ".repeat(100_001))
            .contains("expression code point size exceeds limit: size: 100001, limit 100000")
    );
    let deep = format!("{}true{}", "[1].all(x, ".repeat(70), ")".repeat(70));
    assert_eq!(evaluate_value(&deep), "true");
    assert!(
        compile_errors(&format!("{}true{}", "[1].all(x, ".repeat(160), ")".repeat(160)))
            .contains("depth exceeded")
    );
    for sign in ["!", "-", "%", "% !", "*-"] {
        let errors = compile_errors(&format!("/{}x", sign.repeat(99_000 / sign.len())));
        assert!(errors.starts_with("ERROR: <input>:1:1: Syntax error: "), "{sign}");
    }
    let doubled = format!("optional.of(1){}", ".optMap(x, x)".repeat(40));
    assert!(compile_errors(&doubled).contains("depth exceeded"), "nested copies are limited");
}

#[test]
fn runtime_and_estimated_costs_match_the_reference() {
    for (text, expected) in [
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
        assert_eq!(evaluate(text, LIMIT).1, expected, "{text}");
    }
    let thing = thing_type();
    let sizes = |path: &[String]| thing.max_elements_at(path.iter().skip(1).map(String::as_str));
    for (text, expected) in [
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
        assert_eq!(program.max_cost(&sizes), expected, "{text}");
    }
}

#[test]
fn evaluation_stops_at_cost_limit() {
    let items: Vec<String> = (0..2_000).map(|index| format!("\"{index}\"")).collect();
    let object = json::read(format!(r#"{{"words":[{}]}}"#, items.join(",")).as_bytes()).unwrap();
    let thing = thing_type();
    let limited = |text: &str| {
        let program = environment(&thing).compile(text, &mut Patterns::default()).unwrap();
        let resolve = |_: &str| Some(Val::typed(&object, &thing));
        let EvaluationResult { outcome, cost } = program.evaluate(&resolve, LIMIT);
        (outcome.map(|value| render(&value)), cost)
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
        "an exceeded limit is not absorbed by ||"
    );
    assert_eq!(
        limited("self.words.join(',').replace('', self.words.join(',')).size() > 1").0,
        Err(Fault::Budget)
    );
}
