//! Compresses large responses for clients that accept it. Watches are never compressed.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::HttpResponseBuilder;
use actix_web::body::{BodySize, MessageBody};
use actix_web::http::header;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt as _};
use pilothouse_apimachinery::status::Status;

use crate::limits::LIST_TURN_BYTES;

/// Smaller responses are not worth the CPU time.
pub const THRESHOLD: usize = 128 << 10;

/// Whether a client accepts gzip; as in the reference, weights are not understood.
pub fn is_accepted(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|token| token.trim() == "gzip")
}

/// Whether a client accepts gzip, with weights: `q=0` is a refusal.
pub fn is_accepted_with_weights(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|token| {
        let (name, parameter) = token.split_once(';').unwrap_or((token, ""));
        let weight = parameter.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f64>);
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_ok_and(|weight| weight > 0.0)
    })
}

/// Sets Content-Encoding, and Vary for caches.
pub fn set_headers(builder: &mut HttpResponseBuilder) {
    builder.insert_header((header::CONTENT_ENCODING, "gzip"));
    builder.insert_header((header::VARY, "Accept-Encoding"));
}

/// The fastest level: higher ones cost much and gain little on API objects.
fn encoder() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::new(), Compression::fast())
}

/// Compresses a whole body.
pub fn compress(body: &[u8]) -> Bytes {
    let mut encoder = encoder();
    // Writing to memory cannot fail.
    let _ = encoder.write_all(body);
    Bytes::from(encoder.finish().unwrap_or_default())
}

/// A body that is compressed as the client reads it.
pub struct Gzip<S> {
    chunks: S,
    encoder: Option<GzEncoder<Vec<u8>>>,
    /// Whether other requests of the worker had their turn since the last chunk.
    has_yielded: bool,
}

type Chunk = Result<Bytes, Box<dyn std::error::Error>>;

impl<S: Stream<Item = Result<Bytes, Box<Status>>> + Unpin> Gzip<S> {
    /// Compresses these chunks.
    pub fn new(chunks: S) -> Gzip<S> {
        Gzip { chunks, encoder: Some(encoder()), has_yielded: true }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Chunk>> {
        let Some(encoder) = &mut self.encoder else { return Poll::Ready(None) };
        let mut consumed = 0;
        // A chunk that compresses to nothing yet is not sent: an empty chunk would look like the end.
        while consumed < LIST_TURN_BYTES {
            match ready!(self.chunks.poll_next_unpin(cx)) {
                Some(Ok(chunk)) => {
                    consumed += chunk.len();
                    if let Err(error) = encoder.write_all(&chunk) {
                        return Poll::Ready(Some(Err(Box::new(error))));
                    }
                    if !encoder.get_ref().is_empty() {
                        return Poll::Ready(Some(Ok(Bytes::from(std::mem::take(encoder.get_mut())))));
                    }
                }
                Some(Err(status)) => {
                    self.encoder = None;
                    return Poll::Ready(Some(Err(status)));
                }
                None => {
                    let rest = self.encoder.take().map(GzEncoder::finish);
                    return Poll::Ready(rest.map(|rest| rest.map(Bytes::from).map_err(Into::into)));
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: Stream<Item = Result<Bytes, Box<Status>>> + Unpin> MessageBody for Gzip<S> {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Chunk>> {
        // One chunk at a time: the transport would ask for as many as fill its buffer, which takes ten times as much JSON.
        if !self.has_yielded {
            self.has_yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let chunk = self.poll_chunk(cx);
        self.has_yielded = chunk.is_pending();
        chunk
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use futures::stream;

    use super::*;

    fn decompress(bytes: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut output).unwrap();
        output
    }

    #[test]
    fn gzip_weights_are_parsed() {
        assert!(
            is_accepted_with_weights("gzip")
                && is_accepted_with_weights("br;q=1, gzip;q=0.5")
                && is_accepted_with_weights("deflate, GZIP ; q=1.0")
        );
        assert!(
            !is_accepted_with_weights("")
                && !is_accepted_with_weights("br")
                && !is_accepted_with_weights("gzip;q=0")
                && !is_accepted_with_weights("gzip;q=x")
        );
    }

    #[test]
    fn gzip_is_accepted_by_name() {
        assert!(
            is_accepted("gzip") && is_accepted("deflate, gzip") && !is_accepted("") && !is_accepted("br")
        );
    }

    /// Everything that a body sends, up to its first error.
    async fn sent(mut gzip: Gzip<impl Stream<Item = Result<Bytes, Box<Status>>> + Unpin>) -> (Vec<u8>, bool) {
        let mut sent = Vec::new();
        while let Some(chunk) = poll_fn(|cx| gzip.poll_chunk(cx)).await {
            let Ok(chunk) = chunk else {
                assert!(poll_fn(|cx| gzip.poll_chunk(cx)).await.is_none(), "nothing comes after an error");
                return (sent, true);
            };
            assert!(!chunk.is_empty());
            sent.extend_from_slice(&chunk);
        }
        (sent, false)
    }

    #[actix_rt::test]
    async fn compressed_body_decompresses_to_the_original() {
        // More than a turn of bytes that compress to almost nothing.
        let body = vec![b'x'; 3 * LIST_TURN_BYTES];
        assert_eq!(decompress(&compress(&body)), body);
        let chunks = body.chunks(70_000).map(|chunk| Ok(Bytes::copy_from_slice(chunk)));
        let (sent, is_broken) = sent(Gzip::new(stream::iter(chunks))).await;
        assert_eq!((decompress(&sent), is_broken), (body, false));
    }

    #[actix_rt::test]
    async fn failed_list_ends_the_compressed_body() {
        let chunks = vec![Ok(Bytes::from_static(b"x")), Err(Status::internal("broken".to_owned()))];
        assert!(sent(Gzip::new(stream::iter(chunks))).await.1);
    }
}
