//! `string.format([...])`.

use pilothouse_apimachinery::field::quoted;

use super::convert;
use crate::eval::CallContext;
use crate::limits::CEL_TEXT_BYTES;
use crate::syntax::ast::{Expr, Kind};
use crate::types::Type;
use crate::value::{Fault, List, Map, Outcome, Val};

/// The default precision.
const PRECISION: usize = 6;
/// The maximum precision.
const MAX_PRECISION: usize = 1_000;

/// A segment of a format string.
enum Segment<'f> {
    /// Literal text.
    Literal(&'f str),
    /// A formatting clause: its verb and precision.
    Clause(char, Option<usize>),
}

/// Parses a format string up to the first error. `visit` is called for each segment, with the index of the next argument. Returns
/// the number of arguments that are used.
fn parse_format<'f>(
    format: &'f str,
    count: usize,
    mut visit: impl FnMut(Segment<'f>, usize) -> Result<(), String>,
) -> Result<usize, String> {
    let (mut rest, mut index) = (format, 0);
    while let Some(percent) = rest.find('%') {
        let (literal, rest_text) = rest.split_at(percent);
        visit(Segment::Literal(literal), index)?;
        let rest_text = rest_text.get(1..).unwrap_or_default();
        if let Some(remaining) = rest_text.strip_prefix('%') {
            visit(Segment::Literal("%"), index)?;
            rest = remaining;
            continue;
        }
        if rest_text.is_empty() {
            return Err("unexpected end of string".to_owned());
        }
        if index >= count {
            return Err(format!("index {index} out of range"));
        }
        let (verb, precision, remaining) =
            parse_clause(rest_text).map_err(|error| format!("could not parse formatting clause: {error}"))?;
        visit(Segment::Clause(verb, precision), index)
            .map_err(|error| format!("error during formatting: {error}"))?;
        index += 1;
        rest = remaining;
    }
    visit(Segment::Literal(rest), index)?;
    Ok(index)
}

fn parse_clause(text: &str) -> Result<(char, Option<usize>, &str), String> {
    let (precision, rest) = match text.strip_prefix('.') {
        None => (None, text),
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| {
                "error while parsing precision: could not find end of precision specifier".to_owned()
            })?;
            let (digits, rest) = rest.split_at(end);
            let number = digits.parse::<usize>().map_err(|_| {
                format!("error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {}: invalid syntax", quoted(digits))
            })?;
            (Some(number.min(MAX_PRECISION)), rest)
        }
    };
    let verb = rest.chars().next().unwrap_or(' ');
    if !matches!(verb, 's' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') {
        return Err(format!("unrecognized formatting clause \"{verb}\""));
    }
    Ok((verb, precision, rest.get(1..).unwrap_or_default()))
}

/// The message for a clause that does not support a type.
fn unsupported_type(verb: char, kind: &str) -> String {
    let message = match verb {
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        'o' => "octal clause can only be used on integers",
        _ => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
    };
    format!("{message}, was given {kind}")
}

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

/// Checks a constant format string against its arguments. Errors have a position and a message.
pub fn check(call: &Expr, format: &str, items: &[(Expr, bool)], types: &[Type]) -> Option<(usize, String)> {
    let type_of = |expr: &Expr| types.get(expr.id).cloned().unwrap_or(Type::Dyn);
    let mut error_id = call.id;
    let parsed = parse_format(format, items.len(), |segment, index| {
        let (Segment::Clause(verb, _), Some((item, _))) = (segment, items.get(index)) else { return Ok(()) };
        let invalid = if verb == 's' {
            invalid_string_argument(item, &type_of)
        } else {
            invalid_clause_argument(verb, item, &type_of)
        };
        match invalid {
            None => Ok(()),
            Some((id, name)) => {
                error_id = id;
                Err(unsupported_type(verb, &name))
            }
        }
    });
    match parsed {
        Err(message) => Some((error_id, message)),
        Ok(used) if items.len() > used => {
            let count = items.len();
            Some((
                call.id,
                format!("too many arguments supplied to string.format (expected {used}, got {count})"),
            ))
        }
        Ok(_) => None,
    }
}

fn invalid_clause_argument(
    verb: char,
    item: &Expr,
    type_of: &impl Fn(&Expr) -> Type,
) -> Option<(usize, String)> {
    let actual = type_of(item);
    let fits = matches!(
        (verb, &actual),
        (_, Type::Dyn)
            | ('d' | 'o' | 'b' | 'x' | 'X', Type::Int | Type::Uint)
            | ('b', Type::Bool)
            | ('x' | 'X', Type::String | Type::Bytes)
            | ('f' | 'e', Type::Double | Type::String)
    );
    (!fits).then(|| (item.id, actual.name()))
}

fn invalid_string_argument(item: &Expr, type_of: &impl Fn(&Expr) -> Type) -> Option<(usize, String)> {
    let actual = type_of(item);
    if matches!(actual, Type::Opaque(..) | Type::Object(_)) {
        return Some((item.id, actual.name()));
    }
    match &item.kind {
        Kind::List { items } => items.iter().find_map(|(item, _)| invalid_string_argument(item, type_of)),
        Kind::Map { entries } => entries
            .iter()
            .flat_map(|entry| [&entry.key, &entry.value])
            .find_map(|part| invalid_string_argument(part, type_of)),
        _ => None,
    }
}
