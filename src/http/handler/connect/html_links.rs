//! Rewrites links of HTML pages that come through a proxy. A page is buffered for that, bounded per page and in total. A page
//! that is too large or too slow passes unchanged.

use std::io::{self, Read as _};
use std::pin::pin;
use std::time::Duration;

use actix_web::HttpResponse;
use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use futures::{Stream, StreamExt as _, stream};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName};
use pilothouse_api::connect::links::Links;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_client::upstream::UpstreamResponse;
use pilothouse_types::memory::Reservation;
use tokio::time::sleep;

use crate::flowcontrol::heavy_pool::OwnedPool;
use crate::limits::{PROXY_PAGE_BYTES, PROXY_PAGE_TIMEOUT};
use crate::registry::Backend;

use super::super::budgeted_body::BudgetedBody;
use super::super::gzip;
use super::super::render::heavy_error;
use super::proxy;

/// How much rewriting may enlarge a page: a factor and a constant. The bound of a small page is small.
const GROWTH_FACTOR: usize = 8;
const GROWTH_CONSTANT_BYTES: usize = 64 << 10;
/// The size limit of any rewritten page.
const MAX_REWRITTEN_BYTES: usize = 2 * PROXY_PAGE_BYTES;

/// The content encoding of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageEncoding {
    Plain,
    Gzip,
}

fn value(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn page_encoding(headers: &HeaderMap) -> Option<PageEncoding> {
    match value(headers, CONTENT_ENCODING) {
        "" => Some(PageEncoding::Plain),
        "gzip" => Some(PageEncoding::Gzip),
        _ => None,
    }
}

/// Whether a response is an HTML page that can be rewritten.
pub(super) fn is_page(headers: &HeaderMap) -> bool {
    let media = value(headers, CONTENT_TYPE).split(';').next().unwrap_or_default();
    media.trim() == "text/html" && page_encoding(headers).is_some()
}

/// Rewrites the links of a response. `reservation`: its share of the page budget. If the budget is exhausted, the response is
/// refused or passes unchanged.
pub(super) async fn rewrite_links(
    response: UpstreamResponse,
    links: &Links,
    reservation: Reservation,
    may_refuse: bool,
    pool: &OwnedPool<Backend>,
) -> Result<HttpResponse> {
    let UpstreamResponse { status, headers, mut body } = response;
    let encoding = page_encoding(&headers).unwrap_or(PageEncoding::Plain);
    let mut builder = proxy::head(status.as_u16(), &headers);
    let page = match buffer_page(&mut body, reservation, PROXY_PAGE_TIMEOUT).await? {
        Buffered::Complete(page) => page,
        Buffered::Partial(page, exhausted) => {
            if let Some(exhausted) = exhausted.filter(|_| may_refuse) {
                return Err(exhausted);
            }
            return Ok(builder.streaming(stream::iter(page).map(Ok::<_, io::Error>).chain(body)));
        }
    };
    let links = links.clone();
    // A large page takes milliseconds: rewriting on this thread would delay its other requests. It is not refused for lack of a
    // thread, because the backend has processed the request; the page budget bounds those that wait.
    let result = pool.step(move |_| rewrite(page, encoding, &links)).await;
    match result.map_err(heavy_error)? {
        (_, Some(exhausted)) if may_refuse => Err(exhausted),
        (page, _) => Ok(builder.body(page)),
    }
}

/// The outcome of buffering a page.
enum Buffered {
    /// The whole page.
    Complete(BudgetedBody),
    /// Only its beginning: the page is too large or too slow, or the budget is exhausted, then with a status.
    Partial(BudgetedBody, Option<Box<Status>>),
}

async fn buffer_page<S>(body: &mut S, mut reservation: Reservation, limit: Duration) -> Result<Buffered>
where
    S: Stream<Item = io::Result<Bytes>> + Unpin,
{
    let mut page = BytesMut::new();
    let mut exhausted = None;
    let mut timer = pin!(sleep(limit));
    while exhausted.is_none() && page.len() <= PROXY_PAGE_BYTES {
        let piece = tokio::select! {
            biased;
            piece = body.next() => piece,
            () = &mut timer => break,
        };
        let Some(piece) = piece else {
            return Ok(Buffered::Complete(BudgetedBody { bytes: page.freeze(), reservation }));
        };
        let read_error = |error| Status::unavailable(format!("error trying to reach service: {error}"));
        page.extend_from_slice(&piece.map_err(read_error)?);
        exhausted = reservation.set(page.len()).err().map(Into::into);
    }
    Ok(Buffered::Partial(BudgetedBody { bytes: page.freeze(), reservation }, exhausted))
}

/// Rewrites the links, or leaves the page unchanged if that fails. Returns a status if only the budget was missing.
fn rewrite(page: BudgetedBody, encoding: PageEncoding, links: &Links) -> (BudgetedBody, Option<Box<Status>>) {
    let BudgetedBody { bytes, mut reservation } = page;
    let (bytes, exhausted) = match try_rewrite(&bytes, encoding, links, &mut reservation) {
        Ok(rewritten) => (rewritten.unwrap_or(bytes), None),
        Err(exhausted) => (bytes, Some(exhausted)),
    };
    // Shrinking cannot fail. The intermediate copies are gone.
    let remaining = bytes.len().min(reservation.bytes());
    let _ = reservation.set(remaining);
    (BudgetedBody { bytes, reservation }, exhausted)
}

/// The rewritten page; `None` if it cannot be decoded.
fn try_rewrite(
    page: &Bytes,
    encoding: PageEncoding,
    links: &Links,
    reservation: &mut Reservation,
) -> Result<Option<Bytes>> {
    let max_length =
        |length: usize| (GROWTH_FACTOR * length + GROWTH_CONSTANT_BYTES).min(MAX_REWRITTEN_BYTES);
    if encoding == PageEncoding::Plain {
        reservation.set(page.len() + max_length(page.len()))?;
        return Ok(Some(links.rewrite_page(page, max_length(page.len())).into()));
    }
    reservation.set(page.len() + PROXY_PAGE_BYTES)?;
    let mut plain = Vec::new();
    let read = GzDecoder::new(&page[..]).take(PROXY_PAGE_BYTES as u64 + 1).read_to_end(&mut plain);
    // Too large or corrupt: the client gets the original.
    if !read.is_ok_and(|length| length <= PROXY_PAGE_BYTES) {
        return Ok(None);
    }
    let max_length = max_length(plain.len());
    // The unpacked page, the rewritten one, and that compressed again.
    reservation.set(page.len() + plain.len() + 2 * max_length)?;
    Ok(Some(gzip::compress(&links.rewrite_page(&plain, max_length))))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use pilothouse_types::memory::MemoryBudget;

    use super::*;

    fn links() -> Links {
        Links { prefix: "/p".to_owned(), backend: "t".to_owned(), server: "h".to_owned() }
    }

    fn rewrite_whole(page: &Bytes, encoding: PageEncoding) -> Bytes {
        let reservation = MemoryBudget::standalone(64 << 20).take(page.len()).unwrap();
        let (page, exhausted) =
            rewrite(BudgetedBody { bytes: page.clone(), reservation }, encoding, &links());
        assert!(exhausted.is_none());
        page.bytes
    }

    #[test]
    fn gzip_page_is_recompressed_and_a_corrupt_one_unchanged() {
        let page = gzip::compress(b"<a href=\"/x\">");
        let mut text = String::new();
        GzDecoder::new(&rewrite_whole(&page, PageEncoding::Gzip)[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "<a href=\"/p/x\">");
        let corrupt = Bytes::from_static(b"no gzip");
        assert_eq!(rewrite_whole(&corrupt, PageEncoding::Gzip), corrupt);
        let bomb = gzip::compress(&vec![0; PROXY_PAGE_BYTES + 1]);
        assert_eq!(rewrite_whole(&bomb, PageEncoding::Gzip), bomb);
    }

    #[actix_rt::test]
    async fn html_page_is_counted_against_the_budget_until_sent() {
        let budget = MemoryBudget::standalone(1 << 20);
        let page = Bytes::from(vec![b'x'; 100_000]);
        let buffering = |pieces: usize| {
            let (budget, page) = (&budget, &page);
            async move {
                let mut body = stream::iter(std::iter::repeat_n(page.clone(), pieces).map(Ok));
                buffer_page(&mut body, budget.take(0).unwrap(), PROXY_PAGE_TIMEOUT).await.unwrap()
            }
        };
        let Buffered::Complete(first) = buffering(1).await else { panic!("there is room for all of it") };
        assert_eq!(budget.bytes(), 100_000);
        let (mut first, exhausted) = rewrite(first, PageEncoding::Plain, &links());
        assert!(exhausted.is_none());
        assert_eq!(budget.bytes(), 100_000, "intermediate copies are released");
        let other = budget.take((1 << 20) - 200_000).unwrap();
        let Buffered::Partial(second, Some(exhausted)) = buffering(2).await else {
            panic!("there is no room")
        };
        assert_eq!((exhausted.code, second.bytes.len()), (429, 200_000), "the bytes read so far are kept");
        drop(second);
        let Buffered::Complete(third) = buffering(1).await else { panic!("there is room to gather it") };
        let (third, exhausted) = rewrite(third, PageEncoding::Plain, &links());
        assert_eq!((exhausted.unwrap().code, &third.bytes), (429, &page), "no budget to rewrite it");
        drop((third, other));
        let sent = first.next().unwrap().len();
        assert!(sent < 100_000);
        assert_eq!(budget.bytes(), 100_000, "a part is still unsent");
        assert_eq!(first.by_ref().map(|piece| piece.len()).sum::<usize>(), 100_000 - sent);
        assert_eq!(budget.bytes(), 0);
    }

    #[actix_rt::test]
    async fn too_large_or_too_slow_page_is_passed_unchanged() {
        let budget = MemoryBudget::standalone(64 << 20);
        let piece = Bytes::from(vec![b'x'; PROXY_PAGE_BYTES]);
        let mut large = stream::iter(vec![Ok(piece.clone()), Ok(piece)]).chain(stream::pending());
        let partial = buffer_page(&mut large, budget.take(0).unwrap(), PROXY_PAGE_TIMEOUT);
        let Some(Ok(Buffered::Partial(partial, None))) = partial.now_or_never() else {
            panic!("buffering waits for the rest")
        };
        assert_eq!(partial.bytes.len(), 2 * PROXY_PAGE_BYTES);
        let first = stream::iter([Ok(Bytes::from_static(b"<html>"))]);
        let partial =
            buffer_page(&mut first.chain(stream::pending()), budget.take(0).unwrap(), Duration::ZERO).await;
        let Ok(Buffered::Partial(partial, None)) = partial else {
            panic!("buffering waits beyond its limit")
        };
        assert_eq!(partial.collect::<Vec<_>>().concat(), b"<html>");
    }
}
