//! The listening socket, bound before anything else: a port in use is the most common mistake at start, and no file should have
//! been created by then.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::limits;

/// Listens on `address`. With `shares_port`, others may listen on the same port (SO_REUSEPORT). SO_REUSEADDR lets a restarted server take its port back
/// while old connections linger in the kernel.
pub fn bind(address: SocketAddr, shares_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if shares_port {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() && address.ip().is_unspecified() {
        // The unspecified IPv6 address means both families, whatever the default of the system.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(limits::LISTEN_BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_refuses_port_in_use_and_reuses_port_just_closed() {
        let first = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = first.local_addr().unwrap();
        assert_eq!(bind(address, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let client = std::net::TcpStream::connect(address).unwrap();
        first.set_nonblocking(false).unwrap();
        drop(first.accept().unwrap());
        drop((first, client));
        assert_eq!(bind(address, false).unwrap().local_addr().unwrap(), address);
    }

    #[test]
    fn shared_port_has_several_listeners_that_all_share_it() {
        let first = bind("127.0.0.1:0".parse().unwrap(), true).unwrap();
        let address = first.local_addr().unwrap();
        assert_eq!(bind(address, true).unwrap().local_addr().unwrap(), address);
        assert_eq!(bind(address, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
