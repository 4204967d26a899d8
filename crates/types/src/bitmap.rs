//! A set of small numbers, as records that several servers share have it: the allocated items of a range.

use crate::limits::RANGE_ITEMS;

/// Allocated items of a range, such as node ports by their distance from the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bitmap {
    /// Bit `i` is bit `i % 8` of byte `i / 8`.
    bytes: Vec<u8>,
}

impl Bitmap {
    /// Reads the number; `None` if it has more bits than any range has items.
    pub fn from_number(number: &[u8]) -> Option<Bitmap> {
        let start = number.iter().position(|byte| *byte != 0).unwrap_or(number.len());
        let bytes: Vec<u8> = number.iter().skip(start).rev().copied().collect();
        (bytes.len() <= RANGE_ITEMS / 8).then_some(Bitmap { bytes })
    }

    /// The number, without leading zeros.
    pub fn to_number(&self) -> Vec<u8> {
        let zeros = self.bytes.iter().rev().take_while(|byte| **byte == 0).count();
        self.bytes.iter().rev().skip(zeros).copied().collect()
    }

    /// Whether an item is allocated.
    pub fn contains(&self, item: usize) -> bool {
        self.bytes.get(item / 8).is_some_and(|byte| byte >> (item % 8) & 1 == 1)
    }

    /// Allocates an item. Returns whether it was free; false as well for items beyond every range.
    pub fn insert(&mut self, item: usize) -> bool {
        if item >= RANGE_ITEMS || self.contains(item) {
            return false;
        }
        if self.bytes.len() <= item / 8 {
            self.bytes.resize(item / 8 + 1, 0);
        }
        if let Some(byte) = self.bytes.get_mut(item / 8) {
            *byte |= 1 << (item % 8);
        }
        true
    }

    /// Releases an item. Returns whether it was allocated.
    pub fn remove(&mut self, item: usize) -> bool {
        let is_allocated = self.contains(item);
        if let Some(byte) = self.bytes.get_mut(item / 8) {
            *byte &= !(1 << (item % 8));
        }
        is_allocated
    }

    /// The first free item from `from` on, below `to`.
    pub fn next_free(&self, from: usize, to: usize) -> Option<usize> {
        let mut item = from;
        while item < to {
            match self.bytes.get(item / 8) {
                None => return Some(item),
                // A search that looked at each item of a full range would take long.
                Some(0xff) => item = (item / 8 + 1) * 8,
                Some(byte) if byte >> (item % 8) & 1 == 0 => return Some(item),
                Some(_) => item += 1,
            }
        }
        None
    }

    /// The allocated items, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.bytes.len() * 8).filter(|item| self.contains(*item))
    }

    /// The number of allocated items.
    pub fn len(&self) -> usize {
        self.bytes.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }
}

impl FromIterator<usize> for Bitmap {
    fn from_iter<I: IntoIterator<Item = usize>>(items: I) -> Bitmap {
        let mut bitmap = Bitmap::default();
        for item in items {
            bitmap.insert(item);
        }
        bitmap
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bitmap_is_a_number_in_big_endian_order() {
        for (items, number) in [
            (&[][..], &[][..]),
            (&[0], &[1]),
            (&[7], &[0x80]),
            (&[8], &[1, 0]),
            (&[0, 9, 17], &[2, 2, 1]),
            (&[2767], &[&[0x80][..], &[0; 345]].concat()),
        ] {
            let bitmap: Bitmap = items.iter().copied().collect();
            assert_eq!(bitmap.to_number(), number);
            assert_eq!(Bitmap::from_number(number), Some(bitmap.clone()));
            assert_eq!((bitmap.iter().collect::<Vec<_>>(), bitmap.len()), (items.to_vec(), items.len()));
            assert_eq!(bitmap.is_empty(), items.is_empty());
        }
        assert_eq!(Bitmap::from_number(&[0, 0, 1]).unwrap().to_number(), [1]);
    }

    #[test]
    fn bitmap_is_bounded() {
        let mut bitmap = Bitmap::default();
        assert!(bitmap.insert(RANGE_ITEMS - 1) && !bitmap.insert(RANGE_ITEMS) && !bitmap.insert(usize::MAX));
        assert!(!bitmap.contains(usize::MAX) && !bitmap.remove(usize::MAX));
        assert_eq!(Bitmap::from_number(&bitmap.to_number()).unwrap(), bitmap);
        assert_eq!(Bitmap::from_number(&vec![1; RANGE_ITEMS / 8 + 1]), None);
    }

    #[test]
    fn released_items_leave_no_zeros() {
        let mut bitmap: Bitmap = [3, 900].into_iter().collect();
        assert!(bitmap.remove(900) && !bitmap.remove(900) && !bitmap.insert(3));
        assert_eq!(bitmap.to_number(), [8]);
    }

    #[test]
    fn released_items_are_found_again() {
        let mut bitmap: Bitmap = (0..100).collect();
        assert_eq!((bitmap.next_free(0, 100), bitmap.next_free(0, 200)), (None, Some(100)));
        assert_eq!((bitmap.next_free(150, 200), bitmap.next_free(7, 7)), (Some(150), None));
        bitmap.remove(63);
        assert_eq!((bitmap.next_free(0, 100), bitmap.next_free(63, 64)), (Some(63), Some(63)));
        assert_eq!(bitmap.next_free(64, 100), None);
    }

    proptest! {
        #[test]
        fn numbers_round_trip(number in proptest::collection::vec(any::<u8>(), 0..40)) {
            let bitmap = Bitmap::from_number(&number).unwrap();
            let first = number.iter().position(|byte| *byte != 0).unwrap_or(number.len());
            prop_assert_eq!(bitmap.to_number(), &number[first..]);
            prop_assert_eq!(bitmap.len(), bitmap.iter().count());
        }

        #[test]
        fn next_free_item_is_the_first_that_is_not_contained(
            items in proptest::collection::btree_set(0usize..60, 0..60),
            from in 0usize..70,
            to in 0usize..70,
        ) {
            let bitmap: Bitmap = items.iter().copied().collect();
            prop_assert_eq!(bitmap.next_free(from, to), (from..to).find(|item| !items.contains(item)));
        }
    }
}
