//! The items of a list, shared between copies until one of them is changed, as the fields of an object are.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::{slice, vec};

use super::Value;

static EMPTY: Vec<Value> = Vec::new();

/// The items of a list.
#[derive(Clone, Default)]
pub struct Array(Option<Arc<Vec<Value>>>);

impl Array {
    /// A list without items.
    pub const fn new() -> Array {
        Array(None)
    }

    /// The items themselves, copied if others share them.
    pub fn into_items(self) -> Vec<Value> {
        self.0.map(Arc::unwrap_or_clone).unwrap_or_default()
    }

    fn is_shared_with(&self, other: &Array) -> bool {
        match (&self.0, &other.0) {
            (Some(left), Some(right)) => Arc::ptr_eq(left, right),
            (left, right) => left.is_none() && right.is_none(),
        }
    }
}

impl Deref for Array {
    type Target = Vec<Value>;

    fn deref(&self) -> &Vec<Value> {
        self.0.as_deref().unwrap_or(&EMPTY)
    }
}

/// Write access copies the items first, if another copy shares them.
impl DerefMut for Array {
    fn deref_mut(&mut self) -> &mut Vec<Value> {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Array) -> bool {
        self.is_shared_with(other) || **self == **other
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The items of one chunk of a builder: 96 KiB.
const CHUNK: usize = 4_096;

/// Collects the items of a list of unknown length. A growing vector holds two copies while it is reallocated, and a third of
/// it is unused afterwards; a long list is collected in chunks instead, which are joined once the length is known.
#[derive(Default)]
pub struct ArrayBuilder {
    full: Vec<Vec<Value>>,
    last: Vec<Value>,
}

impl ArrayBuilder {
    /// The number of items so far.
    pub fn len(&self) -> usize {
        self.full.len() * CHUNK + self.last.len()
    }

    /// Whether there are no items so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an item.
    pub fn push(&mut self, item: Value) {
        if self.last.len() == CHUNK {
            self.full.push(std::mem::replace(&mut self.last, Vec::with_capacity(CHUNK)));
        }
        self.last.push(item);
    }

    /// The list.
    pub fn finish(self) -> Array {
        if self.full.is_empty() {
            return self.last.into();
        }
        let mut items = Vec::with_capacity(self.len());
        for chunk in self.full.into_iter().chain([self.last]) {
            items.extend(chunk);
        }
        items.into()
    }
}

/// Releases unused capacity if it is at least half: less is not worth a copy, and the allocator would not reuse it.
impl From<Vec<Value>> for Array {
    fn from(mut items: Vec<Value>) -> Array {
        if items.len() * 2 <= items.capacity() {
            items.shrink_to_fit();
        }
        Array((!items.is_empty()).then(|| Arc::new(items)))
    }
}

impl FromIterator<Value> for Array {
    fn from_iter<I: IntoIterator<Item = Value>>(items: I) -> Array {
        items.into_iter().collect::<Vec<Value>>().into()
    }
}

impl IntoIterator for Array {
    type Item = Value;
    type IntoIter = vec::IntoIter<Value>;

    fn into_iter(self) -> vec::IntoIter<Value> {
        self.into_items().into_iter()
    }
}

impl<'a> IntoIterator for &'a Array {
    type Item = &'a Value;
    type IntoIter = slice::Iter<'a, Value>;

    fn into_iter(self) -> slice::Iter<'a, Value> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Array {
    type Item = &'a mut Value;
    type IntoIter = slice::IterMut<'a, Value>;

    fn into_iter(self) -> slice::IterMut<'a, Value> {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_shares_items_until_it_is_changed() {
        let list = Array::from(vec![Value::Int(1), Value::Int(2)]);
        let mut copy = list.clone();
        assert!(copy.is_shared_with(&list));
        copy.push(Value::Int(3));
        assert!(!copy.is_shared_with(&list));
        assert_eq!((list.len(), copy.len()), (2, 3));
        copy.pop();
        assert_eq!(copy, list, "equal by content");
        let items: Vec<Value> = list.clone().into_iter().collect();
        assert_eq!((items.len(), list.len()), (2, 2));
    }

    #[test]
    fn emptied_list_equals_new_list() {
        let mut emptied = Array::from(vec![Value::Null]);
        emptied.clear();
        assert_eq!(emptied, Array::new());
        assert!(Array::from(Vec::with_capacity(9)).0.is_none());
    }

    #[test]
    fn array_builder_joins_chunks_in_order() {
        for length in [0, 1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let mut builder = ArrayBuilder::default();
            for number in 0..length {
                assert_eq!(builder.len(), number);
                builder.push(Value::Int(number as i64));
            }
            let list = builder.finish();
            assert!(list.iter().enumerate().all(|(index, item)| *item == Value::Int(index as i64)));
            assert_eq!(list.len(), length);
            assert!(list.capacity() < 2 * length.max(1) + 1, "{length}: {}", list.capacity());
        }
    }

    #[test]
    fn unused_capacity_is_released() {
        let mut items = Vec::with_capacity(1 << 10);
        items.push(Value::Null);
        assert_eq!(Array::from(items).capacity(), 1);
    }
}
