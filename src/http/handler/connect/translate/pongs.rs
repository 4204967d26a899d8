//! Answers to pings. Whoever reads a ping only notes it, and goes on reading: the way back may be full because nobody there
//! reads, and they may not read before they have been read. Waiting for it would stop both directions for good.

use tokio::io::AsyncWrite;
use tokio::sync::{Mutex, mpsc};

use crate::frames::{spdy, websocket};
use crate::limits::PINGS_WAITING;

/// Where pings are noted.
pub(super) struct Pings<T>(mpsc::Sender<T>);

impl<T> Pings<T> {
    /// Notes a ping. Of somebody who reads none of the answers, those past the bound are not answered.
    pub(super) fn note(&self, ping: T) {
        let _ = self.0.try_send(ping);
    }
}

/// Where pings are noted, and where they wait to be answered.
pub(super) fn waiting<T>() -> (Pings<T>, mpsc::Receiver<T>) {
    let (pings, waiting) = mpsc::channel(PINGS_WAITING);
    (Pings(pings), waiting)
}

/// Answers the pings of a client, one after the other. A client that takes no answers does not end the conversation: who
/// reads from it will notice.
pub(super) async fn to_client<W: AsyncWrite + Unpin>(
    waiting: &mut mpsc::Receiver<Vec<u8>>,
    client: &Mutex<websocket::Writer<W>>,
) {
    while let Some(bytes) = waiting.recv().await {
        let _ = client.lock().await.pong(&bytes).await;
    }
    std::future::pending::<()>().await;
}

/// The same for a kubelet.
pub(super) async fn to_kubelet<W: AsyncWrite + Unpin>(
    waiting: &mut mpsc::Receiver<u32>,
    kubelet: &Mutex<spdy::Writer<W>>,
) {
    while let Some(number) = waiting.recv().await {
        let _ = kubelet.lock().await.pong(number).await;
    }
    std::future::pending::<()>().await;
}
