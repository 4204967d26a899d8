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
use crate::random;

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

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
enum Cut {
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

    async fn serve(&self, io: TlsStream) -> Result<(), Cut> {
        let peer = io.peer.clone();
        let io = CoalescedStream::new(io);
        self.converse(&io, &peer).await?;
        // A slow reader must get the end of the last response, too.
        let _ = timeout(limits::IDLE_TIMEOUT, io.close(limits::DISCONNECT_TIMEOUT)).await;
        Ok(())
    }

    /// Serves a connection until either side has closed it.
    async fn converse(&self, io: &CoalescedStream<TlsStream>, peer: &Peer) -> Result<(), Cut> {
        let handshake = io.send_between(self.settings().handshake(io.clone()));
        let Ok(connection) = timeout(limits::HANDSHAKE_TIMEOUT, handshake).await else {
            return Ok(());
        };
        let mut connection: Connection<CoalescedStream<TlsStream>, Bytes> = connection??;
        let mut look = pin!(sleep(limits::IDLE_CHECKED_EVERY));
        let mut told_to_go = pin!(self.drain.begun());
        let mut linger = pin!(sleep(limits::DRAIN_LINGER));
        let mut phase = Phase::Open;
        let load = Rc::new(ConnectionLoad::default());
        loop {
            let leave = tokio::select! {
                accepted = io.send_between(connection.accept()) => {
                    let Some(accepted) = accepted? else { return Ok(()) };
                    let (request, respond) = accepted?;
                    let (app, dates) = (self.app.clone(), Rc::clone(&self.dates));
                    actix_rt::spawn(h2_stream::serve(app, request, respond, peer.clone(), dates, load.enter()));
                    self.draws_goaway()
                }
                () = &mut told_to_go, if phase == Phase::Open => true,
                () = load.leaving.notified(), if phase == Phase::Open => true,
                () = &mut linger, if phase == Phase::Leaving => {
                    // A well-behaved client closes the connection once its streams are done; this one does not.
                    if load.has_rested() && io.is_sent() {
                        return Ok(());
                    }
                    linger.set(sleep(limits::DRAIN_LINGER));
                    false
                }
                () = &mut look => {
                    look.set(sleep(limits::IDLE_CHECKED_EVERY));
                    load.idle_too_long()
                }
            };
            if leave && phase == Phase::Open {
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
    ever: Cell<u64>,
    /// `ever` at the last look.
    seen: Cell<u64>,
    /// Consecutive looks that found no stream.
    quiet: Cell<u32>,
    /// `ever` at the last [`ConnectionLoad::has_rested`], if no stream was open then.
    rested: Cell<Option<u64>>,
    /// Notified when a response ends its connection.
    leaving: Notify,
}

impl ConnectionLoad {
    fn enter(self: &Rc<Self>) -> InFlight {
        self.open.set(self.open.get() + 1);
        self.ever.set(self.ever.get() + 1);
        InFlight(Rc::clone(self))
    }

    fn is_empty(&self) -> bool {
        self.open.get() == 0
    }

    /// Whether no stream was open at this call and none since the last one. One look is not enough: a stream counts as done when
    /// its response is handed to the connection, and its last bytes need time to leave.
    fn has_rested(&self) -> bool {
        let now = self.is_empty().then(|| self.ever.get());
        let before = self.rested.replace(now);
        now.is_some() && now == before
    }

    /// Counts quiet looks; true once they add up to the idle limit.
    fn idle_too_long(&self) -> bool {
        let busy = !self.is_empty() || self.ever.get() != self.seen.get();
        self.seen.set(self.ever.get());
        self.quiet.set(if busy { 0 } else { self.quiet.get() + 1 });
        limits::IDLE_CHECKED_EVERY * self.quiet.get() >= limits::IDLE_TIMEOUT
    }
}

/// An open stream, counted until it is dropped.
pub(super) struct InFlight(Rc<ConnectionLoad>);

impl InFlight {
    /// Lets the connection accept no more streams and end after the last one.
    pub(super) fn ends_connection(&self) {
        self.0.leaving.notify_one();
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
    fn a_connection_is_idle_after_enough_looks_without_a_stream() {
        let load = Rc::new(ConnectionLoad::default());
        let looks = limits::IDLE_TIMEOUT.as_secs() / limits::IDLE_CHECKED_EVERY.as_secs();
        for _ in 1..looks {
            assert!(!load.idle_too_long());
        }
        // A stream that came and went between two looks counts as activity.
        drop(load.enter());
        for _ in 0..looks {
            assert!(!load.idle_too_long());
        }
        assert!(load.idle_too_long());
        let watching = load.enter();
        for _ in 0..10 * looks {
            assert!(!load.idle_too_long());
        }
        drop(watching);
        assert!(load.is_empty());
    }

    #[test]
    fn a_connection_has_rested_when_two_looks_in_a_row_found_no_stream_and_none_came_between() {
        let load = Rc::new(ConnectionLoad::default());
        let last = load.enter();
        assert!(!load.has_rested());
        drop(last);
        assert!(!load.has_rested(), "its answer may not have left yet");
        assert!(load.has_rested());
        drop(load.enter());
        assert!(!load.has_rested(), "another came and went");
        assert!(load.has_rested());
    }
}
