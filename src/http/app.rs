//! The application behind the edge, reduced to what connections need of it: a request in, an answer out.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use actix_http::body::{BoxBody, MessageBody};
use actix_http::{HttpMessage as _, Request, Response, StatusCode};
use actix_service::Service;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use super::body::timely;
use super::peer::Peer;
use crate::limits;

/// The reference server's words.
const PANICKED: &str = "This request caused apiserver to panic. Look in the logs for details.";

type Handler = dyn Fn(Request) -> LocalBoxFuture<'static, Response<BoxBody>>;

/// One worker's application, shared by all its connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct App(Rc<Handler>);

impl App {
    pub(super) fn new<S, B>(service: S) -> App
    where
        S: Service<Request> + 'static,
        S::Response: Into<Response<B>>,
        S::Error: Into<Response<BoxBody>>,
        S::Future: 'static,
        B: MessageBody + 'static,
    {
        App(Rc::new(move |request| {
            let handling = service.call(request);
            Box::pin(async move {
                match handling.await {
                    Ok(response) => response.into().map_body(|_, body| body.boxed()),
                    Err(error) => error.into(),
                }
            })
        }))
    }

    /// Answers a request. A panic on the way is answered with 500: it must neither take the connection and the other
    /// requests on it away, nor the worker.
    pub(super) async fn call(&self, request: Request, peer: Peer) -> Response<BoxBody> {
        request.extensions_mut().insert(peer);
        let request = timely(request, limits::REQUEST_BODY);
        let handling = AssertUnwindSafe(async { (self.0)(request).await });
        handling.catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!("a request handler panicked");
            Response::with_body(StatusCode::INTERNAL_SERVER_ERROR, BoxBody::new(PANICKED))
        })
    }
}
