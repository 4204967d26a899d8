//! A byte stream that carries only so many bytes a second, each way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::limits::{PACE_INTERVAL, PACE_INTERVALS_PER_SECOND};

/// The stream. Without a rate it passes everything on.
pub struct Paced<S> {
    io: S,
    reads: Option<Pace>,
    writes: Option<Pace>,
}

/// What may still be carried in the current interval. What was not used is not carried over.
struct Pace {
    per_interval: usize,
    left: usize,
    /// The end of the interval, which begins with its first byte.
    end: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Pace {
        let per_interval =
            usize::try_from(bytes_per_second / PACE_INTERVALS_PER_SECOND).unwrap_or(usize::MAX);
        let per_interval = per_interval.max(1);
        Pace { per_interval, left: per_interval, end: None }
    }

    /// How many bytes may be carried now; at least one.
    fn poll_left(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        if self.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready()) {
            (self.left, self.end) = (self.per_interval, None);
        }
        match self.left {
            0 => Poll::Pending,
            left => Poll::Ready(left),
        }
    }

    fn used(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        if self.end.is_none() && bytes > 0 {
            self.end = Some(Box::pin(sleep(PACE_INTERVAL)));
        }
    }
}

impl<S> Paced<S> {
    /// A stream without a rate.
    pub fn new(io: S) -> Paced<S> {
        Paced { io, reads: None, writes: None }
    }

    /// The same with a rate, or without one.
    #[must_use]
    pub fn with_rate(self, bytes_per_second: Option<u64>) -> Paced<S> {
        let pace = || bytes_per_second.map(Pace::new);
        Paced { io: self.io, reads: pace(), writes: pace() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Paced { io, reads, .. } = self.get_mut();
        let Some(pace) = reads else { return Pin::new(io).poll_read(context, buffer) };
        let left = ready!(pace.poll_left(context)).min(buffer.remaining());
        let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(left));
        ready!(Pin::new(io).poll_read(context, &mut piece))?;
        let read = piece.filled().len();
        pace.used(read);
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Paced { io, writes, .. } = self.get_mut();
        let Some(pace) = writes else { return Pin::new(io).poll_write(context, bytes) };
        let left = ready!(pace.poll_left(context)).min(bytes.len());
        let written = ready!(Pin::new(io).poll_write(context, bytes.get(..left).unwrap_or_default()))?;
        pace.used(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::clock::Clock;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// How long it takes at least to carry so many bytes each way.
    async fn carry(bytes_per_second: Option<u64>, bytes: usize) -> [std::time::Duration; 2] {
        let clock = Clock::system();
        let (near, mut far) = duplex(1 << 20);
        let mut paced = Paced::new(near).with_rate(bytes_per_second);
        let start = clock.moment();
        paced.write_all(&vec![7; bytes]).await.unwrap();
        let written = clock.elapsed(start);
        let mut received = vec![0; bytes];
        far.read_exact(&mut received).await.unwrap();
        far.write_all(&received).await.unwrap();
        let start = clock.moment();
        paced.read_exact(&mut received).await.unwrap();
        assert_eq!(received, vec![7; bytes]);
        [written, clock.elapsed(start)]
    }

    #[actix_rt::test]
    async fn each_direction_carries_so_many_bytes_a_second() {
        // The first piece needs no wait. How long the others take beyond that, nobody can promise.
        for (rate, bytes, intervals) in [(1_000, 101, 1), (1_000, 301, 3), (3, 4, 3)] {
            let times = carry(Some(rate), bytes).await;
            assert!(
                times.iter().all(|time| *time >= PACE_INTERVAL * intervals),
                "{rate}, {bytes}: {times:?}"
            );
        }
    }

    #[actix_rt::test]
    async fn stream_without_a_rate_carries_everything() {
        carry(None, 1 << 19).await;
        carry(Some(u64::MAX), 1 << 19).await;
    }

    #[actix_rt::test]
    async fn what_was_not_used_is_not_carried_over() {
        let clock = Clock::system();
        let (near, mut far) = duplex(1 << 20);
        let mut paced = Paced::new(near).with_rate(Some(1_000));
        paced.write_all(b"a").await.unwrap();
        sleep(PACE_INTERVAL * 3).await;
        let start = clock.moment();
        paced.write_all(&[7; 101]).await.unwrap();
        assert!(clock.elapsed(start) >= PACE_INTERVAL);
        far.read_exact(&mut [0; 102]).await.unwrap();
    }
}
