//! 16-bit floats, which CBOR has and Rust lacks.

const SIGN: u16 = 0x8000;
/// The smallest subnormal number: 2 to the power of -24.
const UNIT: f64 = 1.0 / 16_777_216.0;

/// The number of 16 bits.
pub(super) fn from_bits(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * UNIT,
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * UNIT * 2f64.powi(exponent - 1),
    };
    if bits & SIGN == 0 { size } else { -size }
}

/// The 16 bits that represent exactly this number, if there are any.
pub(super) fn to_bits(number: f64) -> Option<u16> {
    let sign = if number.is_sign_negative() { SIGN } else { 0 };
    let units = number.abs() / UNIT;
    // The maximum is 2047 times two to the power of 29 units. Below 2048 the units are the bits themselves; above, the leading
    // eleven binary digits count, and all others must be zero.
    if units.trunc() != units || units >= 2048.0 * f64::from(1u32 << 29) {
        return None;
    }
    let units = units as u64;
    let shift = (u64::BITS - units.leading_zeros()).saturating_sub(11);
    if units >> shift << shift != units {
        return None;
    }
    let digits = u16::try_from(units >> shift).ok()?;
    // The leading digit is not stored, but adds one to the exponent, which begins at one here.
    Some(sign | (digits + (u16::try_from(shift).ok()? << 10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_floats_round_trip() {
        for bits in 0..=u16::MAX {
            let number = from_bits(bits);
            if number.is_finite() {
                assert_eq!(to_bits(number), Some(bits), "{number}");
            } else {
                assert_eq!(bits & 0x7c00, 0x7c00);
                assert_eq!(to_bits(number), None);
            }
        }
        assert_eq!(
            (from_bits(0x3c00), from_bits(0xc000), from_bits(0x7bff), from_bits(1)),
            (1.0, -2.0, 65504.0, UNIT)
        );
    }

    #[test]
    fn inexact_numbers_have_no_half_float() {
        for number in [0.1, 65505.0, 65536.0, 2049.0, 1e300, UNIT / 2.0, 1.0 + 1.0 / 2048.0] {
            assert_eq!(to_bits(number), None, "{number}");
        }
    }
}
