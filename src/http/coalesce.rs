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
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
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
    pub(super) async fn send_between<T>(&self, work: impl Future<Output = T>) -> io::Result<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
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
            let written = Pin::new(&mut self.io).poll_write(cx, rest);
            match ready!(self.stall.judge(cx, written))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => self.sent += more,
            }
        }
        self.sent = 0;
        let mut room = std::mem::take(&mut self.unsent);
        if room.capacity() > 0 {
            room.clear();
            ROOM.set(room);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes as many bytes as fit into a TLS record. A full record is sent first.
    fn poll_gather(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.unsent.len() >= TLS_RECORD_BYTES {
            ready!(self.poll_send(cx))?;
        }
        if self.unsent.capacity() == 0 {
            self.unsent = ROOM.take();
            self.unsent.reserve_exact(TLS_RECORD_BYTES);
        }
        let (fits, _) = bytes.split_at(bytes.len().min(TLS_RECORD_BYTES.saturating_sub(self.unsent.len())));
        self.unsent.extend_from_slice(fits);
        Poll::Ready(Ok(fits.len()))
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

    /// Does nothing, because the codec flushes after every frame. See [`CoalescedStream::send_between`].
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathering = self.0.borrow_mut();
        ready!(gathering.poll_send(cx))?;
        Pin::new(&mut gathering.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// Counts the writes that reach the other side.
    struct Counting(DuplexStream, Rc<Cell<usize>>);

    impl AsyncWrite for Counting {
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

    /// A connection that buffers `room` unread bytes, its other end, and the number of writes to it.
    fn connection(room: usize) -> (CoalescedStream<Counting>, DuplexStream, Rc<Cell<usize>>) {
        let (near, far) = duplex(room);
        let writes = Rc::new(Cell::new(0));
        (CoalescedStream::new(Counting(near, Rc::clone(&writes))), far, writes)
    }

    /// Bytes that differ from their neighbours, so that lost or duplicated pieces show.
    fn speech(length: usize) -> Vec<u8> {
        (0..length).map(|place| (place % 251) as u8).collect()
    }

    /// Writes and flushes these pieces, then waits for ever.
    async fn say(to: CoalescedStream<Counting>, pieces: Vec<Vec<u8>>) {
        let mut to = to;
        for piece in pieces {
            to.write_all(&piece).await.unwrap();
            to.flush().await.unwrap();
        }
        std::future::pending::<()>().await;
    }

    #[actix_rt::test]
    async fn many_pieces_leave_in_one_write_once_the_writer_waits() {
        let (gathered, mut far, writes) = connection(1 << 20);
        let pieces: Vec<Vec<u8>> = speech(900).chunks(9).map(<[u8]>::to_vec).collect();
        let said = gathered.send_between(say(gathered.clone(), pieces)).now_or_never();
        assert!(said.is_none());
        assert_eq!(writes.get(), 1);
        let mut heard = vec![0; 900];
        far.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, speech(900));
        assert_eq!(gathered.0.borrow().unsent.capacity(), 0, "an idle connection keeps no room");
    }

    #[actix_rt::test]
    async fn a_slow_reader_gets_every_byte_once_and_in_order() {
        const LENGTH: usize = 5 * TLS_RECORD_BYTES + 77;
        let (gathered, mut far, _) = connection(1_000);
        let pieces: Vec<Vec<u8>> = speech(LENGTH).chunks(7_001).map(<[u8]>::to_vec).collect();
        let mut heard = vec![0; LENGTH];
        tokio::select! {
            _ = gathered.send_between(say(gathered.clone(), pieces)) => unreachable!("it waits for ever"),
            read = far.read_exact(&mut heard) => assert_eq!(read.unwrap(), LENGTH),
        }
        assert_eq!(heard, speech(LENGTH));
    }

    #[actix_rt::test]
    async fn nobody_gathers_more_than_a_record() {
        let (gathered, _far, _) = connection(1);
        let pieces = vec![speech(10 * TLS_RECORD_BYTES)];
        assert!(gathered.send_between(say(gathered.clone(), pieces)).now_or_never().is_none());
        assert_eq!(gathered.0.borrow().unsent.len(), TLS_RECORD_BYTES);
    }

    #[actix_rt::test]
    async fn what_is_unsent_leaves_before_the_end() {
        let (gathered, mut far, _) = connection(1 << 20);
        let mut end = gathered.clone();
        end.write_all(b"goodbye").await.unwrap();
        end.shutdown().await.unwrap();
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"goodbye");
    }

    #[actix_rt::test]
    async fn a_connection_closes_when_its_peer_has_heard_all_and_goes() {
        const PATIENT: Duration = Duration::from_secs(600);
        let (near, mut far) = duplex(128);
        let gathered = CoalescedStream::new(near);
        gathered.clone().write_all(&speech(500)).await.unwrap();
        assert!(!gathered.is_sent());
        let closing = actix_rt::spawn(gathered.close(PATIENT));
        let mut heard = Vec::new();
        // The peer keeps sending while it reads, like clients that send window updates.
        while heard.len() < 500 {
            far.write_all(b"more").await.unwrap();
            assert!(far.read_buf(&mut heard).await.unwrap() > 0);
        }
        assert_eq!(heard, speech(500));
        assert!(!closing.is_finished(), "it has not gone yet");
        drop(far);
        closing.await.unwrap();
    }

    #[actix_rt::test]
    async fn a_silent_peer_is_not_waited_for() {
        let (near, _far) = duplex(16);
        CoalescedStream::new(near).close(Duration::from_millis(1)).await;
        let (stuck, _far) = duplex(16);
        let stuck = CoalescedStream::new(stuck);
        stuck.clone().write_all(&speech(500)).await.unwrap();
        stuck.close(Duration::from_millis(1)).await;
    }

    #[actix_rt::test]
    async fn a_reader_that_is_gone_ends_the_work() {
        let (gathered, far, _) = connection(16);
        drop(far);
        let said = gathered.send_between(say(gathered.clone(), vec![speech(8)])).await;
        assert_eq!(said.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
