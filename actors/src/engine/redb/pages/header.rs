//! The first page of the file: two slots, one of which has the newest transaction.

use super::{PAGE_BYTES, PageFile, REGION_PAGES, Tree, checksum};

const MAGIC: [u8; 9] = [b'r', b'e', b'd', b'b', 0x1a, 0x0a, 0xa9, 0x0d, 0x0a];
const SLOT_BYTES: usize = 128;
/// Where the checksum of a slot begins, in the slot.
const SLOT_CHECKSUM: usize = 112;
const SLOTS: [usize; 2] = [64, 64 + SLOT_BYTES];
/// The format of slots that this code reads.
const SLOT_FORMAT: u8 = 3;
/// The bit that says which slot is the newer one.
const PRIMARY: u8 = 1;
/// The bit that says that nobody has closed the file.
const UNCLEAN: u8 = 2;
/// The bit that says that the newest transaction was on the disk before the header named it.
const TWO_PHASES: u8 = 4;

/// A transaction: the trees as it left them.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// It rises with every transaction.
    pub transaction: u64,
    /// The tree of tables.
    pub tables: Option<Tree>,
    /// The tree of redb's own tables, such as that of free pages.
    pub system: Option<Tree>,
}

/// What the first page says.
#[derive(Debug)]
pub struct Header {
    /// The transactions whose slots are whole, in the order in which redb would take them.
    pub slots: Vec<Slot>,
    /// Whether the first of them is the newest that was ever complete: the slot of a newer one may be damaged.
    pub has_newest: bool,
    /// Whether the second of them is newer, and redb would not take it: it was not complete, unless the header is damaged.
    pub has_unfinished: bool,
    /// Whether the file was closed by whoever wrote it last.
    pub is_clean: bool,
    /// Whether a crash may have left a part of the first transaction, as if it had never been.
    pub may_be_torn: bool,
    /// What is wrong with the page.
    pub problems: Vec<&'static str>,
}

/// Reads the first page.
pub fn read_header(file: &PageFile) -> Header {
    let bytes = file.read(0..PAGE_BYTES);
    let number = |offset: usize| {
        let field = bytes.get(offset..offset + 4).and_then(|field| field.try_into().ok());
        field.map_or(0, u32::from_le_bytes)
    };
    let mut problems = Vec::new();
    if !bytes.starts_with(&MAGIC) {
        problems.push("the file does not begin as one of redb");
    }
    if (u64::from(number(12)), number(16), u64::from(number(20))) != (PAGE_BYTES, 0, REGION_PAGES) {
        problems.push("the header of the file gives its pages an impossible size");
    }
    let god_byte = bytes.get(MAGIC.len()).copied().unwrap_or(UNCLEAN);
    let slots = SLOTS.map(|start| bytes.get(start..).and_then(read_slot));
    let [first, second] = slots;
    let [primary, secondary] = if god_byte & PRIMARY == 0 { [first, second] } else { [second, first] };
    // What names the newer one is as good as what surrounds it.
    let (is_named, has_primary) = (problems.is_empty(), primary.is_some());
    if primary.is_none() || secondary.is_none() {
        problems.push("one of the two newest transactions in the header of the file has a wrong checksum");
    }
    let has_both = has_primary && secondary.is_some();
    // A commit in two phases names its slot when everything is on the disk. redb does not even look at the other slot then: what is
    // newer there was never complete.
    let has_two_phases = is_named && god_byte & TWO_PHASES != 0;
    let mut slots: Vec<Slot> = primary.into_iter().chain(secondary).collect();
    if !has_two_phases {
        slots.sort_by_key(|slot| std::cmp::Reverse(slot.transaction));
    }
    let transactions: Vec<u64> = slots.iter().map(|slot| slot.transaction).collect();
    Header {
        slots,
        has_newest: is_named && has_primary || has_both,
        has_unfinished: transactions.is_sorted_by(|first, second| first < second) && has_both,
        is_clean: god_byte & UNCLEAN == 0,
        // redb looks for that whenever the commit had one phase, also in a file that was closed.
        may_be_torn: god_byte & TWO_PHASES == 0,
        problems,
    }
}

fn read_slot(bytes: &[u8]) -> Option<Slot> {
    let stored = u128::from_le_bytes(bytes.get(SLOT_CHECKSUM..SLOT_BYTES)?.try_into().ok()?);
    let content = bytes.get(..SLOT_CHECKSUM)?;
    if stored != checksum(content) || content.first() != Some(&SLOT_FORMAT) {
        return None;
    }
    let tree = |is_there: usize, start: usize| match content.get(is_there)? {
        0 => None,
        _ => Tree::read(content.get(start..start + Tree::BYTES)?),
    };
    let transaction = u64::from_le_bytes(content.get(104..112)?.try_into().ok()?);
    Some(Slot { transaction, tables: tree(1, 8), system: tree(2, 40) })
}
