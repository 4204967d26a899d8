//! Direct connections: names are resolved, and all addresses of a host are tried.

use std::io;
use std::net::{IpAddr, SocketAddr};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use pilothouse_types::host_port::HostPort;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::failure::Failure;
use crate::{limits, socket};

/// Connects to a host without TLS. The caller sets the timeout.
pub async fn dial_tcp(address: &HostPort) -> Result<TcpStream, Failure> {
    connect(&lookup(address).await?).await
}

/// The addresses of a host: at least one.
pub(crate) async fn lookup(HostPort { host, port }: &HostPort) -> Result<Vec<SocketAddr>, Failure> {
    let (host, port) = (host.as_str(), *port);
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let addresses = lookup_host((host, port)).await.map_err(|_| Failure::Lookup(host.to_owned()))?;
    let addresses: Vec<SocketAddr> = addresses.take(limits::UPSTREAM_ADDRESSES).collect();
    if addresses.is_empty() { Err(Failure::Lookup(host.to_owned())) } else { Ok(addresses) }
}

/// Connects to the first of these addresses that answers.
pub(crate) async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
    let tcp = connect_first(addresses, TcpStream::connect).await?;
    if let Err(error) = socket::prepare(&tcp) {
        tracing::debug!(%error, "TCP options cannot be set");
    }
    Ok(tcp)
}

/// The first connection of those to any of the addresses. The next address is tried when the one before has failed, or after a
/// moment beside it: one that drops packets must not take the time of the others.
async fn connect_first<T, F>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = io::Result<T>>,
{
    let mut next = addresses.iter().copied();
    let mut attempts = FuturesUnordered::new();
    let mut first_error = None;
    loop {
        let is_last = match next.next() {
            Some(address) => {
                let connecting = attempt(address);
                attempts
                    .push(async move { connecting.await.map_err(|error| Failure::dial(address, &error)) });
                false
            }
            None => true,
        };
        let outcome = match is_last {
            true => attempts.next().await,
            false => match timeout(limits::NEXT_ADDRESS_DELAY, attempts.next()).await {
                Ok(outcome) => outcome,
                Err(_) => continue,
            },
        };
        match outcome {
            Some(Ok(connected)) => return Ok(connected),
            Some(Err(failure)) => first_error = first_error.or(Some(failure)),
            None => return Err(first_error.unwrap_or(Failure::NotAllowed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::FutureExt as _;

    use super::*;

    fn addresses(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| SocketAddr::from(([192, 0, 2, 1], port))).collect()
    }

    fn refused() -> io::Error {
        io::ErrorKind::ConnectionRefused.into()
    }

    #[actix_rt::test]
    async fn unresponsive_address_delays_the_next_only_briefly() {
        let attempt = |address: SocketAddr| match address.port() {
            3 => ready(Ok(address.port())).left_future(),
            _ => pending().right_future(),
        };
        let addresses = addresses(5);
        let connecting = timeout(limits::NEXT_ADDRESS_DELAY * 20, connect_first(&addresses, attempt));
        assert_eq!(connecting.await.expect("not that long").unwrap(), 3);
    }

    #[actix_rt::test]
    async fn slow_address_is_still_waited_for() {
        let attempt = |address: SocketAddr| async move {
            if address.port() == 1 {
                tokio::time::sleep(limits::NEXT_ADDRESS_DELAY * 3).await;
                return Ok(address.port());
            }
            Err(refused())
        };
        assert_eq!(connect_first(&addresses(2), attempt).await.unwrap(), 1);
    }

    #[actix_rt::test]
    async fn first_error_is_returned_if_all_addresses_fail() {
        let result = connect_first(&addresses(3), |_| ready(io::Result::<()>::Err(refused()))).now_or_never();
        let error = result.expect("nothing to wait for").unwrap_err().to_string();
        assert_eq!(error, "dial tcp 192.0.2.1:1: connect: connection refused");
    }
}
