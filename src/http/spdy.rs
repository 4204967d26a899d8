//! SPDY/3.1 on the side that opens streams, as far as kubelets use it: no flow control, and one header per stream.
//!
//! Headers must be compressed, all of a connection as one zlib stream. Ours are a few bytes each, so they are sent as stored
//! blocks, which every reader accepts. Each ends with an empty block, because some readers deliver their output only then.
//! Received headers are ignored.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::outbox::Outbox;
use crate::limits::{CONVERSATION_BYTES, SPDY_CONTROL_BYTES};

/// The first half of a control frame's first word: a bit, and the version.
const CONTROL: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;
/// The start of a zlib stream without a dictionary.
const ZLIB: [u8; 2] = [0x78, 0x01];
/// An empty stored block.
const EMPTY_BLOCK: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// A frame from the peer.
#[derive(Debug, PartialEq, Eq)]
pub enum SpdyFrame {
    /// The peer accepted this stream. The flag tells whether it has nothing to send on it.
    Reply(u32, bool),
    /// Bytes of a stream. The flag tells whether they are the last.
    Data(u32, Vec<u8>, bool),
    /// The peer reset this stream.
    Reset(u32),
    /// A ping, to be answered with the same number.
    Ping(u32),
    /// The peer is about to close.
    GoAway,
    /// Any other frame, which is ignored.
    Other,
}

/// Reads frames of the peer.
pub struct Reader<R> {
    io: R,
    stream: u32,
    remaining: usize,
    last: bool,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from `io`.
    pub fn new(io: R) -> Reader<R> {
        Reader { io, stream: 0, remaining: 0, last: false }
    }

    /// The next frame.
    pub async fn next(&mut self) -> io::Result<SpdyFrame> {
        if self.remaining > 0 {
            return self.piece().await;
        }
        let first = self.io.read_u32().await?;
        let second = self.io.read_u32().await?;
        let (flags, length) = ((second >> 24) as u8, (second & 0x00ff_ffff) as usize);
        if first & 0x8000_0000 != 0 {
            return self.control(first as u16, flags, length).await;
        }
        (self.stream, self.remaining, self.last) = (first, length, flags & FIN != 0);
        if length == 0 {
            return Ok(SpdyFrame::Data(first, Vec::new(), self.last));
        }
        self.piece().await
    }

    async fn piece(&mut self) -> io::Result<SpdyFrame> {
        let mut bytes = vec![0; self.remaining.min(CONVERSATION_BYTES)];
        let read = self.io.read(&mut bytes).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(read);
        self.remaining -= read;
        Ok(SpdyFrame::Data(self.stream, bytes, self.last && self.remaining == 0))
    }

    async fn control(&mut self, kind: u16, flags: u8, length: usize) -> io::Result<SpdyFrame> {
        if length > SPDY_CONTROL_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a control frame that is too long"));
        }
        let mut body = vec![0; length];
        self.io.read_exact(&mut body).await?;
        let number = body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) & 0x7fff_ffff);
        Ok(match (kind, number) {
            (SYN_REPLY, Some(stream)) => SpdyFrame::Reply(stream, flags & FIN != 0),
            (RST_STREAM, Some(stream)) => SpdyFrame::Reset(stream),
            (PING, Some(number)) => SpdyFrame::Ping(number),
            (GOAWAY, _) => SpdyFrame::GoAway,
            _ => SpdyFrame::Other,
        })
    }
}

/// Writes frames to the peer.
pub struct Writer<W> {
    out: Outbox<W>,
    has_sent_header: bool,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Writes to `io`.
    pub fn new(io: W) -> Writer<W> {
        Writer { out: Outbox::new(io), has_sent_header: false }
    }

    /// Opens a stream with one header.
    pub async fn open(&mut self, stream: u32, name: &str, value: &str) -> io::Result<()> {
        let mut header = 1_u32.to_be_bytes().to_vec();
        for text in [name, value] {
            header.extend_from_slice(&u32::try_from(text.len()).unwrap_or_default().to_be_bytes());
            header.extend_from_slice(text.as_bytes());
        }
        let mut block = if self.has_sent_header { Vec::new() } else { ZLIB.to_vec() };
        self.has_sent_header = true;
        let length = u16::try_from(header.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        block.push(0);
        block.extend_from_slice(&length.to_le_bytes());
        block.extend_from_slice(&(!length).to_le_bytes());
        block.extend_from_slice(&header);
        block.extend_from_slice(&EMPTY_BLOCK);
        // The stream, the associated stream, priority and slot.
        let mut body = stream.to_be_bytes().to_vec();
        body.extend_from_slice(&[0; 6]);
        body.extend_from_slice(&block);
        self.control(SYN_STREAM, &body).await
    }

    /// Sends bytes of a stream.
    pub async fn data(&mut self, stream: u32, bytes: &[u8], last: bool) -> io::Result<()> {
        let length = flags_and_length(if last { FIN } else { 0 }, bytes.len())?;
        self.out.send(&[&stream.to_be_bytes(), &length, bytes]).await
    }

    /// Answers a ping.
    pub async fn pong(&mut self, number: u32) -> io::Result<()> {
        self.control(PING, &number.to_be_bytes()).await
    }

    /// Sends GOAWAY and closes.
    pub async fn close(&mut self) -> io::Result<()> {
        self.control(GOAWAY, &[0; 8]).await?;
        self.out.shutdown().await
    }

    async fn control(&mut self, kind: u16, body: &[u8]) -> io::Result<()> {
        let length = flags_and_length(0, body.len())?;
        self.out.send(&[&CONTROL.to_be_bytes(), &kind.to_be_bytes(), &length, body]).await
    }
}

fn flags_and_length(flags: u8, length: usize) -> io::Result<[u8; 4]> {
    let length = u32::try_from(length).ok().filter(|length| *length < 1 << 24);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    Ok((u32::from(flags) << 24 | length).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::ZlibDecoder;
    use proptest::prelude::*;

    use super::*;

    async fn read(bytes: &[u8]) -> Vec<SpdyFrame> {
        let mut reader = Reader::new(bytes);
        let mut frames = Vec::new();
        while let Ok(frame) = reader.next().await {
            frames.push(frame);
        }
        frames
    }

    #[actix_rt::test]
    async fn spdy_headers_are_one_zlib_stream() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        writer.open(1, "streamtype", "error").await.unwrap();
        writer.open(3, "streamtype", "stdin").await.unwrap();
        assert_eq!(&out[..8], [0x80, 3, 0, 1, 0, 0, 0, 10 + 2 + 5 + 4 + 4 + 10 + 4 + 5 + 5]);
        let first = 8 + usize::from(out[7]);
        let compressed = [&out[18..first], &out[first + 18..]].concat();
        let mut plain = vec![0; 2 * (4 + 4 + 10 + 4 + 5)];
        ZlibDecoder::new(&compressed[..]).read_exact(&mut plain).unwrap();
        assert_eq!(&plain[8..18], b"streamtype");
        assert!(plain.ends_with(b"stdin"));
    }

    #[actix_rt::test]
    async fn spdy_frames_are_parsed_by_type() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.data(5, b"abc", false).await.unwrap();
        writer.data(5, b"", true).await.unwrap();
        writer.pong(2).await.unwrap();
        writer.control(SYN_REPLY, &[0, 0, 0, 3, 9]).await.unwrap();
        writer.control(RST_STREAM, &[0, 0, 0, 7, 0, 0, 0, 1]).await.unwrap();
        writer.control(4, &[0; 4]).await.unwrap();
        writer.close().await.unwrap();
        let expected = [
            SpdyFrame::Data(5, b"abc".to_vec(), false),
            SpdyFrame::Data(5, Vec::new(), true),
            SpdyFrame::Ping(2),
            SpdyFrame::Reply(3, false),
            SpdyFrame::Reset(7),
            SpdyFrame::Other,
            SpdyFrame::GoAway,
        ];
        assert_eq!(read(&bytes).await, expected);
        let ended = [0x80, 3, 0, 2, FIN, 0, 0, 4, 0, 0, 0, 3];
        assert_eq!(read(&ended).await, [SpdyFrame::Reply(3, true)], "a reply that ends the stream");
        assert!(read(&[0x80, 3, 0, 2, 0, 0xff, 0xff, 0xff]).await.is_empty(), "a frame that is too long");
    }

    proptest! {
        #[test]
        fn spdy_reader_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            futures::executor::block_on(async { read(&bytes).await; });
        }
    }
}
