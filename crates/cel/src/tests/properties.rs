//! Properties of all expressions.

use pilothouse_apimachinery::value::Value;
use proptest::prelude::*;

use super::*;

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
    fn random_expressions_do_not_panic(text in expressions()) {
        let (rendered, cost) = evaluate(&text, 10_000);
        prop_assert!(cost <= 20_000 || rendered.contains("cost"), "{text}: {rendered} {cost}");
    }

    #[test]
    fn random_text_does_not_panic(text in "[-a-z0-9+*/%.,:?!<>=&|'\"\\\\(){}\\[\\] ]{0,40}") {
        let _ = compile_errors(&text);
    }

    /// Integers overflow where Rust's checked operations do.
    #[test]
    fn integer_arithmetic_matches_rust(a in any::<i64>(), b in any::<i64>()) {
        let expected = |number: Option<i64>| number.map_or("error: integer overflow".to_owned(), |number| number.to_string());
        prop_assert_eq!(evaluate_value(&format!("({a}) + ({b})")), expected(a.checked_add(b)));
        prop_assert_eq!(evaluate_value(&format!("({a}) * ({b})")), expected(a.checked_mul(b)));
        prop_assert_eq!(evaluate_value(&format!("({a}) < ({b})")), (a < b).to_string());
    }
}

#[test]
fn programs_evaluate_on_several_threads() {
    fn assert_shareable<T: Send + Sync>(_: &T) {}
    let program = Environment::standard().compile("1 + 1 == 2", &mut Patterns::default()).unwrap();
    assert_shareable(&program);
    let null: Value = Value::Null;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let outcome = program.evaluate(&|_| Some(Ok(Val::untyped(&null))), 10).outcome;
                assert!(matches!(outcome, Ok(Val::Bool(true))));
            });
        }
    });
}
