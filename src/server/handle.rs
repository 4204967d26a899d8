//! The caller's side of a running server: addresses, credentials, stopping.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::pki::{Identity, Pki};

/// Orders to the server's thread, from mildest to strongest: see [`Stopper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopOrder {
    /// Serve.
    Run,
    /// Finish what is in flight, then stop.
    Stop,
    /// Cut what is in flight, then stop.
    Hurry,
}

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The server was stopped, and every acknowledged write is durable.
    Stopped,
    /// The server could not go on, for this reason.
    Failed(String),
}

/// A running server. Dropping it stops the server without waiting for requests in flight; acknowledged writes stay.
#[derive(Debug)]
pub struct Handle {
    address: SocketAddr,
    pki: Arc<Pki>,
    stopper: Stopper,
    exit: watch::Receiver<Option<Exit>>,
    thread: Option<JoinHandle<()>>,
}

/// Stops a server from elsewhere, for example from a signal handler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<watch::Sender<StopOrder>>);

impl Stopper {
    /// Asks the server to finish what is in flight and stop.
    pub fn stop(&self) {
        self.order(StopOrder::Stop);
    }

    /// Asks the server to stop at once. Acknowledged writes stay.
    pub fn hurry(&self) {
        self.order(StopOrder::Hurry);
    }

    /// Gives an order. A milder order never replaces a stronger one.
    fn order(&self, order: StopOrder) {
        self.0.send_if_modified(|current| {
            let is_stronger = order > *current;
            if is_stronger {
                *current = order;
            }
            is_stronger
        });
    }
}

impl Handle {
    pub(super) fn new(
        address: SocketAddr,
        pki: Arc<Pki>,
        orders: watch::Sender<StopOrder>,
        exit: watch::Receiver<Option<Exit>>,
        thread: JoinHandle<()>,
    ) -> Handle {
        Handle { address, pki, stopper: Stopper(Arc::new(orders)), exit, thread: Some(thread) }
    }

    /// The address on which the server listens, with the real port if port 0 was configured.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL that clients on this host use.
    pub fn url(&self) -> String {
        crate::pki::url(self.address)
    }

    /// The certificate authorities that clients must trust, as PEM.
    pub fn ca_pem(&self) -> &[u8] {
        &self.pki.serving_ca_pem
    }

    /// The administrator's client certificate and key, as PEM. It is in `system:masters`.
    pub fn admin(&self) -> &Identity {
        &self.pki.admin
    }

    /// The administrator's kubeconfig, as text.
    pub fn kubeconfig(&self) -> &str {
        &self.pki.kubeconfig
    }

    /// The path of the kubeconfig, if the server writes files.
    pub fn kubeconfig_path(&self) -> Option<&Path> {
        self.pki.kubeconfig_path.as_deref()
    }

    /// A second handle that only stops the server, for use while this one waits.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Finishes requests in flight and stops; blocks until that is done.
    pub fn stop(self) -> Exit {
        self.stopper.stop();
        self.wait()
    }

    /// As [`Handle::stop`], without blocking the caller's runtime.
    pub async fn stop_async(mut self) -> Exit {
        self.stopper.stop();
        self.exited().await
    }

    /// Blocks until the server ends.
    pub fn wait(mut self) -> Exit {
        self.join();
        self.exit_status()
    }

    /// Drops the server without waiting for its end, for a process that exits now. Acknowledged writes stay.
    pub fn abandon(mut self) {
        drop(self.thread.take());
    }

    /// Waits until the server ends.
    pub async fn exited(&mut self) -> Exit {
        // An error means that the thread ended without an [`Exit`]: a panic.
        let _ = self.exit.wait_for(Option::is_some).await;
        self.exit_status()
    }

    fn exit_status(&self) -> Exit {
        let exit = self.exit.borrow().clone();
        exit.unwrap_or_else(|| Exit::Failed("the server's thread panicked".to_owned()))
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic on that thread shows as a missing [`Exit`].
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stopper.hurry();
        self.join();
    }
}
