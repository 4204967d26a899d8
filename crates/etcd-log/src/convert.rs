//! Revisions and errors of etcd in our terms.

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_etcd::Error;
use pilothouse_types::object::Revision;

/// Why an object of an unknown type is neither written nor read.
pub(crate) const UNKNOWN_TYPE: &str = "nothing is known of this type";

/// A revision as etcd counts it. etcd has no negative ones.
pub(crate) fn from_etcd(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

/// A revision for etcd. Clients may ask for larger ones than etcd can count.
pub(crate) fn to_etcd(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// Why a call failed that certainly has not written anything.
pub(crate) fn refusal(error: &Error) -> SharedLogError {
    match error {
        Error::NoSpace => SharedLogError::NoSpace(error.to_string().into()),
        Error::RequestTooLarge(_) => SharedLogError::TooLarge,
        other => unavailable(&other.to_string()),
    }
}

/// The error for a call that has not had an answer to use.
pub(crate) fn unavailable(reason: &str) -> SharedLogError {
    SharedLogError::Unavailable(reason.into())
}

/// The error for an object of an unknown type.
pub(crate) fn unknown_type() -> SharedLogError {
    unavailable(UNKNOWN_TYPE)
}
