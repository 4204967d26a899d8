//! Errors of outgoing requests, with the reference's texts.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The limit of connections is reached.
    #[error("too many connections to kubelets, pods and services")]
    Busy,
    /// The address must not be reached this way.
    #[error("address not allowed")]
    NotAllowed,
    /// The name does not resolve.
    #[error("lookup {0}: no such host")]
    Lookup(String),
    /// The connection failed.
    #[error("dial tcp {0}: {1}")]
    Dial(SocketAddr, String),
    /// Connecting timed out.
    #[error("dial tcp {0}: i/o timeout")]
    SlowDial(String),
    /// The peer's certificate is invalid, or it does not speak TLS.
    #[error("{0}")]
    Tls(String),
    /// The CA bundle contains no certificate.
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    NoAuthorities,
    /// The TLS handshake timed out.
    #[error("net/http: TLS handshake timeout")]
    SlowTls,
    /// The server accepted the request, but does not answer.
    #[error("timed out while waiting for the beginning of the response")]
    SlowResponse,
    /// The response is no HTTP, or the connection was closed.
    #[error("{0}")]
    Broken(String),
    /// A proxy on the way does not connect.
    #[error("{0}")]
    Proxy(String),
    /// The path is invalid in a request.
    #[error("the path cannot be sent")]
    BadTarget,
}

impl Failure {
    pub(crate) fn dial(address: SocketAddr, error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::TimedOut {
            return Failure::SlowDial(address.to_string());
        }
        Failure::Dial(address, format!("connect: {}", describe(error)))
    }

    pub(crate) fn broken(error: &hyper::Error) -> Failure {
        if is_unanswered(error) {
            return Failure::Broken("EOF".to_owned());
        }
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        Failure::Broken(format!("{error}{cause}"))
    }
}

/// Whether the connection ended before there was a response.
pub(crate) fn is_unanswered(error: &hyper::Error) -> bool {
    error.is_incomplete_message() || error.is_canceled()
}

/// An error of the operating system, without its number.
pub(crate) fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
