//! Writes frames. A frame whose sender was cancelled in the middle is finished before the next begins: half a frame would make
//! everything after it unreadable.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// The output, and the rest of the last frame.
pub(super) struct Outbox<W> {
    io: W,
    unsent: BytesMut,
}

impl<W: AsyncWrite + Unpin> Outbox<W> {
    pub(super) fn new(io: W) -> Outbox<W> {
        Outbox { io, unsent: BytesMut::new() }
    }

    /// Sends a frame that consists of parts.
    pub(super) async fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        // The rest first, so that at most one frame ever waits here.
        self.drain().await?;
        for part in parts {
            self.unsent.extend_from_slice(part);
        }
        self.drain().await?;
        self.io.flush().await
    }

    /// Closes the output.
    pub(super) async fn shutdown(&mut self) -> io::Result<()> {
        self.io.shutdown().await
    }

    async fn drain(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.io.write_buf(&mut self.unsent).await {
                Ok(1..) => {}
                // The connection is closed for good.
                result => {
                    self.unsent.clear();
                    return result.and(Err(io::ErrorKind::WriteZero.into()));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[actix_rt::test]
    async fn cancelled_frame_is_completed_before_the_next() {
        let (near, mut far) = tokio::io::duplex(4);
        let mut outbox = Outbox::new(near);
        assert!(
            outbox.send(&[b"01", b"2345"]).now_or_never().is_none(),
            "the pipe is too small for the frame"
        );
        let mut read = vec![0; 10];
        let (result, _) = tokio::join!(outbox.send(&[b"6789"]), far.read_exact(&mut read));
        result.unwrap();
        assert_eq!(read, b"0123456789");
        drop(far);
        assert!(outbox.send(&[b"x"]).await.is_err());
    }
}
