//! Validates a single value: type, format and bounds.

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;

use super::schema::{Checks, Schema};
use super::value_errors::{ErrorKind, ValueError, ValueErrors, ValuePath, invalid_value, type_error};

/// The first integer whose successor a double cannot represent.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;

/// The type of a value, and the format of its numbers.
fn type_of(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::Int(_) => ("integer", "int64"),
        Value::Float(_) => ("number", "float64"),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    }
}

pub(super) fn check_type(
    schema: &Schema,
    checks: Option<&Checks>,
    value: &Value,
    path: &ValuePath<'_>,
    errors: &mut ValueErrors,
) {
    let format = checks.and_then(|checks| checks.format.as_ref()).map_or("", |(name, _)| name.as_str());
    let has = |name: &str| schema.types.contains(&name);
    if schema.types.is_empty() && format.is_empty() {
        return;
    }
    let (kind, number_format) = type_of(value);
    if value.is_null() {
        if !schema.types.is_empty() && !schema.nullable {
            errors.add(type_error(path, &schema.types.join(","), "null"));
        }
        return;
    }
    // Beyond these a double cannot tell an integer from the next.
    let is_whole = |number: f64| number.fract() == 0.0 && number.abs() < EXACT_INTEGERS;
    let is_integral = matches!(value, Value::Float(number) if is_whole(*number)) && has("integer");
    let is_allowed = has(kind) || is_integral || (kind == "integer" && has("number"));
    let is_text = matches!(value, Value::String(_) | Value::Array(_));
    if !format.is_empty() && !is_text && !is_allowed && number_format != format {
        errors.add(type_error(path, format, number_format));
    } else if !format.is_empty() && is_text && !has("number") && !has("integer") {
        errors.matched += 1;
    } else if !is_allowed {
        errors.add(type_error(path, &schema.types.join(","), kind));
    } else {
        errors.matched += 1;
    }
}

pub(super) fn check_string(checks: &Checks, text: &str, path: &ValuePath<'_>, errors: &mut ValueErrors) {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(max) = checks.max_length.filter(|max| length > *max) {
        let message = format!("{path} in body should be at most {max} chars long");
        errors.add(ValueError { path: Some(path.to_string()), kind: ErrorKind::TooLong(max), message });
    } else if let Some(min_length) = checks.min_length.filter(|min_length| length < *min_length) {
        errors.add(invalid_value(
            path,
            quoted(text),
            format!("{path} in body should be at least {min_length} chars long"),
        ));
    } else if let Some((pattern, compiled)) = &checks.pattern
        && !compiled.as_ref().is_some_and(|compiled| compiled.is_match(text))
    {
        errors.add(invalid_value(path, quoted(text), format!("{path} in body should match '{pattern}'")));
    }
    if let Some((name, format)) = &checks.format
        && !format.holds(text)
    {
        errors.add(type_error(path, name, text));
    }
}

pub(super) fn check_number(checks: &Checks, value: &Value, path: &ValuePath<'_>, errors: &mut ValueErrors) {
    let (number, is_int) = match value {
        Value::Int(number) => (*number as f64, true),
        Value::Float(number) => (*number, false),
        _ => return,
    };
    // Bounds of integers are truncated, as in the reference. A zero may have been written as either.
    let bound = |bound: f64| if is_int && number != 0.0 { bound.trunc() } else { bound };
    if let Some(factor) = checks.multiple_of {
        let factor = if is_int { factor.trunc() } else { factor };
        if factor <= 0.0 {
            let factor = render_number(factor);
            let message = format!("factor MultipleOf declared for {path} must be positive: {factor}");
            errors.add(invalid_value(path, factor, message));
        } else if !(match value {
            // Integers are compared exactly.
            Value::Int(number) => number.checked_rem(factor as i64) == Some(0),
            _ => is_multiple(number, factor),
        }) {
            let message = format!("{path} in body should be a multiple of {}", render_number(factor));
            errors.add(invalid_value(path, render(value), message));
        }
    }
    let mut report = |expectation: String| {
        errors.add(invalid_value(path, render(value), format!("{path} in body should be {expectation}")));
    };
    if let Some((minimum, exclusive)) = checks.minimum {
        let minimum = bound(minimum);
        if exclusive && number <= minimum {
            report(format!("greater than {}", render_number(minimum)));
        } else if !exclusive && number < minimum {
            report(format!("greater than or equal to {}", render_number(minimum)));
        }
    }
    if let Some((maximum, exclusive)) = checks.maximum {
        let maximum = bound(maximum);
        if exclusive && number >= maximum {
            report(format!("less than {}", render_number(maximum)));
        } else if !exclusive && number > maximum {
            report(format!("less than or equal to {}", render_number(maximum)));
        }
    }
}

/// Whether a number is a multiple of another, within the precision of doubles: 0.3 is three times 0.1.
fn is_multiple(number: f64, factor: f64) -> bool {
    const TOLERANCE: f64 = 1e-9;
    let quotient = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
    let distance = (quotient - quotient.round()).abs();
    quotient.is_finite() && (distance == 0.0 || distance / (2.0 * quotient.abs()) < TOLERANCE)
}

pub(super) fn check_enum(checks: &Checks, value: &Value, path: &ValuePath<'_>, errors: &mut ValueErrors) {
    // A number is compared as the type of the allowed value: a fraction counts only if the allowed value has that type. Null
    // never matches, even if it is listed.
    let is_equal = |allowed: &Value| match (allowed, value) {
        (_, Value::Null) => false,
        (Value::Int(a), Value::Float(b)) => *a as f64 == b.trunc(),
        (Value::Float(a), Value::Int(b)) => *a == *b as f64,
        (a, b) => a == b,
    };
    if checks.values.is_empty() || checks.values.iter().any(is_equal) {
        return;
    }
    let names = checks.values.iter().map(|value| match value {
        Value::String(text) => text.clone(),
        other => String::from_utf8_lossy(&json::to_json(other)).into_owned(),
    });
    let message = format!("{path} in body should be one of the allowed values");
    let value = if value.is_null() { quoted("null") } else { render(value) };
    let kind = ErrorKind::Enum { value, values: names.collect() };
    errors.add(ValueError { path: Some(path.to_string()), kind, message });
}

/// A number as messages print it.
fn render_number(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e21 { format!("{number:.0}") } else { format!("{number}") }
}

/// A value as messages print it.
pub fn render(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::String(text) => quoted(text),
        Value::Float(number) => json::short_float(*number),
        _ => render_go_syntax(value),
    }
}

/// A part of a value in Go's `%#v` format.
fn render_go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(boolean) => boolean.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => render_number(*number),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            format!(
                "[]interface {{}}{{{}}}",
                items.iter().map(render_go_syntax).collect::<Vec<_>>().join(", ")
            )
        }
        Value::Object(fields) => {
            let pairs: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{}:{}", quoted(key), render_go_syntax(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", pairs.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_beyond_exact_integers_are_no_integers() {
        let check = |schema: &str, value: Value| {
            let schema = format!(r#"{{"type":"object","properties":{{"n":{schema}}}}}"#);
            let schema = Schema::read(&json::read(schema.as_bytes()).unwrap());
            let mut errors = pilothouse_apimachinery::error_list::ErrorList::new();
            let mut object = Value::object();
            object.set("n", value);
            let root = pilothouse_apimachinery::field::FieldPath::root();
            super::super::validate::check(&schema, &object, None, &root, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(check(r#"{"type":"integer"}"#, Value::Float(4.0)), Vec::<String>::new());
        assert_eq!(
            check(r#"{"type":"integer","maximum":10}"#, Value::Float(1e20)),
            [
                "n: Invalid value: \"number\": n in body must be of type integer: \"number\"",
                "n: Invalid value: 1e+20: n in body should be less than or equal to 10",
            ]
        );
        assert_eq!(
            check(r#"{"type":"number","multipleOf":0.5}"#, Value::Int(3)),
            ["n: Invalid value: 0: factor MultipleOf declared for n must be positive: 0"]
        );
    }

    #[test]
    fn multiple_of_and_minimum_apply_to_fractions() {
        let table = [
            (r#"{"type":"number","multipleOf":0.1}"#, "0.3", true),
            (r#"{"type":"number","multipleOf":0.1}"#, "0.35", false),
            (r#"{"type":"number","multipleOf":0.01}"#, "1.15", true),
            (r#"{"type":"number","multipleOf":0.5}"#, "3", false),
            (r#"{"type":"number","multipleOf":0.5}"#, "3.5", true),
            (r#"{"type":"number","multipleOf":2}"#, "3", false),
            (r#"{"type":"number","multipleOf":2}"#, "4.0", true),
            (r#"{"type":"number","multipleOf":2}"#, "0", true),
            (r#"{"type":"integer","multipleOf":3}"#, "2147483648", false),
            (r#"{"type":"integer","multipleOf":3}"#, "-2147483649", true),
            (r#"{"type":"number","multipleOf":0}"#, "1", false),
            (r#"{"type":"number","minimum":0.5}"#, "0.25", false),
            (r#"{"type":"number","minimum":0.5}"#, "0.0", false),
            (r#"{"type":"number","minimum":0.5}"#, "0.5", true),
        ];
        for (schema, number, is_valid) in table {
            let schema = Schema::read(&json::read(schema.as_bytes()).unwrap());
            let value = json::read(number.as_bytes()).unwrap();
            let mut errors = ValueErrors::default();
            check_number(schema.checks.as_deref().unwrap(), &value, &ValuePath::ROOT, &mut errors);
            assert_eq!(errors.is_valid(), is_valid, "{number} {value:?}");
        }
    }
}
