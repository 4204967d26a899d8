//! What a copy tells: how far it is, what it leaves out, and why.

use std::collections::BTreeMap;
use std::fmt::Display;

use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_types::object::{Key, TypeName};

use super::Failure;
use crate::commands::progress::{Progress, count};
use crate::limits::COPY_FOREIGN_FOLDERS;

/// What was copied, and what was not.
pub(super) struct Report {
    progress: Progress,
    /// Whether objects that cannot be copied are left out.
    drops_unreadable: bool,
    /// Objects that are in the target.
    pub(super) copied: u64,
    /// Objects that cannot be copied.
    unreadable: u64,
    /// Events that have expired meanwhile.
    pub(super) expired: u64,
    /// Records by which servers agree.
    pub(super) records: u64,
    /// What belongs to no resource: by where it is, how much of it, and the first.
    foreign: BTreeMap<String, (u64, String)>,
    /// What else belongs to no resource.
    more_foreign: u64,
}

impl Report {
    pub(super) fn new(drops_unreadable: bool) -> Report {
        Report {
            progress: Progress::new(),
            drops_unreadable,
            copied: 0,
            unreadable: 0,
            expired: 0,
            records: 0,
            foreign: BTreeMap::new(),
            more_foreign: 0,
        }
    }

    /// Shows how far the copy is.
    pub(super) fn show(&mut self, done: u64, total: u64) {
        self.progress.show(format_args!("{done} of {total}"));
    }

    /// Writes a line that stays.
    pub(super) fn line(&mut self, text: impl Display) {
        self.progress.line(text);
    }

    /// An object cannot be copied.
    pub(super) fn add_unreadable(&mut self, type_name: &TypeName, key: &Key, reason: &str) {
        self.unreadable += 1;
        let (resource, key) = (resource_of_store(type_name), key.as_str());
        let outcome = if self.drops_unreadable { "left out" } else { "cannot be copied" };
        self.progress.line(format_args!("{resource} {key} {outcome}: {reason}"));
    }

    /// Whether the copy is no longer to become whole: what cannot be copied is only counted and named.
    pub(super) fn is_failed(&self) -> bool {
        self.unreadable > 0 && !self.drops_unreadable
    }

    /// Fails if not everything was copied that should have been.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.is_failed() { Err(Failure::Unreadable(self.unreadable)) } else { Ok(()) }
    }

    /// A key in etcd belongs to no resource.
    pub(super) fn add_foreign_key(&mut self, prefix: &str, key: &str) {
        self.add_foreign(folder(prefix, key), 1, key.to_owned());
    }

    /// Nothing is known of a type in a data directory.
    pub(super) fn add_foreign_type(&mut self, type_name: &TypeName, objects: u64) {
        let resource = resource_of_store(type_name).to_owned();
        self.add_foreign(format!("resource {resource}"), objects, resource);
    }

    fn add_foreign(&mut self, place: String, number: u64, first: String) {
        if let Some((known, _)) = self.foreign.get_mut(&place) {
            *known += number;
        } else if self.foreign.len() < COPY_FOREIGN_FOLDERS {
            self.foreign.insert(place, (number, first));
        } else {
            self.more_foreign += number;
        }
    }

    /// Says what was left out.
    pub(super) fn print_left_out(&mut self) {
        for (place, (number, first)) in std::mem::take(&mut self.foreign) {
            let number = count(number, "key");
            self.progress.line(format_args!(
                "not copied: {number} of {place}, such as {first}, because no resource of this release or of a definition has them"
            ));
        }
        if self.more_foreign > 0 {
            let number = count(self.more_foreign, "more key");
            self.progress.line(format_args!("not copied: {number} that belong to no resource"));
        }
        if self.records > 0 {
            let number = count(self.records, "record");
            self.progress.line(format_args!(
                "not copied: {number} by which servers agree (who is alive, which addresses and ports are taken): servers make them again"
            ));
        }
        if self.expired > 0 {
            self.progress
                .line(format_args!("not copied: {} that expired meanwhile", count(self.expired, "event")));
        }
        if self.unreadable > 0 {
            self.progress
                .line(format_args!("left out: {} that cannot be copied", count(self.unreadable, "object")));
        }
    }
}

/// Where a key is: its first segment below the prefix, or the first two if that is a group.
fn folder(prefix: &str, key: &str) -> String {
    let below = key.strip_prefix(prefix).unwrap_or(key);
    let segments = if below.split('/').next().is_some_and(|first| first.contains('.')) { 2 } else { 1 };
    let end = below.match_indices('/').nth(segments - 1).map(|(position, _)| position + 1);
    let folder = end.and_then(|end| below.get(..end)).unwrap_or(below);
    format!("{prefix}{folder}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_keys_are_counted_by_folder() {
        for (key, expected) in [
            ("/registry/toys.example/kites/default/a", "/registry/toys.example/kites/"),
            ("/registry/toys.example/kites", "/registry/toys.example/kites"),
            ("/registry/other/a/b", "/registry/other/"),
            ("/registry/alone", "/registry/alone"),
        ] {
            assert_eq!(folder("/registry/", key), expected);
        }
        let mut report = Report::new(false);
        for number in 0..COPY_FOREIGN_FOLDERS + 5 {
            report.add_foreign_key("/registry/", &format!("/registry/{number}/a"));
        }
        report.add_foreign_key("/registry/", "/registry/0/b");
        assert_eq!((report.foreign.len(), report.more_foreign), (COPY_FOREIGN_FOLDERS, 5));
        assert_eq!(report.foreign["/registry/0/"], (2, "/registry/0/a".to_owned()));
        assert!(report.check().is_ok());
    }

    #[test]
    fn unreadable_objects_fail_the_copy_unless_they_are_left_out() {
        for drops_unreadable in [false, true] {
            let mut report = Report::new(drops_unreadable);
            report.add_unreadable(&TypeName::new("secrets"), &Key::namespaced("default", "a"), "no key");
            assert_eq!(report.check().is_ok(), drops_unreadable);
        }
    }
}
