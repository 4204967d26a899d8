//! Answers pings from a task of its own. The reading task only notes a ping and goes on: the way back may be full because the
//! peer does not read, and the peer may not read before its own writes are read. If the reader waited, both directions would
//! deadlock.

use std::pin::pin;

use futures::FutureExt as _;
use futures::future::FusedFuture as _;
use tokio::io::AsyncWrite;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use crate::http::spdy;
use crate::http::websocket::stream as websocket;
use crate::limits::{DISCONNECT_TIMEOUT, PINGS_WAITING};

/// Where the reading task notes pings.
pub(super) struct Pings<T>(mpsc::Sender<T>);

impl<T> Pings<T> {
    /// Notes a ping. Pings beyond the bound are dropped, for peers that never read the pongs.
    pub(super) fn note(&self, ping: T) {
        let _ = self.0.try_send(ping);
    }
}

/// A bounded queue of pings.
pub(super) fn ping_queue<T>() -> (Pings<T>, mpsc::Receiver<T>) {
    let (pings, queue) = mpsc::channel(PINGS_WAITING);
    (Pings(pings), queue)
}

/// Runs a conversation beside the task that answers its pings. The conversation owns the [`Pings`]: when it ends, those that it
/// noted are still answered, and no pong is cut off in the middle of its frame.
pub(super) async fn run_with_pongs<T>(
    conversation: impl Future<Output = T>,
    answering_pings: impl Future<Output = ()>,
) -> T {
    let mut conversation = pin!(conversation.fuse());
    let mut answering_pings = pin!(answering_pings.fuse());
    let output = loop {
        tokio::select! {
            output = &mut conversation => break output,
            () = &mut answering_pings, if !answering_pings.is_terminated() => {}
        }
    };
    if !answering_pings.is_terminated() {
        let _ = timeout(DISCONNECT_TIMEOUT, answering_pings).await;
    }
    output
}

/// Answers a client's pings one by one, until none can come any more. A failed write does not end the connection: the reading
/// task will notice.
pub(super) async fn to_client<W: AsyncWrite + Unpin>(
    queue: &mut mpsc::Receiver<Vec<u8>>,
    client: &Mutex<websocket::Writer<W>>,
) {
    while let Some(bytes) = queue.recv().await {
        let _ = client.lock().await.pong(&bytes).await;
    }
}

/// Answers a kubelet's pings one by one, until none can come any more.
pub(super) async fn to_kubelet<W: AsyncWrite + Unpin>(
    queue: &mut mpsc::Receiver<u32>,
    kubelet: &Mutex<spdy::Writer<W>>,
) {
    while let Some(number) = queue.recv().await {
        let _ = kubelet.lock().await.pong(number).await;
    }
}
