//! The layer between tonic and a connection: it marks where a status comes from, which tonic's statuses do not say.

use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::client::conn::http2::SendRequest;
use hyper::http::{HeaderMap, Request, Response, StatusCode};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::{Code, Status};

/// Where a status comes from; the source of the status. Without it, tonic could not read a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Origin {
    /// Not one byte of the request was sent.
    #[error("the request was not sent")]
    NotSent,
    /// The connection failed after something was sent.
    #[error("the connection has failed")]
    Connection,
    /// The member says so.
    #[error("the member says so")]
    Member,
}

impl Origin {
    /// Where this status comes from.
    pub fn of_status(status: &Status) -> Option<&Origin> {
        status.source()?.downcast_ref()
    }

    /// The status of a call to a member that has not answered for too long.
    pub fn silence() -> Status {
        status_from(Origin::Connection, Code::Unavailable, "the member has fallen silent".to_owned())
    }
}

fn status_from(origin: Origin, code: Code, message: String) -> Status {
    let mut status = Status::new(code, message);
    status.set_source(Arc::new(origin));
    status
}

/// The text of an error of hyper with its causes.
fn describe(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Sends calls over one connection.
#[derive(Clone)]
pub struct Requests(pub SendRequest<Body>);

impl GrpcService<Body> for Requests {
    type ResponseBody = ResponseBody;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Status>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let not_sent =
            |error: hyper::Error| status_from(Origin::NotSent, Code::Unavailable, describe(&error));
        self.0.poll_ready(context).map_err(not_sent)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = self.0.try_send_request(request);
        Box::pin(async move {
            let response = response.await.map_err(|error| {
                // The connection hands a request back of which it has sent nothing.
                let origin = if error.message().is_some() { Origin::NotSent } else { Origin::Connection };
                status_from(origin, Code::Unavailable, describe(error.error()))
            })?;
            if response.status() != StatusCode::OK {
                let message = format!("HTTP status {}", response.status());
                return Err(status_from(Origin::Connection, Code::Unknown, message));
            }
            let (mut parts, body) = response.into_parts();
            refusal(&mut parts.headers)?;
            Ok(Response::from_parts(parts, ResponseBody(body)))
        })
    }
}

/// Fails if headers or trailers contain a status other than success.
fn refusal(headers: &mut HeaderMap) -> Result<(), Status> {
    // etcd sends no details, and tonic would panic if they were not base64.
    headers.remove(Status::GRPC_STATUS_DETAILS);
    if headers.get(Status::GRPC_STATUS).is_none_or(|code| code == "0") {
        return Ok(());
    }
    match Status::from_header_map(headers) {
        Some(mut status) if status.code() != Code::Ok => {
            status.set_source(Arc::new(Origin::Member));
            Err(status)
        }
        _ => Ok(()),
    }
}

/// The body of a response, whose errors are statuses with an [`Origin`].
pub struct ResponseBody(Incoming);

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(frame) = ready!(Pin::new(&mut self.0).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(match frame {
            Err(error) => Err(status_from(Origin::Connection, Code::Unavailable, describe(&error))),
            Ok(mut frame) => match frame.trailers_mut().map(refusal) {
                Some(Err(status)) => Err(status),
                _ => Ok(frame),
            },
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use hyper::http::HeaderValue;

    use super::*;

    #[test]
    fn statuses_of_the_member_are_marked_and_their_details_dropped() {
        let mut headers = HeaderMap::new();
        refusal(&mut headers).unwrap();
        headers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        refusal(&mut headers).unwrap();
        headers.insert(Status::GRPC_STATUS, HeaderValue::from_static("8"));
        headers.insert("grpc-message", HeaderValue::from_static("a%20b"));
        headers.insert(Status::GRPC_STATUS_DETAILS, HeaderValue::from_static("this is not base64!"));
        let status = refusal(&mut headers).unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "a b"));
        assert_eq!(Origin::of_status(&status), Some(&Origin::Member));
    }
}
