//! CEL expressions that select devices: their variables and their cost limit.

use std::sync::{Arc, LazyLock};

use pilothouse_admission::policies::expressions::{full_name, object_type};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_cel::types::{DeclKind, DeclType, Type};
use pilothouse_cel::{Environment, RecentLibraries};

/// The variable of the device.
const DEVICE: &str = "device";
/// The maximum length of an expression in bytes.
const MAX_LENGTH: usize = 10 * 1024;
/// The maximum estimated cost of an expression.
const MAX_COST: u64 = 1_000_000;
/// The maximum number of attributes or capacities of a device, and so of their domains.
const MAX_ATTRIBUTES: u64 = 32;
/// The maximum length of the domain or driver of an attribute.
const MAX_DOMAIN_LENGTH: u64 = 63;
/// The maximum length of the name of an attribute within its domain.
const MAX_NAME_LENGTH: u64 = 32;
/// The maximum length of the value of an attribute.
const MAX_VALUE_LENGTH: u64 = 64;

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let declare = |decl_kind: DeclKind, max_elements: u64| {
        Arc::new(DeclType { decl_kind, max_elements, min_serialized_size: 1 })
    };
    // Attributes are in a map by domain, and in it in a map by name.
    let by_domain_and_name = |values: Arc<DeclType>| {
        declare(DeclKind::Map(declare(DeclKind::Map(values), MAX_ATTRIBUTES)), MAX_ATTRIBUTES)
    };
    let fields = [
        ("driver", declare(DeclKind::String, MAX_DOMAIN_LENGTH)),
        ("attributes", by_domain_and_name(declare(DeclKind::Dyn, MAX_VALUE_LENGTH))),
        ("capacity", by_domain_and_name(declare(DeclKind::Quantity, 0))),
    ];
    Environment::with_recent(RecentLibraries::STORED)
        .with_bind_macro()
        .variable(DEVICE, object_type("kubernetes.DRADevice", fields))
});

/// The maximum size of the value at a path.
fn max_size(path: &[String]) -> Option<u64> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let (DEVICE, path) = path.split_first().map(|(first, rest)| (*first, rest))? else { return None };
    match path {
        [] => Some(0),
        ["driver"] => Some(MAX_DOMAIN_LENGTH),
        ["attributes" | "capacity"] | ["attributes" | "capacity", "@values"] => Some(MAX_ATTRIBUTES),
        ["attributes" | "capacity", "@keys"] => Some(MAX_DOMAIN_LENGTH),
        ["attributes" | "capacity", "@values", "@keys"] => Some(MAX_NAME_LENGTH),
        ["capacity", "@values", "@values"] => Some(0),
        // Attributes of all names have the same limit.
        ["attributes", "@values", _] => Some(MAX_VALUE_LENGTH),
        _ => None,
    }
}

/// Validates an expression that selects devices.
pub(super) fn validate(expression: &FieldValue<'_>, errors: &mut ErrorList) {
    let text = expression.text();
    if text.len() > MAX_LENGTH {
        errors.push(FieldError::too_long(&expression.path, MAX_LENGTH));
        return;
    }
    match cost(text) {
        Ok(cost) if cost > MAX_COST => expression.forbidden(errors, "too complex, exceeds cost limit"),
        Ok(_) => {}
        Err(detail) => errors.push(FieldError::invalid(&expression.path, &quoted(text), &detail)),
    }
}

/// The maximum cost of an expression, or its error.
fn cost(text: &str) -> Result<u64, String> {
    let program = ENVIRONMENT
        .compile(text, &mut Patterns::default())
        .map_err(|detail| format!("compilation failed: {detail}"))?;
    match program.result_type() {
        Type::Bool => Ok(program.max_cost(&max_size)),
        // The type of an attribute is unknown (`any`), which CEL distinguishes from `dyn`.
        Type::Dyn if program.is_map_lookup() => Ok(program.max_cost(&max_size)),
        other => {
            let name = full_name(&other).replace("string, dyn)", "string, google.protobuf.Any)");
            Err(format!("must evaluate to bool or the unknown type, not {name}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_cost_is_estimated_from_device_limits() {
        for (text, expected) in [
            (r#"device.attributes["no-such-domain"].noSuchAttr.isGreaterThan(quantity("0"))"#, 6),
            (r#""no-such-domain" in device.attributes"#, 3),
            (r#"device.driver == """#, 2),
            (r#"device.driver == "dra.example.com""#, 4),
            (r#"device.attributes["dra.example.com"].name"#, 4),
            (r#"device.attributes["dra.example.com"]["name"]"#, 4),
            (r#"cel.bind(dra, device.attributes["dra.example.com"], dra.name)"#, 15),
            (r#"device.attributes["dra.example.com"].name > 0"#, 5),
            (r#"device.attributes["dra.example.com"].name.isGreaterThan(semver("0.0.1"))"#, 6),
            (r#"device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#, 6),
            (
                r#"!("name" in device.capacity["dra.example.com"]) || device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#,
                11,
            ),
            (r#"device.attributes.exists_one(x, x == "dra.example.com")"#, 164),
            (r#"device.attributes["dra.example.com"].exists_one(x, x == "services")"#, 133),
            (r#"device.attributes["dra.example.com"].services.split("example").size() >= 2"#, 19),
            (r#"device.attributes["dra.example.com"].services.matches("[^a]?sym")"#, 18),
            (r#"device.capacity.exists_one(x, x == "dra.example.com")"#, 164),
            (r#"device.capacity["dra.example.com"].exists_one(x, x == "memory")"#, 133),
        ] {
            assert_eq!(cost(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn cost_refuses_expressions_of_other_types() {
        assert_eq!(cost("1").unwrap_err(), "must evaluate to bool or the unknown type, not int");
        for (text, kind) in [
            ("dyn(true)", "dyn"),
            ("device.attributes['a'].b.c", "dyn"),
            ("device.attributes", "map(string, map(string, google.protobuf.Any))"),
        ] {
            let expected = format!("must evaluate to bool or the unknown type, not {kind}");
            assert_eq!(cost(text).unwrap_err(), expected, "{text}");
        }
        assert!(cost("?!").unwrap_err().starts_with("compilation failed: ERROR: <input>:1:1: Syntax error"));
        assert!(cost("device.nothing").unwrap_err().contains("undefined field 'nothing'"));
        let ten = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
        let costly = (0..7).fold("int('1'.find('[0-9]*')) < 100".to_owned(), |inner, index| {
            format!("{ten}.all(x{index}, {inner})")
        });
        assert_eq!(cost(&costly), Ok(85_555_551));
    }
}
