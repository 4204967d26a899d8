//! What `check` and `repair` tell about a store: lines for people, and a file of JSON lines for programs.

use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use pilothouse_actors::engine::redb::{Finding, FindingKind, SavedType};
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_types::object::TypeName;
use serde_json::{Map, Value};

use super::object_stream::output_file::OutputFile;
use super::progress::count;
use crate::limits::FINDINGS_PRINTED;

/// The words for things that are found in JSON lines.
pub(super) fn to_json(finding: &Finding) -> Value {
    let mut line = Map::new();
    line.insert("kind".to_owned(), finding.kind.as_str().into());
    if let Some(name) = &finding.type_name {
        line.insert("resource".to_owned(), resource_of_store(name).into());
    }
    if let Some(key) = &finding.key {
        line.insert("object".to_owned(), key.as_str().into());
    }
    if let Some(revisions) = &finding.revisions {
        line.insert("firstRevision".to_owned(), (*revisions.start()).into());
        line.insert("lastRevision".to_owned(), (*revisions.end()).into());
    }
    if let Some(offset) = finding.offset {
        line.insert("offset".to_owned(), offset.into());
    }
    if let Some(is_saved) = finding.is_saved {
        line.insert("saved".to_owned(), is_saved.into());
    }
    line.insert("detail".to_owned(), finding.detail.as_str().into());
    Value::Object(line)
}

/// A finding in one line: `configmaps default/a at revision 7: the object cannot be read`.
pub(super) fn to_text(finding: &Finding) -> String {
    let mut place = Vec::new();
    if matches!(finding.kind, FindingKind::Page | FindingKind::Header) {
        place.push(match finding.offset {
            Some(offset) => format!("the page at byte {offset} is not as it was written"),
            None => "a page is not in the file".to_owned(),
        });
        place.push(finding.detail.clone());
        return place.join(": ");
    }
    place.extend(finding.type_name.as_ref().map(|name| resource_of_store(name).to_owned()));
    place.extend(finding.key.clone());
    place.extend(finding.revisions.as_ref().map(|revisions| match (revisions.start(), revisions.end()) {
        (first, last) if first == last => format!("at revision {first}"),
        (first, &u64::MAX) => format!("from revision {first} on"),
        (first, last) => format!("at revisions {first} to {last}"),
    }));
    match place.is_empty() {
        true => finding.detail.clone(),
        false => format!("{}: {}", place.join(" "), finding.detail),
    }
}

/// Prints a list with its title, as far as anybody would read it.
pub(super) fn print_list(out: &mut impl io::Write, title: &str, lines: &[String]) -> io::Result<()> {
    print_lines(out, title, lines, FINDINGS_PRINTED)
}

/// The same up to another number of lines.
pub(super) fn print_lines(
    out: &mut impl io::Write,
    title: &str,
    lines: &[String],
    most: usize,
) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}:")?;
    for line in lines.iter().take(most) {
        writeln!(out, "  {line}")?;
    }
    match lines.len().saturating_sub(most) {
        0 => Ok(()),
        more => writeln!(out, "  … and {more} more: --report FILE has all of them"),
    }
}

/// A file of JSON lines, which appears when it is complete. It is begun before the work, so that a name that cannot be written is found
/// before there is anything to write.
pub(super) struct Report(OutputFile);

impl Report {
    /// Begins the file, if it is asked for.
    pub(super) fn create(path: Option<&Path>) -> io::Result<Option<Report>> {
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
        };
        path.map(|path| OutputFile::create(path).map(Report).map_err(|error| named(path, error))).transpose()
    }

    /// Writes it.
    pub(super) fn write(self, lines: impl Iterator<Item = Value>) -> io::Result<()> {
        let Report(mut file) = self;
        {
            let mut out = BufWriter::new(&mut file);
            for line in lines {
                writeln!(out, "{line}")?;
            }
            out.flush()?;
        }
        file.publish()
    }
}

/// A line of the table of resources.
pub(super) struct ResourceLine<'a> {
    pub(super) name: &'a TypeName,
    pub(super) objects: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) last: u64,
}

impl<'a> From<&'a SavedType> for ResourceLine<'a> {
    fn from(saved: &'a SavedType) -> ResourceLine<'a> {
        let SavedType { name, last, records, bytes, .. } = saved;
        ResourceLine { name, objects: saved.objects(), records: *records, bytes: *bytes, last: last.0 }
    }
}

/// Prints the resources that have records.
pub(super) fn print_resources<'a>(
    out: &mut impl io::Write,
    lines: impl Iterator<Item = ResourceLine<'a>>,
) -> io::Result<()> {
    writeln!(out, "{:<64} {:>9} {:>9} {:>13} {:>17}", "RESOURCE", "OBJECTS", "RECORDS", "BYTES", "REVISION")?;
    let (mut objects, mut records, mut bytes) = (0, 0, 0);
    for line in lines.filter(|line| line.records > 0) {
        let resource = resource_of_store(line.name);
        let ResourceLine { objects: of_type, records: in_log, bytes: size, last, .. } = line;
        writeln!(out, "{resource:<64} {of_type:>9} {in_log:>9} {size:>13} {last:>17}")?;
        (objects, records, bytes) = (objects + of_type, records + in_log, bytes + size);
    }
    writeln!(out, "{:<64} {objects:>9} {records:>9} {bytes:>13}", "all")
}

/// What a repair would lose, or has lost, in one line. `None` if nothing.
pub(super) fn sum_up(losses: &[Finding]) -> Option<String> {
    let number = |kind| losses.iter().filter(|finding| finding.kind == kind).count() as u64;
    let parts = [
        (number(FindingKind::LostObject), "object", "cannot be read"),
        (number(FindingKind::LostRecords), "range of records", "cannot be read"),
        (number(FindingKind::LostType), "resource", "without a name"),
        (number(FindingKind::Uncertain), "object", "may be outdated or deleted"),
        (number(FindingKind::Transaction), "transaction", "may be missing"),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, noun, what)| format!("{} {what}", count(number, noun)))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Finding {
        let mut finding = Finding::new(FindingKind::Object, "the object cannot be read");
        finding.type_name = Some(TypeName::new("custom/kites.toys.example"));
        finding.key = Some("default/red".to_owned());
        finding.revisions = Some(7..=7);
        finding
    }

    #[test]
    fn finding_names_its_object_and_revision() {
        let text = "kites.toys.example default/red at revision 7: the object cannot be read";
        assert_eq!(to_text(&finding()), text);
        let expected = serde_json::json!({
            "kind": "object", "resource": "kites.toys.example", "object": "default/red", "firstRevision": 7, "lastRevision": 7,
            "detail": "the object cannot be read",
        });
        assert_eq!(to_json(&finding()), expected);
    }

    #[test]
    fn long_list_is_cut_and_names_the_report() {
        let lines: Vec<String> = (0..FINDINGS_PRINTED + 2).map(|number| number.to_string()).collect();
        let mut out = Vec::new();
        print_list(&mut out, "Lost", &lines).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("and 2 more: --report FILE has all of them\n"), "{text}");
        assert_eq!(text.lines().count(), FINDINGS_PRINTED + 3);
    }
}
