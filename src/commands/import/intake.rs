//! Reads the stream into a temporary file, and notes what the order depends on.

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::rc::Rc;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::report::Report;
use crate::commands::object_stream::cluster_objects::reason_to_leave;
use crate::commands::object_stream::order::Phase;
use crate::commands::object_stream::reader::{Element, ObjectReader};
use crate::commands::object_stream::resource::{
    Resource, defined_resources, describe, namespace, split_api_version,
};
use crate::commands::object_stream::selection::Selection;
use crate::commands::object_stream::spool::{Span, Spool, SpoolWriter};

/// The namespace of objects that name none.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// A version and a kind, as objects name them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VersionKind {
    pub api_version: String,
    pub kind: String,
}

impl VersionKind {
    pub(super) fn group(&self) -> &str {
        split_api_version(&self.api_version).0
    }
}

/// An object of the stream.
pub(super) struct Entry {
    /// Where it is in the file.
    pub span: Span,
    /// Its version and kind, which all objects of it share.
    pub kind: Rc<VersionKind>,
    /// Its namespace, empty if it has none.
    pub namespace: Rc<str>,
    /// Its name.
    pub name: Box<str>,
    /// The UID that it had, empty if it is not known.
    pub uid: Box<str>,
    /// The UIDs of its owners.
    pub owners: Box<[Box<str>]>,
}

impl Entry {
    /// The object as messages name it.
    pub(super) fn describe(&self) -> String {
        describe(self.kind.group(), &self.kind.kind, &self.namespace, &self.name)
    }
}

/// The stream, read to its end.
pub(super) struct Intake {
    pub spool: Spool,
    pub entries: Vec<Entry>,
    /// The resources of each CustomResourceDefinition, by its index.
    pub definitions: Vec<(u32, Vec<Resource>)>,
}

impl Intake {
    /// Reads the stream. Elements that are no objects, or not selected by namespace and labels, are left behind.
    pub(super) fn read(
        mut reader: ObjectReader<impl BufRead>,
        selection: &Selection,
        report: &mut Report,
        fails_fast: bool,
    ) -> io::Result<Intake> {
        let mut spool = SpoolWriter::create(&std::env::temp_dir())?;
        let (mut entries, mut definitions) = (Vec::new(), Vec::new());
        let mut names = SharedNames::default();
        while let Some(element) = reader.next()? {
            let object = match element {
                Element::Object(object) => object,
                Element::Malformed(message) => {
                    report.fail("input", message);
                    if fails_fast {
                        break;
                    }
                    continue;
                }
            };
            if !may_be_selected(selection, &object) {
                continue;
            }
            if meta::is_terminating(&object) {
                report.leave_out("being deleted when they were exported");
                continue;
            }
            if let Some(reason) = reason_to_leave(&object) {
                report.leave_out(reason);
                continue;
            }
            let entry = names.entry(&object, spool.push(&object)?);
            if is_definition(&entry.kind) {
                definitions.push((entries.len() as u32, defined_resources(&object)));
            }
            entries.push(entry);
        }
        Ok(Intake { spool: spool.finish()?, entries, definitions })
    }
}

/// Whether an object is selected by its namespace and its labels, as far as they are known: one that names no namespace may be in
/// the default one, and `plan` leaves it out if its resource has no namespaces.
fn may_be_selected(selection: &Selection, object: &Value) -> bool {
    let may_be_in_default = namespace(object).is_empty()
        && selection.includes_namespace(DEFAULT_NAMESPACE)
        && selection.has_labels(object);
    may_be_in_default || selection.includes_object(object)
}

fn is_definition(kind: &VersionKind) -> bool {
    Phase::new(kind.group(), &kind.kind, false) == Phase::Definitions
}

/// Names that many objects share.
#[derive(Default)]
struct SharedNames {
    kinds: HashMap<VersionKind, Rc<VersionKind>>,
    namespaces: HashMap<String, Rc<str>>,
}

impl SharedNames {
    fn entry(&mut self, object: &Value, span: Span) -> Entry {
        let metadata = meta::metadata(object);
        let kind = VersionKind {
            api_version: object.str("apiVersion").to_owned(),
            kind: object.str("kind").to_owned(),
        };
        let kind = self.kinds.entry(kind).or_insert_with_key(|kind| Rc::new(kind.clone())).clone();
        let namespace = namespace(object).to_owned();
        let namespace =
            self.namespaces.entry(namespace).or_insert_with_key(|name| name.as_str().into()).clone();
        let owners = metadata.get("ownerReferences").map(Value::items).unwrap_or_default();
        Entry {
            span,
            kind,
            namespace,
            name: meta::name(object).into(),
            uid: metadata.str("uid").into(),
            owners: owners.iter().map(|owner| owner.str("uid").into()).collect(),
        }
    }
}
