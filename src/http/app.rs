//! The application as connections see it: a request in, a response out.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;

use actix_http::body::{BoxBody, MessageBody};
use actix_http::{HttpMessage as _, Request, Response, StatusCode};
use actix_service::Service;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use super::body::{BodyWithUnread, with_deadline};
use super::connections::ConnectionState;
use super::peer::Peer;

/// The reference's message.
const PANICKED: &str = "This request caused apiserver to panic. Look in the logs for details.";

type Handler = dyn Fn(Request) -> LocalBoxFuture<'static, Response<BoxBody>>;

/// One worker's application, shared by all its connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct App {
    handler: Rc<Handler>,
    /// How long a client may take to send a whole body.
    body_timeout: Duration,
}

impl App {
    pub(super) fn new<S, B>(service: S, body_timeout: Duration) -> App
    where
        S: Service<Request> + 'static,
        S::Response: Into<Response<B>>,
        S::Error: Into<Response<BoxBody>>,
        S::Future: 'static,
        B: MessageBody + 'static,
    {
        let handler = Rc::new(move |request| -> LocalBoxFuture<'static, Response<BoxBody>> {
            let future = service.call(request);
            Box::pin(async move {
                match future.await {
                    Ok(response) => response.into().map_body(|_, body| body.boxed()),
                    Err(error) => error.into(),
                }
            })
        });
        App { handler, body_timeout }
    }

    /// Answers a request. A panic in the handler becomes a 500: it must not take down the connection, the other requests on it,
    /// or the worker.
    pub(super) async fn call(&self, request: Request, peer: Peer) -> Response<BoxBody> {
        let in_flight = peer.connection.as_ref().and_then(ConnectionState::begin_request);
        request.extensions_mut().insert(peer);
        let (request, unread) = with_deadline(request, self.body_timeout);
        let future = AssertUnwindSafe(async { (self.handler)(request).await });
        let response = future.catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!("a request handler panicked");
            Response::with_body(StatusCode::INTERNAL_SERVER_ERROR, BoxBody::new(PANICKED))
        });
        // An anonymous client that does not read its response must not keep its connection from being closed in favour of others.
        drop(in_flight);
        if unread.is_none() {
            return response;
        }
        response.map_body(|_, body| BoxBody::new(BodyWithUnread { body, _unread: unread }))
    }
}
