//! Random values of any type, for property tests: they equal the result of decoding some body.
//!
//! A value is a function of its seed, so a test draws seeds and a failure names one. A value has only some fields of its type: a
//! kind has up to thousands, and few of them break a property.

use proptest::prelude::*;

use super::decode::is_absent;
use super::{Either, GroupVersionKind, Other, Registry, Scalar, Struct, Type, TypeId};
use crate::time;
use crate::value::{Object, Value};

/// The depth to which recursive types are followed.
const MAX_DEPTH: usize = 16;
/// The maximum number of fields of one value.
const MAX_FIELDS: usize = 250;

/// A kind of the registry with a value, including kind and apiVersion.
pub fn object(registry: &'static Registry) -> impl Strategy<Value = (GroupVersionKind, TypeId, Value)> {
    let mut kinds: Vec<(GroupVersionKind, TypeId)> = registry.kinds().collect();
    kinds.sort();
    (proptest::sample::select(kinds), any::<u64>()).prop_map(|((kind, ty), seed)| {
        let value = of_kind(registry, &kind, ty, seed);
        (kind, ty, value)
    })
}

/// A value of this kind, including kind and apiVersion.
pub fn of_kind(registry: &Registry, kind: &GroupVersionKind, ty: TypeId, seed: u64) -> Value {
    let mut value = of_type(registry, ty, seed);
    value.set("kind", kind.kind.as_str());
    value.set("apiVersion", kind.api_version());
    value
}

/// A value of this type in canonical form, without kind and apiVersion at any level.
pub fn of_type(registry: &Registry, ty: TypeId, seed: u64) -> Value {
    let mut source = Source { registry, state: seed, one_in: 1, remaining: MAX_FIELDS };
    // Some values are full and some are sparse: properties break at both ends.
    source.one_in = source.pick(&[1, 1, 2, 2, 3, 5]);
    source.value(ty, MAX_DEPTH)
}

struct Source<'r> {
    registry: &'r Registry,
    state: u64,
    /// One field in so many is set.
    one_in: u64,
    /// The number of fields that may still be set.
    remaining: usize,
}

impl Source<'_> {
    /// The next random number: a mixed counter.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn value(&mut self, ty: TypeId, depth: usize) -> Value {
        let registry = self.registry;
        let depth = depth.saturating_sub(1);
        match registry.get(ty) {
            Type::Struct(structure) => Value::Object(self.fields(structure, depth)),
            Type::List(list) => {
                let count = 1 + self.below(3);
                Value::Array((0..count).map(|_| self.value(list.item, depth)).collect())
            }
            Type::Map(map) => {
                let count = 1 + self.below(3);
                Value::Object((0..count).map(|_| (self.text(), self.value(map.value, depth))).collect())
            }
            Type::Either(either) => self.either(*either, depth),
            Type::Scalar(scalar) => self.scalar(*scalar, depth),
        }
    }

    fn fields(&mut self, structure: &Struct, depth: usize) -> Object {
        let mut fields = Object::new();
        // The first two fields of an object are kind and apiVersion.
        let own = structure.fields.get(if structure.object { 2 } else { 0 }..).unwrap_or_default();
        // Starts anywhere, because the last fields may exceed the limit.
        let start = self.below(own.len().max(1) as u64) as usize;
        for field in own.iter().cycle().skip(start).take(own.len()) {
            if depth == 0 || self.remaining == 0 || self.below(self.one_in) > 0 {
                continue;
            }
            self.remaining -= 1;
            let value = self.value(field.ty, depth);
            if !value.is_null() && !is_absent(self.registry, field, &value) {
                fields.insert(field.name.to_string(), value);
            }
        }
        fields
    }

    fn either(&mut self, either: Either, depth: usize) -> Value {
        match either.other {
            _ if depth > 1 && self.below(2) == 0 => self.value(either.object, depth),
            Other::Bool => Value::Bool(self.below(2) == 0),
            Other::List(list) => self.value(list, depth),
        }
    }

    fn text(&mut self) -> String {
        let words =
            ["", "a", "metadata", "line\nbreak", "\"quoted\\\"", "<&>", "grüße", "日本", "\u{2028}", "0"];
        format!("{}{}", self.pick(&words), self.pick(&words))
    }

    fn integer(&mut self) -> i64 {
        let any = self.next() as i64;
        self.pick(&[0, 1, -1, 127, 128, 300, i64::MAX, i64::MIN, any])
    }

    fn seconds(&mut self) -> i64 {
        let ordinary = self.below(2_000_000_000) as i64;
        self.pick(&[0, -1, 1, time::ZERO_SECONDS + 1, 253_402_300_799, ordinary])
    }

    fn scalar(&mut self, scalar: Scalar, depth: usize) -> Value {
        match scalar {
            Scalar::String => Value::String(self.text()),
            Scalar::Int32 => Value::Int(i64::from(self.integer() as i32)),
            Scalar::Int64 => Value::Int(self.integer()),
            Scalar::Bool => Value::Bool(self.below(2) == 0),
            Scalar::Double => Value::Float(self.pick(&[0.5, -2.25, 1e300, 3.0, 1e-9])),
            Scalar::Bytes => Value::from(self.pick(&["AA==", "aGVsbG8=", "/+8=", "////"])),
            Scalar::Time => Value::String(time::format_seconds(self.seconds())),
            Scalar::MicroTime => {
                let micros = self.below(1_000_000) as u32;
                Value::String(time::format_micros(self.seconds(), micros))
            }
            Scalar::Quantity => Value::from(self.pick(&["0", "1", "100m", "1Gi", "-3", "12e6", "500n"])),
            Scalar::IntOrString if self.below(2) == 0 => Value::Int(i64::from(self.integer() as i32)),
            Scalar::IntOrString => Value::String(self.text()),
            Scalar::Raw => Value::Object([(self.text(), self.any(depth.min(3)))].into()),
            Scalar::RawJson | Scalar::Free => match self.any(depth.min(3)) {
                Value::Null => Value::Bool(true),
                value => value,
            },
        }
    }

    /// A value without a type.
    fn any(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 5 } else { 7 }) {
            0 => Value::Null,
            1 => Value::Bool(true),
            2 => Value::Int(self.integer()),
            3 => Value::Float(1.5),
            4 => Value::String(self.text()),
            5 => Value::Array(vec![self.any(depth - 1), self.any(depth - 1)].into()),
            _ => Value::Object([(self.text(), self.any(depth - 1))].into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::schema::{decode, encode};

    static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

    #[test]
    fn random_objects_have_a_moderate_size() {
        let size =
            |((kind, ty), seed)| encode::encode(&REGISTRY, ty, &of_kind(&REGISTRY, &kind, ty, seed)).len();
        let sizes: Vec<usize> = REGISTRY.kinds().zip(0..).map(size).collect();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((500..10_000).contains(&mean), "{mean}");
    }

    proptest! {
        #[test]
        fn random_values_equal_decoded_values((_, ty, value) in object(&REGISTRY)) {
            let text = encode::encode(&REGISTRY, ty, &value);
            let decoded = decode::decode(&REGISTRY, ty, &text).unwrap();
            prop_assert_eq!(decoded.value, value);
            prop_assert_eq!(decoded.strict, Vec::<String>::new());
        }
    }
}
