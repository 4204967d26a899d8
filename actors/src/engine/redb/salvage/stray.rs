//! Looks for pages that no tree leads to any more. They may be what a damaged page led to, or have been replaced long ago.

use pilothouse_types::object::Revision;

use super::super::pages::{Leaf, PAGE_BYTES, PageFile, PageSet, Widths};
use super::ledger::Place;
use super::log_reader::{LOG_WIDTHS, LogKey, Remains, read_key, split};
use crate::limits::SALVAGE_PAGE_BYTES;

/// The pairs of the table of types: names, and ids of four bytes.
const TYPE_WIDTHS: Widths = Widths { key: None, value: Some(4) };
/// The longest name of a resource type that is believed.
const NAME_BYTES: usize = 512;

/// The pages of the file that are not in the set, as far as they may be leaves.
fn stray_leaves<'a>(file: &'a PageFile, pages: &'a PageSet) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let offsets = (PAGE_BYTES..file.len()).step_by(PAGE_BYTES as usize);
    let stray = offsets.filter(|offset| !pages.contains(*offset));
    stray.map(|offset| (offset, file.read(offset..offset + PAGE_BYTES)))
}

/// Passes on every record with a wanted key that is whole, or has a whole head. The content of an object cannot look like a record: it
/// is text without control characters, or encrypted.
pub(super) fn find_records(
    file: &PageFile,
    pages: &PageSet,
    is_wanted: impl Fn(LogKey) -> bool,
    mut visit: impl FnMut(LogKey, Remains, Place),
) {
    for (offset, page) in stray_leaves(file, pages) {
        let Some(bytes) = whole_leaf(file, offset, page) else { continue };
        let Some(leaf) = Leaf::read(&bytes, LOG_WIDTHS).filter(Leaf::is_consistent) else { continue };
        let mut last = None;
        for (key, range) in leaf.iter() {
            let key = read_key(key);
            if key <= last {
                break;
            }
            last = key;
            let (Some(key), Some(record)) = (key.filter(|key| is_wanted(*key)), leaf.get(range.clone()))
            else {
                continue;
            };
            let (type_id, revision) = split(key);
            let place = Place { offset: offset + range.start as u64, length: range.len() };
            match Remains::read(type_id, Revision(revision), record) {
                Remains::Nothing => {}
                remains => visit(key, remains, place),
            }
        }
    }
}

/// The bytes of a leaf that may be longer than one page.
fn whole_leaf(file: &PageFile, offset: u64, page: Vec<u8>) -> Option<Vec<u8>> {
    let bounded = |bytes: usize| Some(bytes as u64).filter(|bytes| *bytes <= SALVAGE_PAGE_BYTES);
    let mut bytes = page;
    let pairs = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
    if bytes.first() != Some(&1) || pairs == 0 {
        return None;
    }
    // First what says how long it is, and then all of it.
    let head = bounded(4 + pairs * (4 + 12))?;
    if head > PAGE_BYTES {
        bytes = file.read(offset..offset + head);
    }
    let end = bounded(Leaf::read(&bytes, LOG_WIDTHS)?.value_end(pairs - 1)?)?;
    if end > bytes.len() as u64 {
        bytes = file.read(offset..offset + end);
    }
    Some(bytes)
}

/// Passes on the names and ids of types in pages that look like some of the table of types.
pub(super) fn find_types(file: &PageFile, mut visit: impl FnMut(&str, u32)) {
    for (_, page) in stray_leaves(file, &PageSet::new(file)) {
        let Some(leaf) = Leaf::read(&page, TYPE_WIDTHS).filter(Leaf::is_consistent) else { continue };
        let types: Option<Vec<(&str, u32)>> =
            leaf.iter().map(|(name, id)| read_type(name, leaf.get(id)?)).collect();
        for (name, id) in types.unwrap_or_default() {
            visit(name, id);
        }
    }
}

/// A type, if it may be one.
pub(super) fn read_type<'a>(name: &'a [u8], id: &[u8]) -> Option<(&'a str, u32)> {
    let is_name = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"./-".contains(byte);
    let name = Some(name).filter(|name| !name.is_empty() && name.len() <= NAME_BYTES)?;
    let name = std::str::from_utf8(name).ok().filter(|name| name.bytes().all(|byte| is_name(&byte)))?;
    let id = u32::from_le_bytes(id.try_into().ok()?);
    (id > 0 && id < u32::MAX).then_some((name, id))
}
