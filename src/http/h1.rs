//! HTTP/1.1, through actix-http, for clients that do not speak HTTP/2 or that switch protocols.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use actix_http::body::BoxBody;
use actix_http::error::DispatchError;
use actix_http::{HttpService, KeepAlive, Request, Response};
use actix_service::{Service as _, ServiceFactory as _, fn_service};
use futures::future::LocalBoxFuture;
use pilothouse_actors::watch_memory::CutSignal;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::app::App;
use super::connections::ConnectionState;
use super::drain::Drain;
use super::expectations;
use super::h1_stream::{Streaming, is_endless, is_plain};
use super::h2_stream::Dates;
use super::peer::Peer;
use super::stall::SendWithin;
use super::switch::{Connection, Handoff, Switch};
use super::tls::TlsStream;
use crate::limits;

type Driver = dyn Fn(Connection) -> LocalBoxFuture<'static, ()>;

/// Drives the HTTP/1.1 connections of one worker. Cheap to clone.
#[derive(Clone)]
pub(super) struct H1 {
    driver: Rc<Driver>,
    drain: Drain,
}

impl H1 {
    pub(super) async fn new(app: App, drain: Drain, dates: Rc<Dates>) -> Result<H1, ()> {
        let handler = fn_service(move |mut request: Request| {
            let (app, dates) = (app.clone(), Rc::clone(&dates));
            async move {
                let peer = request.conn_data::<Peer>().cloned().unwrap_or_default();
                let switch = request.conn_data::<Switch>().cloned();
                if let Err(refusal) = expectations::check(&mut request) {
                    tracing::warn!(address = ?peer.address, reason = refusal.reason(), "a malformed HTTP/1.1 request was refused");
                    if let Some(switch) = &switch {
                        let _ends_here = switch.note_request();
                    }
                    return Ok::<_, Response<BoxBody>>(refusal.response());
                }
                let is_plain = is_plain(&mut request);
                let can_leave = switch.as_ref().is_some_and(|switch| switch.note_request() && is_plain);
                let response = app.call(request, peer).await;
                let Some(switch) = switch else { return Ok(response) };
                let cut = response.extensions().get::<CutSignal>().cloned();
                switch.begin_response(SendWithin::from_response(&response), cut);
                if !can_leave || !is_endless(&response) || !switch.can_leave_now().await {
                    return Ok(response);
                }
                switch.stream(Streaming::new(response, &dates));
                Ok(Response::ok())
            }
        });
        let drain_signal = drain.clone();
        let service = HttpService::build()
            .secure()
            .keep_alive(KeepAlive::Timeout(limits::IDLE_TIMEOUT))
            .client_request_timeout(limits::REQUEST_HEAD_TIMEOUT)
            .client_disconnect_timeout(limits::DISCONNECT_TIMEOUT)
            // A client that closed its half is gone. Otherwise a quiet watch would never notice.
            .h1_allow_half_closed(false)
            .graceful_shutdown_signal(move || {
                let drain = drain_signal.clone();
                async move { drain.begun().await }
            })
            .on_connect_ext(|io: &Connection, data| {
                data.insert(io.peer().clone());
                data.insert(io.switch());
            })
            .h1(handler)
            .new_service(())
            .await?;
        let driver = Rc::new(move |io: Connection| -> LocalBoxFuture<'static, ()> {
            let address = io.peer().address;
            let connection = service.call((io, address));
            Box::pin(async move {
                match connection.await {
                    Ok(()) => {}
                    Err(DispatchError::Parse(error)) => {
                        tracing::warn!(?address, %error, "a malformed HTTP/1.1 request was refused");
                    }
                    Err(error) => tracing::debug!(%error, "an HTTP/1.1 connection ended"),
                }
            })
        });
        Ok(H1 { driver, drain })
    }

    /// Serves a connection until it ends, also after it has left HTTP. A draining server does not wait for conversations. It does
    /// wait for responses: watches end by themselves then.
    pub(super) async fn drive(&self, mut io: TlsStream) {
        loop {
            let switch = Switch::new(io);
            (self.driver)(switch.connection()).await;
            let (stream, taken_io) = match switch.take() {
                None => return,
                Some((Handoff::Stream(stream), io)) => (stream, io),
                Some((Handoff::Upgrade(upgrade), io)) => {
                    let _in_flight = io.peer.connection.as_ref().and_then(ConnectionState::begin_request);
                    return tokio::select! {
                        () = upgrade(io) => {}
                        () = self.drain.begun() => {}
                    };
                }
            };
            drop(switch);
            // In a task of its own: an event then wakes the response alone, not every stage of the connection around it. With
            // thousands of watches those stages would be cache misses for each event. An evicted connection drops this future, and
            // the task must end with it.
            let response = AbortOnDropHandle::new(actix_rt::spawn(stream.send(taken_io)));
            let Ok(Some(returned)) = response.await else { return };
            io = returned;
            if !self.has_next_request(&mut io, limits::IDLE_TIMEOUT).await {
                let _ = timeout(limits::DISCONNECT_TIMEOUT, io.shutdown()).await;
                return;
            }
        }
    }

    /// Waits for the first byte of the next request, with no more memory than TLS takes. After a response the driver would also
    /// count this wait as a request that arrives too slowly.
    pub(super) async fn has_next_request(&self, io: &mut TlsStream, limit: Duration) -> bool {
        let first_byte = poll_fn(|cx| io.poll_has_input(cx));
        tokio::select! {
            first_byte = timeout(limit, first_byte) => first_byte.unwrap_or(false),
            () = self.drain.begun() => false,
        }
    }
}
