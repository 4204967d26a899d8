//! Decodes scalars: strings, numbers, and the messages of times, quantities and untyped values.

use super::decode::{FieldDecoder, bytes, descend};
use super::reader::{Fault, Reader, Tag, WireType};
use crate::json;
use crate::quantity::Quantity;
use crate::schema::Scalar;
use crate::time;
use crate::value::Value;

/// The first second of the year 0 and the last of the year 9999: the printable range.
const PRINTABLE_SECONDS: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;
const NANOS_PER_MICRO: i32 = 1_000;
const MICROS_PER_SECOND: i64 = 1_000_000;

impl FieldDecoder<'_, '_> {
    /// A message of a type that is a scalar in JSON.
    pub(super) fn scalar(
        &self,
        scalar: Scalar,
        message: &[u8],
        previous: Option<Value>,
        depth: usize,
    ) -> Result<Value, Fault> {
        match scalar {
            Scalar::Quantity => self.quantity(message),
            Scalar::Time | Scalar::MicroTime => self.instant(scalar, message),
            Scalar::IntOrString => self.int_or_string(message, previous),
            _ => self.any(message, previous, depth),
        }
    }

    fn quantity(&self, message: &[u8]) -> Result<Value, Fault> {
        let mut quantity = "0".to_owned();
        let mut reader = Reader::new(message);
        while let Some(tag) = reader.tag("Quantity")? {
            match tag.number {
                1 => {
                    let text = self.text(&mut reader, tag)?;
                    quantity =
                        Quantity::canonical(&text).map_err(|message| Fault::new(message.to_owned()))?;
                }
                _ => reader.skip(tag.form)?,
            }
        }
        Ok(Value::String(quantity))
    }

    /// A time as text; null for the zero time. Only MicroTime has a fraction.
    fn instant(&self, scalar: Scalar, message: &[u8]) -> Result<Value, Fault> {
        if message.is_empty() {
            return Ok(Value::Null);
        }
        let (mut seconds, mut nanos) = (0, 0);
        let mut reader = Reader::new(message);
        while let Some(tag) = reader.tag("Timestamp")? {
            match tag.number {
                1 => seconds = self.number(&mut reader, tag)? as i64,
                2 => nanos = self.number(&mut reader, tag)? as i32,
                _ => reader.skip(tag.form)?,
            }
        }
        let micros = if scalar == Scalar::MicroTime { i64::from(nanos / NANOS_PER_MICRO) } else { 0 };
        let seconds = seconds.saturating_add(micros.div_euclid(MICROS_PER_SECOND));
        let micros = micros.rem_euclid(MICROS_PER_SECOND);
        if !PRINTABLE_SECONDS.contains(&seconds) {
            return Err(Fault::new(format!("proto: field {} is no time: year out of range", self.name())));
        }
        Ok(match scalar {
            _ if (seconds, micros) == (time::ZERO_SECONDS, 0) => Value::Null,
            Scalar::MicroTime => Value::String(time::format_micros(seconds, micros as u32)),
            _ => Value::String(time::format_seconds(seconds)),
        })
    }

    fn int_or_string(&self, message: &[u8], previous: Option<Value>) -> Result<Value, Fault> {
        let (mut kind, mut number, mut text) = match previous {
            Some(Value::Int(number)) => (0, number, String::new()),
            Some(Value::String(text)) => (1, 0, text),
            _ => (0, 0, String::new()),
        };
        let mut reader = Reader::new(message);
        while let Some(tag) = reader.tag("IntOrString")? {
            match tag.number {
                1 => kind = self.number(&mut reader, tag)?,
                2 => number = i64::from(self.number(&mut reader, tag)? as i32),
                3 => text = self.text(&mut reader, tag)?,
                _ => reader.skip(tag.form)?,
            }
        }
        match kind {
            0 => Ok(Value::Int(number)),
            1 => Ok(Value::String(text)),
            _ => Err(Fault::new("impossible IntOrString.Type".to_owned())),
        }
    }

    /// An untyped value: JSON within the message.
    fn any(&self, message: &[u8], previous: Option<Value>, depth: usize) -> Result<Value, Fault> {
        let mut value = previous.unwrap_or_default();
        let mut reader = Reader::new(message);
        while let Some(tag) = reader.tag("RawExtension")? {
            match tag.number {
                1 => {
                    let text = bytes(&mut reader, tag, || "Raw".to_owned())?;
                    value = json::read(text).map_err(|error| {
                        Fault::new(format!("proto: field {} holds no JSON: {error}", self.name()))
                    })?;
                    descend(depth, levels(&value))?;
                }
                _ => reader.skip(tag.form)?,
            }
        }
        Ok(value)
    }

    /// A string.
    pub(super) fn text(&self, reader: &mut Reader<'_>, tag: Tag) -> Result<String, Fault> {
        let bytes = bytes(reader, tag, || self.name())?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(Fault::new(format!("proto: field {} contains invalid UTF-8", self.name()))),
        }
    }

    /// A number of any size; the caller takes the bits that it needs.
    pub(super) fn number(&self, reader: &mut Reader<'_>, tag: Tag) -> Result<u64, Fault> {
        if tag.form != WireType::VARINT {
            return Err(Fault::wire_type(tag.form, &self.name()));
        }
        reader.varint()
    }

    /// A double, which must be representable in JSON.
    pub(super) fn double(&self, reader: &mut Reader<'_>, tag: Tag) -> Result<Value, Fault> {
        if tag.form != WireType::EIGHT {
            return Err(Fault::wire_type(tag.form, &self.name()));
        }
        let number = f64::from_le_bytes(reader.eight()?);
        if !number.is_finite() {
            return Err(Fault::new(format!("json: unsupported value: {number}")));
        }
        Ok(Value::Float(number))
    }
}

/// The depth of a value. JSON parsing bounds it, so this ends.
fn levels(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(levels).max().unwrap_or_default(),
        _ => 0,
    }
}
