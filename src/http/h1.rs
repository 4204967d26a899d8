//! HTTP/1.1, through actix-http, for clients that do not speak HTTP/2 and for those that switch protocols.

use std::rc::Rc;

use actix_http::body::BoxBody;
use actix_http::{HttpService, KeepAlive, Request, Response};
use actix_service::{Service as _, ServiceFactory as _, fn_service};
use futures::future::LocalBoxFuture;

use super::app::App;
use super::drain::Drain;
use super::peer::Peer;
use super::tls::TlsStream;
use crate::limits;

/// Drives connections of one worker. Cheap to clone.
#[derive(Clone)]
pub(super) struct H1(Rc<dyn Fn(TlsStream) -> LocalBoxFuture<'static, ()>>);

impl H1 {
    pub(super) async fn new(app: App, drain: Drain) -> Result<H1, ()> {
        let handler = fn_service(move |request: Request| {
            let app = app.clone();
            async move {
                let peer = request.conn_data::<Peer>().cloned().unwrap_or_default();
                Ok::<Response<BoxBody>, Response<BoxBody>>(app.call(request, peer).await)
            }
        });
        let service = HttpService::build()
            .secure()
            .keep_alive(KeepAlive::Timeout(limits::IDLE))
            .client_request_timeout(limits::REQUEST_HEAD)
            .client_disconnect_timeout(limits::DISCONNECT)
            // A client that closed its half is gone: a quiet watch would otherwise never notice.
            .h1_allow_half_closed(false)
            .graceful_shutdown_signal(move || {
                let drain = drain.clone();
                async move { drain.begun().await }
            })
            .on_connect_ext(|io: &TlsStream, data| {
                data.insert(io.peer.clone());
            })
            .h1(handler)
            .new_service(())
            .await?;
        Ok(H1(Rc::new(move |io| {
            let address = io.peer.address;
            let connection = service.call((io, address));
            Box::pin(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "an HTTP/1.1 connection ended");
                }
            })
        })))
    }

    /// Serves a connection until it ends.
    pub(super) async fn drive(&self, io: TlsStream) {
        (self.0)(io).await;
    }
}
