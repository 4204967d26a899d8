//! Calls of webhooks are counted: an observer is told of each one when it has ended.

use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Body as _;
use pilothouse_types::clock::{Clock, Moment};

use super::body::RequestBody;
use super::pool::{BufferedResponse, Origin};

/// Counts calls. It is called on every thread: it must not wait.
pub trait CallObserver: Send + Sync {
    /// A call has ended.
    fn on_call(&self, call: &FinishedCall<'_>);
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub struct FinishedCall<'a> {
    /// The HTTP method.
    pub method: &'a str,
    /// The host and port of the server.
    pub host: &'a str,
    /// The status code; `None` if no whole response came.
    pub code: Option<u16>,
    /// How long it took.
    pub elapsed: Duration,
    /// The size of the body of the request.
    pub request_bytes: u64,
    /// The size of the body of the response.
    pub response_bytes: Option<u64>,
}

/// A call that is counted when it ends. Dropped before, it had no whole response.
pub(super) struct ObservedCall {
    observer: Arc<dyn CallObserver>,
    method: String,
    host: String,
    request_bytes: u64,
    began: Moment,
    clock: Clock,
    code: Option<u16>,
    response_bytes: Option<u64>,
}

impl ObservedCall {
    pub(super) fn begin(
        observer: &Arc<dyn CallObserver>,
        origin: &Origin,
        request: &Request<RequestBody>,
        clock: &Clock,
    ) -> Box<ObservedCall> {
        Box::new(ObservedCall {
            observer: Arc::clone(observer),
            method: request.method().as_str().to_owned(),
            host: origin.server.to_string(),
            request_bytes: request.body().size_hint().exact().unwrap_or_default(),
            began: clock.moment(),
            clock: clock.clone(),
            code: None,
            response_bytes: None,
        })
    }

    pub(super) fn note_response(&mut self, response: &BufferedResponse) {
        self.code = Some(response.head.status.as_u16());
        self.response_bytes = Some(response.body.len() as u64);
    }
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        self.observer.on_call(&FinishedCall {
            method: &self.method,
            host: &self.host,
            code: self.code,
            elapsed: self.clock.elapsed(self.began),
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
        });
    }
}
