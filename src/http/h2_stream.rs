//! Serves one HTTP/2 stream. Every wait also watches for a reset by the client.

use std::cell::RefCell;
use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, UNIX_EPOCH};

use actix_http::body::{BodySize, BoxBody, MessageBody as _};
use actix_http::header::{self, HeaderValue, HttpDate};
use actix_http::{ConnectionType, Payload, Request, Response, ResponseHead};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, StatusCode};
use pilothouse_actors::watch_memory::CutSignal;
use pilothouse_types::clock::Clock;
use tokio::time::timeout;

use super::app::App;
use super::h2::InFlight;
use super::peer::Peer;
use super::stall::SendWithin;
use crate::limits;

/// Serves one stream. It counts as open until `in_flight` is dropped.
pub(super) async fn serve(
    app: App,
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    peer: Peer,
    dates: Rc<Dates>,
    in_flight: InFlight,
) {
    let head_only = request.method() == Method::HEAD;
    let response = {
        let mut handler = pin!(app.call(convert(request, &peer), peer));
        // The handler is dropped at the end of this block, so that a reset cancels its work.
        poll_fn(|cx| match respond.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => handler.as_mut().poll(cx).map(Some),
        })
        .await
    };
    let Some(response) = response else { return };
    let (response, body) = response.into_parts();
    let size = wire_size(response.status(), body.size());
    let last = head_only || matches!(size, BodySize::None | BodySize::Sized(0));
    if response.head().connection_type() == ConnectionType::Close {
        // HTTP/2 has no `Connection: close`: the connection sends GOAWAY instead.
        in_flight.end_connection();
    }
    match respond.send_response(head(&response, size, &dates), last) {
        Ok(stream) if !last => {
            let cut = response.extensions().get::<CutSignal>().cloned();
            send(stream, body, size, SendWithin::from_response(&response), cut).await;
        }
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, "a response could not be sent"),
    }
}

fn convert(request: http::Request<RecvStream>, peer: &Peer) -> Request {
    let (parts, body) = request.into_parts();
    let payload = if body.is_end_stream() { Payload::None } else { Payload::from(body) };
    let mut request = Request::with_payload(payload);
    let head = request.head_mut();
    head.uri = parts.uri;
    head.method = parts.method;
    head.version = parts.version;
    head.headers = parts.headers.into();
    head.peer_addr = peer.address;
    request
}

/// The size of the body, given that some statuses never have one.
fn wire_size(status: StatusCode, size: BodySize) -> BodySize {
    match status {
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => BodySize::None,
        _ => size,
    }
}

/// The head of a response, without headers that only HTTP/1.1 has.
fn head(response: &Response<()>, size: BodySize, dates: &Dates) -> http::Response<()> {
    let ResponseHead { status, .. } = response.head();
    let mut wire = http::Response::new(());
    *wire.status_mut() = *status;
    let headers = wire.headers_mut();
    for (name, value) in response.headers() {
        let hop_by_hop = [
            header::CONNECTION,
            header::TRANSFER_ENCODING,
            header::UPGRADE,
            header::HeaderName::from_static("keep-alive"),
            header::HeaderName::from_static("proxy-connection"),
        ];
        if !hop_by_hop.contains(name) {
            headers.append(name.clone(), value.clone());
        }
    }
    match size {
        BodySize::Sized(length) => {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        BodySize::None => {
            headers.remove(header::CONTENT_LENGTH);
        }
        BodySize::Stream => {}
    }
    if !headers.contains_key(header::DATE)
        && let Some(date) = dates.now()
    {
        headers.insert(header::DATE, date);
    }
    wire
}

/// The error that ended the sending of a body.
enum SendError {
    /// The client reset the stream, lost its connection, or stopped reading.
    Client,
    /// The body failed, its time is over, or it was cut. The stream is reset, so that the client does not take it for complete.
    Body,
}

async fn send(
    mut stream: SendStream<Bytes>,
    body: BoxBody,
    size: BodySize,
    within: Option<SendWithin>,
    cut: Option<CutSignal>,
) {
    let result = {
        // The rest of the body is dropped at the end of this block, with the memory that it holds.
        let mut sending = pin!(send_all(&mut stream, body, size));
        let sending = poll_fn(|cx| match &cut {
            Some(cut) if cut.poll_raised(cx).is_ready() => Poll::Ready(Err(SendError::Body)),
            _ => sending.as_mut().poll(cx),
        });
        match within {
            Some(SendWithin(within)) => timeout(within, sending).await.unwrap_or(Err(SendError::Body)),
            None => sending.await,
        }
    };
    match result {
        Ok(()) => {}
        Err(SendError::Client) => stream.send_reset(Reason::CANCEL),
        Err(SendError::Body) => stream.send_reset(Reason::INTERNAL_ERROR),
    }
}

async fn send_all(stream: &mut SendStream<Bytes>, body: BoxBody, size: BodySize) -> Result<(), SendError> {
    let mut body = pin!(body);
    let mut remaining = if let BodySize::Sized(length) = size { Some(length) } else { None };
    loop {
        let chunk = poll_fn(|cx| match stream.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(Err(SendError::Client)),
            Poll::Pending => Pin::new(&mut body).poll_next(cx).map(Ok),
        })
        .await?;
        let chunk = match chunk {
            None if remaining.is_some_and(|remaining| remaining > 0) => return Err(SendError::Body),
            None => return stream.send_data(Bytes::new(), true).map_err(|_| SendError::Client),
            Some(Err(error)) => {
                tracing::debug!(%error, "a response body failed");
                return Err(SendError::Body);
            }
            Some(Ok(chunk)) if chunk.is_empty() => continue,
            Some(Ok(chunk)) => chunk,
        };
        if let Some(remaining) = &mut remaining {
            *remaining = remaining.checked_sub(chunk.len() as u64).ok_or(SendError::Body)?;
        }
        // With a known size, the last data frame carries END_STREAM: one frame less for every small response.
        let last = remaining == Some(0);
        send_chunk(stream, chunk, last).await?;
        if last {
            return Ok(());
        }
    }
}

/// Sends a chunk as fast as the client's flow control allows.
async fn send_chunk(stream: &mut SendStream<Bytes>, mut chunk: Bytes, last: bool) -> Result<(), SendError> {
    while !chunk.is_empty() {
        stream.reserve_capacity(chunk.len());
        let mut capacity = timeout(limits::RESPONSE_STALL, capacity(stream))
            .await
            .ok()
            .flatten()
            .ok_or(SendError::Client)?;
        // Some clients disconnect from servers that send many tiny frames. If the window is too small for a useful frame, wait
        // briefly for the client to widen it.
        while capacity < chunk.len().min(limits::MIN_FRAME_BYTES) {
            match timeout(limits::SMALL_FRAME_WAIT, self::capacity(stream)).await {
                Ok(more) => capacity = more.ok_or(SendError::Client)?,
                Err(_) => break,
            }
        }
        let frame = chunk.split_to(capacity.min(chunk.len()));
        if !frame.is_empty() {
            let end = last && chunk.is_empty();
            stream.send_data(frame, end).map_err(|_| SendError::Client)?;
        }
    }
    Ok(())
}

/// The flow control window once it has grown; `None` if the client is gone.
async fn capacity(stream: &mut SendStream<Bytes>) -> Option<usize> {
    poll_fn(|cx| {
        if stream.poll_reset(cx).is_ready() {
            return Poll::Ready(None);
        }
        stream.poll_capacity(cx).map(|capacity| capacity.and_then(Result::ok))
    })
    .await
}

/// The Date header, formatted once a second instead of once per response.
pub(super) struct Dates {
    clock: Clock,
    formatted: RefCell<Option<(u64, HeaderValue)>>,
}

impl Dates {
    pub(super) fn new(clock: Clock) -> Dates {
        Dates { clock, formatted: RefCell::new(None) }
    }

    pub(super) fn now(&self) -> Option<HeaderValue> {
        let second = self.clock.now().seconds();
        let mut formatted = self.formatted.borrow_mut();
        if formatted.as_ref().is_none_or(|(cached_second, _)| *cached_second != second) {
            let date = HttpDate::from(UNIX_EPOCH + Duration::from_secs(second)).to_string();
            *formatted = HeaderValue::try_from(date).ok().map(|date| (second, date));
        }
        formatted.as_ref().map(|(_, date)| date.clone())
    }
}

#[cfg(test)]
mod tests {

    use pilothouse_types::clock::Timestamp;

    use super::*;

    #[test]
    fn date_header_follows_the_clock() {
        let clock = Clock::manual(Timestamp(784_111_777_000_000));
        let dates = Dates::new(clock.clone());
        assert_eq!(dates.now().unwrap(), "Sun, 06 Nov 1994 08:49:37 GMT");
        clock.advance(Duration::from_secs(1));
        assert_eq!(dates.now().unwrap(), "Sun, 06 Nov 1994 08:49:38 GMT");
    }

    #[test]
    fn http2_response_drops_http1_headers_and_sets_content_length() {
        let dates = Dates::new(Clock::manual(Timestamp(0)));
        let mut response = Response::new(StatusCode::OK).drop_body();
        for (name, value) in
            [("connection", "close"), ("keep-alive", "x"), ("content-length", "7"), ("etag", "e")]
        {
            response.headers_mut().insert(name.parse().unwrap(), HeaderValue::from_static(value));
        }
        let wire = head(&response, BodySize::Sized(5), &dates);
        let names: Vec<_> = wire.headers().keys().map(|name| name.as_str()).collect();
        assert!(!names.contains(&"connection") && !names.contains(&"keep-alive"), "{names:?}");
        assert_eq!(wire.headers()["content-length"], "5");
        assert_eq!(wire.headers()["etag"], "e");
        assert!(head(&response, BodySize::None, &dates).headers().get("content-length").is_none());
    }
}
