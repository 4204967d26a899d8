//! DeleteOptions, from the body or the query.

use super::{dry_run_errors, refuse};
use crate::field::{FieldError, FieldPath, quoted};
use crate::query::Query;
use crate::status::{self, Status};
use crate::value::Value;
use crate::well_known::META_GROUP;

/// What happens to the dependents of a deleted object (`propagationPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The dependents stay and lose the owner reference.
    Orphan,
    /// The garbage collector deletes the dependents afterwards.
    Background,
    /// The dependents are deleted first.
    Foreground,
}

impl Propagation {
    /// The value of `propagationPolicy`.
    pub fn as_str(self) -> &'static str {
        match self {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        }
    }
}

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Whether to check the deletion, but store nothing (`dryRun=All`).
    pub dry_run: bool,
    /// How long the object may take to terminate gracefully.
    pub grace_period_seconds: Option<i64>,
    /// What happens to its dependents.
    pub propagation: Option<Propagation>,
    /// The deprecated predecessor of `propagationPolicy`; some validation errors still depend on it.
    pub orphan_dependents: Option<bool>,
    /// Precondition: the uid of the object.
    pub uid: Option<String>,
    /// Precondition: the resourceVersion of the object.
    pub resource_version: Option<String>,
    /// Whether to delete a corrupt object: see [`IGNORE_READ_ERROR`].
    pub unreadable: bool,
}

/// The option that deletes an object whose stored data cannot be read.
pub const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

impl DeleteOptions {
    /// Reads and checks the options. If there is a body, decoded and of the right types, the parameters are ignored.
    /// Unless `force` is allowed, [`IGNORE_READ_ERROR`] is ignored.
    pub fn parse(query: &Query<'_>, body: Option<&Value>, force: bool) -> status::Result<DeleteOptions> {
        match body {
            Some(body) => DeleteOptions::from_body(body, force),
            None if query.is_empty() => Ok(DeleteOptions::default()),
            None => DeleteOptions::from_query(query, force),
        }
    }

    /// The options as a body.
    pub fn to_value(&self) -> Value {
        let mut body = Value::object();
        body.set("kind", "DeleteOptions");
        body.set("apiVersion", "v1");
        if let Some(seconds) = self.grace_period_seconds {
            body.set("gracePeriodSeconds", seconds);
        }
        let preconditions = [("uid", &self.uid), ("resourceVersion", &self.resource_version)];
        for (field, text) in
            preconditions.into_iter().filter_map(|(field, text)| Some((field, text.as_ref()?)))
        {
            body.entry("preconditions").set(field, text.as_str());
        }
        if let Some(orphan) = self.orphan_dependents {
            body.set("orphanDependents", orphan);
        }
        if let Some(propagation) = self.propagation {
            body.set("propagationPolicy", propagation.as_str());
        }
        if self.dry_run {
            body.set("dryRun", vec![Value::from("All")]);
        }
        if self.unreadable {
            body.set(IGNORE_READ_ERROR, true);
        }
        body
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
        // Only a body can have empty preconditions.
        let dry_run = query.all("dryRun").collect::<Vec<_>>();
        options.checked(&dry_run, query.get("propagationPolicy"), false)
    }

    fn from_body(body: &Value, force: bool) -> status::Result<DeleteOptions> {
        let text = |path: &[&str]| body.get_path(path).and_then(Value::as_str);
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
            let path = FieldPath::new("propagationPolicy");
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
            let conflicting = others.iter().filter(|(_, is_set)| *is_set);
            errors.extend(
                conflicting.map(|(other, _)| refuse_force(&format!("cannot be set together with .{other}"))),
            );
        }
        refuse("DeleteOptions", &errors)?;
        self.dry_run = dry_run.contains(&"All");
        Ok(self)
    }
}

/// The error for a corrupt object that must not be deleted with [`IGNORE_READ_ERROR`].
pub fn refuse_force(detail: &str) -> FieldError {
    FieldError::invalid(&FieldPath::new(IGNORE_READ_ERROR), "true", detail)
}

/// 422: deletecollection does not accept [`IGNORE_READ_ERROR`].
pub fn refuse_force_of_collection() -> Box<Status> {
    let detail = "is not allowed with DELETECOLLECTION, try again after removing the option";
    Status::invalid(META_GROUP, "DeleteOptions", "", &[refuse_force(detail)])
}
