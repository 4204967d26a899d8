//! Answers pings from a task of its own. The reading task only notes a ping and goes on: the way back may be full because the
//! peer does not read, and the peer may not read before its own writes are read. If the reader waited, both directions would
//! deadlock.

use tokio::io::AsyncWrite;
use tokio::sync::{Mutex, mpsc};

use crate::frames::{spdy, websocket};
use crate::limits::PINGS_WAITING;

/// Where the reading task notes pings.
pub(super) struct Pings<T>(mpsc::Sender<T>);

impl<T> Pings<T> {
    /// Notes a ping. Pings beyond the bound are dropped, for peers that never read the pongs.
    pub(super) fn note(&self, ping: T) {
        let _ = self.0.try_send(ping);
    }
}

/// A bounded queue of pings.
pub(super) fn waiting<T>() -> (Pings<T>, mpsc::Receiver<T>) {
    let (pings, waiting) = mpsc::channel(PINGS_WAITING);
    (Pings(pings), waiting)
}

/// Answers a client's pings one by one. A failed write does not end the connection: the reading task will notice.
pub(super) async fn to_client<W: AsyncWrite + Unpin>(
    waiting: &mut mpsc::Receiver<Vec<u8>>,
    client: &Mutex<websocket::Writer<W>>,
) {
    while let Some(bytes) = waiting.recv().await {
        let _ = client.lock().await.pong(&bytes).await;
    }
    std::future::pending::<()>().await;
}

/// Answers a kubelet's pings one by one.
pub(super) async fn to_kubelet<W: AsyncWrite + Unpin>(
    waiting: &mut mpsc::Receiver<u32>,
    kubelet: &Mutex<spdy::Writer<W>>,
) {
    while let Some(number) = waiting.recv().await {
        let _ = kubelet.lock().await.pong(number).await;
    }
    std::future::pending::<()>().await;
}
