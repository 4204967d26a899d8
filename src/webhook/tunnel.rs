//! Connects to another server, directly or through a proxy.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::kubeconfig::Proxy;
use crate::kubeconfig::proxy::ProxyProtocol;
use crate::limits::PROXY_ANSWER_BYTES;
use crate::upstream::{Failure, dial_tcp};

/// Connects to the host. The caller sets the timeout. Errors are in the reference's words.
pub(super) async fn connect(host: &str, port: u16, proxy: Option<&Proxy>) -> Result<TcpStream, String> {
    let Some(proxy) = proxy else { return dial_tcp(host, port).await.map_err(dial_error) };
    let mut stream = dial_tcp(&proxy.host, proxy.port).await.map_err(|failure| {
        let why = dial_error(failure);
        match proxy.manner {
            ProxyProtocol::Http => format!("proxyconnect tcp: {why}"),
            ProxyProtocol::Socks => {
                let (by, to) = (authority(&proxy.host, proxy.port), authority(host, port));
                format!("socks connect tcp {by}->{to}: {why}")
            }
        }
    })?;
    let asked = match proxy.manner {
        ProxyProtocol::Http => http(&mut stream, host, port, proxy).await,
        ProxyProtocol::Socks => socks(&mut stream, host, port, proxy).await,
    };
    asked.map(|()| stream).map_err(|error| error.to_string())
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

fn refused(why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("the proxy refuses: {why}"))
}

async fn http(stream: &mut TcpStream, host: &str, port: u16, proxy: &Proxy) -> io::Result<()> {
    let to = authority(host, port);
    let shown = proxy.header().map_or(String::new(), |shown| format!("Proxy-Authorization: {shown}\r\n"));
    let question = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{shown}\r\n");
    stream.write_all(question.as_bytes()).await?;
    // Byte by byte, because the bytes after the head belong to the other server.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= PROXY_ANSWER_BYTES {
            return Err(refused("its answer is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let line = head.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some(code) if line.starts_with("HTTP/1.") && code.len() == 3 && code.starts_with('2') => Ok(()),
        _ => Err(refused(line)),
    }
}

async fn socks(stream: &mut TcpStream, host: &str, port: u16, proxy: &Proxy) -> io::Result<()> {
    let long = |_| refused("a name is too long");
    let sized = |text: &str| u8::try_from(text.len()).map_err(long);
    let manner = if proxy.user.is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, manner]).await?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await?;
    if answer != [5, manner] {
        return Err(refused("it wants something else to be shown"));
    }
    if let Some((name, password)) = &proxy.user {
        let mut shown = vec![1, sized(name)?];
        shown.extend_from_slice(name.as_bytes());
        shown.push(sized(password)?);
        shown.extend_from_slice(password.as_bytes());
        stream.write_all(&shown).await?;
        stream.read_exact(&mut answer).await?;
        if answer[1] != 0 {
            return Err(refused("the name or the password is wrong"));
        }
    }
    let mut question = vec![5, 1, 0, 3, sized(host)?];
    question.extend_from_slice(host.as_bytes());
    question.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&question).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    if answer[1] != 0 {
        return Err(refused(format!("reason {}", answer[1])));
    }
    // The proxy's own address, which is not needed.
    let address = match answer[3] {
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
    async fn asked(url: &str, steps: Vec<(usize, Vec<u8>)>) -> (Result<String, String>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url.replace("HERE", &listener.local_addr().unwrap().to_string());
        let proxy = Proxy::parse(&url).unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = Vec::new();
            for (length, answer) in steps {
                let mut question = vec![0; length];
                stream.read_exact(&mut question).await.unwrap();
                heard.extend(question);
                stream.write_all(&answer).await.unwrap();
            }
            let _ = stream.write_all(b"hello").await;
            heard
        };
        let client = async {
            let mut stream = connect("far.test", 443, Some(&proxy)).await?;
            let mut said = String::new();
            stream.read_to_string(&mut said).await.map_err(|error| error.to_string())?;
            Ok(said)
        };
        tokio::join!(client, server)
    }

    #[actix::test]
    async fn an_http_proxy_is_asked_to_connect() {
        let question =
            "CONNECT far.test:443 HTTP/1.1\r\nHost: far.test:443\r\nProxy-Authorization: Basic YTpi\r\n\r\n";
        let steps = |answer: &str| vec![(question.len(), answer.as_bytes().to_vec())];
        let (said, heard) = asked("http://a:b@HERE", steps("HTTP/1.1 200 Fine\r\nX: y\r\n\r\n")).await;
        assert_eq!((said.unwrap().as_str(), String::from_utf8(heard).unwrap().as_str()), ("hello", question));
        let (said, _) = asked("http://a:b@HERE", steps("HTTP/1.1 407 No\r\n\r\n")).await;
        assert!(said.unwrap_err().contains("407 No"));
        let (said, _) = asked("http://a:b@HERE", steps(&"x".repeat(PROXY_ANSWER_BYTES + 1))).await;
        assert!(said.unwrap_err().contains("too long"));
    }

    #[actix::test]
    async fn who_cannot_be_reached_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gone = listener.local_addr().unwrap();
        drop(listener);
        let why = format!("dial tcp {gone}: connect: connection refused");
        assert_eq!(connect("127.0.0.1", gone.port(), None).await.unwrap_err(), why);
        for (proxy, before) in [
            (format!("http://{gone}"), "proxyconnect tcp".to_owned()),
            (format!("socks5://{gone}"), format!("socks connect tcp {gone}->far.test:443")),
        ] {
            let proxy = Proxy::parse(&proxy).unwrap();
            let told = connect("far.test", 443, Some(&proxy)).await.unwrap_err();
            assert_eq!(told, format!("{before}: {why}"));
        }
        let told = connect("nobody.invalid", 443, None).await.unwrap_err();
        assert_eq!(told, "dial tcp: lookup nobody.invalid: no such host");
    }

    #[actix::test]
    async fn a_socks_proxy_is_asked_to_connect() {
        let granted = vec![5, 0, 0, 1, 1, 2, 3, 4, 0, 80];
        let (said, heard) = asked("socks5://HERE", vec![(3, vec![5, 0]), (15, granted.clone())]).await;
        assert_eq!(said.unwrap(), "hello");
        assert_eq!(heard, [&[5, 1, 0, 5, 1, 0, 3, 8][..], b"far.test", &[1, 187]].concat());
        let steps = vec![(3, vec![5, 2]), (5, vec![1, 0]), (15, granted)];
        let (said, heard) = asked("socks5://a:b@HERE", steps).await;
        assert_eq!((said.unwrap().as_str(), &heard[3..8]), ("hello", &[1, 1, b'a', 1, b'b'][..]));
        let (said, _) = asked("socks5://HERE", vec![(3, vec![5, 0]), (15, vec![5, 2, 0, 1])]).await;
        assert!(said.unwrap_err().contains("reason 2"));
    }
}
