//! Compresses large responses for clients that accept it. Watches are never compressed.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::HttpResponseBuilder;
use actix_web::body::{BodySize, MessageBody};
use actix_web::http::header;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::api::status::Status;

/// Smaller responses are not worth the CPU time.
pub const THRESHOLD: usize = 128 << 10;

/// Whether a client accepts gzip; as in the reference, weights are not understood.
pub fn is_accepted(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|token| token.trim() == "gzip")
}

/// Whether a client accepts gzip, with weights: `q=0` is a refusal.
pub fn is_taken(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|token| {
        let (name, said) = token.split_once(';').unwrap_or((token, ""));
        let share = said.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f64>);
        name.trim().eq_ignore_ascii_case("gzip") && share.is_ok_and(|share| share > 0.0)
    })
}

/// Sets Content-Encoding, and Vary for caches.
pub fn mark(builder: &mut HttpResponseBuilder) {
    builder.insert_header((header::CONTENT_ENCODING, "gzip"));
    builder.insert_header((header::VARY, "Accept-Encoding"));
}

/// The fastest level: higher ones cost much and gain little on API objects.
fn encoder() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::new(), Compression::fast())
}

/// Compresses a whole body.
pub fn pack(body: &[u8]) -> Bytes {
    let mut encoder = encoder();
    // Writing to memory cannot fail.
    let _ = encoder.write_all(body);
    Bytes::from(encoder.finish().unwrap_or_default())
}

/// A body that is compressed as the client reads it.
pub struct Gzip<I> {
    chunks: I,
    encoder: Option<GzEncoder<Vec<u8>>>,
    /// Whether other requests of the worker had their turn since the last chunk.
    rested: bool,
}

impl<I: Iterator<Item = Result<Bytes, Box<Status>>>> Gzip<I> {
    /// Compresses these chunks.
    pub fn new(chunks: I) -> Gzip<I> {
        Gzip { chunks, encoder: Some(encoder()), rested: true }
    }

    /// Compresses the next chunk. Pending if it compresses to nothing yet: an empty chunk would look like the end.
    fn next_chunk(&mut self) -> Poll<Option<Result<Bytes, Box<dyn std::error::Error>>>> {
        let Some(encoder) = self.encoder.as_mut() else { return Poll::Ready(None) };
        match self.chunks.next() {
            Some(Ok(chunk)) => {
                if let Err(error) = encoder.write_all(&chunk) {
                    return Poll::Ready(Some(Err(Box::new(error))));
                }
                if encoder.get_ref().is_empty() {
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(Bytes::from(std::mem::take(encoder.get_mut())))))
            }
            Some(Err(status)) => {
                self.encoder = None;
                Poll::Ready(Some(Err(status)))
            }
            None => {
                let rest = self.encoder.take().map(GzEncoder::finish);
                let rest = rest.map(|rest| {
                    rest.map(Bytes::from).map_err(|error| -> Box<dyn std::error::Error> { Box::new(error) })
                });
                Poll::Ready(rest)
            }
        }
    }
}

impl<I: Iterator<Item = Result<Bytes, Box<Status>>> + Unpin> MessageBody for Gzip<I> {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        // One chunk at a time: the transport would ask for as many as fill its buffer, which takes ten times as much JSON.
        if std::mem::take(&mut self.rested)
            && let Poll::Ready(chunk) = self.next_chunk()
        {
            return Poll::Ready(chunk);
        }
        self.rested = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn unpacked(bytes: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut whole).unwrap();
        whole
    }

    #[test]
    fn a_client_may_say_how_much_it_likes_gzip() {
        assert!(is_taken("gzip") && is_taken("br;q=1, gzip;q=0.5") && is_taken("deflate, GZIP ; q=1.0"));
        assert!(!is_taken("") && !is_taken("br") && !is_taken("gzip;q=0") && !is_taken("gzip;q=x"));
    }

    #[test]
    fn a_client_says_that_it_takes_gzip() {
        assert!(
            is_accepted("gzip") && is_accepted("deflate, gzip") && !is_accepted("") && !is_accepted("br")
        );
    }

    #[test]
    fn what_was_packed_comes_out_again() {
        let body = vec![b'x'; 300_000];
        assert_eq!(unpacked(&pack(&body)), body);
        let chunks = body.chunks(70_000).map(|chunk| Ok(Bytes::copy_from_slice(chunk)));
        let mut gzip = Gzip::new(chunks);
        let mut sent = Vec::new();
        loop {
            match gzip.next_chunk() {
                Poll::Pending => {}
                Poll::Ready(None) => break,
                Poll::Ready(Some(chunk)) => sent.extend_from_slice(&chunk.unwrap()),
            }
        }
        assert_eq!(unpacked(&sent), body);
    }

    #[test]
    fn a_list_that_breaks_off_ends_the_body() {
        let chunks = vec![Ok(Bytes::from_static(b"x")), Err(Status::internal("broken".to_owned()))];
        let mut gzip = Gzip::new(chunks.into_iter());
        let told: Vec<bool> = (0..4)
            .filter_map(|_| match gzip.next_chunk() {
                Poll::Ready(chunk) => chunk.map(|chunk| chunk.is_ok()),
                Poll::Pending => None,
            })
            .collect();
        assert_eq!(told.last(), Some(&false), "nothing comes after the error");
    }
}
