//! The options of a request: what stands behind the question mark, or in the body of a deletion, checked once.

use pilothouse_actors::filter::LabelRule;

use super::field::{FieldError, Path, quoted};
use super::limits::SELECTOR_RULES;
use super::query::Query;
use super::select::{self, FieldSelector};
use super::status::{self, Status};
use super::value::Value;
use super::words::META_GROUP;

/// The longest name of a field manager, in bytes.
const FIELD_MANAGER_BYTES: usize = 128;

/// How the version that a list asks for is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// This version and no other.
    Exact,
    /// This version or a later one.
    NotOlderThan,
}

/// The options of list, watch and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// What must hold of the labels.
    pub labels: Vec<LabelRule>,
    /// What must hold of the fields, before the kind has had its say: see [`select::filter`].
    pub fields: FieldSelector,
    /// Whether to watch instead of list.
    pub watch: bool,
    /// Whether the watch may be sent bookmarks.
    pub allow_watch_bookmarks: bool,
    /// The version asked for, as the client wrote it: see [`revision`].
    pub resource_version: String,
    /// How that version is meant.
    pub resource_version_match: Option<VersionMatch>,
    /// When a watch ends.
    pub timeout_seconds: Option<i64>,
    /// The most items of one answer; 0 is no limit.
    pub limit: i64,
    /// Where an earlier answer stopped.
    pub continue_token: String,
    /// Whether a watch begins with what is there.
    pub send_initial_events: Option<bool>,
    /// The version match as the client wrote it: validation repeats it.
    match_text: String,
}

impl ListOptions {
    /// Reads the options; what cannot be read at all is a bad request. [`ListOptions::validate`] judges the rest.
    pub fn parse(query: &Query<'_>) -> status::Result<ListOptions> {
        if query.is_empty() {
            return Ok(ListOptions::default());
        }
        // The order in which several mistakes are looked for is part of the API: clients see the first.
        let timeout_seconds = query.integer("timeoutSeconds")?;
        let limit = query.integer("limit")?.unwrap_or(0);
        let labels = select::parse_labels(query.get("labelSelector").unwrap_or_default())?;
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

    /// Fills in what the client means by leaving it out. `initial_events`: whether the server can begin a watch with
    /// what is there; then a watch from anywhere asks for that.
    pub fn set_defaults(&mut self, initial_events: bool) {
        let anywhere = matches!(self.resource_version.as_str(), "" | "0");
        if initial_events
            && self.watch
            && anywhere
            && self.send_initial_events.is_none()
            && self.match_text.is_empty()
        {
            self.send_initial_events = Some(true);
            self.match_text = "NotOlderThan".to_owned();
            self.resource_version_match = Some(VersionMatch::NotOlderThan);
        }
    }

    /// Whether a watch is a list as well: it begins with all there is, and says when that is done.
    pub fn is_streaming_list(&self) -> bool {
        self.send_initial_events == Some(true) && self.allow_watch_bookmarks
    }

    /// Whether the options make sense together. `initial_events`: whether the server can begin a watch with what is
    /// there.
    pub fn validate(&self, initial_events: bool) -> status::Result<()> {
        let errors = if self.watch { self.watch_errors(initial_events) } else { self.list_errors() };
        refuse("ListOptions", &errors)
    }

    fn list_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let path = Path::new("resourceVersionMatch");
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
            let path = Path::new("sendInitialEvents");
            errors.push(FieldError::forbidden(&path, "sendInitialEvents is forbidden for list"));
        }
        errors
    }

    fn watch_errors(&self, initial_events: bool) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let path = Path::new("resourceVersionMatch");
        let not_older = self.resource_version_match == Some(VersionMatch::NotOlderThan);
        if self.send_initial_events.is_some() {
            if !not_older {
                let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                errors.push(FieldError::forbidden(&path, detail));
            }
            if !initial_events {
                let detail =
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                errors.push(FieldError::forbidden(&Path::new("sendInitialEvents"), detail));
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

/// A resourceVersion as a number; `None` when the client does not say one.
pub fn revision(text: &str) -> status::Result<Option<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(number) if digits => Ok(Some(number)),
        _ => {
            let why = if digits { "value out of range" } else { "invalid syntax" };
            let text = quoted(text);
            Err(Status::bad_request(format!(
                "resourceVersion: Invalid value: {text}: strconv.ParseUint: parsing {text}: {why}"
            )))
        }
    }
}

/// The options of a get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// The version that the answer must not be older than, as the client wrote it: see [`revision`].
    pub resource_version: String,
}

impl GetOptions {
    /// Reads the options.
    pub fn parse(query: &Query<'_>) -> GetOptions {
        GetOptions { resource_version: query.text("resourceVersion") }
    }
}

/// What happens to fields that the kind does not know, or that stand twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// They are dropped without a word.
    Ignore,
    /// They are dropped with a warning.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
}

/// The options of create and update, and the part of patch that is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether to answer as if, and change nothing.
    pub dry_run: bool,
    /// The name that owns the fields this request sets; empty when the client does not say.
    pub field_manager: String,
    /// What happens to unknown and duplicate fields.
    pub field_validation: FieldValidation,
}

/// The options of a create.
pub type CreateOptions = WriteOptions;
/// The options of an update.
pub type UpdateOptions = WriteOptions;

impl WriteOptions {
    /// Reads and checks the options of a create.
    pub fn create(query: &Query<'_>) -> status::Result<CreateOptions> {
        WriteOptions::checked(query, "CreateOptions", Vec::new())
    }

    /// Reads and checks the options of an update.
    pub fn update(query: &Query<'_>) -> status::Result<UpdateOptions> {
        WriteOptions::checked(query, "UpdateOptions", Vec::new())
    }

    fn checked(query: &Query<'_>, kind: &str, mut errors: Vec<FieldError>) -> status::Result<WriteOptions> {
        if query.is_empty() && errors.is_empty() {
            return Ok(WriteOptions::default());
        }
        let field_manager = query.text("fieldManager");
        errors.extend(field_manager_errors(&field_manager, &Path::new("fieldManager")));
        let dry_run: Vec<&str> = query.all("dryRun").collect();
        errors.extend(dry_run_errors(&dry_run));
        let (field_validation, known) = match query.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => (FieldValidation::Warn, true),
            "Ignore" => (FieldValidation::Ignore, true),
            "Strict" => (FieldValidation::Strict, true),
            _ => (FieldValidation::Warn, false),
        };
        if !known {
            let value = quoted(&query.text("fieldValidation"));
            let path = Path::new("fieldValidation");
            errors.push(FieldError::not_supported(&path, &value, &["", "Ignore", "Strict", "Warn"]));
        }
        refuse(kind, &errors)?;
        Ok(WriteOptions { dry_run: dry_run.contains(&"All"), field_manager, field_validation })
    }
}

/// The options of a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchOptions {
    /// What it shares with the other writes.
    pub write: WriteOptions,
    /// Whether an apply takes fields over from their owners.
    pub force: bool,
}

impl PatchOptions {
    /// Reads and checks the options. `apply`: whether the body says what the fields shall be, not how to change them.
    pub fn parse(query: &Query<'_>, apply: bool) -> status::Result<PatchOptions> {
        let force = query.flag("force");
        let mut errors = Vec::new();
        if apply && query.get("fieldManager").unwrap_or_default().is_empty() {
            errors.push(FieldError::required(&Path::new("fieldManager"), "is required for apply patch"));
        }
        if !apply && force.is_some() {
            let detail = "may not be specified for non-apply patch";
            errors.push(FieldError::forbidden(&Path::new("force"), detail));
        }
        let write = WriteOptions::checked(query, "PatchOptions", errors)?;
        Ok(PatchOptions { write, force: force.unwrap_or(false) })
    }
}

/// What becomes of the objects that an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They stay, without their owner.
    Orphan,
    /// They go after it.
    Background,
    /// They go before it.
    Foreground,
}

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Whether to answer as if, and change nothing.
    pub dry_run: bool,
    /// How long the object may take to end.
    pub grace_period_seconds: Option<i64>,
    /// What becomes of the objects it owns.
    pub propagation: Option<Propagation>,
    /// The older way to say the same, which a few answers still depend on.
    pub orphan_dependents: Option<bool>,
    /// The uid the object must have.
    pub uid: Option<String>,
    /// The version the object must be at.
    pub resource_version: Option<String>,
    /// Whether to remove an object that cannot be read.
    pub unreadable: bool,
}

/// What the option is called that removes objects which cannot be read.
pub const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

impl DeleteOptions {
    /// Reads and checks the options. A body, decoded and of the right types, says everything: then the parameters say
    /// nothing. Unless `force` is allowed nobody hears of [`IGNORE_READ_ERROR`].
    pub fn parse(query: &Query<'_>, body: Option<&Value>, force: bool) -> status::Result<DeleteOptions> {
        match body {
            Some(body) => DeleteOptions::from_body(body, force),
            None if query.is_empty() => Ok(DeleteOptions::default()),
            None => DeleteOptions::from_query(query, force),
        }
    }

    fn from_query(query: &Query<'_>, force: bool) -> status::Result<DeleteOptions> {
        let precondition = |key| query.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
        let options = DeleteOptions {
            grace_period_seconds: query.integer("gracePeriodSeconds")?,
            orphan_dependents: query.flag("orphanDependents"),
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            unreadable: force && query.flag(IGNORE_READ_ERROR).unwrap_or_default(),
            ..DeleteOptions::default()
        };
        // The parameters know no preconditions as a whole.
        let dry_run = query.all("dryRun").collect::<Vec<_>>();
        options.checked(&dry_run, query.get("propagationPolicy"), false)
    }

    fn from_body(body: &Value, force: bool) -> status::Result<DeleteOptions> {
        let text = |path: &[&str]| body.at(path).and_then(Value::as_str);
        let options = DeleteOptions {
            grace_period_seconds: body.get("gracePeriodSeconds").and_then(Value::as_int),
            orphan_dependents: body.get("orphanDependents").and_then(Value::as_bool),
            uid: text(&["preconditions", "uid"]).map(str::to_owned),
            resource_version: text(&["preconditions", "resourceVersion"]).map(str::to_owned),
            unreadable: force && body.get(IGNORE_READ_ERROR).and_then(Value::as_bool).unwrap_or_default(),
            ..DeleteOptions::default()
        };
        let dry_run = body.get("dryRun").map(Value::items).unwrap_or_default();
        let dry_run: Vec<&str> = dry_run.iter().filter_map(Value::as_str).collect();
        options.checked(&dry_run, text(&["propagationPolicy"]), body.get("preconditions").is_some())
    }

    fn checked(
        mut self,
        dry_run: &[&str],
        policy: Option<&str>,
        preconditions: bool,
    ) -> status::Result<DeleteOptions> {
        let mut errors = Vec::new();
        if let Some(policy) = policy {
            let path = Path::new("propagationPolicy");
            if self.orphan_dependents.is_some() {
                let detail = "orphanDependents and deletionPropagation cannot be both set";
                errors.push(FieldError::invalid(&path, &quoted(policy), detail));
            }
            self.propagation = match policy {
                "Orphan" => Some(Propagation::Orphan),
                "Background" => Some(Propagation::Background),
                "Foreground" => Some(Propagation::Foreground),
                _ => {
                    let known = ["Foreground", "Background", "Orphan", "nil"];
                    errors.push(FieldError::not_supported(&path, &quoted(policy), &known));
                    None
                }
            };
        }
        errors.extend(dry_run_errors(dry_run));
        if self.unreadable {
            let others = [
                ("dryRun", !dry_run.is_empty()),
                ("propagationPolicy", policy.is_some()),
                ("orphanDependents", self.orphan_dependents.is_some()),
                ("gracePeriodSeconds", self.grace_period_seconds.is_some()),
                ("preconditions", preconditions || self.uid.is_some() || self.resource_version.is_some()),
            ];
            let said = others.iter().filter(|(_, is_said)| *is_said);
            errors.extend(
                said.map(|(other, _)| refuse_force(&format!("cannot be set together with .{other}"))),
            );
        }
        refuse("DeleteOptions", &errors)?;
        self.dry_run = dry_run.contains(&"All");
        Ok(self)
    }
}

/// Why an object that cannot be read is not removed.
pub fn refuse_force(why: &str) -> FieldError {
    FieldError::invalid(&Path::new(IGNORE_READ_ERROR), "true", why)
}

/// 422: the option to remove what cannot be read is for one object alone.
pub fn no_force_of_many() -> Box<Status> {
    let why = "is not allowed with DELETECOLLECTION, try again after removing the option";
    Status::invalid(META_GROUP, "DeleteOptions", "", &[refuse_force(why)])
}

/// 422 if anything is wrong with options of `kind`.
fn refuse(kind: &str, errors: &[FieldError]) -> status::Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(META_GROUP, kind, "", errors)) }
}

/// `All` is the only dry run there is; an empty value asks for none.
fn dry_run_errors(values: &[&str]) -> Option<FieldError> {
    if values.iter().all(|value| matches!(*value, "All" | "")) {
        return None;
    }
    let list: Vec<String> = values.iter().map(|value| quoted(value)).collect();
    let value = format!("[]string{{{}}}", list.join(", "));
    Some(FieldError::not_supported(&Path::new("dryRun"), &value, &["All"]))
}

/// What is wrong with the name of a field manager.
pub fn field_manager_errors(manager: &str, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if manager.len() > FIELD_MANAGER_BYTES {
        errors.push(FieldError::too_long(path, FIELD_MANAGER_BYTES));
    }
    for (at, c) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        errors.push(FieldError::invalid(path, &quoted(manager), &detail));
    }
    errors
}

/// Whether a character shows on paper: letters, numbers, signs, and the plain space. Marks that only combine with a
/// letter do not count, because nothing at hand tells them from what never prints.
fn is_printable(c: char) -> bool {
    matches!(c, '"' | '\\' | '\'') || c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T: std::fmt::Debug>(result: status::Result<T>) -> (u16, String) {
        let status = result.unwrap_err();
        (status.code, status.message)
    }

    fn list(raw: &str) -> status::Result<()> {
        ListOptions::parse(&Query::parse(raw))?.validate(false)
    }

    #[test]
    fn list_options_that_make_no_sense_together() {
        let of = |detail: &str| (422, format!("ListOptions.meta.k8s.io \"\" is invalid: {detail}"));
        let table = [
            (
                "resourceVersionMatch=Exact",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
            (
                "resourceVersionMatch=Exact&resourceVersion=0",
                "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
            (
                "resourceVersionMatch=Nope&resourceVersion=5",
                "resourceVersionMatch: Unsupported value: \"Nope\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
            ),
            (
                "resourceVersionMatch=NotOlderThan&resourceVersion=5&continue=abc",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
            ),
            (
                "watch=1&resourceVersionMatch=Exact&resourceVersion=5",
                "[resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided, resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\"]",
            ),
            (
                "sendInitialEvents=true",
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
            ),
            (
                "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
            ),
        ];
        for (raw, detail) in table {
            assert_eq!(message(list(raw)), of(detail), "{raw}");
        }
        let ok = Query::parse("watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        assert!(ListOptions::parse(&ok).unwrap().validate(true).is_ok());
    }

    #[test]
    fn the_first_mistake_in_a_list_is_the_one_named() {
        let both = "labelSelector=%3D&limit=x&timeoutSeconds=y";
        assert_eq!(message(list(both)), (400, r#"strconv.ParseInt: parsing "y": invalid syntax"#.into()));
        let selectors = "fieldSelector=bad&labelSelector=%3D";
        assert!(message(list(selectors)).1.starts_with("found '='"));
        assert!(list("limit=5&continue=x&resourceVersion=7&allowWatchBookmarks=1").is_ok());
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(revision("").unwrap(), None);
        assert_eq!(revision("42").unwrap(), Some(42));
        for (text, why) in [
            ("abc", "invalid syntax"),
            ("-5", "invalid syntax"),
            ("99999999999999999999", "value out of range"),
        ] {
            let wanted = format!(
                "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": {why}"
            );
            assert_eq!(message(revision(text)), (400, wanted));
        }
        assert!(revision("+5").is_err());
    }

    #[test]
    fn writes_name_what_they_do_not_know() {
        let create = |raw| WriteOptions::create(&Query::parse(raw));
        assert!(create("dryRun=All").unwrap().dry_run);
        assert!(!create("dryRun=").unwrap().dry_run && !create("dryRun").unwrap().dry_run);
        assert_eq!(create("fieldValidation=Strict").unwrap().field_validation, FieldValidation::Strict);
        assert_eq!(create("").unwrap(), WriteOptions::default());
        assert_eq!(
            message(create("dryRun=Some&dryRun=All")),
            (
                422,
                "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: []string{\"Some\", \"All\"}: supported values: \"All\"".into()
            )
        );
        assert_eq!(
            message(WriteOptions::update(&Query::parse("fieldValidation=Loud"))),
            (
                422,
                "UpdateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Loud\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"".into()
            )
        );
    }

    #[test]
    fn an_apply_needs_a_manager_and_only_an_apply_can_force() {
        let patch = |raw, apply| PatchOptions::parse(&Query::parse(raw), apply);
        assert_eq!(
            message(patch("", true)).1,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
        );
        assert_eq!(
            message(patch("force=false", false)).1,
            "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
        );
        assert!(patch("force&fieldManager=me", true).unwrap().force);
        let long = format!("fieldManager={}", "x".repeat(129));
        assert_eq!(
            message(patch(&long, false)).1,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes"
        );
    }

    #[test]
    fn a_manager_must_be_printable() {
        let path = Path::new("fieldManager");
        for fine in ["kubectl", "a b", "Ünï'\"\\"] {
            assert_eq!(field_manager_errors(fine, &path), [], "{fine}");
        }
        let errors = field_manager_errors("a\u{7}", &path);
        assert_eq!(errors[0].message, r#"Invalid value: "a\a": invalid character U+0007 (at position 1)"#);
        assert_eq!(field_manager_errors("\u{200b}\u{a0}", &path).len(), 2);
    }

    #[test]
    fn a_body_says_everything_about_a_deletion() {
        let query = Query::parse("gracePeriodSeconds=5&propagationPolicy=Orphan&uid=u&dryRun=All");
        let from_query = DeleteOptions::parse(&query, None, false).unwrap();
        let wanted = DeleteOptions {
            dry_run: true,
            grace_period_seconds: Some(5),
            propagation: Some(Propagation::Orphan),
            uid: Some("u".into()),
            ..DeleteOptions::default()
        };
        assert_eq!(from_query, wanted);
        assert_eq!(
            DeleteOptions::parse(&query, Some(&Value::object()), false).unwrap(),
            DeleteOptions::default()
        );
        let mut body = Value::object();
        body.set("gracePeriodSeconds", 0);
        body.set("dryRun", vec!["All"]);
        body.entry("preconditions").set("resourceVersion", "7");
        let from_body = DeleteOptions::parse(&query, Some(&body), false).unwrap();
        assert_eq!((from_body.grace_period_seconds, from_body.dry_run), (Some(0), true));
        assert_eq!((from_body.resource_version.as_deref(), from_body.uid), (Some("7"), None));
    }

    #[test]
    fn deletions_refuse_policies_they_do_not_know() {
        let delete = |raw| DeleteOptions::parse(&Query::parse(raw), None, false);
        assert_eq!(
            message(delete("propagationPolicy=Now")).1,
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Now\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
        );
        assert_eq!(
            message(delete("propagationPolicy=Orphan&orphanDependents=true")).1,
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set"
        );
        assert_eq!(message(delete("gracePeriodSeconds=soon")).0, 400);
    }

    #[test]
    fn what_cannot_be_read_is_removed_without_conditions() {
        let force = |raw: &str, allowed| {
            DeleteOptions::parse(&Query::parse(&format!("{IGNORE_READ_ERROR}=true{raw}")), None, allowed)
        };
        assert!(force("", true).unwrap().unreadable);
        assert!(!force("&gracePeriodSeconds=5", false).unwrap().unreadable, "nobody hears of it");
        let together = |what: &str| {
            let field =
                format!("{IGNORE_READ_ERROR}: Invalid value: true: cannot be set together with .{what}");
            (422, format!("DeleteOptions.meta.k8s.io \"\" is invalid: {field}"))
        };
        for (raw, what) in [
            ("&dryRun=All", "dryRun"),
            ("&propagationPolicy=Orphan", "propagationPolicy"),
            ("&orphanDependents=true", "orphanDependents"),
            ("&gracePeriodSeconds=0", "gracePeriodSeconds"),
            ("&uid=u", "preconditions"),
        ] {
            assert_eq!(message(force(raw, true)), together(what), "{raw}");
        }
        let mut body = Value::object();
        body.set(IGNORE_READ_ERROR, true);
        body.set("preconditions", Value::object());
        let parsed = DeleteOptions::parse(&Query::parse(""), Some(&body), true);
        assert_eq!(message(parsed), together("preconditions"));
    }
}
