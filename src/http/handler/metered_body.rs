//! A request from its arrival until its response has ended, as metrics and traces see it: what is sent in pieces takes time and has a
//! size.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::web::Bytes;

use super::request_trace::TraceInProgress;
use super::shutdown::Shutdown;
use super::worker::Worker;
use crate::http::drain::Counted;
use crate::metrics::requests::Sample;

/// A request that is not counted yet. If it is dropped before it is, its client is gone.
pub struct RequestInProgress {
    worker: Rc<Worker>,
    /// What is known of it.
    pub sample: Sample,
    /// Its trace.
    pub trace: TraceInProgress,
    /// A server that ends waits for it, if it tells clients meanwhile to go elsewhere.
    _in_flight: Option<Counted>,
}

impl RequestInProgress {
    /// A request that has arrived now.
    pub fn begin(worker: &Rc<Worker>) -> RequestInProgress {
        let _in_flight = worker.shared.shutdown.as_ref().map(Shutdown::enter);
        let sample = Sample::begin(worker.backend.clock.moment());
        RequestInProgress { worker: Rc::clone(worker), sample, trace: TraceInProgress::default(), _in_flight }
    }

    /// Counts it when its response has ended: now, if that is complete or has no end.
    pub fn answer(self, response: HttpResponse) -> HttpResponse {
        let code = response.status().as_u16();
        match response.body().size() {
            BodySize::Stream if !self.sample.is_long_running() => {
                response.map_body(|_, body| BoxBody::new(MeteredBody { body, bytes: 0, request: self, code }))
            }
            size => {
                let bytes = match size {
                    BodySize::None => Some(0),
                    BodySize::Sized(bytes) => Some(bytes),
                    BodySize::Stream => None,
                };
                self.end(code, bytes);
                response
            }
        }
    }

    fn end(&self, code: u16, bytes: Option<u64>) {
        self.worker.meter.end(&self.sample, self.worker.backend.clock.moment(), code, bytes);
        self.trace.end(code, bytes);
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        // It does nothing for a request that was counted.
        self.worker.meter.abort(&self.sample);
    }
}

/// A body that is sent in pieces.
struct MeteredBody {
    body: BoxBody,
    bytes: u64,
    request: RequestInProgress,
    code: u16,
}

impl MessageBody for MeteredBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let metered = self.get_mut();
        let piece = ready!(Pin::new(&mut metered.body).poll_next(context));
        match &piece {
            Some(Ok(bytes)) => metered.bytes += bytes.len() as u64,
            Some(Err(_)) | None => {
                // Its steps end before the request.
                metered.body = BoxBody::new(());
                metered.request.end(metered.code, Some(metered.bytes));
            }
        }
        Poll::Ready(piece)
    }
}

impl Drop for MeteredBody {
    fn drop(&mut self) {
        // A client that leaves now has its response: only those that leave before it begins are counted as gone.
        self.request.end(self.code, Some(self.bytes));
    }
}
