//! Validates a single value: type, format and bounds.

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;

use super::schema::{Checks, Schema};
use super::value_errors::{ErrorKind, ValueError, ValueErrors, ValuePath, other, typed};

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

pub(super) fn of_type(
    schema: &Schema,
    checks: Option<&Checks>,
    value: &Value,
    path: &ValuePath<'_>,
    found: &mut ValueErrors,
) {
    let format = checks.and_then(|checks| checks.format.as_ref()).map_or("", |(name, _)| name.as_str());
    let has = |name: &str| schema.types.contains(&name);
    if schema.types.is_empty() && format.is_empty() {
        return;
    }
    let (kind, exact) = type_of(value);
    if value.is_null() {
        if !schema.types.is_empty() && !schema.nullable {
            found.add(typed(path, &schema.types.join(","), "null"));
        }
        return;
    }
    // Beyond these a double cannot tell an integer from the next.
    let is_whole = |number: f64| number.fract() == 0.0 && number.abs() < EXACT_INTEGERS;
    let whole = matches!(value, Value::Float(number) if is_whole(*number)) && has("integer");
    let fits = has(kind) || whole || (kind == "integer" && has("number"));
    let is_text = matches!(value, Value::String(_) | Value::Array(_));
    if !format.is_empty() && !is_text && !fits && exact != format {
        found.add(typed(path, format, exact));
    } else if !format.is_empty() && is_text && !has("number") && !has("integer") {
        found.matched += 1;
    } else if !fits {
        found.add(typed(path, &schema.types.join(","), kind));
    } else {
        found.matched += 1;
    }
}

pub(super) fn of_text(checks: &Checks, text: &str, path: &ValuePath<'_>, found: &mut ValueErrors) {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(most) = checks.max_length.filter(|most| length > *most) {
        let text = format!("{path} in body should be at most {most} chars long");
        found.add(ValueError { place: Some(path.to_string()), what: ErrorKind::TooLong(most), text });
    } else if let Some(least) = checks.min_length.filter(|least| length < *least) {
        found.add(other(path, quoted(text), format!("{path} in body should be at least {least} chars long")));
    } else if let Some((pattern, compiled)) = &checks.pattern
        && !compiled.as_ref().is_some_and(|compiled| compiled.is_match(text))
    {
        found.add(other(path, quoted(text), format!("{path} in body should match '{pattern}'")));
    }
    if let Some((name, format)) = &checks.format
        && !format.holds(text)
    {
        found.add(typed(path, name, text));
    }
}

pub(super) fn of_number(checks: &Checks, value: &Value, path: &ValuePath<'_>, found: &mut ValueErrors) {
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
            let factor = shown_number(factor);
            let why = format!("factor MultipleOf declared for {path} must be positive: {factor}");
            found.add(other(path, factor, why));
        } else if !(match value {
            // Integers are compared exactly.
            Value::Int(number) => number.checked_rem(factor as i64) == Some(0),
            _ => is_multiple(number, factor),
        }) {
            let why = format!("{path} in body should be a multiple of {}", shown_number(factor));
            found.add(other(path, shown(value), why));
        }
    }
    let mut wrong =
        |text: String| found.add(other(path, shown(value), format!("{path} in body should be {text}")));
    if let Some((least, exclusive)) = checks.minimum {
        let least = bound(least);
        if exclusive && number <= least {
            wrong(format!("greater than {}", shown_number(least)));
        } else if !exclusive && number < least {
            wrong(format!("greater than or equal to {}", shown_number(least)));
        }
    }
    if let Some((most, exclusive)) = checks.maximum {
        let most = bound(most);
        if exclusive && number >= most {
            wrong(format!("less than {}", shown_number(most)));
        } else if !exclusive && number > most {
            wrong(format!("less than or equal to {}", shown_number(most)));
        }
    }
}

/// Whether a number is a multiple of another, within the precision of doubles: 0.3 is three times 0.1.
fn is_multiple(number: f64, factor: f64) -> bool {
    const NEARLY: f64 = 1e-9;
    let quotient = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
    let off = (quotient - quotient.round()).abs();
    quotient.is_finite() && (off == 0.0 || off / (2.0 * quotient.abs()) < NEARLY)
}

pub(super) fn of_values(checks: &Checks, value: &Value, path: &ValuePath<'_>, found: &mut ValueErrors) {
    // A number is compared as the type of the allowed value: a fraction counts only if the allowed value has that type. Null
    // never matches, even if it is listed.
    let same = |allowed: &Value| match (allowed, value) {
        (_, Value::Null) => false,
        (Value::Int(a), Value::Float(b)) => *a as f64 == b.trunc(),
        (Value::Float(a), Value::Int(b)) => *a == *b as f64,
        (a, b) => a == b,
    };
    if checks.values.is_empty() || checks.values.iter().any(same) {
        return;
    }
    let names = checks.values.iter().map(|value| match value {
        Value::String(text) => text.clone(),
        other => String::from_utf8_lossy(&json::to_json(other)).into_owned(),
    });
    let text = format!("{path} in body should be one of the allowed values");
    let value = if value.is_null() { quoted("null") } else { shown(value) };
    let what = ErrorKind::Enum { value, values: names.collect() };
    found.add(ValueError { place: Some(path.to_string()), what, text });
}

/// A number as messages print it.
fn shown_number(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e21 { format!("{number:.0}") } else { format!("{number}") }
}

/// A value as messages print it.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::String(text) => quoted(text),
        Value::Float(number) => json::short_float(*number),
        _ => printed(value),
    }
}

/// A part of a value in Go's `%#v` format.
fn printed(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => shown_number(*number),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(printed).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let pairs: Vec<String> =
                fields.iter().map(|(key, value)| format!("{}:{}", quoted(key), printed(value))).collect();
            format!("map[string]interface {{}}{{{}}}", pairs.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_fractions_cannot_say_are_no_integers() {
        let told = |schema: &str, value: Value| {
            let said = format!(r#"{{"type":"object","properties":{{"n":{schema}}}}}"#);
            let schema = Schema::read(&json::read(said.as_bytes()).unwrap());
            let mut errors = pilothouse_apimachinery::error_list::ErrorList::new();
            let mut object = Value::object();
            object.set("n", value);
            let root = pilothouse_apimachinery::field::FieldPath::root();
            super::super::validate::check(&schema, &object, None, &root, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(told(r#"{"type":"integer"}"#, Value::Float(4.0)), Vec::<String>::new());
        assert_eq!(
            told(r#"{"type":"integer","maximum":10}"#, Value::Float(1e20)),
            [
                "n: Invalid value: \"number\": n in body must be of type integer: \"number\"",
                "n: Invalid value: 1e+20: n in body should be less than or equal to 10",
            ]
        );
        assert_eq!(
            told(r#"{"type":"number","multipleOf":0.5}"#, Value::Int(3)),
            ["n: Invalid value: 0: factor MultipleOf declared for n must be positive: 0"]
        );
    }

    #[test]
    fn numbers_are_held_against_fractions() {
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
        for (schema, number, good) in table {
            let schema = Schema::read(&json::read(schema.as_bytes()).unwrap());
            let value = json::read(number.as_bytes()).unwrap();
            let mut found = ValueErrors::default();
            of_number(schema.checks.as_deref().unwrap(), &value, &ValuePath::ROOT, &mut found);
            assert_eq!(found.is_good(), good, "{number} {value:?}");
        }
    }
}
