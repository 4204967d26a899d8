//! The only place where an error becomes a Status: code, reason, message and details as clients know them.

mod classify;
mod json;
mod remote;
mod unreadable;

use std::collections::HashSet;
use std::fmt;

use pilothouse_types::error::StoreError;
use pilothouse_types::memory::OutOfMemory;
use serde::Serialize;

use super::field::{FieldError, quoted};
use super::limits::FIELD_ERRORS;

pub use classify::IgnoreErrors;
pub use unreadable::storage_folder;

/// The details of a Status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// The name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The group of the kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The kind, or the resource if the path named one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One entry per problem.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// When the client may retry.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
    /// A token with which a list can continue inconsistently. It is put into the metadata of the Status, not into the details.
    #[serde(skip)]
    pub continue_token: String,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// A machine-readable reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A human-readable message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field that it is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// A response without an object: an error, or the result of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// A machine-readable reason; empty on success.
    pub reason: &'static str,
    /// A human-readable message; empty on success.
    pub message: String,
    /// `None` omits the details, which differs from empty details.
    pub details: Option<Details>,
    /// The reason that a webhook has returned, instead of `reason`.
    pub foreign_reason: Option<Box<str>>,
}

/// A group and the plural of a resource, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupResource<'a> {
    /// The group, empty for the core group.
    pub group: &'a str,
    /// The plural of the resource.
    pub resource: &'a str,
}

impl fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// The result of an operation whose error is returned to the client.
pub type Result<T> = std::result::Result<T, Box<Status>>;

impl Status {
    /// An error without details.
    pub fn bare(code: u16, reason: &'static str, message: impl Into<String>) -> Box<Status> {
        Box::new(Status { code, reason, message: message.into(), details: None, foreign_reason: None })
    }

    /// An error with details that are empty, which differs from none.
    fn with_empty_details(code: u16, reason: &'static str, message: impl Into<String>) -> Box<Status> {
        let mut status = Status::bare(code, reason, message);
        status.details = Some(Details::default());
        status
    }

    fn about(
        code: u16,
        reason: &'static str,
        message: String,
        resource: GroupResource<'_>,
        name: &str,
    ) -> Box<Status> {
        let details = Details {
            name: name.to_owned(),
            group: resource.group.to_owned(),
            kind: resource.resource.to_owned(),
            ..Details::default()
        };
        Box::new(Status { code, reason, message, details: Some(details), foreign_reason: None })
    }

    /// 200: success, with details about the object.
    pub fn success(resource: GroupResource<'_>, name: &str, uid: &str) -> Status {
        let details = Details {
            name: name.to_owned(),
            group: resource.group.to_owned(),
            kind: resource.resource.to_owned(),
            uid: uid.to_owned(),
            ..Details::default()
        };
        Status { code: 200, reason: "", message: String::new(), details: Some(details), foreign_reason: None }
    }

    /// 200: an object of this kind was deleted, of which only the name is known.
    pub fn success_for_kind(kind: &str, name: &str) -> Status {
        let details = Details { name: name.to_owned(), kind: kind.to_owned(), ..Details::default() };
        Status { code: 200, reason: "", message: String::new(), details: Some(details), foreign_reason: None }
    }

    /// 201: success without an object.
    pub fn created() -> Status {
        Status { code: 201, reason: "", message: String::new(), details: None, foreign_reason: None }
    }

    /// 400: the request is invalid.
    pub fn bad_request(message: impl Into<String>) -> Box<Status> {
        Status::bare(400, "BadRequest", message)
    }

    /// 401: authentication failed.
    pub fn unauthorized() -> Box<Status> {
        Status::bare(401, "Unauthorized", "Unauthorized")
    }

    /// 403: the user may not do this. `message` names the user and the operation.
    pub fn forbidden(message: &str, resource: Option<(GroupResource<'_>, &str)>) -> Box<Status> {
        let Some((resource, name)) = resource else {
            let message = format!("forbidden: {message}");
            return Status::with_empty_details(403, "Forbidden", message);
        };
        let message = match name {
            _ if resource.group.is_empty() && resource.resource.is_empty() => format!("forbidden: {message}"),
            "" => format!("{resource} is forbidden: {message}"),
            name => format!("{resource} {} is forbidden: {message}", quoted(name)),
        };
        Status::about(403, "Forbidden", message, resource, name)
    }

    /// 403 with a policy's message, and the code of its reason.
    pub fn denied_by_policy(
        resource: GroupResource<'_>,
        name: &str,
        message: &str,
        reason: &'static str,
    ) -> Box<Status> {
        let mut status = Status::forbidden(message, Some((resource, name)));
        status.reason = reason;
        status.code = match reason {
            "Forbidden" => 403,
            "Unauthorized" => 401,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        if let Some(details) = &mut status.details {
            let (reason, field) = (String::new(), String::new());
            details.causes.push(Cause { reason, message: message.to_owned(), field });
        }
        status
    }

    /// 403 for mutating policies that failed: a cause per message, the first of which is also the message of the Status. `reason`
    /// is machine-readable.
    pub fn denied_by_policies<'m>(
        resource: GroupResource<'_>,
        name: &str,
        messages: impl IntoIterator<Item = &'m str>,
        reason: &'static str,
    ) -> Box<Status> {
        let mut status = Status::forbidden("", Some((resource, name)));
        status.reason = reason;
        let causes: Vec<Cause> = messages
            .into_iter()
            .map(|message| Cause { reason: String::new(), message: message.to_owned(), field: String::new() })
            .collect();
        status.message = causes.first().map(|cause| cause.message.clone()).unwrap_or_default();
        if let Some(details) = &mut status.details {
            details.causes = causes;
        }
        status
    }

    /// 403: no object may be created in a terminating namespace.
    pub fn namespace_terminating(resource: GroupResource<'_>, name: &str, namespace: &str) -> Box<Status> {
        let message =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut status = Status::forbidden(&message, Some((resource, name)));
        if let Some(details) = &mut status.details {
            details.causes.push(Cause {
                reason: "NamespaceTerminating".to_owned(),
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            });
        }
        status
    }

    /// 404: no object has this name.
    pub fn not_found(resource: GroupResource<'_>, name: &str) -> Box<Status> {
        Status::about(404, "NotFound", format!("{resource} {} not found", quoted(name)), resource, name)
    }

    /// 404: no resource is served at the path.
    pub fn no_such_resource() -> Box<Status> {
        let message = "the server could not find the requested resource".to_owned();
        Status::with_empty_details(404, "NotFound", message)
    }

    /// 405: the operation is not supported by this resource.
    pub fn not_supported(resource: GroupResource<'_>, operation: &str) -> Box<Status> {
        let message =
            format!("{operation} is not supported on resources of kind {}", quoted(&resource.to_string()));
        let details = Details {
            kind: resource.resource.to_owned(),
            group: resource.group.to_owned(),
            ..Details::default()
        };
        Box::new(Status { details: Some(details), message, ..*Status::method_not_allowed() })
    }

    /// 405: the resource does not support this verb.
    pub fn method_not_allowed() -> Box<Status> {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Status::with_empty_details(405, "MethodNotAllowed", message)
    }

    /// 405: a terminating definition accepts no new objects.
    pub fn definition_terminating(resource: GroupResource<'_>) -> Box<Status> {
        let message = "create not allowed while custom resource definition is terminating".to_owned();
        Status::about(405, "MethodNotAllowed", message, resource, "")
    }

    /// 406: no media type of the request is known.
    pub fn no_representation(offered: &str) -> Box<Status> {
        let message = format!("406: Not Acceptable\n\nAvailable representations: {offered}");
        Status::with_empty_details(406, "NotAcceptable", message)
    }

    /// 406: the media types are known, but not with these parameters.
    pub fn not_acceptable(offered: &str) -> Box<Status> {
        Status::bare(406, "NotAcceptable", format!("only the following media types are accepted: {offered}"))
    }

    /// 406: the requested transformation is not possible.
    pub fn transform_not_acceptable(message: String) -> Box<Status> {
        Status::bare(406, "NotAcceptable", message)
    }

    /// 415: the encoding of the body is unknown.
    pub fn unsupported_body(offered: &str) -> Box<Status> {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {offered}"
        );
        Status::bare(415, "UnsupportedMediaType", message)
    }

    /// 415: the body is no known patch type. Without a body the reference continues with the negotiation of the response, which
    /// fails; `length` is the Content-Length header.
    pub fn unsupported_patch(length: &str) -> Box<Status> {
        let (code, reason, message) = match length {
            "" => (415, "UnsupportedMediaType", "415: Unsupported Media Type\n\nAvailable representations: "),
            "0" => (406, "NotAcceptable", "406: Not Acceptable\n\nAvailable representations: "),
            _ => (415, "UnsupportedMediaType", "415: Unsupported Media Type"),
        };
        Status::with_empty_details(code, reason, message)
    }

    /// 409: an object with this name already exists.
    pub fn already_exists(resource: GroupResource<'_>, name: &str) -> Box<Status> {
        Status::about(
            409,
            "AlreadyExists",
            format!("{resource} {} already exists", quoted(name)),
            resource,
            name,
        )
    }

    /// Adds to an AlreadyExists that the existing object is being deleted.
    pub fn existing_is_terminating(mut self: Box<Status>) -> Box<Status> {
        self.message.insert_str(0, "object is being deleted: ");
        self
    }

    /// Adds to an AlreadyExists that no unique name could be generated.
    pub fn without_unique_name(mut self: Box<Status>) -> Box<Status> {
        self.message.push_str(", the server was not able to generate a unique name for the object");
        if let Some(details) = &mut self.details {
            details.retry_after_seconds = 1;
        }
        self
    }

    /// 409: the object is not in the expected state.
    pub fn conflict(resource: GroupResource<'_>, name: &str, detail: &str) -> Box<Status> {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {detail}", quoted(name));
        Status::about(409, "Conflict", message, resource, name)
    }

    /// 409: the object has changed since the client read it.
    pub fn stale(resource: GroupResource<'_>, name: &str) -> Box<Status> {
        Status::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409: other managers own fields that an apply would change.
    pub fn apply_conflict(message: String, causes: Vec<Cause>) -> Box<Status> {
        let details = Details { causes, ..Details::default() };
        Box::new(Status {
            code: 409,
            reason: "Conflict",
            message,
            details: Some(details),
            foreign_reason: None,
        })
    }

    /// 410: the requested version is expired.
    pub fn expired(message: impl Into<String>) -> Box<Status> {
        Status::bare(410, "Expired", message)
    }

    /// 410: a chunked list cannot continue consistently. `continue_token` continues it with the current state.
    pub fn continue_expired(continue_token: String) -> Box<Status> {
        let mut status = Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        );
        status.details = Some(Details { continue_token, ..Details::default() });
        status
    }

    /// 410: the version of a list is expired.
    pub fn list_expired() -> Box<Status> {
        Status::expired("The resourceVersion for the provided list is too old.")
    }

    /// 410: a watch cannot start at `requested`, because the history starts at `oldest`.
    pub fn watch_expired(requested: u64, oldest: u64) -> Box<Status> {
        Status::expired(format!("too old resource version: {requested} ({oldest})"))
    }

    /// 504: the request timed out.
    pub fn timed_out() -> Box<Status> {
        let message = "Timeout: request did not complete within the allotted timeout";
        Status::with_empty_details(504, "Timeout", message)
    }

    /// 409: the object has another UID.
    pub fn wrong_uid(resource: GroupResource<'_>, key: &str, expected: &str, actual: &str) -> Box<Status> {
        Status::precondition_failed(resource, key, "UID", expected, actual)
    }

    /// 409: a precondition failed. `field`: the field that differs.
    pub fn precondition_failed(
        resource: GroupResource<'_>,
        key: &str,
        field: &str,
        expected: &str,
        actual: &str,
    ) -> Box<Status> {
        let detail = format!(
            "StorageError: invalid object, Code: 4, Key: /{key}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: {field} in precondition: {expected}, {field} in object meta: {actual}"
        );
        Status::conflict(resource, key.rsplit('/').next().unwrap_or(key), &detail)
    }

    /// 408: the body did not arrive in time.
    pub fn slow_body() -> Box<Status> {
        Status::bare(408, "Timeout", "the request body was not sent in time")
    }

    /// 413: the body is too large.
    pub fn too_large(message: impl Into<String>) -> Box<Status> {
        Status::bare(413, "RequestEntityTooLarge", message)
    }

    /// 422: invalid fields. `kind` and `group` name the kind of the body.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Box<Status> {
        // A body can have a hundred thousand errors: the response would be larger than the body.
        let errors = errors.get(..FIELD_ERRORS).unwrap_or(errors);
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: error.problem.reason().to_owned(),
                message: error.message.clone(),
                field: error.path.to_string(),
            })
            .collect();
        let resource = GroupResource { group, resource: kind };
        // The message contains duplicate errors once, but the causes contain them twice, as in the reference.
        let mut seen = HashSet::with_capacity(errors.len());
        let mut messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
        messages.retain(|message| seen.insert(message.clone()));
        let list = match messages.as_slice() {
            [message] => message.clone(),
            messages => format!("[{}]", messages.join(", ")),
        };
        let message = format!("{resource} {} is invalid: {list}", quoted(name));
        let mut status = Status::about(422, "Invalid", message, resource, name);
        if let Some(details) = &mut status.details {
            details.causes = causes;
        }
        status
    }

    /// 422: a patch does not apply. The message has no details, as in the reference.
    pub fn patch_does_not_apply() -> Box<Status> {
        let message = "the server rejected our request due to an error in our request".to_owned();
        Status::with_empty_details(422, "Invalid", message)
    }

    /// 429: too many requests.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Box<Status> {
        let details = Some(Details { retry_after_seconds, ..Details::default() });
        Box::new(Status {
            code: 429,
            reason: "TooManyRequests",
            message: message.into(),
            details,
            foreign_reason: None,
        })
    }

    /// 500: an internal error.
    pub fn internal(message: impl Into<String>) -> Box<Status> {
        let message = message.into();
        let cause = Cause { reason: String::new(), message: message.clone(), field: String::new() };
        let details = Some(Details { causes: vec![cause], ..Details::default() });
        let message = format!("Internal error occurred: {message}");
        Box::new(Status { code: 500, reason: "InternalError", message, details, foreign_reason: None })
    }

    /// 500 without a reason, as the reference passes on errors of backends.
    pub fn unexplained(message: impl Into<String>) -> Box<Status> {
        Status::bare(500, "", message)
    }

    /// 503: try again later; the outcome of a write in progress is unknown.
    pub fn unavailable(message: impl Into<String>) -> Box<Status> {
        Status::bare(503, "ServiceUnavailable", message)
    }

    /// 503: the servers that keep the data do not answer. The server comes back by itself, so clients are told to retry.
    fn unreachable_storage() -> Box<Status> {
        let details = Some(Details { retry_after_seconds: 1, ..Details::default() });
        Box::new(Status { details, ..*Status::unavailable("the storage backend cannot be reached") })
    }

    /// 507: the store has no space left. The message is the one by which operators and monitoring know a full etcd.
    pub fn no_space() -> Box<Status> {
        Status::bare(507, "InternalError", "etcdserver: mvcc: database space exceeded")
    }

    /// 504: a remote server did not respond in time.
    pub fn no_answer(message: impl Into<String>) -> Box<Status> {
        Status::bare(504, "Timeout", message)
    }

    /// 504: the requested version was not reached in time.
    pub fn future_version(requested: u64, current: u64) -> Box<Status> {
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        let cause = Cause {
            reason: "ResourceVersionTooLarge".to_owned(),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        };
        let details = Some(Details { causes: vec![cause], retry_after_seconds: 1, ..Details::default() });
        Box::new(Status { code: 504, reason: "Timeout", message, details, foreign_reason: None })
    }

    /// The Status of a store's error.
    pub fn from_store(error: &StoreError, resource: GroupResource<'_>, name: &str) -> Box<Status> {
        match error {
            StoreError::NotFound => Status::not_found(resource, name),
            StoreError::Exists => Status::already_exists(resource, name),
            StoreError::Conflict(_) => Status::stale(resource, name),
            StoreError::Unreadable(object) => Status::unreadable(resource, object),
            StoreError::NotEncrypted(reason) => Status::internal(reason.clone()),
            StoreError::TooLarge => Status::too_large("Request entity too large: limit is 3145728"),
            StoreError::NoSpace => Status::no_space(),
            StoreError::Busy => Status::too_many_requests("too many requests, please try again later", 1),
            StoreError::Unavailable => Status::unavailable("the storage backend is unavailable"),
            StoreError::Unreachable => Status::unreachable_storage(),
            StoreError::UnknownOutcome => Status::bare(
                504,
                "Timeout",
                "Timeout: request did not complete within requested timeout - context deadline exceeded",
            ),
        }
    }

    /// The Retry-After in seconds, if the response should have one.
    pub fn retry_after(&self) -> Option<u32> {
        self.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0)
    }
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Status {}

impl From<OutOfMemory> for Box<Status> {
    fn from(_: OutOfMemory) -> Box<Status> {
        Status::too_many_requests("Too many requests, please try again later.", 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::FieldPath;

    const DEPLOYMENTS: GroupResource<'_> = GroupResource { group: "apps", resource: "deployments" };

    #[test]
    fn markup_in_a_status_is_escaped() {
        let json = String::from_utf8(Status::bad_request("a<b> & \"c\"").to_json()).unwrap();
        assert!(json.contains(r#""message":"a\u003cb\u003e \u0026 \"c\"""#), "{json}");
    }

    #[test]
    fn store_errors_map_to_statuses() {
        let table = [
            (StoreError::NotFound, 404, "NotFound", None),
            (StoreError::Exists, 409, "AlreadyExists", None),
            (StoreError::TooLarge, 413, "RequestEntityTooLarge", None),
            (StoreError::NoSpace, 507, "InternalError", None),
            (StoreError::Busy, 429, "TooManyRequests", Some(1)),
            (StoreError::Unavailable, 503, "ServiceUnavailable", None),
            (StoreError::Unreachable, 503, "ServiceUnavailable", Some(1)),
            (StoreError::UnknownOutcome, 504, "Timeout", None),
        ];
        for (error, code, reason, retry) in table {
            let status = Status::from_store(&error, DEPLOYMENTS, "d");
            assert_eq!((status.code, status.reason, status.retry_after()), (code, reason, retry), "{error}");
        }
    }

    #[test]
    fn messages_name_the_resource_with_its_group() {
        assert_eq!(Status::not_found(DEPLOYMENTS, "d").message, "deployments.apps \"d\" not found");
        let errors = [FieldError::required(&FieldPath::new("spec").child("selector"), "")];
        let invalid = Status::invalid("apps", "Deployment", "d", &errors);
        assert_eq!(invalid.message, "Deployment.apps \"d\" is invalid: spec.selector: Required value");
    }
}
