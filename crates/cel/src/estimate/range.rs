//! Ranges of costs and sizes.

/// A minimum and a maximum: of a cost or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The lower bound.
    pub min: u64,
    /// The upper bound.
    pub max: u64,
}

impl Range {
    /// A known number.
    pub const fn fixed(number: u64) -> Range {
        Range { min: number, max: number }
    }

    /// Any number.
    pub const UNKNOWN: Range = Range { min: 0, max: u64::MAX };
    /// Zero.
    pub const ZERO: Range = Range::fixed(0);
    /// No number: the union with another range is that range.
    pub const EMPTY: Range = Range { min: u64::MAX, max: 0 };

    /// The sum.
    pub fn plus(self, other: Range) -> Range {
        Range { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    /// The product.
    pub fn times(self, other: Range) -> Range {
        Range { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Multiplied by a factor and rounded up.
    pub fn scaled(self, factor: f64) -> Range {
        let scaled = |number: u64| {
            let product = (number as f64 * factor).ceil();
            if product >= 18_446_744_073_709_551_615.0 { u64::MAX } else { product as u64 }
        };
        Range { min: scaled(self.min), max: scaled(self.max) }
    }

    /// The union of both ranges.
    pub fn union(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}
