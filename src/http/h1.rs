//! HTTP/1.1, through actix-http, for clients that do not speak HTTP/2 and for those that switch protocols.

use std::rc::Rc;

use actix_http::body::BoxBody;
use actix_http::{HttpService, KeepAlive, Request, Response};
use actix_service::{Service as _, ServiceFactory as _, fn_service};
use futures::future::LocalBoxFuture;

use super::app::App;
use super::drain::Drain;
use super::peer::Peer;
use super::switch::{Connection, Switch};
use super::tls::TlsStream;
use crate::limits;

type Driver = dyn Fn(Connection) -> LocalBoxFuture<'static, ()>;

/// Drives connections of one worker. Cheap to clone.
#[derive(Clone)]
pub(super) struct H1 {
    driver: Rc<Driver>,
    drain: Drain,
}

impl H1 {
    pub(super) async fn new(app: App, drain: Drain) -> Result<H1, ()> {
        let handler = fn_service(move |request: Request| {
            let app = app.clone();
            async move {
                let peer = request.conn_data::<Peer>().cloned().unwrap_or_default();
                Ok::<Response<BoxBody>, Response<BoxBody>>(app.call(request, peer).await)
            }
        });
        let signal = drain.clone();
        let service = HttpService::build()
            .secure()
            .keep_alive(KeepAlive::Timeout(limits::IDLE))
            .client_request_timeout(limits::REQUEST_HEAD)
            .client_disconnect_timeout(limits::DISCONNECT)
            // A client that closed its half is gone: a quiet watch would otherwise never notice.
            .h1_allow_half_closed(false)
            .graceful_shutdown_signal(move || {
                let drain = signal.clone();
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
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "an HTTP/1.1 connection ended");
                }
            })
        });
        Ok(H1 { driver, drain })
    }

    /// Serves a connection until it ends, also after it has left HTTP. A server that drains waits for no conversation.
    pub(super) async fn drive(&self, io: TlsStream) {
        let switch = Switch::new(io);
        (self.driver)(switch.connection()).await;
        let Some((conversation, io)) = switch.take() else { return };
        tokio::select! {
            () = conversation(io) => {}
            () = self.drain.begun() => {}
        }
    }
}
