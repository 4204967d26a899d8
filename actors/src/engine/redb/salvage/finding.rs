//! What is wrong with a store, and what a repair of it cannot save.

use std::ops::RangeInclusive;

use pilothouse_types::object::TypeName;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What sort of thing.
    pub kind: FindingKind,
    /// The type that it concerns, if it is one alone and known.
    pub type_name: Option<TypeName>,
    /// The key of the object, if it is one alone and known.
    pub key: Option<String>,
    /// The revisions that it concerns.
    pub revisions: Option<RangeInclusive<u64>>,
    /// Where in the file.
    pub offset: Option<u64>,
    /// What a person should know of it.
    pub detail: String,
    /// Whether the object is in the new store. `None` before a repair, and of anything else.
    pub is_saved: Option<bool>,
}

/// What sort of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// The first page of the file.
    Header,
    /// Another page: its checksum is wrong.
    Page,
    /// The newest transaction: a server would start from the one before.
    Transaction,
    /// The content of a small table: something is missing in it.
    Table,
    /// A record of which nothing can be read, not even its object.
    Record,
    /// A record of which the object is known, and its content is not.
    Object,
    /// Records that do not follow from each other.
    Order,
    /// The number of records.
    Count,
    /// An object whose last state cannot be read, or is not known.
    LostObject,
    /// Records that a repair does not save. Nobody knows of which objects.
    LostRecords,
    /// A type whose name is lost, with all of its objects.
    LostType,
    /// An object that can be read and may have been changed or deleted since.
    Uncertain,
}

impl FindingKind {
    /// The word for it in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            FindingKind::Header => "header",
            FindingKind::Page => "page",
            FindingKind::Transaction => "transaction",
            FindingKind::Table => "table",
            FindingKind::Record => "record",
            FindingKind::Object => "object",
            FindingKind::Order => "order",
            FindingKind::Count => "count",
            FindingKind::LostObject => "lost-object",
            FindingKind::LostRecords => "lost-records",
            FindingKind::LostType => "lost-type",
            FindingKind::Uncertain => "uncertain",
        }
    }
}

impl Finding {
    /// A finding that concerns no type in particular.
    pub fn new(kind: FindingKind, detail: impl Into<String>) -> Finding {
        let detail = detail.into();
        Finding { kind, type_name: None, key: None, revisions: None, offset: None, detail, is_saved: None }
    }

    /// A finding in a type.
    pub(super) fn of_type(
        kind: FindingKind,
        type_name: &Option<TypeName>,
        revisions: RangeInclusive<u64>,
        detail: impl Into<String>,
    ) -> Finding {
        let revisions = Some(revisions);
        Finding { type_name: type_name.clone(), revisions, ..Finding::new(kind, detail) }
    }

    /// The same about one object.
    pub(super) fn with_key(self, key: &str) -> Finding {
        Finding { key: Some(key.to_owned()), ..self }
    }

    /// The same at this place in the file.
    pub(super) fn with_offset(self, offset: Option<u64>) -> Finding {
        Finding { offset, ..self }
    }
}
