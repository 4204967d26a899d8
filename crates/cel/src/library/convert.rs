//! Conversions between types.

use pilothouse_apimachinery::json::short_float;

use super::context::CallContext;
use crate::timestamps::{self, Instant};
use crate::value::{Fault, Outcome, Val};

/// `int(x)` and its like.
pub fn convert<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    let [value] = args else { return Err(Fault::no_overload()) };
    match name {
        "dyn" => Ok(value.clone()),
        "type" => Ok(Val::Type(value.type_name().into())),
        "bool" => to_bool(value),
        "bytes" => match value {
            Val::Bytes(_) => Ok(value.clone()),
            Val::String(text) => Ok(Val::Bytes(text.as_bytes().into())),
            _ => Err(Fault::no_overload()),
        },
        "double" => to_double(value),
        "int" => to_int(value),
        "uint" => to_uint(value),
        "string" => to_string(value),
        "duration" => match value {
            Val::Duration(_) => Ok(value.clone()),
            Val::Int(nanos) => Ok(Val::Duration(*nanos)),
            Val::String(text) => timestamps::parse_duration(text).map(Val::Duration).map_err(Fault::Error),
            _ => Err(Fault::no_overload()),
        },
        "timestamp" => match value {
            Val::Timestamp(_) => Ok(value.clone()),
            Val::Int(seconds) => Instant::from_unix(*seconds, 0)
                .map(Val::Timestamp)
                .ok_or_else(|| Fault::error("timestamp overflow")),
            Val::String(text) => Instant::parse(text).map(Val::Timestamp).map_err(Fault::Error),
            _ => Err(Fault::no_overload()),
        },
        _ => Err(Fault::no_overload()),
    }
}

fn conversion_error(from: &str, to: &str) -> Fault {
    Fault::error(format!("type conversion error from '{from}' to '{to}'"))
}

fn to_bool<'v>(value: &Val<'v>) -> Outcome<'v> {
    match value {
        Val::Bool(_) => Ok(value.clone()),
        Val::String(text) => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Val::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Val::Bool(false)),
            _ => Err(conversion_error("string", "bool")),
        },
        _ => Err(Fault::no_overload()),
    }
}

fn to_double<'v>(value: &Val<'v>) -> Outcome<'v> {
    Ok(Val::Double(match value {
        Val::Double(number) => *number,
        Val::Int(number) => *number as f64,
        Val::Uint(number) => *number as f64,
        Val::String(text) => match &**text {
            "Infinity" | "+Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            text => text.parse().map_err(|_| conversion_error("string", "double"))?,
        },
        _ => return Err(Fault::no_overload()),
    }))
}

fn to_int<'v>(value: &Val<'v>) -> Outcome<'v> {
    let overflow = || Fault::error("integer overflow");
    Ok(Val::Int(match value {
        Val::Int(number) => *number,
        Val::Uint(number) => i64::try_from(*number).map_err(|_| overflow())?,
        // The bounds of the range are no doubles themselves.
        Val::Double(number)
            if *number > -9_223_372_036_854_775_808.0 && *number < 9_223_372_036_854_775_807.0 =>
        {
            *number as i64
        }
        Val::Double(_) => return Err(overflow()),
        Val::String(text) => text.parse().map_err(|_| conversion_error("string", "int"))?,
        Val::Timestamp(instant) => instant.seconds,
        Val::Duration(nanos) => *nanos,
        _ => return Err(Fault::no_overload()),
    }))
}

fn to_uint<'v>(value: &Val<'v>) -> Outcome<'v> {
    let overflow = || Fault::error("unsigned integer overflow");
    Ok(Val::Uint(match value {
        Val::Uint(number) => *number,
        Val::Int(number) => u64::try_from(*number).map_err(|_| overflow())?,
        Val::Double(number) if *number >= 0.0 && *number < 18_446_744_073_709_551_615.0 => *number as u64,
        Val::Double(_) => return Err(overflow()),
        Val::String(text) => text.parse().map_err(|_| conversion_error("string", "uint"))?,
        _ => return Err(Fault::no_overload()),
    }))
}

fn to_string<'v>(value: &Val<'v>) -> Outcome<'v> {
    if let Val::String(_) = value {
        return Ok(value.clone());
    }
    to_text(value).map(Val::from)
}

/// `string(x)`.
pub fn to_text(value: &Val<'_>) -> Result<String, Fault> {
    Ok(match value {
        Val::String(text) => text.to_string(),
        Val::Bool(boolean) => boolean.to_string(),
        Val::Int(number) => number.to_string(),
        Val::Uint(number) => number.to_string(),
        Val::Double(number) => format_double(*number),
        Val::Bytes(bytes) => std::str::from_utf8(bytes)
            .map_err(|_| Fault::error("invalid UTF-8 in bytes, cannot convert to string"))?
            .to_owned(),
        Val::Timestamp(instant) => instant.to_rfc3339(),
        Val::Duration(nanos) => timestamps::format_duration(*nanos),
        Val::Type(name) => name.to_string(),
        Val::Ip(address) => address.to_string(),
        Val::Cidr(address, bits) => format!("{address}/{bits}"),
        _ => return Err(Fault::no_overload()),
    })
}

/// Formats a double in the shortest form that round-trips, with an exponent if it is very small or large.
fn format_double(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    short_float(number)
}
