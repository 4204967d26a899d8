//! The tree of tables: where the tree of each table begins.

use super::layout::{Leaf, Widths};
use super::walk::{PageSet, Step, Trust, walk};
use super::{PageFile, Tree};

/// The pairs of the tree of tables itself.
const WIDTHS: Widths = Widths { key: None, value: None };
/// The tag of a table that has one value for each key.
const NORMAL: u8 = 3;

/// A table, as the tree of tables describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDefinition {
    pub name: String,
    /// `None` if the table is empty.
    pub tree: Option<Tree>,
    pub widths: Widths,
}

impl TableDefinition {
    fn read(name: &[u8], value: &[u8]) -> Option<TableDefinition> {
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let (tag, value) = value.split_first()?;
        if *tag != NORMAL {
            return None;
        }
        let tree = match value.get(8)? {
            0 => None,
            _ => Some(Tree::read(value.get(9..9 + Tree::BYTES)?)?),
        };
        let width = |at: usize| {
            let field = value.get(at + 1..at + 5)?.try_into().ok()?;
            let width = usize::try_from(u32::from_le_bytes(field)).ok()?;
            Some((*value.get(at)? != 0).then_some(width))
        };
        let widths = 9 + Tree::BYTES;
        Some(TableDefinition {
            name,
            tree,
            widths: Widths { key: width(widths)?, value: width(widths + 5)? },
        })
    }

    /// The tables in a page that may be a leaf of the tree of tables. Nothing is proven by that.
    pub fn read_page(page: &[u8]) -> Option<Vec<TableDefinition>> {
        let leaf = Leaf::read(page, WIDTHS).filter(Leaf::is_consistent)?;
        leaf.iter().map(|(name, value)| TableDefinition::read(name, leaf.get(value)?)).collect()
    }
}

/// The tables of a tree of tables, and whether all of its pages are as they were written.
pub fn read_definitions(
    file: &PageFile,
    tree: Tree,
    pages: &mut PageSet,
) -> (Vec<TableDefinition>, Vec<u64>) {
    let (mut definitions, mut damaged) = (Vec::new(), Vec::new());
    walk(file, tree, WIDTHS, pages, &mut |step| match step {
        Step::Leaf { leaf, trust, .. } => {
            let readable =
                leaf.iter().filter_map(|(name, value)| TableDefinition::read(name, leaf.get(value)?));
            // Of a damaged page, whatever leads to a tree whose root has the right checksum is as good.
            definitions.extend(readable.filter(|table| trust == Trust::Proven || table.tree.is_some()));
        }
        Step::Damaged { offset, .. } => damaged.extend(offset),
        Step::Unreachable => {}
    });
    (definitions, damaged)
}
