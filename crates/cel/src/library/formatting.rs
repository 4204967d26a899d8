//! `string.format([...])`.

use pilothouse_apimachinery::field::quoted;

use super::super::ast::{Expr, Kind};
use super::super::eval::CallContext;
use super::super::types::Type;
use super::super::value::{Fault, List, Map, Outcome, Val};
use super::convert;
use crate::limits::CEL_TEXT_BYTES;

/// The default precision.
const PRECISION: usize = 6;
/// The maximum precision.
const MOST_PRECISION: usize = 1_000;

/// A segment of a format string.
enum Piece<'f> {
    /// Literal text.
    Plain(&'f str),
    /// A formatting clause: its verb and precision.
    Clause(char, Option<usize>),
}

/// Parses a format string up to the first error. `value` is called for each clause with its index.
fn pieces<'f>(
    format: &'f str,
    count: usize,
    mut each: impl FnMut(Piece<'f>, usize) -> Result<(), String>,
) -> Result<usize, String> {
    let (mut rest, mut place) = (format, 0);
    while let Some(at) = rest.find('%') {
        let (plain, behind) = rest.split_at(at);
        each(Piece::Plain(plain), place)?;
        let behind = behind.get(1..).unwrap_or_default();
        if let Some(after) = behind.strip_prefix('%') {
            each(Piece::Plain("%"), place)?;
            rest = after;
            continue;
        }
        if behind.is_empty() {
            return Err("unexpected end of string".to_owned());
        }
        if place >= count {
            return Err(format!("index {place} out of range"));
        }
        let (letter, precision, after) =
            clause(behind).map_err(|why| format!("could not parse formatting clause: {why}"))?;
        each(Piece::Clause(letter, precision), place)
            .map_err(|why| format!("error during formatting: {why}"))?;
        place += 1;
        rest = after;
    }
    each(Piece::Plain(rest), place)?;
    Ok(place)
}

fn clause(text: &str) -> Result<(char, Option<usize>, &str), String> {
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
            (Some(number.min(MOST_PRECISION)), rest)
        }
    };
    let letter = rest.chars().next().unwrap_or(' ');
    if !matches!(letter, 's' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') {
        return Err(format!("unrecognized formatting clause \"{letter}\""));
    }
    Ok((letter, precision, rest.get(1..).unwrap_or_default()))
}

/// The message for a clause that does not support a type.
fn refused(letter: char, kind: &str) -> String {
    let why = match letter {
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
    format!("{why}, was given {kind}")
}

/// `format`.
pub fn run<'v>(_: &str, args: &[Val<'v>], work: &mut CallContext) -> Outcome<'v> {
    let [Val::String(format), Val::List(list)] = args else { return Err(Fault::no_overload()) };
    let mut out = String::new();
    let mut fault = None;
    let told = pieces(format, list.len(), |piece, place| {
        match piece {
            Piece::Plain(text) => out.push_str(text),
            Piece::Clause(letter, precision) => match list.get(place) {
                Some(Ok(value)) => out.push_str(&written(letter, precision, &value, work)?),
                Some(Err(error)) => fault = Some(error),
                None => {}
            },
        }
        if out.len() > CEL_TEXT_BYTES {
            fault = Some(Fault::Budget);
        }
        if fault.is_some() { Err(String::new()) } else { Ok(()) }
    });
    match (fault, told) {
        (Some(fault), _) => Err(fault),
        (None, Err(why)) => Err(Fault::Error(why)),
        (None, Ok(_)) => Ok(Val::from(out)),
    }
}

fn written(
    letter: char,
    precision: Option<usize>,
    value: &Val<'_>,
    work: &mut CallContext,
) -> Result<String, String> {
    let digits = precision.unwrap_or(PRECISION);
    Ok(match (letter, value) {
        ('d', Val::Int(number)) => number.to_string(),
        ('d', Val::Uint(number)) => number.to_string(),
        ('f' | 'e', Val::Double(number)) => number_text(letter, *number, digits),
        ('f' | 'e', Val::String(text)) => match &**text {
            "NaN" => number_text(letter, f64::NAN, digits),
            "Infinity" => number_text(letter, f64::INFINITY, digits),
            "-Infinity" => number_text(letter, f64::NEG_INFINITY, digits),
            _ => return Err(refused(letter, "string")),
        },
        ('b', Val::Bool(truth)) => u8::from(*truth).to_string(),
        ('b' | 'o' | 'x' | 'X', Val::Int(number)) => {
            let sign = if *number < 0 { "-" } else { "" };
            format!("{sign}{}", radix(letter, number.unsigned_abs()))
        }
        ('b' | 'o' | 'x' | 'X', Val::Uint(number)) => radix(letter, *number),
        ('x' | 'X', Val::String(text)) => hex(letter, text.as_bytes()),
        ('x' | 'X', Val::Bytes(bytes)) => hex(letter, bytes),
        ('s', value) => plain(value, work)?,
        (letter, value) => return Err(refused(letter, value.type_name())),
    })
}

fn radix(letter: char, number: u64) -> String {
    match letter {
        'b' => format!("{number:b}"),
        'o' => format!("{number:o}"),
        'x' => format!("{number:x}"),
        _ => format!("{number:X}"),
    }
}

fn hex(letter: char, bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if letter == 'X' { text.to_uppercase() } else { text }
}

/// Formats a number with English conventions: digit groups of three, and exponents in superscript.
fn number_text(letter: char, number: f64, digits: usize) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "∞" } else { "-∞" }.to_owned();
    }
    if letter == 'e' {
        let text = format!("{number:.digits$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ("-", rest),
            None => ("", exponent),
        };
        let raised: String = format!("{sign}{exponent:0>2}").chars().map(raised).collect();
        return format!("{mantissa}×10{raised}");
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

fn raised(c: char) -> char {
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
fn plain(value: &Val<'_>, work: &mut CallContext) -> Result<String, String> {
    match value {
        Val::Null => Ok("null".to_owned()),
        Val::List(list) => list_text(list, work),
        Val::Map(map) => map_text(map, work),
        Val::Optional(_)
        | Val::Foreign(_)
        | Val::Quantity(_)
        | Val::Url(_)
        | Val::Ip(_)
        | Val::Cidr(..)
        | Val::Format(_)
        | Val::Semver(_) => Err(refused('s', value.type_name())),
        other => convert::text(other).map_err(|fault| fault.to_string()),
    }
}

fn list_text(list: &List<'_>, work: &mut CallContext) -> Result<String, String> {
    let mut parts = Vec::new();
    for item in list.iter() {
        parts.push(inner(&item.map_err(|fault| fault.to_string())?, work)?);
    }
    Ok(format!("[{}]", parts.join(", ")))
}

fn map_text(map: &Map<'_>, work: &mut CallContext) -> Result<String, String> {
    let mut parts = Vec::new();
    for key in map.keys() {
        if !matches!(key, Val::String(_) | Val::Bool(_) | Val::Int(_) | Val::Uint(_)) {
            return Err(format!("no formatting function for map key of type {}", key.type_name()));
        }
        let value = map.get(&key).map_err(|fault| fault.to_string())?.unwrap_or(Val::Null);
        parts.push((inner(&key, work)?, inner(&value, work)?));
    }
    parts.sort();
    let parts: Vec<String> = parts.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    Ok(format!("{{{}}}", parts.join(", ")))
}

/// A value inside a list or map.
fn inner(value: &Val<'_>, work: &mut CallContext) -> Result<String, String> {
    work.effort(1).map_err(|fault| fault.to_string())?;
    Ok(match value {
        Val::String(text) => quoted(text),
        Val::Bytes(_) => format!("b{}", quoted(&plain(value, work)?)),
        Val::Double(number) => format!("{number:.6}"),
        Val::Timestamp(_) => format!("timestamp({})", quoted(&plain(value, work)?)),
        Val::Duration(_) => format!("duration({})", quoted(&plain(value, work)?)),
        other => {
            plain(other, work).map_err(|_| format!("no formatting function for {}", other.type_name()))?
        }
    })
}

/// Checks a constant format string against its arguments. Errors have a position and a message.
pub fn check(call: &Expr, format: &str, items: &[(Expr, bool)], types: &[Type]) -> Option<(usize, String)> {
    let kind = |expr: &Expr| types.get(expr.id).cloned().unwrap_or(Type::Dyn);
    let mut wrong_at = call.id;
    let told = pieces(format, items.len(), |piece, place| {
        let (Piece::Clause(letter, _), Some((item, _))) = (piece, items.get(place)) else { return Ok(()) };
        let found = if letter == 's' { unwritable(item, &kind) } else { none_of(letter, item, &kind) };
        match found {
            None => Ok(()),
            Some((id, name)) => {
                wrong_at = id;
                Err(refused(letter, &name))
            }
        }
    });
    match told {
        Err(why) => Some((wrong_at, why)),
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

fn none_of(letter: char, item: &Expr, kind: &impl Fn(&Expr) -> Type) -> Option<(usize, String)> {
    let found = kind(item);
    let fits = matches!(
        (letter, &found),
        (_, Type::Dyn)
            | ('d' | 'o' | 'b' | 'x' | 'X', Type::Int | Type::Uint)
            | ('b', Type::Bool)
            | ('x' | 'X', Type::String | Type::Bytes)
            | ('f' | 'e', Type::Double | Type::String)
    );
    (!fits).then(|| (item.id, found.name()))
}

fn unwritable(item: &Expr, kind: &impl Fn(&Expr) -> Type) -> Option<(usize, String)> {
    let found = kind(item);
    if matches!(found, Type::Opaque(..) | Type::Object(_)) {
        return Some((item.id, found.name()));
    }
    match &item.kind {
        Kind::List { items } => items.iter().find_map(|(item, _)| unwritable(item, kind)),
        Kind::Map { entries } => entries
            .iter()
            .flat_map(|entry| [&entry.key, &entry.value])
            .find_map(|part| unwritable(part, kind)),
        _ => None,
    }
}
