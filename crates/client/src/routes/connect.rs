//! Connects over a route: directly, or through its proxies.

use std::io;

use pilothouse_types::host_port::HostPort;

use super::{Endpoint, ProxyHop, Route, Routes, socks};
use crate::direct::dial_tcp;
use crate::egress::http_connect::{self, ConnectRequest};
use crate::failure::Failure;
use crate::kubeconfig::Proxy;
use crate::kubeconfig::proxy::ProxyProtocol;
use crate::socket::Socket;

impl Routes {
    /// Connects to a server. The caller sets the timeout. Errors have the reference's texts.
    pub(crate) async fn connect(&self, route: &Route, server: Endpoint<'_>) -> Result<Socket, String> {
        let Endpoint { address, secure } = server;
        let Some(ProxyHop { proxy, tls }) = &route.proxy else { return self.dial(route, address).await };
        let connecting = |error: String| match proxy.protocol {
            ProxyProtocol::Http | ProxyProtocol::Https => format!("proxyconnect tcp: {error}"),
            ProxyProtocol::Socks => format!("socks connect tcp {}->{address}: {error}", proxy.address),
        };
        let mut stream = self.dial(route, &proxy.address).await.map_err(connecting)?;
        if proxy.protocol == ProxyProtocol::Https {
            let tls = tls.as_ref().ok_or("there are no settings for TLS with the proxy")?;
            stream = Socket::Tunnel(Box::new(tls.connect(stream, false).await.map_err(connecting)?));
        }
        let result = match proxy.protocol {
            // The whole URL is in the request.
            ProxyProtocol::Http | ProxyProtocol::Https if !secure => Ok(()),
            ProxyProtocol::Http | ProxyProtocol::Https => open_http_tunnel(&mut stream, address, proxy).await,
            ProxyProtocol::Socks => socks::open_tunnel(&mut stream, address, proxy).await,
        };
        result.map(|()| stream).map_err(|error| error.to_string())
    }

    /// Connects to this address, through the proxy of the egress selector if there is one.
    async fn dial(&self, route: &Route, address: &HostPort) -> Result<Socket, String> {
        match self.dialer(route) {
            Some(dialer) => dialer.dial(address).await,
            None => dial_tcp(address).await.map(Socket::Tcp).map_err(dial_error),
        }
    }
}

fn dial_error(failure: Failure) -> String {
    match failure {
        Failure::Lookup(_) => format!("dial tcp: {failure}"),
        other => other.to_string(),
    }
}

/// The error of a proxy that does not connect.
pub(super) fn refusal(reason: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("the proxy refuses: {reason}"))
}

async fn open_http_tunnel(stream: &mut Socket, server: &HostPort, proxy: &Proxy) -> io::Result<()> {
    let target = server.to_string();
    let credentials = proxy.header();
    let request = ConnectRequest { target: &target, host: &target, credentials: credentials.as_deref() };
    let line = http_connect::request(stream, request).await.map_err(refusal)?;
    match http_connect::status(&line) {
        Some((200..=299, _)) => Ok(()),
        _ => Err(refusal(line)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::limits::PROXY_RESPONSE_BYTES;

    async fn connect(route: &Route, host: &str, port: u16) -> Result<Socket, String> {
        let address = HostPort::new(host, port);
        Routes::default().connect(route, Endpoint { address: &address, secure: true }).await
    }

    fn through(proxy: &str) -> Route {
        let proxy = Proxy::parse(proxy).unwrap();
        Route { proxy: Some(ProxyHop { proxy, tls: None }), egress: None }
    }

    /// A proxy that reads so many bytes before each answer, and then sends hello as the other server.
    async fn connect_through(url: &str, steps: Vec<(usize, Vec<u8>)>) -> (Result<String, String>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url.replace("HERE", &listener.local_addr().unwrap().to_string());
        let route = through(&url);
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut proxy_input = Vec::new();
            for (length, response) in steps {
                let mut request = vec![0; length];
                stream.read_exact(&mut request).await.unwrap();
                proxy_input.extend(request);
                stream.write_all(&response).await.unwrap();
            }
            let _ = stream.write_all(b"hello").await;
            proxy_input
        };
        let client = async {
            let mut stream = connect(&route, "far.test", 443).await?;
            let mut received = String::new();
            stream.read_to_string(&mut received).await.map_err(|error| error.to_string())?;
            Ok(received)
        };
        tokio::join!(client, server)
    }

    #[actix_rt::test]
    async fn http_proxy_connects_with_credentials() {
        let request =
            "CONNECT far.test:443 HTTP/1.1\r\nHost: far.test:443\r\nProxy-Authorization: Basic YTpi\r\n\r\n";
        let steps = |response: &str| vec![(request.len(), response.as_bytes().to_vec())];
        let (received, proxy_input) =
            connect_through("http://a:b@HERE", steps("HTTP/1.1 200 Fine\r\nX: y\r\n\r\n")).await;
        assert_eq!(
            (received.unwrap().as_str(), String::from_utf8(proxy_input).unwrap().as_str()),
            ("hello", request)
        );
        let (received, _) = connect_through("http://a:b@HERE", steps("HTTP/1.1 407 No\r\n\r\n")).await;
        assert!(received.unwrap_err().contains("407 No"));
        let (received, _) =
            connect_through("http://a:b@HERE", steps(&"x".repeat(PROXY_RESPONSE_BYTES + 1))).await;
        assert!(received.unwrap_err().contains("too long"));
    }

    #[actix_rt::test]
    async fn connection_errors_name_the_unreachable_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        let reason = format!("dial tcp {closed}: connect: connection refused");
        assert_eq!(connect(&Route::default(), "127.0.0.1", closed.port()).await.err().unwrap(), reason);
        for (proxy, prefix) in [
            (format!("http://{closed}"), "proxyconnect tcp".to_owned()),
            (format!("socks5://{closed}"), format!("socks connect tcp {closed}->far.test:443")),
        ] {
            let error = connect(&through(&proxy), "far.test", 443).await.err().unwrap();
            assert_eq!(error, format!("{prefix}: {reason}"));
        }
        let error = connect(&Route::default(), "nobody.invalid", 443).await.err().unwrap();
        assert_eq!(error, "dial tcp: lookup nobody.invalid: no such host");
    }

    #[actix_rt::test]
    async fn socks_proxy_connects_with_credentials() {
        let granted = vec![5, 0, 0, 1, 1, 2, 3, 4, 0, 80];
        let (received, proxy_input) =
            connect_through("socks5://HERE", vec![(3, vec![5, 0]), (15, granted.clone())]).await;
        assert_eq!(received.unwrap(), "hello");
        assert_eq!(proxy_input, [&[5, 1, 0, 5, 1, 0, 3, 8][..], b"far.test", &[1, 187]].concat());
        let steps = vec![(3, vec![5, 2]), (5, vec![1, 0]), (15, granted)];
        let (received, proxy_input) = connect_through("socks5://a:b@HERE", steps).await;
        assert_eq!((received.unwrap().as_str(), &proxy_input[3..8]), ("hello", &[1, 1, b'a', 1, b'b'][..]));
        let (received, _) =
            connect_through("socks5://HERE", vec![(3, vec![5, 0]), (15, vec![5, 2, 0, 1])]).await;
        assert!(received.unwrap_err().contains("reason 2"));
    }
}
