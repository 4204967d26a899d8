//! Quantities: `100m`, `1.5Gi`, `12e6`.
//!
//! A quantity consists of decimal digits and a power of ten, so that no precision is lost. Canonical text is printed
//! unchanged; other text is converted to the largest unit that leaves a whole number.

use std::cmp::Ordering;
use std::fmt;

/// The error for malformed text.
pub const BAD_FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const BAD_NUMBER: &str = "unable to parse numeric part of quantity";
const BAD_SUFFIX: &str = "unable to parse quantity's suffix";

/// The smallest power of ten; smaller parts are rounded up.
const NANO: i64 = -9;
/// The smallest power of ten of a resource quantity.
const MILLI: i64 = -3;
/// The maximum number of digits of text that counts as canonical.
const CANONICAL_DIGITS: usize = 18;
/// The same for binary units, whose factor needs digits, too.
const CANONICAL_BINARY_DIGITS: i64 = 15;
/// The maximum in a binary unit; larger amounts are capped.
const MAX_BINARY: &[u8] = b"9223372036854775807";

const DECIMAL_UNITS: [(&str, i64); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY_UNITS: [(&str, u32); 6] =
    [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// The format of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

/// A quantity.
#[derive(Clone, Debug)]
pub struct Quantity {
    negative: bool,
    /// Decimal digits without leading and trailing zeros; empty for zero.
    digits: Vec<u8>,
    exponent: i64,
    format: Format,
    /// The original text, if it is canonical.
    canonical_text: Option<String>,
    /// Whether it was written with a fraction or a unit below one: the reference does not reduce it to an integer.
    fractional: bool,
}

/// The parts of the text.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl Quantity {
    /// Parses a quantity.
    pub fn parse(text: &str) -> Result<Quantity, &'static str> {
        let parts = split(text)?;
        let (format, exponent, shift) = unit(parts.suffix)?;
        let mut digits: Vec<u8> = parts.whole.bytes().chain(parts.fraction.bytes()).collect();
        let scale = exponent - i64::try_from(parts.fraction.len()).map_err(|_| BAD_NUMBER)?;
        let is_canonical = is_canonical(&parts, format, shift, scale);
        if shift > 0 {
            multiply(&mut digits, 1u64 << shift);
        }
        let mut quantity = Quantity {
            negative: parts.negative,
            digits,
            exponent: scale,
            format,
            canonical_text: None,
            fractional: scale < 0,
        };
        quantity.normalize();
        if is_canonical && !quantity.digits.is_empty() {
            quantity.canonical_text = Some(text.to_owned());
        }
        Ok(quantity)
    }

    /// The canonical text of a quantity.
    pub fn canonical(text: &str) -> Result<String, &'static str> {
        Quantity::parse(text).map(|quantity| quantity.to_string())
    }

    /// Whether the quantity is zero.
    pub fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// Whether the quantity is negative.
    pub fn is_negative(&self) -> bool {
        self.negative
    }

    /// Rounded up to thousandths.
    pub fn in_thousandths(self) -> Quantity {
        self.rounded_up(MILLI)
    }

    fn rounded_up(mut self, min_exponent: i64) -> Quantity {
        if self.exponent < min_exponent && !self.digits.is_empty() {
            self.canonical_text = None;
            self.round_up(min_exponent);
            self.normalize();
        }
        self
    }

    /// The sum, in the format of this one, or of the other if this is zero.
    pub fn plus(&self, other: &Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        let sum = self.billionths().saturating_add(other.billionths());
        let digits = sum.unsigned_abs().to_string().into_bytes();
        let fractional = self.fractional || other.fractional;
        let mut sum =
            Quantity { negative: sum < 0, digits, exponent: NANO, format, canonical_text: None, fractional };
        sum.normalize();
        sum
    }

    /// The difference, in the format of this one, or of the other if this is zero.
    pub fn minus(&self, other: &Quantity) -> Quantity {
        self.plus(&Quantity { negative: !other.negative, ..other.clone() })
    }

    /// Rounded up to a whole number.
    pub fn ceil(self) -> Quantity {
        self.rounded_up(0)
    }

    /// The integer, if it was written as one and fits.
    pub fn whole(&self) -> Option<i64> {
        if self.fractional {
            return None;
        }
        let size = i128::from(if self.is_zero() { 0 } else { self.integer()? });
        i64::try_from(if self.negative { -size } else { size }).ok()
    }

    /// The approximate amount.
    pub fn approximate(&self) -> f64 {
        let digits = std::str::from_utf8(&self.digits).unwrap_or_default();
        let size = format!("{}e{}", if digits.is_empty() { "0" } else { digits }, self.exponent)
            .parse()
            .unwrap_or(0.0);
        if self.negative { -size } else { size }
    }

    /// The amount in thousandths, rounded away from zero. Ratios are computed from it, because they must be exact: a third of
    /// 900m is 300m.
    pub fn thousandths(&self) -> i128 {
        const PARTS: i128 = 1_000_000;
        let (whole, rest) = (self.billionths() / PARTS, self.billionths() % PARTS);
        whole + rest.signum()
    }

    /// The amount in billionths. Amounts beyond all units are capped.
    pub fn billionths(&self) -> i128 {
        let digits = std::str::from_utf8(&self.digits).unwrap_or_default();
        let zeros = u32::try_from(self.exponent - NANO).ok().and_then(|zeros| 10i128.checked_pow(zeros));
        let number = match digits {
            "" => Some(0),
            digits => {
                digits.parse::<i128>().ok().zip(zeros).and_then(|(number, zeros)| number.checked_mul(zeros))
            }
        };
        let number = number.unwrap_or(i128::MAX);
        if self.negative { -number } else { number }
    }

    /// Normalizes the digits, rounds small parts, and caps large amounts.
    fn normalize(&mut self) {
        let leading = self.digits.iter().take_while(|digit| **digit == b'0').count();
        self.digits.drain(..leading);
        if self.exponent < NANO && !self.digits.is_empty() {
            self.round_up(NANO);
        }
        if self.format == Format::Binary && self.exceeds_binary() {
            (self.digits, self.exponent) = (MAX_BINARY.to_vec(), 0);
        }
        while self.digits.last() == Some(&b'0') {
            self.digits.pop();
            self.exponent += 1;
        }
        if self.digits.is_empty() {
            (self.negative, self.exponent) = (false, 0);
        }
        if self.format == Format::Binary && self.magnitude() < 1 {
            self.format = Format::Decimal;
        }
    }

    /// The number of digits before the decimal point.
    fn magnitude(&self) -> i64 {
        if self.digits.is_empty() { 0 } else { self.exponent + self.digits.len() as i64 }
    }

    fn exceeds_binary(&self) -> bool {
        let max_magnitude = MAX_BINARY.len() as i64;
        match self.magnitude().cmp(&max_magnitude) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => self.digits.as_slice() > MAX_BINARY,
        }
    }

    /// Drops parts smaller than a power of ten, rounding away from zero.
    fn round_up(&mut self, min_exponent: i64) {
        let drop = usize::try_from(min_exponent - self.exponent).unwrap_or(usize::MAX);
        let length = self.digits.len().saturating_sub(drop);
        let is_inexact =
            self.digits.get(length..).is_some_and(|dropped| dropped.iter().any(|digit| *digit != b'0'));
        self.digits.truncate(length);
        self.exponent = min_exponent;
        if is_inexact {
            increment(&mut self.digits);
        }
    }

    /// The absolute integer, if it is one and fits.
    fn integer(&self) -> Option<u64> {
        let zeros = usize::try_from(self.exponent).ok().filter(|zeros| *zeros < 20)?;
        let text: Vec<u8> = self.digits.iter().copied().chain(std::iter::repeat_n(b'0', zeros)).collect();
        std::str::from_utf8(&text).ok()?.parse().ok()
    }
}

/// Whether the text is canonical.
fn is_canonical(parts: &Parts<'_>, format: Format, shift: u32, scale: i64) -> bool {
    let count = parts.whole.len() + parts.fraction.len();
    if format == Format::Binary {
        let spare_digits = CANONICAL_BINARY_DIGITS - count as i64 - i64::from(shift) * 3 / 10 - 1;
        let value: Option<u64> = parts.whole.parse().ok();
        return parts.fraction.is_empty() && spare_digits >= 0 && value.is_some_and(|value| value & 7 != 0);
    }
    let ends_in_zeros = match parts.fraction.len() {
        0 => parts.whole.ends_with("000"),
        1 => parts.fraction == "0" && parts.whole.ends_with("00"),
        2 => parts.fraction == "00" && parts.whole.ends_with('0'),
        _ => parts.fraction.ends_with("000"),
    };
    count <= CANONICAL_DIGITS
        && scale >= NANO
        && scale % 3 == 0
        && !ends_in_zeros
        && !parts.whole.starts_with('0')
}

fn split(text: &str) -> Result<Parts<'_>, &'static str> {
    if text.is_empty() {
        return Err(BAD_FORMAT);
    }
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let significant = unsigned.trim_start_matches('0');
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = significant.split_at(digits(significant));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits(exponent) != exponent.len() {
        return Err(BAD_FORMAT);
    }
    let whole = if whole.is_empty() { "0" } else { whole };
    Ok(Parts { negative, whole, fraction, suffix })
}

/// The format, the power of ten and the power of two of a suffix.
fn unit(suffix: &str) -> Result<(Format, i64, u32), &'static str> {
    if let Some((_, exponent)) = DECIMAL_UNITS.iter().find(|(name, _)| *name == suffix) {
        return Ok((Format::Decimal, *exponent, 0));
    }
    if let Some((_, shift)) = BINARY_UNITS.iter().find(|(name, _)| *name == suffix) {
        return Ok((Format::Binary, 0, *shift));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(BAD_SUFFIX)?;
    let exponent: i32 = exponent.parse().map_err(|_| BAD_SUFFIX)?;
    Ok((Format::Exponent, i64::from(exponent), 0))
}

fn multiply(digits: &mut Vec<u8>, factor: u64) {
    let mut carry = 0u128;
    for digit in digits.iter_mut().rev() {
        let product = u128::from(*digit - b'0') * u128::from(factor) + carry;
        *digit = b'0' + (product % 10) as u8;
        carry = product / 10;
    }
    if carry > 0 {
        digits.splice(0..0, carry.to_string().bytes());
    }
}

fn increment(digits: &mut Vec<u8>) {
    for digit in digits.iter_mut().rev() {
        if *digit == b'9' {
            *digit = b'0';
        } else {
            *digit += 1;
            return;
        }
    }
    digits.insert(0, b'1');
}

impl From<i64> for Quantity {
    fn from(number: i64) -> Quantity {
        let digits = number.unsigned_abs().to_string().into_bytes();
        let mut quantity = Quantity {
            negative: number < 0,
            digits,
            exponent: 0,
            format: Format::Decimal,
            canonical_text: None,
            fractional: false,
        };
        quantity.normalize();
        quantity
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(canonical_text) = &self.canonical_text {
            return f.write_str(canonical_text);
        }
        if self.digits.is_empty() {
            return f.write_str("0");
        }
        if self.negative {
            f.write_str("-")?;
        }
        if self.format == Format::Binary
            && let Some(mut number) = self.integer().filter(|number| *number >= 1024)
        {
            let mut unit = 0;
            while number % 1024 == 0 && unit < BINARY_UNITS.len() {
                number /= 1024;
                unit += 1;
            }
            let suffix =
                unit.checked_sub(1).and_then(|unit| BINARY_UNITS.get(unit)).map_or("", |unit| unit.0);
            return write!(f, "{number}{suffix}");
        }
        let mut exponent = self.exponent - self.exponent.rem_euclid(3);
        if self.format != Format::Exponent {
            // Beyond the largest unit there are more digits: a number must not shrink when printed.
            exponent = exponent.min(18);
        }
        f.write_str(std::str::from_utf8(&self.digits).unwrap_or_default())?;
        for _ in exponent..self.exponent {
            f.write_str("0")?;
        }
        match DECIMAL_UNITS.iter().find(|(_, unit)| *unit == exponent) {
            Some((suffix, _)) if self.format != Format::Exponent => f.write_str(suffix),
            _ if exponent == 0 => Ok(()),
            _ => write!(f, "e{exponent}"),
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    /// By amount; the unit does not matter.
    fn cmp(&self, other: &Quantity) -> Ordering {
        let sign = |quantity: &Quantity| match (quantity.digits.is_empty(), quantity.negative) {
            (true, _) => 0,
            (_, false) => 1,
            (_, true) => -1,
        };
        let by_size = || {
            let size = self.magnitude().cmp(&other.magnitude());
            let size = size.then_with(|| self.digits.cmp(&other.digits));
            if self.negative { size.reverse() } else { size }
        };
        sign(self).cmp(&sign(other)).then_with(by_size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sum_has_the_format_of_the_first_operand() {
        for (left, right, sum) in [
            ("800m", "700m", "1500m"),
            ("500m", "500m", "1"),
            ("1Gi", "1Gi", "2Gi"),
            ("1Gi", "1G", "2073741824"),
            ("0", "1Ki", "1Ki"),
            ("1", "-3", "-2"),
            ("1n", "1E", "1000000000000000000000000001n"),
        ] {
            let parse = |text: &str| Quantity::parse(text).unwrap();
            assert_eq!(parse(left).plus(&parse(right)).to_string(), sum, "{left} + {right}");
        }
        for (text, thousandths) in [("2500m", 2_500), ("1u", 1), ("-1u", -1), ("0", 0), ("1k", 1_000_000)] {
            assert_eq!(Quantity::parse(text).unwrap().thousandths(), thousandths, "{text}");
        }
        let large = "9".repeat(60);
        assert!(Quantity::parse(&large).unwrap().thousandths() > 1 << 100);
    }

    #[test]
    fn difference_has_the_format_of_the_first_operand() {
        let parse = |text: &str| Quantity::parse(text).unwrap();
        for (left, right, difference) in [
            ("2Gi", "1Gi", "1Gi"),
            ("1", "500m", "500m"),
            ("1", "3", "-2"),
            ("0", "1Ki", "-1Ki"),
            ("3", "3", "0"),
        ] {
            assert_eq!(parse(left).minus(&parse(right)).to_string(), difference, "{left} - {right}");
        }
        for (number, expected) in
            [(0, "0"), (12, "12"), (-3, "-3"), (1_000, "1k"), (i64::MIN, "-9223372036854775808")]
        {
            assert_eq!(Quantity::from(number).to_string(), expected);
        }
        for (text, whole) in [("1500m", "2"), ("1", "1"), ("0.1", "1"), ("1Gi", "1Gi"), ("0", "0")] {
            assert_eq!(parse(text).ceil().to_string(), whole, "{text}");
        }
    }

    #[test]
    fn quantities_are_printed_in_canonical_form() {
        for (text, expected) in [
            ("0", "0"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("0.1", "100m"),
            ("1.500", "1.500"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("1000000", "1M"),
            ("1e3", "1e3"),
            ("1E3", "1E3"),
            ("12e2", "1200"),
            ("1000e3", "1e6"),
            ("1Ki", "1Ki"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("0.5Mi", "512Ki"),
            ("0.0001Ki", "102400u"),
            ("8Ki", "8Ki"),
            ("1000Ki", "1000Ki"),
            ("100000000000000000000", "100E"),
            ("1000E", "1000E"),
            ("9223372036854775808", "9223372036854775808"),
            ("9223372036854775808Ki", "9223372036854775807"),
            ("8Ei", "9223372036854775807"),
            ("0.0000000001", "1n"),
            ("1.0000000001", "1000000001n"),
            ("-1.5", "-1500m"),
            ("+1", "+1"),
            ("-0", "0"),
            ("0Mi", "0"),
            (".", "0"),
            ("m", "0"),
            ("00012", "00012"),
            ("1e-999999999", "1e-9"),
        ] {
            assert_eq!(Quantity::canonical(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_quantities_are_refused() {
        assert_eq!(Quantity::canonical("abc"), Err(BAD_FORMAT));
        assert_eq!(Quantity::canonical(""), Err(BAD_FORMAT));
        assert_eq!(Quantity::canonical("1.2.3"), Err(BAD_FORMAT));
        assert_eq!(Quantity::canonical("1x"), Err(BAD_FORMAT));
        assert_eq!(Quantity::canonical("1ki"), Err(BAD_SUFFIX));
        assert_eq!(Quantity::canonical("1e99999999999"), Err(BAD_SUFFIX));
    }

    #[test]
    fn resource_quantities_are_rounded_up_to_thousandths() {
        let rounded = |text| Quantity::parse(text).unwrap().in_thousandths().to_string();
        assert_eq!(rounded("1.0001"), "1001m");
        assert_eq!(rounded("100u"), "1m");
        assert_eq!(rounded("-100u"), "-1m");
        assert_eq!(rounded("1500m"), "1500m");
        assert_eq!(rounded("1Gi"), "1Gi");
    }

    #[test]
    fn quantities_compare_by_amount() {
        let parse = |text| Quantity::parse(text).unwrap();
        assert_eq!(parse("1"), parse("1000m"));
        assert!(
            parse("1Gi") > parse("1G")
                && parse("-1") < parse("0")
                && parse("-2") < parse("-1")
                && parse("1e30") > parse("1E")
        );
    }

    proptest! {
        #[test]
        fn printed_quantities_round_trip(
            text in "[+-]?[0-9]{1,25}(\\.[0-9]{0,12})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,2})?"
        ) {
            let quantity = Quantity::parse(&text).unwrap();
            let printed = quantity.to_string();
            let again = Quantity::parse(&printed).unwrap();
            prop_assert_eq!(&again, &quantity);
            prop_assert_eq!(again.to_string(), printed);
        }

        #[test]
        fn parsing_quantities_never_panics(text in "\\PC{0,40}") {
            let _ = Quantity::parse(&text);
        }
    }
}
