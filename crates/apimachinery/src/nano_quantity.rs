//! Resource quantities such as `500m`, `1Gi` or `1e3` for validation: only comparing and rounding.

use crate::field::quoted;
use crate::quantity::Quantity;
use crate::value::Value;

/// An amount in billionths, the finest that the API keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NanoQuantity(i128);

const ONE: i128 = 1_000_000_000;
/// Larger amounts are clamped to this: no machine has as much.
const MAXIMUM: i128 = i128::MAX / ONE * ONE;

impl NanoQuantity {
    /// Parses a quantity. A fraction of a billionth is rounded up.
    pub fn parse(text: &str) -> Option<NanoQuantity> {
        let quantity = Quantity::parse(text).ok()?;
        Some(NanoQuantity(quantity.billionths().clamp(-MAXIMUM, MAXIMUM)))
    }

    /// The quantity in a value: a string or an integer.
    pub fn from_value(value: &Value) -> Option<NanoQuantity> {
        match value {
            Value::Int(number) => NanoQuantity::parse(&number.to_string()),
            _ => value.as_str().and_then(NanoQuantity::parse),
        }
    }

    /// Whether the amount is below zero.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether the amount is zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The amount rounded up to a whole number.
    pub fn ceiling(self) -> i128 {
        let below = self.0.div_euclid(ONE);
        if self.0.rem_euclid(ONE) == 0 { below } else { below + 1 }
    }

    /// The amount in thousandths, rounded up.
    pub fn thousandths(self) -> i128 {
        let milli = ONE / 1_000;
        let below = self.0.div_euclid(milli);
        if self.0.rem_euclid(milli) == 0 { below } else { below + 1 }
    }

    /// Whether the amount is a whole number.
    pub fn is_whole(self) -> bool {
        self.0 % ONE == 0
    }
}

/// A ResourceList as messages print it in Go syntax. The text of each quantity is its canonical form, since the original is not
/// known here.
pub fn render_resource_list(list: &Value) -> String {
    let amounts = list.fields().into_iter().flatten().map(|(name, amount)| {
        let text = amount.as_str().unwrap_or_default();
        let (value, scale, format) = parse_parts(text);
        format!(
            "{}:resource.Quantity{{i:resource.int64Amount{{value:{value}, scale:{scale}}}, \
             d:resource.infDecAmount{{Dec:(*inf.Dec)(nil)}}, s:{}, Format:\"{format}\"}}",
            quoted(name),
            quoted(text)
        )
    });
    format!("core.ResourceList{{{}}}", amounts.collect::<Vec<_>>().join(", "))
}

/// The value, decimal scale and format of a quantity.
fn parse_parts(text: &str) -> (i128, i32, &'static str) {
    const POWERS: [(&str, i32); 9] =
        [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    if text.ends_with('i') {
        return (NanoQuantity::parse(text).map_or(0, NanoQuantity::ceiling), 0, "BinarySI");
    }
    let (number, power) = POWERS
        .iter()
        .find_map(|(suffix, power)| text.strip_suffix(suffix).map(|number| (number, *power)))
        .unwrap_or((text, 0));
    (number.parse().unwrap_or_default(), power, "DecimalSI")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_list_is_rendered_in_go_syntax() {
        for (text, value, scale, format) in [
            ("1", 1, 0, "DecimalSI"),
            ("100m", 100, -3, "DecimalSI"),
            ("2G", 2, 9, "DecimalSI"),
            ("1Gi", 1 << 30, 0, "BinarySI"),
        ] {
            let mut list = Value::object();
            list.set("cpu", text);
            assert_eq!(
                render_resource_list(&list),
                format!(
                    "core.ResourceList{{\"cpu\":resource.Quantity{{i:resource.int64Amount{{value:{value}, scale:{scale}}}, \
                     d:resource.infDecAmount{{Dec:(*inf.Dec)(nil)}}, s:\"{text}\", Format:\"{format}\"}}}}"
                )
            );
        }
    }

    #[test]
    fn quantities_compare_by_value_and_round_up() {
        for (left, right) in
            [("1", "1000m"), ("1Ki", "1024"), ("0.5", "500m"), ("1e3", "1k"), ("-1", "-1000m")]
        {
            assert_eq!(NanoQuantity::parse(left), NanoQuantity::parse(right), "{left} {right}");
        }
        assert!(NanoQuantity::parse("1Gi") > NanoQuantity::parse("1G"));
        for large in ["1e40", "1e99", "99999999999999999999999999999999999999999", "1000000000000Ei"] {
            assert!(NanoQuantity::parse(large) > NanoQuantity::parse("1Ei"), "{large}");
            assert!(NanoQuantity::parse(large).is_some_and(NanoQuantity::is_whole), "{large}");
            assert!(
                NanoQuantity::parse(&format!("-{large}")).is_some_and(NanoQuantity::is_negative),
                "{large}"
            );
        }
        let long = format!("1.{}", "0".repeat(40));
        assert_eq!(NanoQuantity::parse(&long), NanoQuantity::parse("1"), "many digits are no large amount");
        assert_eq!(NanoQuantity::parse(&format!("1{}n", "0".repeat(34))), NanoQuantity::parse("1e25"));
        assert!(NanoQuantity::parse("0e99").is_some_and(NanoQuantity::is_zero));
        assert!(NanoQuantity::parse("-1").is_some_and(NanoQuantity::is_negative));
        assert!(NanoQuantity::parse("0.0").is_some_and(NanoQuantity::is_zero));
        assert!(!NanoQuantity::parse("1m").is_some_and(NanoQuantity::is_whole));
        assert_eq!(NanoQuantity::parse("1500m").map(NanoQuantity::ceiling), Some(2));
        assert_eq!(NanoQuantity::parse("-1500m").map(NanoQuantity::ceiling), Some(-1));
        assert_eq!(NanoQuantity::parse("1500m").map(NanoQuantity::thousandths), Some(1500));
        for bad in ["", "x", "1.2.3", "1KiB"] {
            assert_eq!(NanoQuantity::parse(bad), None, "{bad}");
        }
    }
}
