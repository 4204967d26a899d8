//! The options of a request, from the query or the body of a deletion.

mod delete;
mod list;
#[cfg(test)]
mod tests;
mod write;

use super::field::{FieldError, FieldPath, quoted};
use super::query::Query;
use super::status::{self, Status};
use super::well_known::META_GROUP;

pub use delete::{DeleteOptions, IGNORE_READ_ERROR, Propagation, refuse_force, refuse_force_of_collection};
pub use list::{ListOptions, VersionMatch};
pub use write::{
    CreateOptions, FieldValidation, PatchOptions, UpdateOptions, WriteMode, WriteOptions,
    field_manager_errors,
};

/// Parses a resourceVersion; `None` if empty.
pub fn revision(text: &str) -> status::Result<Option<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(number) if digits => Ok(Some(number)),
        _ => {
            let reason = if digits { "value out of range" } else { "invalid syntax" };
            let text = quoted(text);
            Err(Status::bad_request(format!(
                "resourceVersion: Invalid value: {text}: strconv.ParseUint: parsing {text}: {reason}"
            )))
        }
    }
}

/// [`revision`] for get and list, whose error message has another prefix.
pub fn read_revision(text: &str) -> status::Result<Option<u64>> {
    revision(text).map_err(|mut status| {
        status.message = format!("invalid resource version: {}", status.message);
        status
    })
}

/// GetOptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// The minimum version of the result, as the client wrote it: see [`revision`].
    pub resource_version: String,
}

impl GetOptions {
    /// Parses the options.
    pub fn parse(query: &Query<'_>) -> GetOptions {
        GetOptions { resource_version: query.text("resourceVersion") }
    }
}

/// 422 for invalid options of `kind`.
fn refuse(kind: &str, errors: &[FieldError]) -> status::Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(META_GROUP, kind, "", errors)) }
}

/// `All` is the only valid dry run; an empty value is no dry run.
fn dry_run_errors(values: &[&str]) -> Option<FieldError> {
    if values.iter().all(|value| matches!(*value, "All" | "")) {
        return None;
    }
    let list: Vec<String> = values.iter().map(|value| quoted(value)).collect();
    let value = format!("[]string{{{}}}", list.join(", "));
    Some(FieldError::not_supported(&FieldPath::new("dryRun"), &value, &["All"]))
}
