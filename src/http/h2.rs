//! HTTP/2 connections. Not actix-http's, because a watch may be silent for hours. When a client resets a stream or its connection
//! is lost, the handler and the body end at once. The number of streams is bounded. A stopping server sends GOAWAY and lets
//! streams in flight finish.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use h2::server::{Builder, Connection};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::app::App;
use super::coalesce::CoalescedStream;
use super::drain::Drain;
use super::h2_stream::{self, Dates};
use super::peer::Peer;
use super::tls::TlsStream;
use crate::limits;
use crate::pki::random;

/// State that the connections of one worker share. Cheap to clone.
#[derive(Clone)]
pub(super) struct H2 {
    pub(super) app: App,
    pub(super) drain: Drain,
    pub(super) dates: Rc<Dates>,
    /// Streams that a client may have open at once.
    pub(super) max_streams: u32,
    /// The probability, from 0 to 1, that a request makes its connection send GOAWAY.
    pub(super) goaway_chance: f64,
}

/// The error that ended a connection.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Protocol(#[from] h2::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The state of shutting a connection down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// New streams are accepted.
    Open,
    /// GOAWAY was sent: open streams finish, then the connection ends.
    Leaving,
}

impl H2 {
    /// Serves a connection until it ends.
    pub(super) async fn drive(&self, io: TlsStream) {
        let address = io.peer.address;
        if let Err(error) = self.serve(io).await {
            tracing::debug!(%error, ?address, "an HTTP/2 connection ended");
        }
    }

    async fn serve(&self, io: TlsStream) -> Result<(), ConnectionError> {
        let peer = io.peer.clone();
        let io = CoalescedStream::new(io);
        self.serve_streams(&io, &peer).await?;
        // A slow reader must get the end of the last response, too.
        let _ = timeout(limits::IDLE_TIMEOUT, io.close(limits::DISCONNECT_TIMEOUT)).await;
        Ok(())
    }

    /// Serves a connection until either side has closed it.
    async fn serve_streams(
        &self,
        io: &CoalescedStream<TlsStream>,
        peer: &Peer,
    ) -> Result<(), ConnectionError> {
        let handshake = io.run_and_send(self.settings().handshake(io.clone()));
        let Ok(connection) = timeout(limits::HANDSHAKE_TIMEOUT, handshake).await else {
            return Ok(());
        };
        let mut connection: Connection<CoalescedStream<TlsStream>, Bytes> = connection??;
        let mut idle_check = pin!(sleep(limits::IDLE_CHECK_INTERVAL));
        let mut drain_begun = pin!(self.drain.begun());
        let mut linger = pin!(sleep(limits::DRAIN_LINGER));
        let mut phase = Phase::Open;
        let load = Rc::new(ConnectionLoad::default());
        loop {
            let send_goaway = tokio::select! {
                accepted = io.run_and_send(connection.accept()) => {
                    let Some(accepted) = accepted? else { return Ok(()) };
                    let (request, respond) = accepted?;
                    let (app, dates) = (self.app.clone(), Rc::clone(&self.dates));
                    actix_rt::spawn(h2_stream::serve(app, request, respond, peer.clone(), dates, load.enter()));
                    self.draws_goaway()
                }
                () = &mut drain_begun, if phase == Phase::Open => true,
                () = load.goaway.notified(), if phase == Phase::Open => true,
                () = &mut linger, if phase == Phase::Leaving => {
                    // A well-behaved client closes the connection once its streams are done; this one does not.
                    if load.has_rested() && io.is_sent() {
                        return Ok(());
                    }
                    linger.set(sleep(limits::DRAIN_LINGER));
                    false
                }
                () = &mut idle_check => {
                    idle_check.set(sleep(limits::IDLE_CHECK_INTERVAL));
                    load.is_idle_too_long()
                }
            };
            if send_goaway && phase == Phase::Open {
                phase = Phase::Leaving;
                connection.graceful_shutdown();
                linger.set(sleep(limits::DRAIN_LINGER));
            }
        }
    }

    fn settings(&self) -> Builder {
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(self.max_streams)
            .max_header_list_size(limits::HEADER_BYTES)
            .initial_window_size(limits::STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
            .max_send_buffer_size(limits::SEND_BUFFER_BYTES)
            .max_pending_accept_reset_streams(limits::RESETS_BEFORE_ACCEPT)
            .max_concurrent_reset_streams(limits::RESETS_REMEMBERED)
            .max_local_error_reset_streams(Some(limits::RESETS_FOR_ERRORS));
        builder
    }

    fn draws_goaway(&self) -> bool {
        if self.goaway_chance <= 0.0 {
            return false;
        }
        random::fraction() < self.goaway_chance
    }
}

/// The streams of one connection.
#[derive(Default)]
pub(super) struct ConnectionLoad {
    open: Cell<usize>,
    total_streams: Cell<u64>,
    /// `total_streams` at the last idle check.
    checked_total: Cell<u64>,
    /// Consecutive idle checks that found no stream.
    quiet_checks: Cell<u32>,
    /// `total_streams` at the last [`ConnectionLoad::has_rested`], if no stream was open then.
    rested_total: Cell<Option<u64>>,
    /// Notified when a response ends its connection.
    goaway: Notify,
}

impl ConnectionLoad {
    fn enter(self: &Rc<Self>) -> InFlight {
        self.open.set(self.open.get() + 1);
        self.total_streams.set(self.total_streams.get() + 1);
        InFlight(Rc::clone(self))
    }

    fn is_empty(&self) -> bool {
        self.open.get() == 0
    }

    /// Whether no stream was open at this call and none since the last one. One check is not enough: a stream counts as done when
    /// its response is handed to the connection, and its last bytes need time to leave.
    fn has_rested(&self) -> bool {
        let now = self.is_empty().then(|| self.total_streams.get());
        let previous = self.rested_total.replace(now);
        now.is_some() && now == previous
    }

    /// Counts consecutive checks without a stream; true once they add up to the idle limit.
    fn is_idle_too_long(&self) -> bool {
        let is_busy = !self.is_empty() || self.total_streams.get() != self.checked_total.get();
        self.checked_total.set(self.total_streams.get());
        self.quiet_checks.set(if is_busy { 0 } else { self.quiet_checks.get() + 1 });
        limits::IDLE_CHECK_INTERVAL * self.quiet_checks.get() >= limits::IDLE_TIMEOUT
    }
}

/// An open stream, counted until it is dropped.
pub(super) struct InFlight(Rc<ConnectionLoad>);

impl InFlight {
    /// Lets the connection accept no more streams and end after the last one.
    pub(super) fn end_connection(&self) {
        self.0.goaway.notify_one();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http2_connection_is_idle_after_enough_checks_without_a_stream() {
        let load = Rc::new(ConnectionLoad::default());
        let checks = limits::IDLE_TIMEOUT.as_secs() / limits::IDLE_CHECK_INTERVAL.as_secs();
        for _ in 1..checks {
            assert!(!load.is_idle_too_long());
        }
        // A stream that was opened and closed between two checks counts as activity.
        drop(load.enter());
        for _ in 0..checks {
            assert!(!load.is_idle_too_long());
        }
        assert!(load.is_idle_too_long());
        let watching = load.enter();
        for _ in 0..10 * checks {
            assert!(!load.is_idle_too_long());
        }
        drop(watching);
        assert!(load.is_empty());
    }

    #[test]
    fn http2_connection_has_rested_after_two_checks_without_a_stream() {
        let load = Rc::new(ConnectionLoad::default());
        let last = load.enter();
        assert!(!load.has_rested());
        drop(last);
        assert!(!load.has_rested(), "its response may not be sent yet");
        assert!(load.has_rested());
        drop(load.enter());
        assert!(!load.has_rested(), "another stream was opened and closed");
        assert!(load.has_rested());
    }
}
