//! The named fields of a schema, in as little memory as they need.

/// A sorted map from field names.
///
/// Most objects of a schema have few fields, and an entry contains a whole schema. A node of a B-tree has eleven slots of that size,
/// and the empty slots took several times the memory of the schemas.
#[derive(Clone, Debug)]
pub struct Properties<T>(Box<[(String, T)]>);

impl<T> Properties<T> {
    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.get_key_value(name).map(|(_, value)| value)
    }

    /// The stored name of a field, and its value.
    pub fn get_key_value(&self, name: &str) -> Option<(&String, &T)> {
        let index = self.0.binary_search_by(|(field, _)| field.as_str().cmp(name)).ok()?;
        self.0.get(index).map(|(field, value)| (field, value))
    }

    /// Whether there is such a field.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get_key_value(name).is_some()
    }

    /// The fields, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// The fields, sorted by name, with values that can be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&String, &mut T)> {
        self.0.iter_mut().map(|(name, value)| (&*name, value))
    }

    /// The values, sorted by name.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Default for Properties<T> {
    fn default() -> Properties<T> {
        Properties(Box::default())
    }
}

/// Of fields with the same name, the last one counts.
impl<T> FromIterator<(String, T)> for Properties<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(fields: I) -> Properties<T> {
        let mut fields: Vec<(String, T)> = fields.into_iter().collect();
        fields.sort_by(|(left, _), (right, _)| left.cmp(right));
        fields.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        Properties(fields.into_boxed_slice())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn properties_behave_as_a_map(fields in proptest::collection::vec(("[a-d]{0,2}", any::<u8>()), 0..12), name in "[a-e]{0,2}") {
            let map: BTreeMap<String, u8> = fields.iter().cloned().collect();
            let properties: Properties<u8> = fields.into_iter().collect();
            prop_assert!(properties.iter().eq(map.iter()));
            prop_assert!(properties.values().eq(map.values()));
            prop_assert_eq!(properties.get_key_value(&name), map.get_key_value(&name));
            prop_assert_eq!(properties.contains_key(&name), map.contains_key(&name));
            prop_assert_eq!((properties.len(), properties.is_empty()), (map.len(), map.is_empty()));
        }
    }
}
