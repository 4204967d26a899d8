//! What an operator decides about the connection to etcd.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use pilothouse_types::host_port::HostPort;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::limits;

/// The files for TLS. They are read again for every connection, so that renewed ones take effect without a restart.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The CAs that members are verified against; without it those of the system.
    pub authority: Option<PathBuf>,
    /// The client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the certificates of members must contain, instead of the host of their address.
    pub server_name: Option<String>,
}

/// A stream of bytes to a member.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// Connects to members in another way than directly.
pub trait Dialer: fmt::Debug + Send + Sync {
    /// Connects to this address.
    fn dial(&self, address: HostPort) -> BoxFuture<'_, Result<Box<dyn Duplex>, String>>;
}

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The members, as `http://HOST:PORT`, `https://HOST:PORT`, `unix://PATH` or `unixs://PATH`. The first that can be reached is
    /// used until it fails.
    pub endpoints: Vec<String>,
    /// The files for TLS.
    pub tls: TlsFiles,
    /// How members are connected to, unless directly.
    pub dialer: Option<Arc<dyn Dialer>>,
    /// How long a call may take, with all its attempts.
    pub request_timeout: Duration,
    /// How long it may take to connect to one member.
    pub dial_timeout: Duration,
    /// The interval of pings while something waits for a member.
    pub keepalive_time: Duration,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// How long a member may leave all waiting calls unanswered before it is probed, and how long the probe may take.
    pub silence: Duration,
    /// Bytes of one request.
    pub max_request_bytes: usize,
    /// Bytes of one response, and of the events of one revision.
    pub max_response_bytes: usize,
    /// Calls that are sent and not answered yet.
    pub max_calls_in_flight: usize,
    /// Connections for calls to the member in use.
    pub connections: usize,
}

impl Settings {
    /// Refuses bounds of zero, with which nothing would ever succeed.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let durations = [
            ("request_timeout", self.request_timeout),
            ("dial_timeout", self.dial_timeout),
            ("keepalive_time", self.keepalive_time),
            ("keepalive_timeout", self.keepalive_timeout),
            ("silence", self.silence),
        ];
        let numbers = [
            ("max_request_bytes", self.max_request_bytes),
            ("max_response_bytes", self.max_response_bytes),
            ("max_calls_in_flight", self.max_calls_in_flight),
            ("connections", self.connections),
        ];
        let durations = durations.into_iter().map(|(name, value)| (name, value.is_zero()));
        let mut all = durations.chain(numbers.into_iter().map(|(name, value)| (name, value == 0)));
        match all.find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(format!("{name} is zero")),
            None => Ok(()),
        }
    }

    /// The settings for these members, with defaults for all else.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Settings {
        Settings {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: TlsFiles::default(),
            dialer: None,
            request_timeout: limits::REQUEST_TIMEOUT,
            dial_timeout: limits::DIAL_TIMEOUT,
            keepalive_time: limits::KEEPALIVE_TIME,
            keepalive_timeout: limits::KEEPALIVE_TIMEOUT,
            silence: limits::SILENCE,
            max_request_bytes: limits::REQUEST_BYTES,
            max_response_bytes: limits::RESPONSE_BYTES,
            max_calls_in_flight: limits::CALLS_IN_FLIGHT,
            connections: limits::CONNECTIONS,
        }
    }
}
