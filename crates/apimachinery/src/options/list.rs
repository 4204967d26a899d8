//! The options of list, watch and deletecollection.

use pilothouse_types::filter::LabelRule;

use super::refuse;
use crate::field::{FieldError, FieldPath, quoted};
use crate::limits::SELECTOR_RULES;
use crate::query::Query;
use crate::selectors;
use crate::selectors::FieldSelector;
use crate::status::{self, Status};

/// The meaning of `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// The list must be of exactly this resourceVersion.
    Exact,
    /// The list must be of this resourceVersion or a later one.
    NotOlderThan,
}

/// The options of list, watch and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// The label selector.
    pub labels: Vec<LabelRule>,
    /// The field selector, not yet checked against the fields of the kind: see [`select::filter`].
    pub fields: FieldSelector,
    /// Whether to watch instead of list.
    pub watch: bool,
    /// Whether the client wants bookmark events.
    pub allow_watch_bookmarks: bool,
    /// The requested resourceVersion, as the client wrote it: see [`super::revision`].
    pub resource_version: String,
    /// How to match it.
    pub resource_version_match: Option<VersionMatch>,
    /// After how many seconds a watch ends.
    pub timeout_seconds: Option<i64>,
    /// The page size; 0 is no limit.
    pub limit: i64,
    /// The continue token of the previous page.
    pub continue_token: String,
    /// Whether a watch begins with synthetic ADDED events for the existing objects.
    pub send_initial_events: Option<bool>,
    /// `resourceVersionMatch` as the client wrote it: validation errors repeat it.
    match_text: String,
}

impl ListOptions {
    /// Parses the options; a value of the wrong type is a bad request. [`ListOptions::validate`] checks the rest.
    pub fn parse(query: &Query<'_>) -> status::Result<ListOptions> {
        if query.is_empty() {
            return Ok(ListOptions::default());
        }
        // The order of the checks is part of the API: clients see the first error.
        let timeout_seconds = query.integer("timeoutSeconds")?;
        let limit = query.integer("limit")?.unwrap_or(0);
        let labels = selectors::parse_labels(query.get("labelSelector").unwrap_or_default())?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())?;
        if labels.len() + fields.terms().len() > SELECTOR_RULES {
            return Err(Status::bad_request(format!(
                "a selector may have at most {SELECTOR_RULES} requirements"
            )));
        }
        let match_text = query.text("resourceVersionMatch");
        Ok(ListOptions {
            labels,
            fields,
            watch: query.flag("watch").unwrap_or(false),
            allow_watch_bookmarks: query.flag("allowWatchBookmarks").unwrap_or(false),
            resource_version: query.text("resourceVersion"),
            resource_version_match: match match_text.as_str() {
                "Exact" => Some(VersionMatch::Exact),
                "NotOlderThan" => Some(VersionMatch::NotOlderThan),
                _ => None,
            },
            timeout_seconds,
            limit,
            continue_token: query.text("continue"),
            send_initial_events: query.flag("sendInitialEvents"),
            match_text,
        })
    }

    /// Sets defaults. With `initial_events` (the server supports watch lists), a watch from resourceVersion "" or "0" begins with
    /// the existing objects.
    pub fn set_defaults(&mut self, initial_events: bool) {
        let is_unversioned = matches!(self.resource_version.as_str(), "" | "0");
        if initial_events
            && self.watch
            && is_unversioned
            && self.send_initial_events.is_none()
            && self.match_text.is_empty()
        {
            self.send_initial_events = Some(true);
            self.match_text = "NotOlderThan".to_owned();
            self.resource_version_match = Some(VersionMatch::NotOlderThan);
        }
    }

    /// Whether this is a watch list: the watch begins with the existing objects, and a bookmark marks their end.
    pub fn is_streaming_list(&self) -> bool {
        self.send_initial_events == Some(true) && self.allow_watch_bookmarks
    }

    /// Checks the combination of options. `initial_events`: whether the server supports watch lists.
    pub fn validate(&self, initial_events: bool) -> status::Result<()> {
        let errors = if self.watch { self.watch_errors(initial_events) } else { self.list_errors() };
        refuse("ListOptions", &errors)
    }

    fn list_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let path = FieldPath::new("resourceVersionMatch");
        let mut forbid = |detail| errors.push(FieldError::forbidden(&path, detail));
        if !self.match_text.is_empty() {
            if self.resource_version.is_empty() {
                forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            if !self.continue_token.is_empty() {
                forbid("resourceVersionMatch is forbidden when continue is provided");
            }
            if self.resource_version_match == Some(VersionMatch::Exact) && self.resource_version == "0" {
                forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            }
            if self.resource_version_match.is_none() {
                errors.push(FieldError::not_supported(
                    &path,
                    &quoted(&self.match_text),
                    &["Exact", "NotOlderThan", ""],
                ));
            }
        }
        if self.send_initial_events.is_some() {
            let path = FieldPath::new("sendInitialEvents");
            errors.push(FieldError::forbidden(&path, "sendInitialEvents is forbidden for list"));
        }
        errors
    }

    fn watch_errors(&self, initial_events: bool) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let path = FieldPath::new("resourceVersionMatch");
        let not_older = self.resource_version_match == Some(VersionMatch::NotOlderThan);
        if self.send_initial_events.is_some() {
            if !not_older {
                let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                errors.push(FieldError::forbidden(&path, detail));
            }
            if !initial_events {
                let detail =
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                errors.push(FieldError::forbidden(&FieldPath::new("sendInitialEvents"), detail));
            }
        }
        if !self.match_text.is_empty() {
            if self.send_initial_events.is_none() {
                let detail =
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(FieldError::forbidden(&path, detail));
            }
            if !not_older {
                errors.push(FieldError::not_supported(&path, &quoted(&self.match_text), &["NotOlderThan"]));
            }
            if !self.continue_token.is_empty() {
                let detail = "resourceVersionMatch is forbidden when continue is provided";
                errors.push(FieldError::forbidden(&path, detail));
            }
        }
        errors
    }
}
