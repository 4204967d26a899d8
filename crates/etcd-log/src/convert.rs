//! Revisions and errors of etcd in our terms.

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_etcd::Error;
use pilothouse_types::object::Revision;

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
        Error::NoSpace => SharedLogError::NoSpace,
        Error::RequestTooLarge(_) => SharedLogError::TooLarge,
        other => SharedLogError::Unavailable(other.to_string().into()),
    }
}
