//! The language as a whole, by topic. This file has the declared type and the object of the examples.

mod compile_errors;
mod evaluation;
mod limits;
mod properties;

use std::sync::Arc;

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::pattern::Patterns;

use super::types::{DeclKind, DeclType, ListKind, ObjectType, Property, Type};
use super::*;

const LIMIT: u64 = 1_000_000;

fn decl_type(decl_kind: DeclKind, max_elements: u64) -> Arc<DeclType> {
    Arc::new(DeclType { decl_kind, max_elements, min_serialized_size: 2 })
}

/// An object with one field of each kind.
fn thing_type() -> DeclType {
    let text = || decl_type(DeclKind::String, 40);
    let inner = ObjectType {
        name: "Thing.inner".to_owned(),
        fields: [(
            "a__dash__b".to_owned(),
            Property { name: "a-b".to_owned(), decl_type: decl_type(DeclKind::Int, 0) },
        )]
        .into(),
    };
    let fields: Vec<(&str, Arc<DeclType>)> = vec![
        ("name", text()),
        ("size", decl_type(DeclKind::Int, 0)),
        ("ratio", decl_type(DeclKind::Double, 0)),
        ("on", decl_type(DeclKind::Bool, 0)),
        ("tags", decl_type(DeclKind::List(text(), ListKind::Set), 10)),
        ("words", decl_type(DeclKind::List(text(), ListKind::Ordered), 1_000)),
        ("labels", decl_type(DeclKind::Map(text()), 20)),
        ("when", decl_type(DeclKind::Timestamp, 32)),
        ("wait", decl_type(DeclKind::Duration, 32)),
        ("data", decl_type(DeclKind::Bytes, 100)),
        ("any", decl_type(DeclKind::Dyn, 100)),
        ("inner", decl_type(DeclKind::Object(Arc::new(inner)), 0)),
    ];
    let fields = fields
        .into_iter()
        .map(|(name, decl_type)| (name.to_owned(), Property { name: name.to_owned(), decl_type }))
        .collect();
    DeclType {
        decl_kind: DeclKind::Object(Arc::new(ObjectType { name: "Thing".to_owned(), fields })),
        max_elements: 0,
        min_serialized_size: 2,
    }
}

const OBJECT: &str = r#"{"name":"kite","size":3,"ratio":1,"on":true,"tags":["a","b"],"words":["x","y","z"],
    "labels":{"k":"v","app":"web"},"when":"2024-02-29T12:30:45.5Z","wait":"90s","data":"aGk=","any":"5","inner":{"a-b":7}}"#;

fn environment(thing: &DeclType) -> Environment {
    Environment::with_recent(RecentLibraries::STORED)
        .variable("self", thing.kind())
        .variable("free", Type::Dyn)
}

/// The compile errors of an expression; empty if there are none.
fn compile_errors(text: &str) -> String {
    let thing = thing_type();
    environment(&thing).compile(text, &mut Patterns::default()).err().unwrap_or_default()
}

fn render(value: &Val<'_>) -> String {
    match value {
        Val::Null => "null".to_owned(),
        Val::String(text) => format!("{:?}", &**text),
        Val::Uint(number) => format!("{number}u"),
        Val::Double(number) => format!("{number:?}"),
        Val::Bytes(bytes) => format!("b{bytes:?}"),
        Val::List(list) => {
            let items: Vec<String> = list.iter().map(|item| render(&item.unwrap())).collect();
            format!("[{}]", items.join(", "))
        }
        Val::Map(map) => {
            let entry =
                |key: Val<'_>| format!("{}: {}", render(&key), render(&map.get(&key).unwrap().unwrap()));
            format!("{{{}}}", map.keys().into_iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        Val::Timestamp(instant) => instant.to_rfc3339(),
        Val::Duration(nanos) => timestamps::format_duration(*nanos),
        Val::Type(name) => format!("type {name}"),
        Val::Optional(None) => "none".to_owned(),
        Val::Optional(Some(inner)) => format!("some {}", render(inner)),
        Val::Quantity(amount) => amount.to_string(),
        Val::Ip(address) => address.to_string(),
        Val::Cidr(address, bits) => format!("{address}/{bits}"),
        other => other.to_string(),
    }
}

/// The result of an expression as text, and its cost.
fn evaluate(text: &str, limit: u64) -> (String, u64) {
    let thing = thing_type();
    let object = json::read(OBJECT.as_bytes()).unwrap();
    let program = match environment(&thing).compile(text, &mut Patterns::default()) {
        Ok(program) => program,
        Err(error) => return (format!("refused: {error}"), 0),
    };
    let resolve = |name: &str| match name {
        "self" => Some(Val::typed(&object, &thing)),
        "free" => Some(Ok(Val::untyped(&object))),
        _ => None,
    };
    let EvaluationResult { outcome, cost } = program.evaluate(&resolve, limit);
    let rendered = match outcome {
        Ok(value) => render(&value),
        Err(fault) => format!("error: {fault}"),
    };
    (rendered, cost)
}

fn evaluate_value(text: &str) -> String {
    evaluate(text, LIMIT).0
}

fn assert_values(table: &[(&str, &str)]) {
    for (text, expected) in table {
        assert_eq!(evaluate_value(text), *expected, "{text}");
    }
}
