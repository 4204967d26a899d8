//! Connects to another server, directly or through a proxy of a kubeconfig or of the environment.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use hyper::Request;
use hyper::header::{HeaderValue, PROXY_AUTHORIZATION};
use openssl::ssl::SslContext;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_openssl::SslStream;

use crate::client_tls;
use crate::direct::dial_tcp;
use crate::egress::TunnelDialer;
use crate::egress::http_connect::{self, ConnectRequest};
use crate::failure::Failure;
use crate::kubeconfig::Proxy;
use crate::kubeconfig::proxy::ProxyProtocol;
use crate::socket::Socket;
use crate::verification_error::verification_error;

/// A server, as a proxy is asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    /// Whether TLS will be spoken with it.
    pub(crate) secure: bool,
}

/// The way to a server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Way<'a> {
    /// The proxy, if any.
    pub(crate) proxy: Option<&'a Proxy>,
    /// TLS with the proxy, should it want that.
    pub(crate) tls: Option<ProxyTls<'a>>,
    /// What makes connections, to the proxy as well; `None` for direct ones.
    pub(crate) dialer: Option<&'a Arc<TunnelDialer>>,
}

/// TLS with a proxy: as in the reference, that of the server behind it.
#[derive(Clone, Copy)]
pub(crate) struct ProxyTls<'a> {
    pub(crate) context: &'a SslContext,
    /// The name that the certificate must contain; `None` for the host of the proxy.
    pub(crate) server_name: Option<&'a str>,
    pub(crate) verifies: bool,
}

/// Connects. The caller sets the timeout. Errors have the reference's texts.
pub(crate) async fn connect(target: Target<'_>, way: Way<'_>) -> Result<Socket, String> {
    let Target { host, port, secure } = target;
    let Some(proxy) = way.proxy else { return dial(host, port, way.dialer).await };
    let connecting = |error: String| match proxy.protocol {
        ProxyProtocol::Http | ProxyProtocol::Https => format!("proxyconnect tcp: {error}"),
        ProxyProtocol::Socks => {
            let (proxy_address, target) = (authority(&proxy.host, proxy.port), authority(host, port));
            format!("socks connect tcp {proxy_address}->{target}: {error}")
        }
    };
    let mut stream = dial(&proxy.host, proxy.port, way.dialer).await.map_err(connecting)?;
    if proxy.protocol == ProxyProtocol::Https {
        stream = handshake(stream, proxy, way.tls).await.map_err(connecting)?;
    }
    let result = match proxy.protocol {
        // The whole URL is in the request.
        ProxyProtocol::Http | ProxyProtocol::Https if !secure => Ok(()),
        ProxyProtocol::Http | ProxyProtocol::Https => http(&mut stream, host, port, proxy).await,
        ProxyProtocol::Socks => socks(&mut stream, host, port, proxy).await,
    };
    result.map(|()| stream).map_err(|error| error.to_string())
}

/// Lets a request without TLS go through an HTTP proxy, which needs the whole URL. Other requests do not change.
pub(crate) fn address_to_proxy<B>(
    request: &mut Request<B>,
    proxy: Option<&Proxy>,
    secure: bool,
    authority: &str,
) {
    let Some(proxy) = proxy.filter(|proxy| proxy.is_http() && !secure) else { return };
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    // The authority is that of a URL that was parsed. Without one, the proxy refuses the request.
    if let Ok(uri) = format!("http://{authority}{path}").parse() {
        *request.uri_mut() = uri;
    }
    if let Some(Ok(credentials)) = proxy.header().map(HeaderValue::try_from) {
        request.headers_mut().insert(PROXY_AUTHORIZATION, credentials);
    }
}

async fn handshake(socket: Socket, proxy: &Proxy, tls: Option<ProxyTls<'_>>) -> Result<Socket, String> {
    let tls = tls.ok_or("there are no settings for TLS with the proxy")?;
    let name = tls.server_name.unwrap_or(&proxy.host);
    let ssl = client_tls::client(tls.context, name, tls.verifies);
    let ssl = ssl.map_err(|error| format!("tls: {error}"))?;
    let mut stream = SslStream::new(ssl, socket).map_err(|error| format!("tls: {error}"))?;
    match Pin::new(&mut stream).connect().await {
        Ok(()) => Ok(Socket::Tunnel(Box::new(stream))),
        Err(error) => Err(verification_error(stream.ssl(), name, &error)),
    }
}

/// Connects to this host, through the proxy of the egress selector if there is one.
async fn dial(host: &str, port: u16, dialer: Option<&Arc<TunnelDialer>>) -> Result<Socket, String> {
    match dialer {
        Some(dialer) => dialer.dial(&authority(host, port)).await,
        None => dial_tcp(host, port).await.map(Socket::Tcp).map_err(dial_error),
    }
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

async fn http(stream: &mut Socket, host: &str, port: u16, proxy: &Proxy) -> io::Result<()> {
    let target = authority(host, port);
    let credentials = proxy.header();
    let request = ConnectRequest { target: &target, host: &target, credentials: credentials.as_deref() };
    let line = http_connect::request(stream, request).await.map_err(proxy_error)?;
    match http_connect::status(&line) {
        Some((200..=299, _)) => Ok(()),
        _ => Err(proxy_error(line)),
    }
}

async fn socks(stream: &mut Socket, host: &str, port: u16, proxy: &Proxy) -> io::Result<()> {
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
    use crate::limits::PROXY_RESPONSE_BYTES;

    fn target(host: &str, port: u16) -> Target<'_> {
        Target { host, port, secure: true }
    }

    fn through(proxy: &Proxy) -> Way<'_> {
        Way { proxy: Some(proxy), ..Way::default() }
    }

    #[test]
    fn request_without_tls_names_the_whole_url_to_its_proxy() {
        let uri = |proxy: &str, secure| {
            let proxy = Proxy::parse(proxy).unwrap();
            let mut request = Request::get("/a?b").body(()).unwrap();
            address_to_proxy(&mut request, Some(&proxy), secure, "far.test:80");
            (request.uri().to_string(), request.headers().contains_key(PROXY_AUTHORIZATION))
        };
        assert_eq!(uri("http://p", false), ("http://far.test:80/a?b".to_owned(), false));
        assert_eq!(uri("https://a:b@p", false), ("http://far.test:80/a?b".to_owned(), true));
        assert_eq!(uri("http://a:b@p", true), ("/a?b".to_owned(), false));
        assert_eq!(uri("socks5://a:b@p", false), ("/a?b".to_owned(), false));
    }

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
            let mut stream = connect(target("far.test", 443), through(&proxy)).await?;
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
        assert_eq!(connect(target("127.0.0.1", closed.port()), Way::default()).await.err().unwrap(), reason);
        for (proxy, prefix) in [
            (format!("http://{closed}"), "proxyconnect tcp".to_owned()),
            (format!("socks5://{closed}"), format!("socks connect tcp {closed}->far.test:443")),
        ] {
            let proxy = Proxy::parse(&proxy).unwrap();
            let error = connect(target("far.test", 443), through(&proxy)).await.err().unwrap();
            assert_eq!(error, format!("{prefix}: {reason}"));
        }
        let error = connect(target("nobody.invalid", 443), Way::default()).await.err().unwrap();
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
