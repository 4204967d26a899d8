//! The walk through a tree, which proves each page by the checksum beside the reference to it.

use super::layout::{Branch, Leaf, Whole, Widths, damaged_branch, damaged_leaf, verify};
use super::{PAGE_BYTES, PageFile, PageNumber, Tree};
use crate::limits::SALVAGE_DEPTH;

/// What is known about a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It is as it was written, and so is everything that leads to it.
    Proven,
    /// It is as it was written, but a page that leads to it is not: it may have been replaced since.
    BelowDamage,
    /// It is not as it was written.
    Damaged,
    /// It is in no tree, and may be from any time.
    Stray,
}

/// The keys that a page may have, by the branches above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// All keys are above this one.
    pub after: Option<Vec<u8>>,
    /// The highest possible key.
    pub through: Option<Vec<u8>>,
}

/// What a walk finds, in the order of the keys.
pub enum Step<'a> {
    /// A leaf, which begins at this byte of the file.
    Leaf { leaf: Leaf<'a>, offset: u64, trust: Trust, bounds: &'a Bounds },
    /// A page that is not as it was written; `None` if the file has no such page. What can be read of it follows.
    Damaged { offset: Option<u64>, bounds: &'a Bounds },
    /// Between the bounds of the last damaged page there may be pairs that no other step shows.
    Unreachable,
}

/// The pages that a walk has proven, so that nobody takes them for what they are not.
pub struct PageSet(Vec<u64>);

impl PageSet {
    /// No page of this file.
    pub fn new(file: &PageFile) -> PageSet {
        let words = usize::try_from(file.len() / PAGE_BYTES / 64 + 1).unwrap_or_default();
        PageSet(vec![0; words])
    }

    fn place(offset: u64) -> (usize, u64) {
        let page = offset / PAGE_BYTES;
        (usize::try_from(page / 64).unwrap_or(usize::MAX), 1 << (page % 64))
    }

    fn insert(&mut self, start: u64, bytes: usize) {
        for offset in (start..start + bytes as u64).step_by(PAGE_BYTES as usize) {
            let (word, bit) = PageSet::place(offset);
            if let Some(word) = self.0.get_mut(word) {
                *word |= bit;
            }
        }
    }

    /// Whether the page with this byte was proven.
    pub fn contains(&self, offset: u64) -> bool {
        let (word, bit) = PageSet::place(offset);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// Walks through a tree in the order of its keys, however damaged it is.
pub fn walk(
    file: &PageFile,
    tree: Tree,
    widths: Widths,
    pages: &mut PageSet,
    visit: &mut dyn FnMut(Step<'_>),
) {
    let mut walk = Walk { file, widths, pages, visit };
    walk.descend(tree.root, tree.checksum, &Bounds::default(), Trust::Proven, 0);
}

/// Whether the first page of a tree is as it was written.
pub fn is_root_proven(file: &PageFile, tree: Tree, widths: Widths) -> bool {
    file.page(tree.root).is_some_and(|(_, bytes)| verify(&bytes, widths, tree.checksum).is_some())
}

struct Walk<'a> {
    file: &'a PageFile,
    widths: Widths,
    pages: &'a mut PageSet,
    visit: &'a mut dyn FnMut(Step<'_>),
}

impl Walk<'_> {
    fn descend(&mut self, number: PageNumber, expected: u128, bounds: &Bounds, trust: Trust, depth: usize) {
        let page = self.file.page(number).filter(|_| depth < SALVAGE_DEPTH);
        let Some((offset, bytes)) = page else {
            (self.visit)(Step::Damaged { offset: None, bounds });
            (self.visit)(Step::Unreachable);
            return;
        };
        let whole = verify(&bytes, self.widths, expected);
        if whole.is_some() {
            self.pages.insert(offset, bytes.len());
        }
        match whole {
            Some(Whole::Leaf(leaf)) => (self.visit)(Step::Leaf { leaf, offset, trust, bounds }),
            Some(Whole::Branch(branch)) => {
                for index in 0..branch.children() {
                    let Some((child, expected)) = branch.child(index) else { continue };
                    let within = child_bounds(&branch, index, bounds);
                    self.descend(child, expected, &within, trust, depth + 1);
                }
            }
            None => self.salvage(offset, &bytes, bounds, depth),
        }
    }

    /// Reads what is left of a page whose checksum is wrong.
    fn salvage(&mut self, offset: u64, bytes: &[u8], bounds: &Bounds, depth: usize) {
        (self.visit)(Step::Damaged { offset: Some(offset), bounds });
        if let Some(leaf) = damaged_leaf(bytes, self.widths) {
            (self.visit)(Step::Leaf { leaf, offset, trust: Trust::Damaged, bounds });
            return;
        }
        (self.visit)(Step::Unreachable);
        let Some(branch) = damaged_branch(bytes, self.widths) else { return };
        for index in 0..branch.children() {
            let Some((child, expected)) = branch.child(index) else { continue };
            // Only a reference that is right leads to a page with the right checksum. What else it may lead to is not searched.
            let page = self.file.page(child);
            if page.is_some_and(|(_, bytes)| verify(&bytes, self.widths, expected).is_some()) {
                self.descend(child, expected, bounds, Trust::BelowDamage, depth + 1);
            }
        }
    }
}

/// The bounds of a child of a proven branch.
fn child_bounds(branch: &Branch<'_>, index: usize, bounds: &Bounds) -> Bounds {
    let before = index.checked_sub(1).and_then(|before| branch.key(before));
    Bounds {
        after: before.map(<[u8]>::to_vec).or_else(|| bounds.after.clone()),
        through: branch
            .key(index)
            .filter(|_| index + 1 < branch.children())
            .map(<[u8]>::to_vec)
            .or_else(|| bounds.through.clone()),
    }
}
