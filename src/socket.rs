//! How every connection of this server is set up, whichever end began it.

use std::io;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::limits::{KEEPALIVE_AFTER, KEEPALIVE_AGAIN, KEEPALIVE_QUESTIONS};

/// Makes a connection prompt, and lets the kernel find out when the other end is gone.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let watched = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_AGAIN)
        .with_retries(KEEPALIVE_QUESTIONS);
    SockRef::from(stream).set_tcp_keepalive(&watched)
}
