//! HTTP/1.1 over TLS, near enough to the wire to send what no honest client would.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use openssl::ssl::{SslConnector, SslStream};

use super::wait::Deadline;

/// How long one read may block before the deadline is looked at again.
const TICK: Duration = Duration::from_millis(50);

/// One TLS connection.
pub struct Connection {
    stream: SslStream<TcpStream>,
    /// What was read and not yet used.
    rest: Vec<u8>,
    ended: bool,
}

/// The first part of an answer.
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
    pub fn open(address: SocketAddr, connector: &SslConnector) -> io::Result<Connection> {
        let tcp = TcpStream::connect(address)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(super::wait::CAP))?;
        let stream = connector.connect(&address.ip().to_string(), tcp).map_err(io::Error::other)?;
        stream.get_ref().set_read_timeout(Some(TICK))?;
        stream.get_ref().set_write_timeout(Some(super::wait::CAP))?;
        Ok(Connection { stream, rest: Vec::new(), ended: false })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The certificate that the server shows, DER.
    pub fn certificate(&self) -> Vec<u8> {
        let shown = self.stream.ssl().peer_certificate();
        shown.and_then(|shown| shown.to_der().ok()).unwrap_or_default()
    }

    /// Says that nothing more will be sent, in TLS and in TCP, and goes on reading.
    pub fn close_writing(&mut self) {
        // An error means that the peer was faster; what the test looks at is the answer.
        let _ = self.stream.shutdown();
        let _ = self.stream.get_ref().shutdown(Shutdown::Write);
    }

    /// Reads more; `false` at the end of the stream.
    fn fill(&mut self, deadline: Deadline) -> io::Result<bool> {
        let mut buffer = [0; 16 * 1024];
        loop {
            if self.ended {
                return Ok(false);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.rest.extend_from_slice(&buffer[..count]);
                    return Ok(true);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if deadline.passed() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The bytes up to a mark, without it.
    fn until(&mut self, mark: &[u8], deadline: Deadline) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.rest.windows(mark.len()).position(|window| window == mark) {
                let mut taken: Vec<u8> = self.rest.drain(..at + mark.len()).collect();
                taken.truncate(at);
                return Ok(taken);
            }
            if !self.fill(deadline)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    pub fn exactly(&mut self, count: usize, deadline: Deadline) -> io::Result<Vec<u8>> {
        while self.rest.len() < count {
            if !self.fill(deadline)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.rest.drain(..count).collect())
    }

    pub fn head(&mut self, deadline: Deadline) -> io::Result<Head> {
        let bytes = self.until(b"\r\n\r\n", deadline)?;
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
        let line = self.until(b"\r\n", deadline)?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
        let size = size.map_err(|_| io::Error::other(format!("no chunk size: {line:?}")))?;
        let chunk = self.exactly(size, deadline)?;
        self.until(b"\r\n", deadline)?;
        Ok((size > 0).then_some(chunk))
    }

    pub fn body(&mut self, framing: Framing, deadline: Deadline) -> io::Result<Vec<u8>> {
        match framing {
            Framing::Length(length) => self.exactly(length, deadline),
            Framing::Done => Ok(Vec::new()),
            Framing::Open => self.rest_to_end(deadline),
            Framing::Chunked => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk(deadline)? {
                    body.extend_from_slice(&chunk);
                }
                Ok(body)
            }
        }
    }

    /// What the server says to something it should not like: an answer, or nothing before it closes.
    pub fn answer_or_end(&mut self) -> Vec<u8> {
        let deadline = Deadline::after(super::wait::CAP);
        let Ok(head) = self.until(b"\r\n\r\n", deadline) else {
            assert!(
                !deadline.passed(),
                "neither an answer nor the end: {:?}",
                String::from_utf8_lossy(&self.rest)
            );
            return std::mem::take(&mut self.rest);
        };
        head
    }

    /// Everything until the server closes; an abrupt close counts as one.
    pub fn rest_to_end(&mut self, deadline: Deadline) -> io::Result<Vec<u8>> {
        loop {
            match self.fill(deadline) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                Err(_) => break,
            }
        }
        Ok(std::mem::take(&mut self.rest))
    }
}
