//! The two kinds of pages: leaves with keys and values, and branches that lead to them.

use std::ops::Range;

use super::{PageNumber, checksum};

const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// The bytes before the numbers of a leaf: its kind, and the number of its pairs.
const LEAF_HEAD: usize = 4;
const BRANCH_HEAD: usize = 8;
const CHECKSUM_BYTES: usize = 16;
const NUMBER_BYTES: usize = 8;
const END_BYTES: usize = 4;

/// The width of the keys and of the values of a table, if it is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    pub key: Option<usize>,
    pub value: Option<usize>,
}

fn number(bytes: &[u8], offset: usize) -> Option<usize> {
    let field = bytes.get(offset..offset + END_BYTES)?;
    usize::try_from(u32::from_le_bytes(field.try_into().ok()?)).ok()
}

/// The number of pairs in a leaf, or of keys in a branch.
fn count(bytes: &[u8]) -> Option<usize> {
    let count = usize::from(u16::from_le_bytes(bytes.get(2..LEAF_HEAD)?.try_into().ok()?));
    (count > 0).then_some(count)
}

/// A page with pairs. Its numbers may be wrong, unless its checksum was compared.
pub struct Leaf<'a> {
    bytes: &'a [u8],
    widths: Widths,
    /// The number of its pairs.
    pub pairs: usize,
}

impl<'a> Leaf<'a> {
    /// The leaf in these bytes, which may go on behind it; `None` if this is not one.
    pub fn read(bytes: &'a [u8], widths: Widths) -> Option<Leaf<'a>> {
        (bytes.first() == Some(&LEAF)).then(|| Leaf::read_any(bytes, widths))?
    }

    /// The same, whatever kind of page it says it is.
    fn read_any(bytes: &'a [u8], widths: Widths) -> Option<Leaf<'a>> {
        let leaf = Leaf { bytes, widths, pairs: count(bytes)? };
        (leaf.values_start()? <= bytes.len()).then_some(leaf)
    }

    /// Whether its numbers agree with each other. A leaf whose checksum is right always agrees.
    pub fn is_consistent(&self) -> bool {
        let mut ends = self.keys_start();
        let mut follows = |end: Option<usize>| {
            let follows = end.is_some_and(|end| (ends..=self.bytes.len()).contains(&end));
            ends = end.unwrap_or_default();
            follows
        };
        (0..self.pairs).all(|pair| follows(self.key_end(pair)))
            && (0..self.pairs).all(|pair| follows(self.value_end(pair)))
    }

    fn keys_start(&self) -> usize {
        let tables = usize::from(self.widths.key.is_none()) + usize::from(self.widths.value.is_none());
        LEAF_HEAD + tables * END_BYTES * self.pairs
    }

    /// Where the first value begins.
    pub fn values_start(&self) -> Option<usize> {
        self.key_end(self.pairs - 1)
    }

    fn key_end(&self, pair: usize) -> Option<usize> {
        match self.widths.key {
            Some(width) => Some(self.keys_start() + width * (pair + 1)),
            None => number(self.bytes, LEAF_HEAD + END_BYTES * pair),
        }
    }

    /// Where a value ends, as the page says.
    pub fn value_end(&self, pair: usize) -> Option<usize> {
        match self.widths.value {
            Some(width) => Some(self.values_start()? + width * (pair + 1)),
            None => {
                let tables = usize::from(self.widths.key.is_none());
                number(self.bytes, LEAF_HEAD + END_BYTES * (tables * self.pairs + pair))
            }
        }
    }

    /// The key of a pair.
    pub fn key(&self, pair: usize) -> Option<&'a [u8]> {
        let start = if pair == 0 { self.keys_start() } else { self.key_end(pair - 1)? };
        self.bytes.get(start..self.key_end(pair)?)
    }

    /// Where the value of a pair is in the page.
    pub fn value_range(&self, pair: usize) -> Option<Range<usize>> {
        let start = if pair == 0 { self.values_start()? } else { self.value_end(pair - 1)? };
        let end = self.value_end(pair)?;
        (start <= end && end <= self.bytes.len()).then_some(start..end)
    }

    /// Bytes of the page.
    pub fn get(&self, range: Range<usize>) -> Option<&'a [u8]> {
        self.bytes.get(range)
    }

    /// The bytes from `start` to the end of the page.
    pub fn from(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..).unwrap_or_default()
    }

    /// The pairs of a consistent leaf.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], Range<usize>)> {
        (0..self.pairs).filter_map(|pair| Some((self.key(pair)?, self.value_range(pair)?)))
    }

    fn has_checksum(&self, expected: u128) -> bool {
        let content = self.value_end(self.pairs - 1).and_then(|end| self.bytes.get(..end));
        content.is_some_and(|content| checksum(content) == expected)
    }
}

/// A page that leads to others.
pub struct Branch<'a> {
    bytes: &'a [u8],
    key_width: Option<usize>,
    keys: usize,
}

impl<'a> Branch<'a> {
    fn read(bytes: &'a [u8], widths: Widths) -> Option<Branch<'a>> {
        (bytes.first() == Some(&BRANCH)).then(|| damaged_branch(bytes, widths))?
    }

    pub fn children(&self) -> usize {
        self.keys + 1
    }

    /// A child, and the checksum that it must have.
    pub fn child(&self, index: usize) -> Option<(PageNumber, u128)> {
        let checksum = BRANCH_HEAD + CHECKSUM_BYTES * index;
        let checksum = self.bytes.get(checksum..checksum + CHECKSUM_BYTES)?;
        let number = BRANCH_HEAD + CHECKSUM_BYTES * self.children() + NUMBER_BYTES * index;
        let number = PageNumber::read(self.bytes.get(number..number + NUMBER_BYTES)?)?;
        Some((number, u128::from_le_bytes(checksum.try_into().ok()?)))
    }

    /// The key at or above all keys of the child with this index, and below those of the next.
    pub fn key(&self, index: usize) -> Option<&'a [u8]> {
        let start = if index == 0 { self.keys_start() } else { self.key_end(index - 1)? };
        self.bytes.get(start..self.key_end(index)?)
    }

    fn numbers_end(&self) -> usize {
        BRANCH_HEAD + (CHECKSUM_BYTES + NUMBER_BYTES) * self.children()
    }

    fn keys_start(&self) -> usize {
        let ends = if self.key_width.is_some() { 0 } else { END_BYTES * self.keys };
        self.numbers_end() + ends
    }

    fn key_end(&self, index: usize) -> Option<usize> {
        match self.key_width {
            Some(width) => Some(self.keys_start() + width * (index + 1)),
            None => number(self.bytes, self.numbers_end() + END_BYTES * index),
        }
    }

    fn has_checksum(&self, expected: u128) -> bool {
        let content = self.key_end(self.keys - 1).and_then(|end| self.bytes.get(..end));
        content.is_some_and(|content| checksum(content) == expected)
    }
}

/// A page whose checksum is right.
pub enum Whole<'a> {
    Leaf(Leaf<'a>),
    Branch(Branch<'a>),
}

/// Compares the checksum of a page.
pub fn verify(bytes: &[u8], widths: Widths, expected: u128) -> Option<Whole<'_>> {
    let leaf = Leaf::read(bytes, widths).filter(|leaf| leaf.has_checksum(expected));
    let branch = || Branch::read(bytes, widths).filter(|branch| branch.has_checksum(expected));
    leaf.map(Whole::Leaf).or_else(|| branch().map(Whole::Branch))
}

/// A page whose checksum is wrong, as a leaf. If the damage is in its first byte, its numbers must agree.
pub fn damaged_leaf(bytes: &[u8], widths: Widths) -> Option<Leaf<'_>> {
    match *bytes.first()? {
        LEAF => Leaf::read(bytes, widths),
        BRANCH => None,
        _ => Leaf::read_any(bytes, widths).filter(Leaf::is_consistent),
    }
}

/// A page whose checksum is wrong, as a branch.
pub fn damaged_branch(bytes: &[u8], widths: Widths) -> Option<Branch<'_>> {
    let branch = Branch { bytes, key_width: widths.key, keys: count(bytes)? };
    (branch.keys_start() <= bytes.len()).then_some(branch)
}
