//! The small tables of a store: names of types, counters, and what the file says about itself.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_types::object::TypeName;
use redb::TableHandle as _;

use super::super::pages::{PageFile, PageSet, Step, TableDefinition, Tree, Trust, read_definitions, walk};
use super::super::{
    ABOUT, COUNTERS, FIRST_REVISION_KEY, FORMAT_KEY, LOG, META, TYPES, TYPES_COPY, VERSION_KEY,
};
use super::finding::{Finding, FindingKind};
use super::roots::Root;
use super::stray;
use crate::engine::EngineError;

/// The pairs of a table.
#[derive(Default)]
struct Pairs {
    /// The pairs of pages that are as they were written.
    proven: Vec<(Vec<u8>, Vec<u8>)>,
    /// Those of the others.
    doubtful: Vec<(Vec<u8>, Vec<u8>)>,
    damaged: Vec<Option<u64>>,
}

impl Pairs {
    fn read(file: &PageFile, table: &TableDefinition, pages: &mut PageSet) -> Pairs {
        let mut pairs = Pairs::default();
        let Some(tree) = table.tree else { return pairs };
        walk(file, tree, table.widths, pages, &mut |step| match step {
            Step::Leaf { leaf, trust, .. } => {
                let all =
                    leaf.iter().filter_map(|(key, value)| Some((key.to_vec(), leaf.get(value)?.to_vec())));
                if trust == Trust::Proven { pairs.proven.extend(all) } else { pairs.doubtful.extend(all) }
            }
            Step::Damaged { offset, .. } => pairs.damaged.push(offset),
            Step::Unreachable => {}
        });
        pairs
    }

    /// The proven value of a key.
    fn get(&self, key: &str) -> Option<&[u8]> {
        let pair = self.proven.iter().find(|(actual, _)| actual == key.as_bytes());
        pair.map(|(_, value)| value.as_slice())
    }

    fn number(&self, key: &str) -> Option<u64> {
        Some(u64::from_le_bytes(self.get(key)?.try_into().ok()?))
    }
}

/// What the tables of a store say beside the log. Only proven content counts.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) format: Option<u64>,
    pub(super) version: Option<String>,
    pub(super) first_revision: Option<u64>,
    pub(super) counters: BTreeMap<u32, u64>,
    /// The log, whose pages others read.
    pub(super) log: Option<TableDefinition>,
    /// Whether the definition of the log is proven.
    is_proven: bool,
    /// Damaged pages, with the table that they belong to.
    pub(super) damaged: Vec<(&'static str, Option<u64>)>,
    /// Whether all types have counters, as far as that can be read.
    pub(super) types_without_counter: Vec<u32>,
}

impl Tables {
    pub(super) fn read(file: &PageFile, root: &Root, pages: &mut PageSet) -> Tables {
        let mut tables = Tables { is_proven: root.damaged.is_empty(), ..Tables::default() };
        let mut read = |name: &'static str| {
            let pairs = root.table(name).map(|table| Pairs::read(file, table, pages)).unwrap_or_default();
            tables.damaged.extend(pairs.damaged.iter().map(|offset| (name, *offset)));
            pairs
        };
        let (meta, about, counters) = (read(META.name()), read(ABOUT.name()), read(COUNTERS.name()));
        let types = read(TYPES.name());
        read(TYPES_COPY.name());
        tables.format = meta.number(FORMAT_KEY);
        // Without an entry the store was never restored; if it cannot be read, nobody knows.
        let first_revision = meta.number(FIRST_REVISION_KEY);
        tables.first_revision = first_revision.or_else(|| tables.format.map(|_| 1));
        tables.version = about.get(VERSION_KEY).and_then(|version| String::from_utf8(version.to_vec()).ok());
        for (id, last) in &counters.proven {
            if let (Ok(id), Ok(last)) = (id.as_slice().try_into(), last.as_slice().try_into()) {
                tables.counters.insert(u32::from_le_bytes(id), u64::from_le_bytes(last));
            }
        }
        if counters.damaged.is_empty() {
            let ids = types.proven.iter().filter_map(|(name, id)| stray::read_type(name, id));
            let without = ids.map(|(_, id)| id).filter(|id| !tables.counters.contains_key(id));
            tables.types_without_counter = without.collect();
        }
        tables.log = root.table(LOG.name()).cloned();
        tables
    }

    /// How many records the log should have.
    pub(super) fn expected_records(&self) -> Option<u64> {
        let log = self.log.as_ref().filter(|_| self.is_proven)?;
        Some(log.tree.map_or(0, |tree| tree.length))
    }

    /// Refuses a store in a format that this code does not know.
    pub(super) fn check_format(&self, [oldest, newest]: &[u64; 2]) -> Result<(), EngineError> {
        match self.format {
            Some(actual) if !(*oldest..=*newest).contains(&actual) => Err(EngineError::Format {
                actual,
                oldest: *oldest,
                newest: *newest,
                written_by: self.version.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// A name, and whether a page that is as it was written has it.
struct Name {
    name: TypeName,
    is_proven: bool,
}

/// The names of types.
pub(super) struct Names(BTreeMap<u32, Name>);

impl Names {
    /// Reads the names from wherever they are. Names never change, so old pages are as good as new ones.
    pub(super) fn read(file: &PageFile, roots: &[Root], needed: impl Iterator<Item = u32>) -> Names {
        let mut names = Names(BTreeMap::new());
        let mut doubtful = Vec::new();
        for root in roots {
            for table in [TYPES.name(), TYPES_COPY.name()].into_iter().filter_map(|name| root.table(name)) {
                let pairs = Pairs::read(file, table, &mut PageSet::new(file));
                names.extend(&pairs.proven, true);
                doubtful.extend(pairs.doubtful);
            }
        }
        names.extend(&doubtful, false);
        let needed: BTreeSet<u32> = needed.collect();
        if needed.iter().any(|id| !names.0.contains_key(id)) {
            stray::find_types(file, |name, id| names.insert(name, id, false));
        }
        names
    }

    fn extend(&mut self, pairs: &[(Vec<u8>, Vec<u8>)], is_proven: bool) {
        for (name, id) in pairs {
            if let Some((name, id)) = stray::read_type(name, id) {
                self.insert(name, id, is_proven);
            }
        }
    }

    fn insert(&mut self, name: &str, id: u32, is_proven: bool) {
        let is_taken = self.0.contains_key(&id) || self.0.values().any(|known| known.name.as_str() == name);
        if !is_taken {
            self.0.insert(id, Name { name: TypeName::new(name), is_proven });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// A name, and whether it is proven.
    pub(super) fn get(&self, id: u32) -> Option<(TypeName, bool)> {
        self.0.get(&id).map(|name| (name.name.clone(), name.is_proven))
    }

    /// What a person can call the type.
    pub(super) fn label(&self, id: u32) -> String {
        self.0.get(&id).map_or_else(|| format!("type {id}"), |name| name.name.as_str().to_owned())
    }
}

/// The damaged pages of redb's own tables. They are not needed to read the store, but to write it.
pub(super) fn damage_of_redb(file: &PageFile, system: Option<Tree>) -> Vec<Finding> {
    let mut pages = PageSet::new(file);
    let Some(tree) = system else { return Vec::new() };
    let (tables, damaged) = read_definitions(file, tree, &mut pages);
    let mut offsets: Vec<Option<u64>> = damaged.into_iter().map(Some).collect();
    for table in tables {
        offsets.extend(Pairs::read(file, &table, &mut pages).damaged);
    }
    let finding = |offset| {
        Finding::new(FindingKind::Page, "in the list of free pages, which is no data").with_offset(offset)
    };
    offsets.into_iter().map(finding).collect()
}
