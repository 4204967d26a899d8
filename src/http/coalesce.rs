//! Gathers the many small writes of an HTTP/2 connection into few.
//!
//! The codec writes each frame header and each frame by itself, and flushes after every frame. Each write would be a TLS record
//! and a system call: two for every event of every watch, and three for a small response. So they are gathered here into whole
//! records, and sent when the connection has nothing more to write for the moment. Only the code that drives the connection knows
//! when that is.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;

use super::stall::Stall;
use crate::limits::TLS_RECORD_BYTES;

thread_local! {
    /// A buffer for gathered writes. A connection holds it only while bytes are unsent, which rarely outlasts one turn of its
    /// task. So one per thread is enough, and idle connections keep none.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A connection shared by the HTTP/2 codec and the code that drives it. Clones are the same connection.
pub(super) struct CoalescedStream<S>(Rc<RefCell<CoalesceBuffer<S>>>);

struct CoalesceBuffer<S> {
    io: S,
    /// Bytes that were written but not sent completely.
    unsent: Vec<u8>,
    /// How many of those bytes are sent.
    sent: usize,
    stall: Stall,
}

impl<S: AsyncWrite + Unpin> CoalescedStream<S> {
    pub(super) fn new(io: S) -> CoalescedStream<S> {
        CoalescedStream(Rc::new(RefCell::new(CoalesceBuffer {
            io,
            unsent: Vec::new(),
            sent: 0,
            stall: Stall::default(),
        })))
    }

    /// Runs `work`, which writes to this connection, and sends the gathered bytes whenever `work` is pending. Bytes that it wrote
    /// in its last turn are sent by the next call.
    pub(super) async fn run_and_send<T>(&self, work: impl Future<Output = T>) -> io::Result<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            match self.0.borrow_mut().poll_send(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

impl<S> CoalescedStream<S> {
    /// Whether no bytes wait to be sent. False as long as the peer does not read.
    pub(super) fn is_sent(&self) -> bool {
        self.0.borrow().unsent.is_empty()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> CoalescedStream<S> {
    /// Closes the connection once the peer has read everything and closes its side, or is silent for `silence`. If the socket
    /// were closed while input is unread, the kernel would reset the connection and discard bytes that the peer has not read yet.
    pub(super) async fn close(mut self, silence: Duration) {
        let mut unread = [0; 256];
        let Ok(Ok(())) = timeout(silence, self.shutdown()).await else { return };
        while let Ok(Ok(1..)) = timeout(silence, self.read(&mut unread)).await {}
    }
}

impl<S: AsyncWrite + Unpin> CoalesceBuffer<S> {
    /// Sends all gathered bytes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.unsent.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let result = Pin::new(&mut self.io).poll_write(cx, rest);
            match ready!(self.stall.check(cx, result))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.sent = 0;
        let mut buffer = std::mem::take(&mut self.unsent);
        if buffer.capacity() > 0 {
            buffer.clear();
            BUFFER.set(buffer);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes as many bytes as fit into a TLS record. A full record is sent first.
    fn poll_gather(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.unsent.len() >= TLS_RECORD_BYTES {
            ready!(self.poll_send(cx))?;
        }
        if self.unsent.capacity() == 0 {
            self.unsent = BUFFER.take();
            self.unsent.reserve_exact(TLS_RECORD_BYTES);
        }
        let (part, _) = bytes.split_at(bytes.len().min(TLS_RECORD_BYTES.saturating_sub(self.unsent.len())));
        self.unsent.extend_from_slice(part);
        Poll::Ready(Ok(part.len()))
    }
}

impl<S> Clone for CoalescedStream<S> {
    fn clone(&self) -> Self {
        CoalescedStream(Rc::clone(&self.0))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().io).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_gather(cx, bytes)
    }

    /// Does nothing, because the codec flushes after every frame. See [`CoalescedStream::run_and_send`].
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = self.0.borrow_mut();
        ready!(buffer.poll_send(cx))?;
        Pin::new(&mut buffer.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// Counts the writes that reach the other side.
    struct WriteCounter(DuplexStream, Rc<Cell<usize>>);

    impl AsyncWrite for WriteCounter {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.1.set(self.1.get() + 1);
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    /// A connection that buffers `capacity` unread bytes, its other end, and the number of writes to it.
    fn connection(capacity: usize) -> (CoalescedStream<WriteCounter>, DuplexStream, Rc<Cell<usize>>) {
        let (near, far) = duplex(capacity);
        let writes = Rc::new(Cell::new(0));
        (CoalescedStream::new(WriteCounter(near, Rc::clone(&writes))), far, writes)
    }

    /// Bytes that differ from their neighbours, so that lost or duplicated pieces show.
    fn test_bytes(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index % 251) as u8).collect()
    }

    /// Writes and flushes these pieces, then waits for ever.
    async fn write_pieces(stream: CoalescedStream<WriteCounter>, pieces: Vec<Vec<u8>>) {
        let mut stream = stream;
        for piece in pieces {
            stream.write_all(&piece).await.unwrap();
            stream.flush().await.unwrap();
        }
        std::future::pending::<()>().await;
    }

    #[actix_rt::test]
    async fn small_writes_are_sent_as_one_when_the_writer_is_pending() {
        let (stream, mut far, writes) = connection(1 << 20);
        let pieces: Vec<Vec<u8>> = test_bytes(900).chunks(9).map(<[u8]>::to_vec).collect();
        let result = stream.run_and_send(write_pieces(stream.clone(), pieces)).now_or_never();
        assert!(result.is_none());
        assert_eq!(writes.get(), 1);
        let mut received = vec![0; 900];
        far.read_exact(&mut received).await.unwrap();
        assert_eq!(received, test_bytes(900));
        assert_eq!(stream.0.borrow().unsent.capacity(), 0, "an idle connection keeps no buffer");
    }

    #[actix_rt::test]
    async fn slow_reader_gets_every_byte_once_and_in_order() {
        const LENGTH: usize = 5 * TLS_RECORD_BYTES + 77;
        let (stream, mut far, _) = connection(1_000);
        let pieces: Vec<Vec<u8>> = test_bytes(LENGTH).chunks(7_001).map(<[u8]>::to_vec).collect();
        let mut received = vec![0; LENGTH];
        tokio::select! {
            _ = stream.run_and_send(write_pieces(stream.clone(), pieces)) => unreachable!("the writer never ends"),
            read = far.read_exact(&mut received) => assert_eq!(read.unwrap(), LENGTH),
        }
        assert_eq!(received, test_bytes(LENGTH));
    }

    #[actix_rt::test]
    async fn unsent_bytes_are_bounded_by_a_tls_record() {
        let (stream, _far, _) = connection(1);
        let pieces = vec![test_bytes(10 * TLS_RECORD_BYTES)];
        assert!(stream.run_and_send(write_pieces(stream.clone(), pieces)).now_or_never().is_none());
        assert_eq!(stream.0.borrow().unsent.len(), TLS_RECORD_BYTES);
    }

    #[actix_rt::test]
    async fn shutdown_sends_unsent_bytes_first() {
        let (stream, mut far, _) = connection(1 << 20);
        let mut end = stream.clone();
        end.write_all(b"goodbye").await.unwrap();
        end.shutdown().await.unwrap();
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"goodbye");
    }

    #[actix_rt::test]
    async fn close_waits_until_the_peer_has_read_everything_and_closed() {
        const SILENCE: Duration = Duration::from_secs(600);
        let (near, mut far) = duplex(128);
        let stream = CoalescedStream::new(near);
        stream.clone().write_all(&test_bytes(500)).await.unwrap();
        assert!(!stream.is_sent());
        let closing = actix_rt::spawn(stream.close(SILENCE));
        let mut received = Vec::new();
        // The peer keeps sending while it reads, like clients that send window updates.
        while received.len() < 500 {
            far.write_all(b"more").await.unwrap();
            assert!(far.read_buf(&mut received).await.unwrap() > 0);
        }
        assert_eq!(received, test_bytes(500));
        assert!(!closing.is_finished(), "the peer has not closed yet");
        drop(far);
        closing.await.unwrap();
    }

    #[actix_rt::test]
    async fn close_does_not_wait_for_a_silent_peer() {
        let (near, _far) = duplex(16);
        CoalescedStream::new(near).close(Duration::from_millis(1)).await;
        let (stuck, _far) = duplex(16);
        let stuck = CoalescedStream::new(stuck);
        stuck.clone().write_all(&test_bytes(500)).await.unwrap();
        stuck.close(Duration::from_millis(1)).await;
    }

    #[actix_rt::test]
    async fn closed_peer_fails_the_work() {
        let (stream, far, _) = connection(16);
        drop(far);
        let result = stream.run_and_send(write_pieces(stream.clone(), vec![test_bytes(8)])).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
