//! Socket options of all incoming and outgoing connections.

use std::io;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::limits::{KEEPALIVE_AFTER, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};

/// Disables Nagle's algorithm, and enables keepalive probes so that the kernel detects a dead peer.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
