//! WebSocket, the server's side: RFC 6455 without extensions.

use std::io;

use openssl::sha::sha1;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::outbox::Outbox;
use crate::limits::{CONVERSATION_BYTES, WEBSOCKET_CONTROL_BYTES};

/// What every handshake mixes into the key of the client.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const CONTINUED: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// Closed because everything was said.
const NORMAL: [u8; 2] = 1_000_u16.to_be_bytes();

/// What proves to a client that its handshake was understood.
pub fn accept_key(key: &str) -> String {
    openssl::base64::encode_block(&sha1(format!("{key}{MAGIC}").as_bytes()))
}

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// A piece of a message; the flag says whether it is the first.
    Piece(bool, Vec<u8>),
    /// A question whether somebody is there, to be answered with the same bytes.
    Ping(Vec<u8>),
    /// Nothing more.
    Close,
}

/// Reads what a client says.
pub struct Reader<R> {
    io: R,
    /// Bytes of the present frame that are still to come.
    left: u64,
    mask: [u8; 4],
    masked: usize,
    first: bool,
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from `io`, on which the handshake is done.
    pub fn new(io: R) -> Reader<R> {
        Reader { io, left: 0, mask: [0; 4], masked: 0, first: false }
    }

    /// The next that the client says. A connection that ends without saying so is an error.
    pub async fn next(&mut self) -> io::Result<Said> {
        loop {
            if self.left > 0 {
                return self.piece().await;
            }
            let [start, length] = [self.io.read_u8().await?, self.io.read_u8().await?];
            if start & 0x70 != 0 || length & 0x80 == 0 {
                return Err(broken("a frame with an extension, or without a mask"));
            }
            let length = match length & 0x7f {
                126 => u64::from(self.io.read_u16().await?),
                127 => self.io.read_u64().await?,
                short => u64::from(short),
            };
            self.io.read_exact(&mut self.mask).await?;
            (self.left, self.masked) = (length, 0);
            match start & 0x0f {
                BINARY | TEXT => self.first = true,
                CONTINUED => {}
                PING => return Ok(Said::Ping(self.control().await?)),
                PONG => drop(self.control().await?),
                CLOSE => {
                    // Why it closes matters to nobody, nor whether all of that arrives.
                    let _ = self.control().await;
                    return Ok(Said::Close);
                }
                _ => return Err(broken("an unknown frame")),
            }
        }
    }

    async fn piece(&mut self) -> io::Result<Said> {
        let room = CONVERSATION_BYTES.min(usize::try_from(self.left).unwrap_or(CONVERSATION_BYTES));
        let mut bytes = vec![0; room];
        let read = self.io.read(&mut bytes).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(read);
        self.unmask(&mut bytes);
        Ok(Said::Piece(std::mem::take(&mut self.first), bytes))
    }

    async fn control(&mut self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX);
        if length > WEBSOCKET_CONTROL_BYTES {
            return Err(broken("a control frame that is too long"));
        }
        let mut bytes = vec![0; length];
        self.io.read_exact(&mut bytes).await?;
        self.unmask(&mut bytes);
        Ok(bytes)
    }

    fn unmask(&mut self, bytes: &mut [u8]) {
        for byte in bytes.iter_mut() {
            *byte ^= self.mask[self.masked % 4];
            self.masked += 1;
        }
        self.left -= bytes.len() as u64;
    }
}

/// Says something to a client.
pub struct Writer<W> {
    out: Outbox<W>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Writes to `io`, on which the handshake is done.
    pub fn new(io: W) -> Writer<W> {
        Writer { out: Outbox::new(io) }
    }

    /// Sends a message that is made of two parts.
    pub async fn message(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        self.frame(BINARY, head, body).await
    }

    /// Sends a message that is text.
    pub async fn text(&mut self, text: &str) -> io::Result<()> {
        self.frame(TEXT, &[], text.as_bytes()).await
    }

    /// Answers a ping.
    pub async fn pong(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frame(PONG, &[], bytes).await
    }

    /// Says that nothing follows.
    pub async fn close(&mut self) -> io::Result<()> {
        self.frame(CLOSE, &[], &NORMAL).await?;
        self.out.shutdown().await
    }

    async fn frame(&mut self, kind: u8, head: &[u8], body: &[u8]) -> io::Result<()> {
        let length = head.len() + body.len();
        let mut start = vec![0x80 | kind];
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short @ 0..=125), _) => start.push(short),
            (_, Ok(middle)) => {
                start.push(126);
                start.extend_from_slice(&middle.to_be_bytes());
            }
            _ => {
                start.push(127);
                start.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        self.out.send(&[&start, head, body]).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masked(start: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![start];
        match payload.len() {
            short @ 0..=125 => frame.push(0x80 | short as u8),
            middle => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(middle as u16).to_be_bytes());
            }
        }
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        frame
    }

    async fn read(bytes: &[u8]) -> Vec<Said> {
        let mut reader = Reader::new(bytes);
        let mut all = Vec::new();
        while let Ok(said) = reader.next().await {
            all.push(said);
        }
        all
    }

    #[test]
    fn the_key_of_the_standard_gives_its_answer() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[actix_rt::test]
    async fn messages_pings_and_the_end_are_told_apart() {
        let frames = [
            masked(0x02, b"\x00ab"),
            masked(0x89, b"?"),
            masked(0x80, b"cd"),
            masked(0x8a, b"late"),
            masked(0x82, b""),
            masked(0x82, b"\x01"),
            masked(0x88, &NORMAL),
        ];
        let said = read(&frames.concat()).await;
        assert_eq!(
            said,
            [
                Said::Piece(true, b"\x00ab".to_vec()),
                Said::Ping(b"?".to_vec()),
                Said::Piece(false, b"cd".to_vec()),
                Said::Piece(true, b"\x01".to_vec()),
                Said::Close,
            ]
        );
        for wrong in
            [&[0x82, 0x01, 0][..], &[0xc2, 0x80, 0, 0, 0, 0], &[0x83, 0x80, 0, 0, 0, 0], &[0x89, 0xfe, 1, 0]]
        {
            assert!(Reader::new(wrong).next().await.is_err(), "{wrong:?}");
        }
    }

    #[actix_rt::test]
    async fn what_is_said_has_its_length() {
        for length in [0, 125, 126, 65_535, 65_536] {
            let mut out = Vec::new();
            Writer::new(&mut out).message(&[1], &vec![7; length]).await.unwrap();
            let head = match length + 1 {
                0..=125 => 2,
                126..=65_535 => 4,
                _ => 10,
            };
            assert_eq!(out.len(), head + 1 + length, "{length}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            futures::executor::block_on(async { read(&bytes).await; });
        }
    }
}
