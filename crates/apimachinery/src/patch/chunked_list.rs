//! A list with cheap insertions and removals at any index. In a plain vector, each insertion at the head of a long list moves all
//! its items.

/// Items of a full chunk. An insertion or removal moves at most twice as many items, and searches the list of chunks.
const CHUNK: usize = 512;

/// A list in chunks, none of which is empty.
#[derive(Clone, Debug)]
pub struct ChunkedList<T> {
    chunks: Vec<Vec<T>>,
    length: usize,
}

impl<T> ChunkedList<T> {
    /// The number of items.
    pub fn len(&self) -> usize {
        self.length
    }

    /// The items in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// The items in order, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten()
    }

    /// The item at an index, mutable.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let (chunk, offset) = self.locate(index)?;
        self.chunks.get_mut(chunk)?.get_mut(offset)
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) {
        self.length += 1;
        match self.chunks.last_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => last.push(item),
            None => self.chunks.push(vec![item]),
        }
    }

    /// Inserts an item before the one at `index`, or at the end if there is none.
    pub fn insert(&mut self, index: usize, item: T) {
        let Some((chunk_index, offset)) = self.locate(index) else { return self.push(item) };
        let Some(chunk) = self.chunks.get_mut(chunk_index) else { return };
        self.length += 1;
        chunk.insert(offset, item);
        if chunk.len() == 2 * CHUNK {
            let second = chunk.split_off(CHUNK);
            self.chunks.insert(chunk_index + 1, second);
        }
    }

    /// Removes the item at an index.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        let (chunk_index, offset) = self.locate(index)?;
        let chunk = self.chunks.get_mut(chunk_index)?;
        let removed = chunk.remove(offset);
        self.length -= 1;
        if chunk.is_empty() {
            self.chunks.remove(chunk_index);
        }
        Some(removed)
    }

    /// The chunk of an index, and the index in it.
    fn locate(&self, index: usize) -> Option<(usize, usize)> {
        let mut offset = index;
        for (chunk_index, chunk) in self.chunks.iter().enumerate() {
            match offset.checked_sub(chunk.len()) {
                Some(rest) => offset = rest,
                None => return Some((chunk_index, offset)),
            }
        }
        None
    }
}

impl<T> FromIterator<T> for ChunkedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> ChunkedList<T> {
        let mut list = ChunkedList { chunks: Vec::new(), length: 0 };
        items.into_iter().for_each(|item| list.push(item));
        list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Change {
        Push(u32),
        Insert(prop::sample::Index, u32),
        Remove(prop::sample::Index),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            any::<u32>().prop_map(Change::Push),
            (any::<prop::sample::Index>(), any::<u32>())
                .prop_map(|(index, item)| Change::Insert(index, item)),
            any::<prop::sample::Index>().prop_map(Change::Remove),
        ]
    }

    fn check(list: &mut ChunkedList<u32>, plain: &[u32]) {
        assert_eq!(list.len(), plain.len());
        assert!(list.iter().eq(plain));
        assert!(list.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() < 2 * CHUNK));
        assert_eq!(list.get_mut(plain.len()), None);
        assert_eq!(list.get_mut(plain.len() / 2).copied(), plain.get(plain.len() / 2).copied());
    }

    proptest! {
        #[test]
        fn chunked_list_behaves_like_a_vector(
            start in 0usize..4 * CHUNK,
            changes in proptest::collection::vec(change(), 0..100),
        ) {
            let mut plain: Vec<u32> = (0..).take(start).collect();
            let mut list: ChunkedList<u32> = plain.iter().copied().collect();
            for change in changes {
                match change {
                    Change::Push(item) => { list.push(item); plain.push(item); }
                    Change::Insert(index, item) => {
                        let index = index.index(plain.len() + 1);
                        list.insert(index, item);
                        plain.insert(index, item);
                    }
                    Change::Remove(index) if !plain.is_empty() => {
                        let index = index.index(plain.len());
                        prop_assert_eq!(list.remove(index), Some(plain.remove(index)));
                    }
                    Change::Remove(_) => prop_assert_eq!(list.remove(0), None),
                }
            }
            check(&mut list, &plain);
        }
    }

    /// The cost of an operation does not grow with the operations before it.
    #[test]
    fn insertions_at_one_index_keep_chunks_small() {
        let mut list: ChunkedList<u32> = (0..100_000).collect();
        (0..10_000).for_each(|item| list.insert(0, item));
        let longest = list.chunks.iter().map(Vec::len).max().unwrap();
        assert!(longest < 2 * CHUNK && list.chunks.len() <= 2 * list.len() / CHUNK, "{longest}");
        assert!((0..110_000).all(|_| list.remove(0).is_some()));
        assert_eq!((list.len(), list.chunks.len()), (0, 0));
    }
}
