//! HTTP/2 frames that no client library would send.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use openssl::ssl::SslStream;

use crate::support::wait::TIMEOUT;
use crate::support::{Server, tls};

pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// One connection that speaks HTTP/2.
pub struct Http2(SslStream<TcpStream>);

/// A received frame.
pub struct Frame {
    pub kind: u8,
    flags: u8,
}

impl Http2 {
    pub fn connect(server: &Server) -> Http2 {
        Http2::open(server.address(), &server.ca_pem()).expect("a connection that speaks HTTP/2")
    }

    /// Connects and exchanges the first settings.
    pub fn open(address: SocketAddr, authority: &[u8]) -> io::Result<Http2> {
        let tcp = TcpStream::connect(address)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(TIMEOUT))?;
        tcp.set_write_timeout(Some(TIMEOUT))?;
        let context = tls::context(Some(authority), None, b"\x02h2");
        let session = tls::session(&context, &address.ip().to_string());
        let stream = session.connect(tcp).map_err(io::Error::other)?;
        let mut connection = Http2(stream);
        connection.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        connection.send(SETTINGS, 0, 0, &[])?;
        Ok(connection)
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.0.write_all(&frame(kind, flags, stream, payload))
    }

    /// Sends bytes that are frames already.
    pub fn send_raw(&mut self, frames: &[u8]) -> io::Result<()> {
        self.0.write_all(frames)
    }

    /// The next frame that is no settings.
    pub fn receive(&mut self) -> io::Result<Frame> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head)?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.0.read_exact(&mut payload)?;
            let frame = Frame { kind: head[3], flags: head[4] };
            if frame.kind != SETTINGS {
                return Ok(frame);
            }
            if frame.flags & ACK == 0 {
                self.send(SETTINGS, ACK, 0, &[])?;
            }
        }
    }
}

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A string of HPACK without compression.
fn string(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    // An integer with a prefix of seven bits.
    match text.len() {
        length @ 0..127 => bytes.push(length as u8),
        length => {
            bytes.push(127);
            let mut rest = length - 127;
            while rest >= 128 {
                bytes.push((rest as u8 & 127) | 128);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// The header block of a GET, with entries of the static table and literals that are not indexed.
pub fn get(path: &str, token: Option<&str>) -> Vec<u8> {
    const METHOD_GET: u8 = 0x82;
    const SCHEME_HTTPS: u8 = 0x87;
    const PATH: u8 = 0x04;
    const AUTHORITY: u8 = 0x01;
    let mut block = vec![METHOD_GET, SCHEME_HTTPS, PATH];
    block.extend(string(path));
    block.push(AUTHORITY);
    block.extend(string("localhost"));
    if let Some(token) = token {
        block.extend(literal("authorization", &format!("Bearer {token}")));
    }
    block
}

/// A header that is not indexed.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0];
    block.extend(string(name));
    block.extend(string(value));
    block
}
