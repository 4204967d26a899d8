//! Finds the tables of a store: by the header of the file, or without it.

use super::super::pages::{
    Header, PAGE_BYTES, PageFile, PageSet, Slot, Step, TableDefinition, Tree, Trust, is_root_proven,
    read_definitions, walk,
};
use super::super::{COUNTERS, LOG, TYPES};
use super::log_reader::LOG_WIDTHS;
use redb::TableHandle as _;

/// The tables as one transaction left them.
#[derive(Default)]
pub(super) struct Root {
    pub(super) tables: Vec<TableDefinition>,
    /// The tree of redb's own tables.
    pub(super) system: Option<Tree>,
    /// How many transactions redb would take before it. `None` if the header does not name it.
    pub(super) age: Option<usize>,
    /// Whether nothing newer was ever in the file, as far as anybody can say.
    pub(super) is_newest: bool,
    /// Pages of the tree of tables that are damaged.
    pub(super) damaged: Vec<u64>,
}

impl Root {
    fn of_slot(file: &PageFile, header: &Header, age: usize, slot: &Slot) -> Option<Root> {
        let (tables, damaged) = read_definitions(file, slot.tables?, &mut PageSet::new(file));
        let is_newest = age == 0 && header.has_newest && damaged.is_empty();
        Some(Root { tables, system: slot.system, age: Some(age), is_newest, damaged })
    }

    /// The definition of a table.
    pub(super) fn table(&self, name: &str) -> Option<&TableDefinition> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Whether the first page of the log is as it was written.
    fn leads_to_log(&self, file: &PageFile) -> bool {
        let Some(log) = self.table(LOG.name()) else { return false };
        log.tree.is_none_or(|tree| is_root_proven(file, tree, LOG_WIDTHS))
    }

    /// How many writes the store had seen: the sum of its counters.
    fn writes(&self, file: &PageFile) -> Option<u128> {
        let counters = self.table(COUNTERS.name())?;
        let (mut sum, mut is_proven) = (0, true);
        walk(file, counters.tree?, counters.widths, &mut PageSet::new(file), &mut |step| match step {
            Step::Leaf { leaf, trust: Trust::Proven, .. } => {
                let values = leaf.iter().filter_map(|(_, value)| leaf.get(value)?.try_into().ok());
                sum += values.map(|value| u128::from(u64::from_le_bytes(value))).sum::<u128>();
            }
            _ => is_proven = false,
        });
        is_proven.then_some(sum)
    }
}

/// The tables from which to read, the best first. Empty if nothing in the file describes tables.
pub(super) fn find(file: &PageFile, header: &Header) -> Vec<Root> {
    let slots = header.slots.iter().enumerate();
    let mut roots: Vec<Root> =
        slots.filter_map(|(age, slot)| Root::of_slot(file, header, age, slot)).collect();
    roots.retain(|root| root.table(LOG.name()).is_some());
    if roots.iter().any(|root| root.is_newest || root.leads_to_log(file)) {
        // Whether the log of the newest can be read is another question: nothing is newer.
        roots.sort_by_key(|root| !(root.is_newest || root.leads_to_log(file)));
        return roots;
    }
    let mut stray = find_stray(file);
    stray.append(&mut roots);
    stray
}

/// Looks for pages that describe tables anywhere in the file. Those of earlier transactions may be there as well: the best has seen the
/// most writes.
fn find_stray(file: &PageFile) -> Vec<Root> {
    let mut stray: Vec<(u128, Root)> = Vec::new();
    for offset in (PAGE_BYTES..file.len()).step_by(PAGE_BYTES as usize) {
        let page = file.read(offset..offset + PAGE_BYTES);
        let Some(tables) = TableDefinition::read_page(&page) else { continue };
        let root = Root { tables, ..Root::default() };
        if root.table(TYPES.name()).is_some()
            && root.leads_to_log(file)
            && let Some(writes) = root.writes(file)
        {
            stray.push((writes, root));
        }
    }
    stray.sort_by_key(|(writes, _)| std::cmp::Reverse(*writes));
    stray.into_iter().map(|(_, root)| root).collect()
}
