//! What can go wrong with a call, told apart by what the caller can do about it.

use std::fmt;
use std::time::Duration;

/// Why a member could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFailure {
    /// The address of the member.
    pub endpoint: String,
    /// What happened.
    pub reason: String,
}

impl fmt::Display for EndpointFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.endpoint, self.reason)
    }
}

/// The error of a call, a watch or a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The settings cannot be used. Nothing was sent.
    #[error("the settings of the etcd client are invalid: {0}")]
    Settings(String),
    /// No member could be reached, or a connection broke while only reading. Nothing has changed; trying again later makes sense.
    #[error("etcd cannot be reached: {}", list(.0))]
    NotReachable(Vec<EndpointFailure>),
    /// The runtime of the client has ended.
    #[error("the client of etcd is shut down")]
    ShutDown,
    /// A call that only reads was not answered in time.
    #[error("{endpoint} has not answered {method} within {timeout:?}")]
    Deadline {
        /// The member that has not answered.
        endpoint: String,
        /// What was asked.
        method: &'static str,
        /// How long the call was allowed to take.
        timeout: Duration,
    },
    /// A call that writes was sent, and its answer is missing. It may have been applied, may be applied later, or never.
    #[error("it is unknown whether {method} at {endpoint} has succeeded: {reason}")]
    UnknownOutcome {
        /// The member it was sent to.
        endpoint: String,
        /// What was asked.
        method: &'static str,
        /// Why there is no answer.
        reason: String,
    },
    /// The revision was compacted. Whoever needs it must read the current state instead.
    #[error("the required revision has been compacted{}", revision_suffix(.0))]
    Compacted(Option<i64>),
    /// The revision is newer than the member's state.
    #[error("the required revision is a future one")]
    FutureRevision,
    /// The quota of the database is used up. Reads and deletions succeed; after compaction and defragmentation, the alarm has to be
    /// disarmed.
    #[error(
        "the database of etcd has reached its quota (mvcc: database space exceeded): compact and defragment it or raise \
         --quota-backend-bytes, then disarm the alarm NOSPACE"
    )]
    NoSpace,
    /// The members disagree about the data, so etcd refuses everything.
    #[error("etcd reports that its members have different data (corrupt cluster)")]
    Corrupt,
    /// The cluster has no leader that the member knows. Nothing has changed.
    #[error("the etcd cluster has no leader, says {0}")]
    NoLeader(String),
    /// The request is too large. Nothing has changed.
    #[error("the request is too large: {0}")]
    RequestTooLarge(String),
    /// The response is larger than the limit of the settings.
    #[error("the response to {method} is larger than {limit} bytes: read it in pages")]
    ResponseTooLarge {
        /// What was asked.
        method: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Too many calls at a time. Nothing has changed; trying again later makes sense.
    #[error("too many requests: {0}")]
    TooManyRequests(String),
    /// The client certificate does not allow this, or the credentials are not accepted.
    #[error("etcd denies access: {0}")]
    PermissionDenied(String),
    /// There is no such lease: it has ended, or never was.
    #[error("the lease does not exist")]
    LeaseNotFound,
    /// etcd has refused the call for another reason. Nothing has changed.
    #[error("etcd has refused {method}: {message}")]
    Refused {
        /// What was asked.
        method: &'static str,
        /// etcd's words.
        message: String,
    },
    /// The answer is not one that etcd gives.
    #[error("the answer of {endpoint} to {method} is invalid: {reason}")]
    InvalidAnswer {
        /// The member.
        endpoint: String,
        /// What was asked.
        method: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The cluster has an older state than the one that was seen already, as after restoring a backup. Whatever was derived from the
    /// newer state is wrong.
    #[error("etcd went back from revision {seen} to {current}: was a backup restored?")]
    RevisionRegressed {
        /// The newest revision that was seen.
        seen: i64,
        /// The revision of the cluster now.
        current: i64,
    },
    /// The member belongs to another cluster than the one that answered before.
    #[error("{endpoint} belongs to the etcd cluster {actual:x} and not, as before, to {expected:x}")]
    ClusterChanged {
        /// The member.
        endpoint: String,
        /// The cluster that answered before.
        expected: u64,
        /// The cluster of the member.
        actual: u64,
    },
    /// The stream was ended.
    #[error("the stream {method} to {endpoint} has ended: {reason}")]
    StreamEnded {
        /// The member.
        endpoint: String,
        /// What was streamed.
        method: &'static str,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// One member could not be used.
    pub(crate) fn not_reachable(endpoint: &str, reason: impl Into<String>) -> Error {
        Error::NotReachable(vec![EndpointFailure { endpoint: endpoint.to_owned(), reason: reason.into() }])
    }

    /// Whether a write that ended with this error may have been applied.
    pub fn is_unknown_outcome(&self) -> bool {
        matches!(self, Error::UnknownOutcome { .. })
    }
}

fn list(failures: &[EndpointFailure]) -> String {
    failures.iter().map(EndpointFailure::to_string).collect::<Vec<_>>().join("; ")
}

fn revision_suffix(revision: &Option<i64>) -> String {
    revision.map(|revision| format!("; the oldest one is {revision}")).unwrap_or_default()
}
