//! HTTP/1.1 over TLS, near enough to the wire to send what no honest client would.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use openssl::ssl::{SslContext, SslStream};

use super::tls;
use super::wait::Deadline;

/// How long one read may block before the deadline is looked at again.
const TICK: Duration = Duration::from_millis(50);

/// One TLS connection.
pub struct Connection {
    stream: SslStream<TcpStream>,
    /// Bytes that were received and not yet consumed.
    unread: Vec<u8>,
    is_closed: bool,
}

/// Status line and headers of a response.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// How the end of a body is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Length(usize),
    Chunked,
    /// All chunks were read.
    Done,
    /// As long as the connection.
    Open,
}

impl Connection {
    pub fn open(address: SocketAddr, context: &SslContext) -> io::Result<Connection> {
        let tcp = TcpStream::connect(address)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(super::wait::TIMEOUT))?;
        let session = tls::session(context, &address.ip().to_string());
        let stream = session.connect(tcp).map_err(io::Error::other)?;
        stream.get_ref().set_read_timeout(Some(TICK))?;
        stream.get_ref().set_write_timeout(Some(super::wait::TIMEOUT))?;
        Ok(Connection { stream, unread: Vec::new(), is_closed: false })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The certificate that the server presented, DER.
    pub fn certificate(&self) -> Vec<u8> {
        let certificate = self.stream.ssl().peer_certificate();
        certificate.and_then(|certificate| certificate.to_der().ok()).unwrap_or_default()
    }

    /// Closes the writing half in TLS and TCP; reading goes on.
    pub fn close_writing(&mut self) {
        // An error means that the peer was faster; tests look at the response.
        let _ = self.stream.shutdown();
        let _ = self.stream.get_ref().shutdown(Shutdown::Write);
    }

    /// Reads more; `false` at the end of the stream.
    fn fill(&mut self, deadline: Deadline) -> io::Result<bool> {
        let mut buffer = [0; 16 * 1024];
        loop {
            if self.is_closed {
                return Ok(false);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(count) => {
                    self.unread.extend_from_slice(&buffer[..count]);
                    return Ok(true);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if deadline.has_passed() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The bytes up to a delimiter, without it.
    fn read_until(&mut self, delimiter: &[u8], deadline: Deadline) -> io::Result<Vec<u8>> {
        loop {
            if let Some(index) = self.unread.windows(delimiter.len()).position(|window| window == delimiter) {
                let mut line: Vec<u8> = self.unread.drain(..index + delimiter.len()).collect();
                line.truncate(index);
                return Ok(line);
            }
            if !self.fill(deadline)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    pub fn read_bytes(&mut self, count: usize, deadline: Deadline) -> io::Result<Vec<u8>> {
        while self.unread.len() < count {
            if !self.fill(deadline)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.unread.drain(..count).collect())
    }

    pub fn head(&mut self, deadline: Deadline) -> io::Result<Head> {
        let bytes = self.read_until(b"\r\n\r\n", deadline)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status line: {first:?}")))?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
            .collect();
        Ok(Head { status, headers })
    }

    pub fn framing(head: &Head, method: &str) -> Framing {
        if method == "HEAD" || matches!(head.status, 204 | 304) {
            return Framing::Length(0);
        }
        if head.header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
            return Framing::Chunked;
        }
        let length = head.header("content-length").and_then(|value| value.parse().ok());
        length.map_or(Framing::Open, Framing::Length)
    }

    /// The next chunk; `None` after the last one, which is the only clean end.
    pub fn chunk(&mut self, deadline: Deadline) -> io::Result<Option<Vec<u8>>> {
        let line = self.read_until(b"\r\n", deadline)?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
        let size = size.map_err(|_| io::Error::other(format!("no chunk size: {line:?}")))?;
        let chunk = self.read_bytes(size, deadline)?;
        self.read_until(b"\r\n", deadline)?;
        Ok((size > 0).then_some(chunk))
    }

    pub fn body(&mut self, framing: Framing, deadline: Deadline) -> io::Result<Vec<u8>> {
        match framing {
            Framing::Length(length) => self.read_bytes(length, deadline),
            Framing::Done => Ok(Vec::new()),
            Framing::Open => self.read_to_end(deadline),
            Framing::Chunked => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk(deadline)? {
                    body.extend_from_slice(&chunk);
                }
                Ok(body)
            }
        }
    }

    /// The head of the response to a bad request, or what came before the server closed the connection.
    pub fn read_response_or_end(&mut self) -> Vec<u8> {
        let deadline = Deadline::after(super::wait::TIMEOUT);
        let Ok(head) = self.read_until(b"\r\n\r\n", deadline) else {
            assert!(
                !deadline.has_passed(),
                "neither a response nor the end of the connection: {:?}",
                String::from_utf8_lossy(&self.unread)
            );
            return std::mem::take(&mut self.unread);
        };
        head
    }

    /// Everything until the server closes the connection, cleanly or not.
    pub fn read_to_end(&mut self, deadline: Deadline) -> io::Result<Vec<u8>> {
        loop {
            match self.fill(deadline) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                Err(_) => break,
            }
        }
        Ok(std::mem::take(&mut self.unread))
    }
}
