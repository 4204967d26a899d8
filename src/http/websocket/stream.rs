//! WebSocket framing on the server side, for connections that have left HTTP.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::frame::{self, BINARY, CLOSE, CONTINUATION, Head, MAX_HEAD_BYTES, NORMAL, PING, PONG, TEXT};
use crate::http::outbox::Outbox;
use crate::limits::CONVERSATION_BYTES;

/// A frame from a client.
#[derive(Debug, PartialEq, Eq)]
pub enum WebSocketFrame {
    /// A piece of a message; the flag tells whether it is the first.
    Piece(bool, Vec<u8>),
    /// A ping, to be answered with the same bytes.
    Ping(Vec<u8>),
    /// The end of the conversation.
    Close,
}

/// Reads frames of a client.
pub struct Reader<R> {
    io: R,
    /// The head of the current frame.
    head: Option<Head>,
    /// Payload bytes of it that were read.
    passed: u64,
    first: bool,
}

fn invalid_data(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from `io`, after the handshake.
    pub fn new(io: R) -> Reader<R> {
        Reader { io, head: None, passed: 0, first: false }
    }

    /// The next frame. A connection that ends without a close is an error.
    pub async fn next(&mut self) -> io::Result<WebSocketFrame> {
        loop {
            if let Some(head) = self.head.filter(|head| self.passed < head.length) {
                return self.piece(&head).await;
            }
            let head = self.read_head().await?;
            (self.head, self.passed) = (Some(head), 0);
            match head.opcode {
                BINARY | TEXT => self.first = true,
                CONTINUATION => {}
                PING => return Ok(WebSocketFrame::Ping(self.control(&head).await?)),
                PONG => drop(self.control(&head).await?),
                CLOSE => {
                    // The reason does not matter, nor whether all of it arrives.
                    let _ = self.control(&head).await;
                    return Ok(WebSocketFrame::Close);
                }
                _ => return Err(invalid_data("an unknown frame")),
            }
        }
    }

    async fn read_head(&mut self) -> io::Result<Head> {
        let mut head = [0; MAX_HEAD_BYTES];
        self.io.read_exact(&mut head[..2]).await?;
        Head::parse(&head[..2]).map_err(invalid_data)?;
        let bytes = Head::bytes(head[1]);
        self.io.read_exact(&mut head[2..bytes]).await?;
        Head::parse(&head[..bytes])
            .map_err(invalid_data)?
            .ok_or_else(|| invalid_data("an incomplete frame head"))
    }

    async fn piece(&mut self, head: &Head) -> io::Result<WebSocketFrame> {
        let remaining = head.length - self.passed;
        let length = CONVERSATION_BYTES.min(usize::try_from(remaining).unwrap_or(CONVERSATION_BYTES));
        let mut bytes = vec![0; length];
        let read = self.io.read(&mut bytes).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(read);
        head.unmask(self.passed, &mut bytes);
        self.passed += read as u64;
        Ok(WebSocketFrame::Piece(std::mem::take(&mut self.first), bytes))
    }

    /// The payload of a control frame; its head was checked to be short.
    async fn control(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(head.length).unwrap_or_default()];
        self.io.read_exact(&mut bytes).await?;
        head.unmask(0, &mut bytes);
        self.passed = head.length;
        Ok(bytes)
    }
}

/// Writes frames to a client.
pub struct Writer<W> {
    out: Outbox<W>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Writes to `io`, after the handshake.
    pub fn new(io: W) -> Writer<W> {
        Writer { out: Outbox::new(io) }
    }

    /// Sends a binary message that consists of two parts.
    pub async fn message(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        self.frame(BINARY, head, body).await
    }

    /// Sends a text message.
    pub async fn text(&mut self, text: &str) -> io::Result<()> {
        self.frame(TEXT, &[], text.as_bytes()).await
    }

    /// Answers a ping.
    pub async fn pong(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frame(PONG, &[], bytes).await
    }

    /// Sends a close.
    pub async fn close(&mut self) -> io::Result<()> {
        self.frame(CLOSE, &[], &NORMAL).await?;
        self.out.shutdown().await
    }

    async fn frame(&mut self, kind: u8, head: &[u8], body: &[u8]) -> io::Result<()> {
        let mut start = Vec::with_capacity(MAX_HEAD_BYTES);
        frame::write_head(&mut start, kind, head.len() + body.len());
        self.out.send(&[&start, head, body]).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::frame::masked;
    use super::*;

    async fn read(bytes: &[u8]) -> Vec<WebSocketFrame> {
        let mut reader = Reader::new(bytes);
        let mut frames = Vec::new();
        while let Ok(frame) = reader.next().await {
            frames.push(frame);
        }
        frames
    }

    #[actix_rt::test]
    async fn websocket_frames_are_parsed_by_type() {
        let frames = [
            masked(0x02, b"\x00ab"),
            masked(0x89, b"?"),
            masked(0x80, b"cd"),
            masked(0x8a, b"late"),
            masked(0x82, b""),
            masked(0x82, b"\x01"),
            masked(0x88, &NORMAL),
        ];
        let parsed = read(&frames.concat()).await;
        assert_eq!(
            parsed,
            [
                WebSocketFrame::Piece(true, b"\x00ab".to_vec()),
                WebSocketFrame::Ping(b"?".to_vec()),
                WebSocketFrame::Piece(false, b"cd".to_vec()),
                WebSocketFrame::Piece(true, b"\x01".to_vec()),
                WebSocketFrame::Close,
            ]
        );
        for invalid in
            [&[0x82, 0x01, 0][..], &[0xc2, 0x80, 0, 0, 0, 0], &[0x83, 0x80, 0, 0, 0, 0], &[0x89, 0xfe, 1, 0]]
        {
            assert!(Reader::new(invalid).next().await.is_err(), "{invalid:?}");
        }
    }

    proptest! {
        #[test]
        fn websocket_reader_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            futures::executor::block_on(async { read(&bytes).await; });
        }
    }
}
