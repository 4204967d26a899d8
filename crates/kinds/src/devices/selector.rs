//! CEL expressions that select devices: their variables and their cost limit.

use std::sync::{Arc, LazyLock};

use pilothouse_admission::policies::expressions::{full_name, object_type};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_cel::types::{DeclKind, DeclType, Type};
use pilothouse_cel::{Environment, Library};

/// The variable of the device.
const DEVICE: &str = "device";
/// The maximum length of an expression in bytes.
const LONGEST: usize = 10 * 1024;
/// The maximum estimated cost of one.
const DEAREST: u64 = 1_000_000;
/// The maximum number of attributes or capacities of a device, and so of their domains.
const MOST_ATTRIBUTES: u64 = 32;
/// The maximum length of the domain or driver of an attribute.
const LONGEST_DOMAIN: u64 = 63;
/// The maximum length of the name of an attribute within its domain.
const LONGEST_NAME: u64 = 32;
/// The maximum length of the value of an attribute.
const LONGEST_VALUE: u64 = 64;

static KNOWN: LazyLock<Environment> = LazyLock::new(|| {
    let shape = |form: DeclKind, most: u64| Arc::new(DeclType { form, most, least: 1 });
    // Attributes are in a map by domain, and in it in a map by name.
    let named = |values: Arc<DeclType>| {
        shape(DeclKind::Map(shape(DeclKind::Map(values), MOST_ATTRIBUTES)), MOST_ATTRIBUTES)
    };
    let fields = [
        ("driver", shape(DeclKind::String, LONGEST_DOMAIN)),
        ("attributes", named(shape(DeclKind::Dyn, LONGEST_VALUE))),
        ("capacity", named(shape(DeclKind::Quantity, 0))),
    ];
    Environment::with_libraries(&[&Library::NEW[..], &[Library::Semver]].concat())
        .binding()
        .variable(DEVICE, object_type("kubernetes.DRADevice", fields))
});

/// The maximum size of the value at a path.
fn most_at(path: &[String]) -> Option<u64> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let (DEVICE, path) = path.split_first().map(|(first, rest)| (*first, rest))? else { return None };
    match path {
        [] => Some(0),
        ["driver"] => Some(LONGEST_DOMAIN),
        ["attributes" | "capacity"] | ["attributes" | "capacity", "@values"] => Some(MOST_ATTRIBUTES),
        ["attributes" | "capacity", "@keys"] => Some(LONGEST_DOMAIN),
        ["attributes" | "capacity", "@values", "@keys"] => Some(LONGEST_NAME),
        ["capacity", "@values", "@values"] => Some(0),
        // Attributes of all names have the same limit.
        ["attributes", "@values", _] => Some(LONGEST_VALUE),
        _ => None,
    }
}

/// Validates an expression that selects devices.
pub(super) fn validate(expression: &FieldValue<'_>, errors: &mut ErrorList) {
    let text = expression.text();
    if text.len() > LONGEST {
        errors.push(FieldError::too_long(&expression.path, LONGEST));
        return;
    }
    match cost(text) {
        Ok(cost) if cost > DEAREST => expression.forbidden(errors, "too complex, exceeds cost limit"),
        Ok(_) => {}
        Err(why) => errors.push(FieldError::invalid(&expression.path, &quoted(text), &why)),
    }
}

/// The maximum cost of an expression, or its error.
fn cost(text: &str) -> Result<u64, String> {
    let program =
        KNOWN.compile(text, &mut Patterns::default()).map_err(|why| format!("compilation failed: {why}"))?;
    match program.kind() {
        Type::Bool => Ok(program.most_cost(&most_at)),
        // The type of an attribute is unknown (`any`), which CEL distinguishes from `dyn`.
        Type::Dyn if program.is_looked_up() => Ok(program.most_cost(&most_at)),
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
    fn expressions_cost_what_their_devices_can_be() {
        for (text, wanted) in [
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
            assert_eq!(cost(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_about_devices_is_refused() {
        assert_eq!(cost("1").unwrap_err(), "must evaluate to bool or the unknown type, not int");
        for (text, kind) in [
            ("dyn(true)", "dyn"),
            ("device.attributes['a'].b.c", "dyn"),
            ("device.attributes", "map(string, map(string, google.protobuf.Any))"),
        ] {
            let wanted = format!("must evaluate to bool or the unknown type, not {kind}");
            assert_eq!(cost(text).unwrap_err(), wanted, "{text}");
        }
        assert!(cost("?!").unwrap_err().starts_with("compilation failed: ERROR: <input>:1:1: Syntax error"));
        assert!(cost("device.nothing").unwrap_err().contains("undefined field 'nothing'"));
        let ten = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
        let dear = (0..7).fold("int('1'.find('[0-9]*')) < 100".to_owned(), |inner, at| {
            format!("{ten}.all(x{at}, {inner})")
        });
        assert_eq!(cost(&dear), Ok(85_555_551));
    }
}
