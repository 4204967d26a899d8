//! HTTP CONNECT: asks a proxy for a connection to another server.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::limits::PROXY_RESPONSE_BYTES;

/// What a proxy is asked.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The other server, as host and port.
    pub target: &'a str,
    /// The Host header.
    pub host: &'a str,
    /// The Proxy-Authorization header, if any.
    pub credentials: Option<&'a str>,
}

/// Sends the request and returns the status line of the response. All bytes after the head belong to the other server.
pub async fn request<S>(stream: &mut S, request: ConnectRequest<'_>) -> io::Result<String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let ConnectRequest { target, host, credentials } = request;
    let credentials =
        credentials.map_or(String::new(), |header| format!("Proxy-Authorization: {header}\r\n"));
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {host}\r\n{credentials}\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    // Byte by byte, because what follows is not for us.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= PROXY_RESPONSE_BYTES {
            return Err(io::Error::other("its response is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    Ok(head.lines().next().unwrap_or_default().to_owned())
}

/// The status code of a status line, with its reason.
pub fn status(line: &str) -> Option<(u16, &str)> {
    let (version, status) = line.split_once(' ')?;
    let code = status.split(' ').next().filter(|code| code.len() == 3)?;
    Some((code.parse().ok().filter(|_| version.starts_with("HTTP/1."))?, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_line_has_code_and_reason() {
        assert_eq!(status("HTTP/1.1 200 Connection established"), Some((200, "200 Connection established")));
        assert_eq!(status("HTTP/1.0 503 "), Some((503, "503 ")));
        for line in ["", "HTTP/1.1", "HTTP/2 200", "HTTP/1.1 20", "SSH-2.0-x 200"] {
            assert_eq!(status(line), None, "{line:?}");
        }
    }
}
