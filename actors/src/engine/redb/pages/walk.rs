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

/// Pages of a file: those that walks have proven, so that nobody takes them for what they are not.
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

    /// Whether the page with this byte is one of them.
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
    let seen = Seen { proven: Visits::new(file), below_damage: Visits::new(file) };
    let mut walk = Walk { file, widths, pages, seen, visit };
    walk.descend(tree.root, tree.checksum, &Bounds::default(), Trust::Proven, 0);
}

/// Whether the first page of a tree is as it was written.
pub fn is_root_proven(file: &PageFile, tree: Tree, widths: Widths) -> bool {
    file.page(tree.root).is_some_and(|(_, bytes)| verify(&bytes, widths, tree.checksum).is_some())
}

/// The pages that a walk was at. No page of a tree is in it twice, and a file that says otherwise must not make the walk endless: if all
/// children of each branch are one page, the paths double with every level.
struct Seen {
    proven: Visits,
    below_damage: Visits,
}

/// The pages to which references of one trust led.
struct Visits {
    whole: PageSet,
    damaged: PageSet,
}

impl Visits {
    fn new(file: &PageFile) -> Visits {
        Visits { whole: PageSet::new(file), damaged: PageSet::new(file) }
    }
}

impl Seen {
    fn visits_mut(&mut self, trust: Trust) -> &mut Visits {
        if trust == Trust::Proven { &mut self.proven } else { &mut self.below_damage }
    }

    /// Whether a page with the right checksum was visited by a reference that is trusted as much.
    fn has(&self, offset: u64, trust: Trust) -> bool {
        let is_below = || trust != Trust::Proven && self.below_damage.whole.contains(offset);
        self.proven.whole.contains(offset) || is_below()
    }
}

struct Walk<'a> {
    file: &'a PageFile,
    widths: Widths,
    pages: &'a mut PageSet,
    seen: Seen,
    visit: &'a mut dyn FnMut(Step<'_>),
}

impl Walk<'_> {
    fn descend(&mut self, number: PageNumber, expected: u128, bounds: &Bounds, trust: Trust, depth: usize) {
        let start = number.range().map(|range| range.start);
        let is_known = start.is_some_and(|start| self.seen.has(start, trust));
        if is_known && trust != Trust::Proven {
            // What leads there may be old, and share pages with what is new.
            return;
        }
        let page = if is_known { None } else { self.file.page(number).filter(|_| depth < SALVAGE_DEPTH) };
        let Some((offset, bytes)) = page else {
            (self.visit)(Step::Damaged { offset: start.filter(|_| is_known), bounds });
            (self.visit)(Step::Unreachable);
            return;
        };
        let whole = verify(&bytes, self.widths, expected);
        if whole.is_some() {
            self.seen.visits_mut(trust).whole.insert(offset, bytes.len());
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
            None => self.salvage(offset, &bytes, bounds, trust, depth),
        }
    }

    /// Reads what is left of a page whose checksum is wrong.
    fn salvage(&mut self, offset: u64, bytes: &[u8], bounds: &Bounds, trust: Trust, depth: usize) {
        (self.visit)(Step::Damaged { offset: Some(offset), bounds });
        let damaged = &mut self.seen.visits_mut(trust).damaged;
        if damaged.contains(offset) {
            (self.visit)(Step::Unreachable);
            return;
        }
        // How long it was meant to be is not known.
        damaged.insert(offset, 1);
        if let Some(leaf) = damaged_leaf(bytes, self.widths) {
            (self.visit)(Step::Leaf { leaf, offset, trust: Trust::Damaged, bounds });
            return;
        }
        (self.visit)(Step::Unreachable);
        let Some(branch) = damaged_branch(bytes, self.widths) else { return };
        for index in 0..branch.children() {
            let Some((child, expected)) = branch.child(index) else { continue };
            if child.range().is_some_and(|range| self.seen.has(range.start, Trust::BelowDamage)) {
                continue;
            }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::checksum;
    use super::*;

    const WIDTHS: Widths = Widths { key: Some(8), value: Some(8) };

    /// A page, all of whose children are one page.
    fn branch(child: u64, expected: u128, children: usize) -> Vec<u8> {
        let keys = u16::try_from(children - 1).unwrap();
        let mut bytes = [&[2, 0][..], &keys.to_le_bytes(), &[0; 4]].concat();
        (0..children).for_each(|_| bytes.extend(expected.to_le_bytes()));
        (0..children).for_each(|_| bytes.extend(child.to_le_bytes()));
        (0..u64::from(keys)).for_each(|key| bytes.extend(key.to_le_bytes()));
        bytes
    }

    /// Walks through pages of which each has the one before as all of its children. Returns how many leaves and damaged pages
    /// that showed.
    fn walk_over(leaf_checksum: impl FnOnce(&[u8]) -> u128) -> (usize, usize) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages");
        let leaf = [&[1, 0, 1, 0][..], &[7; 16]].concat();
        let mut expected = leaf_checksum(&leaf);
        let mut file = vec![0; PAGE_BYTES as usize];
        let mut add = |page: &[u8]| {
            file.extend(page);
            file.resize(file.len().next_multiple_of(PAGE_BYTES as usize), 0);
        };
        add(&leaf);
        let levels = 60;
        for child in 0..levels {
            let page = branch(child, expected, 100);
            expected = checksum(&page);
            add(&page);
        }
        fs::write(&path, &file).unwrap();
        let file = PageFile::open(&path).unwrap();
        let tree = Tree { root: PageNumber(levels), checksum: expected, length: 1 };
        let (mut leaves, mut damaged) = (0, 0);
        walk(&file, tree, WIDTHS, &mut PageSet::new(&file), &mut |step| match step {
            Step::Leaf { .. } => leaves += 1,
            Step::Damaged { .. } => damaged += 1,
            Step::Unreachable => {}
        });
        (leaves, damaged)
    }

    #[test]
    fn page_with_many_parents_is_visited_once_and_named() {
        assert_eq!(walk_over(checksum), (1, 60 * 99));
        // Of a damaged leaf, its content, and that it is damaged.
        assert_eq!(walk_over(|_| 0), (1, 60 * 99 + 1));
    }
}
