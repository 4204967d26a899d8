//! `string.format([...])`.

use pilothouse_apimachinery::field::quoted;

use super::context::CallContext;
use super::convert;
use crate::format_string::{Segment, parse_format, unsupported_type};
use crate::limits::CEL_TEXT_BYTES;
use crate::value::{Fault, List, Map, Outcome, Val};

/// The default precision.
const PRECISION: usize = 6;

/// `format`.
pub fn run<'v>(_: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    let [Val::String(format), Val::List(list)] = args else { return Err(Fault::no_overload()) };
    let mut out = String::new();
    let mut fault = None;
    let parsed = parse_format(format, list.len(), |segment, index| {
        match segment {
            Segment::Literal(text) => out.push_str(text),
            Segment::Clause(verb, precision) => match list.get(index) {
                Some(Ok(value)) => out.push_str(&format_clause(verb, precision, &value, context)?),
                Some(Err(error)) => fault = Some(error),
                None => {}
            },
        }
        if out.len() > CEL_TEXT_BYTES {
            fault = Some(Fault::Budget);
        }
        if fault.is_some() { Err(String::new()) } else { Ok(()) }
    });
    match (fault, parsed) {
        (Some(fault), _) => Err(fault),
        (None, Err(message)) => Err(Fault::Error(message)),
        (None, Ok(_)) => Ok(Val::from(out)),
    }
}

fn format_clause(
    verb: char,
    precision: Option<usize>,
    value: &Val<'_>,
    context: &mut CallContext,
) -> Result<String, String> {
    let digits = precision.unwrap_or(PRECISION);
    Ok(match (verb, value) {
        ('d', Val::Int(number)) => number.to_string(),
        ('d', Val::Uint(number)) => number.to_string(),
        ('f' | 'e', Val::Double(number)) => format_double(verb, *number, digits),
        ('f' | 'e', Val::String(text)) => match &**text {
            "NaN" => format_double(verb, f64::NAN, digits),
            "Infinity" => format_double(verb, f64::INFINITY, digits),
            "-Infinity" => format_double(verb, f64::NEG_INFINITY, digits),
            _ => return Err(unsupported_type(verb, "string")),
        },
        ('b', Val::Bool(boolean)) => u8::from(*boolean).to_string(),
        ('b' | 'o' | 'x' | 'X', Val::Int(number)) => {
            let sign = if *number < 0 { "-" } else { "" };
            format!("{sign}{}", radix(verb, number.unsigned_abs()))
        }
        ('b' | 'o' | 'x' | 'X', Val::Uint(number)) => radix(verb, *number),
        ('x' | 'X', Val::String(text)) => hex(verb, text.as_bytes()),
        ('x' | 'X', Val::Bytes(bytes)) => hex(verb, bytes),
        ('s', value) => format_string(value, context)?,
        (verb, value) => return Err(unsupported_type(verb, value.type_name())),
    })
}

fn radix(verb: char, number: u64) -> String {
    match verb {
        'b' => format!("{number:b}"),
        'o' => format!("{number:o}"),
        'x' => format!("{number:x}"),
        _ => format!("{number:X}"),
    }
}

fn hex(verb: char, bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if verb == 'X' { text.to_uppercase() } else { text }
}

/// Formats a number with English conventions: digit groups of three, and exponents in superscript.
fn format_double(verb: char, number: f64, digits: usize) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "∞" } else { "-∞" }.to_owned();
    }
    if verb == 'e' {
        let text = format!("{number:.digits$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ("-", rest),
            None => ("", exponent),
        };
        let exponent: String = format!("{sign}{exponent:0>2}").chars().map(superscript).collect();
        return format!("{mantissa}×10{exponent}");
    }
    let text = format!("{number:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, whole) = match whole.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", whole),
    };
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() { format!("{sign}{grouped}") } else { format!("{sign}{grouped}.{fraction}") }
}

fn superscript(c: char) -> char {
    match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '0' => '⁰',
        '4'..='9' => char::from_u32('⁴' as u32 + c as u32 - '4' as u32).unwrap_or(c),
        other => other,
    }
}

/// A value as `%s` prints it.
fn format_string(value: &Val<'_>, context: &mut CallContext) -> Result<String, String> {
    match value {
        Val::Null => Ok("null".to_owned()),
        Val::List(list) => format_list(list, context),
        Val::Map(map) => format_map(map, context),
        Val::Optional(_)
        | Val::Foreign(_)
        | Val::Quantity(_)
        | Val::Url(_)
        | Val::Ip(_)
        | Val::Cidr(..)
        | Val::Format(_)
        | Val::Semver(_) => Err(unsupported_type('s', value.type_name())),
        other => convert::to_text(other).map_err(|fault| fault.to_string()),
    }
}

fn format_list(list: &List<'_>, context: &mut CallContext) -> Result<String, String> {
    let mut parts = Vec::new();
    for item in list.iter() {
        parts.push(format_element(&item.map_err(|fault| fault.to_string())?, context)?);
    }
    Ok(format!("[{}]", parts.join(", ")))
}

fn format_map(map: &Map<'_>, context: &mut CallContext) -> Result<String, String> {
    let mut parts = Vec::new();
    for key in map.keys() {
        if !matches!(key, Val::String(_) | Val::Bool(_) | Val::Int(_) | Val::Uint(_)) {
            return Err(format!("no formatting function for map key of type {}", key.type_name()));
        }
        let value = map.get(&key).map_err(|fault| fault.to_string())?.unwrap_or(Val::Null);
        parts.push((format_element(&key, context)?, format_element(&value, context)?));
    }
    parts.sort();
    let parts: Vec<String> = parts.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    Ok(format!("{{{}}}", parts.join(", ")))
}

/// A value inside a list or map.
fn format_element(value: &Val<'_>, context: &mut CallContext) -> Result<String, String> {
    context.charge_steps(1).map_err(|fault| fault.to_string())?;
    Ok(match value {
        Val::String(text) => quoted(text),
        Val::Bytes(_) => format!("b{}", quoted(&format_string(value, context)?)),
        Val::Double(number) => format!("{number:.6}"),
        Val::Timestamp(_) => format!("timestamp({})", quoted(&format_string(value, context)?)),
        Val::Duration(_) => format!("duration({})", quoted(&format_string(value, context)?)),
        other => format_string(other, context)
            .map_err(|_| format!("no formatting function for {}", other.type_name()))?,
    })
}
