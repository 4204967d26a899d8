//! The options of create, update and patch.

use super::{dry_run_errors, refuse};
use crate::error_list::ErrorList;
use crate::field::{FieldError, FieldPath, quoted};
use crate::query::Query;
use crate::status;

/// The longest name of a field manager, in bytes.
const FIELD_MANAGER_BYTES: usize = 128;

/// How unknown and duplicate fields are treated (`fieldValidation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// They are dropped silently.
    Ignore,
    /// They are dropped with a warning.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
}

/// Whether a write is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// It is stored.
    #[default]
    Store,
    /// Admission and validation run, but nothing is stored (`dryRun=All`).
    DryRun,
}

impl WriteMode {
    /// Whether nothing is stored.
    pub fn is_dry_run(self) -> bool {
        self == WriteMode::DryRun
    }
}

/// The options of create and update, and the part of PatchOptions with the same fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether to store the result.
    pub mode: WriteMode,
    /// The name that owns the fields this request sets; empty if the parameter is absent.
    pub field_manager: String,
    /// How unknown and duplicate fields are treated.
    pub field_validation: FieldValidation,
}

/// The options of a create.
pub type CreateOptions = WriteOptions;
/// The options of an update.
pub type UpdateOptions = WriteOptions;

impl WriteOptions {
    /// Reads and checks the options of a create.
    pub fn create(query: &Query<'_>) -> status::Result<CreateOptions> {
        WriteOptions::checked(query, "CreateOptions", ErrorList::new())
    }

    /// Reads and checks the options of an update.
    pub fn update(query: &Query<'_>) -> status::Result<UpdateOptions> {
        WriteOptions::checked(query, "UpdateOptions", ErrorList::new())
    }

    fn checked(query: &Query<'_>, kind: &str, mut errors: ErrorList) -> status::Result<WriteOptions> {
        if query.is_empty() && errors.is_empty() {
            return Ok(WriteOptions::default());
        }
        let field_manager = query.text("fieldManager");
        errors.append(&mut field_manager_errors(&field_manager, &FieldPath::new("fieldManager")));
        let dry_run: Vec<&str> = query.all("dryRun").collect();
        errors.extend(dry_run_errors(&dry_run));
        let (field_validation, is_known) = match query.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => (FieldValidation::Warn, true),
            "Ignore" => (FieldValidation::Ignore, true),
            "Strict" => (FieldValidation::Strict, true),
            _ => (FieldValidation::Warn, false),
        };
        if !is_known {
            let value = quoted(&query.text("fieldValidation"));
            let path = FieldPath::new("fieldValidation");
            errors.push(FieldError::not_supported(&path, &value, &["", "Ignore", "Strict", "Warn"]));
        }
        refuse(kind, &errors)?;
        let mode = if dry_run.contains(&"All") { WriteMode::DryRun } else { WriteMode::Store };
        Ok(WriteOptions { mode, field_manager, field_validation })
    }
}

/// The options of a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchOptions {
    /// The fields it shares with CreateOptions and UpdateOptions.
    pub write: WriteOptions,
    /// Whether server-side apply takes over fields of other managers.
    pub force: bool,
}

impl PatchOptions {
    /// Reads and checks the options. `apply`: a server-side apply, the only patch that may be forced and must name a field
    /// manager.
    pub fn parse(query: &Query<'_>, apply: bool) -> status::Result<PatchOptions> {
        let force = query.flag("force");
        let mut errors = ErrorList::new();
        if apply && query.get("fieldManager").unwrap_or_default().is_empty() {
            errors.push(FieldError::required(&FieldPath::new("fieldManager"), "is required for apply patch"));
        }
        if !apply && force.is_some() {
            let detail = "may not be specified for non-apply patch";
            errors.push(FieldError::forbidden(&FieldPath::new("force"), detail));
        }
        let write = WriteOptions::checked(query, "PatchOptions", errors)?;
        Ok(PatchOptions { write, force: force.unwrap_or(false) })
    }
}

/// The errors of a field manager name.
pub fn field_manager_errors(manager: &str, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    if manager.len() > FIELD_MANAGER_BYTES {
        errors.push(FieldError::too_long(path, FIELD_MANAGER_BYTES));
    }
    for (position, c) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
        // Every error repeats the whole name, so errors beyond the bound are not even formatted.
        errors.add(|| {
            let detail = format!("invalid character U+{:04X} (at position {position})", u32::from(c));
            FieldError::invalid(path, &quoted(manager), &detail)
        });
    }
    errors
}

/// Whether Go would call a character printable: letters, numbers, symbols, and the ASCII space. Combining marks count as not
/// printable, because the standard library cannot tell them from characters that never print.
fn is_printable(c: char) -> bool {
    matches!(c, '"' | '\\' | '\'') || c.escape_debug().len() == 1
}
