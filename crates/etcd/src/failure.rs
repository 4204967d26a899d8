//! What the failure of one attempt means for the call: which error it is, and whether another attempt may be made.

use tonic::{Code, Status};

use crate::error::Error;
use crate::methods::Method;
use crate::transport::Origin;

/// Why an attempt has failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The call has failed.
    Final(Error),
    /// Nothing was done, or it may be done twice: the call can be sent to another member. The error is that of the call if it has
    /// no more time.
    Repeat(Error),
}

impl Failure {
    /// The error, if no further attempt is made.
    pub fn into_error(self) -> Error {
        match self {
            Failure::Final(error) | Failure::Repeat(error) => error,
        }
    }
}

/// A call to a member.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    /// What was asked.
    pub method: &'a Method,
    /// The address of the member.
    pub endpoint: &'a str,
    /// The maximum size of a response.
    pub max_response_bytes: usize,
}

impl Attempt<'_> {
    /// What the status of the attempt means.
    pub fn failure(&self, status: &Status) -> Failure {
        match Origin::of_status(status) {
            Some(Origin::NotSent) => Failure::Repeat(Error::not_reachable(self.endpoint, status.message())),
            Some(Origin::Connection) => self.unanswered(status.message()),
            Some(Origin::Member) => self.refusal(status),
            None => self.invalid_answer(status),
        }
    }

    /// The attempt was sent, and it is unknown what the member has made of it.
    pub fn unanswered(&self, reason: &str) -> Failure {
        if self.method.is_repeatable {
            return Failure::Repeat(Error::not_reachable(self.endpoint, reason));
        }
        Failure::Final(Error::UnknownOutcome {
            endpoint: self.endpoint.to_owned(),
            method: self.method.name,
            reason: reason.to_owned(),
        })
    }

    fn refusal(&self, status: &Status) -> Failure {
        let message = status.message();
        if let Some(error) = self.known_refusal(message) {
            return match error {
                Error::NoLeader(_) => Failure::Repeat(error),
                error => Failure::Final(error),
            };
        }
        let refused = || Error::Refused { method: self.method.name, message: message.to_owned() };
        match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => {
                Failure::Final(Error::PermissionDenied(message.to_owned()))
            }
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => Failure::Final(refused()),
            Code::ResourceExhausted if message.contains("received message larger than max") => {
                Failure::Final(Error::RequestTooLarge(message.to_owned()))
            }
            // The member lives and has decided, so asking another one would bring the same.
            Code::ResourceExhausted | Code::Unknown | Code::Internal if self.method.is_repeatable => {
                Failure::Final(refused())
            }
            _ => self.unanswered(message),
        }
    }

    /// The error behind one of etcd's messages that have a meaning of their own. None of these calls has changed anything.
    pub fn known_refusal(&self, message: &str) -> Option<Error> {
        let has = |part: &str| message.contains(part);
        Some(if has("required revision has been compacted") {
            Error::Compacted(None)
        } else if has("required revision is a future revision") {
            Error::FutureRevision
        } else if has("database space exceeded") {
            Error::NoSpace
        } else if has("corrupt cluster") {
            Error::Corrupt
        } else if has("etcdserver: no leader") {
            Error::NoLeader(self.endpoint.to_owned())
        } else if has("requested lease not found") {
            Error::LeaseNotFound
        } else if has("request is too large") {
            Error::RequestTooLarge(message.to_owned())
        } else if has("etcdserver: too many requests") {
            Error::TooManyRequests(message.to_owned())
        } else if has("authentication failed")
            || has("permission denied")
            || has("invalid auth token")
            || has("user name is empty")
            || has("revision of auth store is old")
        {
            Error::PermissionDenied(message.to_owned())
        } else {
            return None;
        })
    }

    /// The member has answered, and the answer cannot be read.
    fn invalid_answer(&self, status: &Status) -> Failure {
        let reason = status.message();
        if !self.method.is_repeatable {
            return self.unanswered(reason);
        }
        // What tonic says of a message over the limit.
        if status.code() == Code::OutOfRange {
            return Failure::Final(Error::ResponseTooLarge {
                method: self.method.name,
                limit: self.max_response_bytes,
            });
        }
        Failure::Final(self.invalid(reason))
    }

    /// The error for an answer that etcd does not give.
    pub fn invalid(&self, reason: impl Into<String>) -> Error {
        Error::InvalidAnswer {
            endpoint: self.endpoint.to_owned(),
            method: self.method.name,
            reason: reason.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::methods::{PUT, RANGE};

    fn failure(method: &Method, origin: Option<Origin>, code: Code, message: &str) -> Failure {
        let mut status = Status::new(code, message);
        if let Some(origin) = origin {
            status.set_source(Arc::new(origin));
        }
        Attempt { method, endpoint: "http://a", max_response_bytes: 7 }.failure(&status)
    }

    fn unknown(reason: &str) -> Failure {
        let (endpoint, reason) = ("http://a".to_owned(), reason.to_owned());
        Failure::Final(Error::UnknownOutcome { endpoint, method: "Put", reason })
    }

    fn unreachable(reason: &str) -> Failure {
        Failure::Repeat(Error::not_reachable("http://a", reason))
    }

    #[test]
    fn lost_answers_are_repeated_only_if_that_is_harmless() {
        let lost = [
            (Origin::Connection, Code::Unavailable, "connection reset"),
            (Origin::Member, Code::Unavailable, "etcdserver: request timed out"),
            (Origin::Member, Code::Unavailable, "etcdserver: leader changed"),
            (Origin::Member, Code::Unavailable, "etcdserver: server stopped"),
            (Origin::Member, Code::DeadlineExceeded, "context deadline exceeded"),
            (Origin::Member, Code::Cancelled, "context canceled"),
        ];
        for (origin, code, message) in lost {
            assert_eq!(failure(&RANGE, Some(origin.clone()), code, message), unreachable(message));
            assert_eq!(failure(&PUT, Some(origin), code, message), unknown(message));
        }
        assert_eq!(failure(&PUT, Some(Origin::Member), Code::Unknown, "odd"), unknown("odd"));
        assert_eq!(failure(&PUT, None, Code::Internal, "no message"), unknown("no message"));
    }

    #[test]
    fn what_was_certainly_not_done_is_repeated() {
        for method in [&RANGE, &PUT] {
            let not_sent = failure(method, Some(Origin::NotSent), Code::Unavailable, "closed");
            assert_eq!(not_sent, unreachable("closed"));
            let no_leader = failure(method, Some(Origin::Member), Code::Unavailable, "etcdserver: no leader");
            assert_eq!(no_leader, Failure::Repeat(Error::NoLeader("http://a".to_owned())));
        }
    }

    #[test]
    fn refusals_are_told_apart() {
        let text = str::to_owned;
        for (code, message, error) in [
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                Error::Compacted(None),
            ),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision is a future revision",
                Error::FutureRevision,
            ),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Error::NoSpace),
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                Error::TooManyRequests(text("etcdserver: too many requests")),
            ),
            (
                Code::InvalidArgument,
                "etcdserver: request is too large",
                Error::RequestTooLarge(text("etcdserver: request is too large")),
            ),
            (
                Code::ResourceExhausted,
                "grpc: received message larger than max (3 vs. 2)",
                Error::RequestTooLarge(text("grpc: received message larger than max (3 vs. 2)")),
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                Error::PermissionDenied(text("etcdserver: permission denied")),
            ),
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                Error::PermissionDenied(text("etcdserver: user name is empty")),
            ),
            (Code::NotFound, "etcdserver: requested lease not found", Error::LeaseNotFound),
            (Code::DataLoss, "etcdserver: corrupt cluster", Error::Corrupt),
            (
                Code::InvalidArgument,
                "etcdserver: key is not provided",
                Error::Refused { method: "Put", message: text("etcdserver: key is not provided") },
            ),
        ] {
            assert_eq!(failure(&PUT, Some(Origin::Member), code, message), Failure::Final(error));
        }
    }

    #[test]
    fn unreadable_answers_to_reads_are_final() {
        let large = failure(&RANGE, None, Code::OutOfRange, "decoded message length too large");
        assert_eq!(large, Failure::Final(Error::ResponseTooLarge { method: "Range", limit: 7 }));
        let Failure::Final(Error::InvalidAnswer { reason, .. }) =
            failure(&RANGE, None, Code::Internal, "failed to decode")
        else {
            panic!("another failure");
        };
        assert_eq!(reason, "failed to decode");
    }
}
