//! Connects to another server, directly or through a proxy.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::kubeconfig::Proxy;
use crate::kubeconfig::proxy::ProxyProtocol;
use crate::limits::PROXY_RESPONSE_BYTES;
use crate::upstream::{Failure, dial_tcp};

/// Connects to the host. The caller sets the timeout. Errors have the reference's texts.
pub(super) async fn connect(host: &str, port: u16, proxy: Option<&Proxy>) -> Result<TcpStream, String> {
    let Some(proxy) = proxy else { return dial_tcp(host, port).await.map_err(dial_error) };
    let mut stream = dial_tcp(&proxy.host, proxy.port).await.map_err(|failure| {
        let error = dial_error(failure);
        match proxy.protocol {
            ProxyProtocol::Http => format!("proxyconnect tcp: {error}"),
            ProxyProtocol::Socks => {
                let (proxy_address, target) = (authority(&proxy.host, proxy.port), authority(host, port));
                format!("socks connect tcp {proxy_address}->{target}: {error}")
            }
        }
    })?;
    let result = match proxy.protocol {
        ProxyProtocol::Http => http(&mut stream, host, port, proxy).await,
        ProxyProtocol::Socks => socks(&mut stream, host, port, proxy).await,
    };
    result.map(|()| stream).map_err(|error| error.to_string())
}

fn dial_error(failure: Failure) -> String {
    match failure {
        Failure::Lookup(_) => format!("dial tcp: {failure}"),
        other => other.to_string(),
    }
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn proxy_error(reason: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("the proxy refuses: {reason}"))
}

async fn http(stream: &mut TcpStream, host: &str, port: u16, proxy: &Proxy) -> io::Result<()> {
    let target = authority(host, port);
    let credentials =
        proxy.header().map_or(String::new(), |header| format!("Proxy-Authorization: {header}\r\n"));
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{credentials}\r\n");
    stream.write_all(request.as_bytes()).await?;
    // Byte by byte, because the bytes after the head belong to the other server.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= PROXY_RESPONSE_BYTES {
            return Err(proxy_error("its response is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let line = head.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some(code) if line.starts_with("HTTP/1.") && code.len() == 3 && code.starts_with('2') => Ok(()),
        _ => Err(proxy_error(line)),
    }
}

async fn socks(stream: &mut TcpStream, host: &str, port: u16, proxy: &Proxy) -> io::Result<()> {
    let too_long = |_| proxy_error("a name is too long");
    let length_byte = |text: &str| u8::try_from(text.len()).map_err(too_long);
    let method = if proxy.user.is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, method]).await?;
    let mut response = [0; 2];
    stream.read_exact(&mut response).await?;
    if response != [5, method] {
        return Err(proxy_error("it requires another authentication method"));
    }
    if let Some((name, password)) = &proxy.user {
        let mut credentials = vec![1, length_byte(name)?];
        credentials.extend_from_slice(name.as_bytes());
        credentials.push(length_byte(password)?);
        credentials.extend_from_slice(password.as_bytes());
        stream.write_all(&credentials).await?;
        stream.read_exact(&mut response).await?;
        if response[1] != 0 {
            return Err(proxy_error("the name or the password is wrong"));
        }
    }
    let mut request = vec![5, 1, 0, 3, length_byte(host)?];
    request.extend_from_slice(host.as_bytes());
    request.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&request).await?;
    let mut response = [0; 4];
    stream.read_exact(&mut response).await?;
    if response[1] != 0 {
        return Err(proxy_error(format!("reason {}", response[1])));
    }
    // The proxy's own address, which is not needed.
    let address = match response[3] {
        1 => 4,
        4 => 16,
        _ => usize::from(stream.read_u8().await?),
    };
    stream.read_exact(&mut vec![0; address + 2]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A proxy that reads so many bytes before each answer, and then sends hello as the other server.
    async fn connect_through(url: &str, steps: Vec<(usize, Vec<u8>)>) -> (Result<String, String>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url.replace("HERE", &listener.local_addr().unwrap().to_string());
        let proxy = Proxy::parse(&url).unwrap();
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
            let mut stream = connect("far.test", 443, Some(&proxy)).await?;
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
        assert_eq!(connect("127.0.0.1", closed.port(), None).await.unwrap_err(), reason);
        for (proxy, prefix) in [
            (format!("http://{closed}"), "proxyconnect tcp".to_owned()),
            (format!("socks5://{closed}"), format!("socks connect tcp {closed}->far.test:443")),
        ] {
            let proxy = Proxy::parse(&proxy).unwrap();
            let error = connect("far.test", 443, Some(&proxy)).await.unwrap_err();
            assert_eq!(error, format!("{prefix}: {reason}"));
        }
        let error = connect("nobody.invalid", 443, None).await.unwrap_err();
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
