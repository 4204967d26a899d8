//! Why nobody answered, in the words that clients know.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There are too many connections already.
    #[error("too many connections to kubelets, pods and services")]
    Busy,
    /// The address belongs to nobody who may be reached this way.
    #[error("address not allowed")]
    NotAllowed,
    /// Nobody knows the name.
    #[error("lookup {0}: no such host")]
    Lookup(String),
    /// Nobody listens, or nobody can be reached.
    #[error("dial tcp {0}: {1}")]
    Dial(SocketAddr, String),
    /// It took too long until somebody listened.
    #[error("dial tcp {0}: i/o timeout")]
    SlowDial(String),
    /// The other end did not prove who it is, or speaks no TLS.
    #[error("{0}")]
    Tls(String),
    /// There is nobody whom the other end could be known to: what names them holds no certificate.
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    NoAuthorities,
    /// TLS took too long.
    #[error("net/http: TLS handshake timeout")]
    SlowTls,
    /// The other end listens, but does not answer.
    #[error("timed out while waiting for the beginning of the answer")]
    SlowAnswer,
    /// The other end says what is no HTTP, or hung up.
    #[error("{0}")]
    Broken(String),
    /// The path cannot be sent.
    #[error("the path cannot be sent")]
    BadTarget,
}

impl Failure {
    pub(super) fn dial(to: SocketAddr, error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::TimedOut {
            return Failure::SlowDial(to.to_string());
        }
        Failure::Dial(to, format!("connect: {}", plain(error)))
    }

    pub(super) fn broken(error: &hyper::Error) -> Failure {
        if error.is_incomplete_message() || error.is_canceled() {
            return Failure::Broken("EOF".to_owned());
        }
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        Failure::Broken(format!("{error}{cause}"))
    }
}

/// What the system says, without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
