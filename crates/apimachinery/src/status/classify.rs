//! Classification of a Status, for callers inside of the server.

use super::{Result, Status};

impl Status {
    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// Whether the object was changed concurrently, or already exists.
    pub fn is_conflict(&self) -> bool {
        self.code == 409
    }

    /// Whether the object was deleted or changed since it was read.
    pub fn is_not_found_or_conflict(&self) -> bool {
        self.is_not_found() || self.is_conflict()
    }

    /// Whether the client is not allowed to do this.
    pub fn is_forbidden(&self) -> bool {
        self.code == 403
    }

    /// Whether the client accepts no media type that the server can return.
    pub fn is_not_acceptable(&self) -> bool {
        self.code == 406
    }

    /// Whether the request timed out.
    pub fn is_timeout(&self) -> bool {
        self.code == 504
    }

    /// Whether an object with the name of the new one already exists.
    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// Whether a create needs no retry: the object exists, or its namespace is missing or terminating.
    pub fn is_settled(&self) -> bool {
        let causes = self.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
        self.is_not_found()
            || self.is_already_exists()
            || causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
    }
}

/// Turns errors about concurrent changes into `None`, for callers that do not depend on them.
pub trait IgnoreErrors<T> {
    /// The result, or `None` if the object does not exist.
    fn ignore_not_found(self) -> Result<Option<T>>;
    /// The result, or `None` if the object was deleted or changed since it was read.
    fn ignore_not_found_or_conflict(self) -> Result<Option<T>>;
}

impl<T> IgnoreErrors<T> for Result<T> {
    fn ignore_not_found(self) -> Result<Option<T>> {
        match self {
            Err(status) if status.is_not_found() => Ok(None),
            result => result.map(Some),
        }
    }

    fn ignore_not_found_or_conflict(self) -> Result<Option<T>> {
        match self {
            Err(status) if status.is_not_found_or_conflict() => Ok(None),
            result => result.map(Some),
        }
    }
}
