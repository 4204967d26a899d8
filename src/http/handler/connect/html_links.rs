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
use pilothouse_types::memory::Reservation;
use tokio::time::sleep;

use crate::backend::Backend;
use crate::heavy_pool::OwnedPool;
use crate::limits::{PROXY_PAGE_BYTES, PROXY_PAGE_TIMEOUT};
use crate::upstream::UpstreamResponse;

use super::super::budgeted_body::BudgetedBody;
use super::super::gzip;
use super::super::render::heavy_error;
use super::proxy;

/// How much rewriting may enlarge a page: a factor and a constant. The bound of a small page is small.
const GROWS_BY: usize = 8;
const GROWS_ANYWAY_BYTES: usize = 64 << 10;
/// The size limit of any rewritten page.
const GROWN_PAGE_BYTES: usize = 2 * PROXY_PAGE_BYTES;

/// The content encoding of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
}

fn value(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn packing(headers: &HeaderMap) -> Option<Packing> {
    match value(headers, CONTENT_ENCODING) {
        "" => Some(Packing::Plain),
        "gzip" => Some(Packing::Gzip),
        _ => None,
    }
}

/// Whether a response is an HTML page that can be rewritten.
pub(super) fn is_page(headers: &HeaderMap) -> bool {
    let media = value(headers, CONTENT_TYPE).split(';').next().unwrap_or_default();
    media.trim() == "text/html" && packing(headers).is_some()
}

/// Rewrites the links of a response. `held`: its share of the page budget. If the budget is exhausted, the response is refused or
/// passes unchanged.
pub(super) async fn led_back(
    answer: UpstreamResponse,
    links: &Links,
    held: Reservation,
    may_refuse: bool,
    pool: &OwnedPool<Backend>,
) -> Result<HttpResponse> {
    let UpstreamResponse { status, headers, mut body } = answer;
    let packing = packing(&headers).unwrap_or(Packing::Plain);
    let mut builder = proxy::head(status.as_u16(), &headers);
    let page = match gather(&mut body, held, PROXY_PAGE_TIMEOUT).await? {
        Gathered::All(page) => page,
        Gathered::Begun(page, full) => {
            if let Some(full) = full.filter(|_| may_refuse) {
                return Err(full);
            }
            return Ok(builder.streaming(stream::iter(page).map(Ok::<_, io::Error>).chain(body)));
        }
    };
    let links = links.clone();
    // A large page takes milliseconds: rewriting on this thread would delay its other requests. It is not refused for lack of a
    // thread, because the backend has processed the request; the page budget bounds those that wait.
    let made = pool.step(move |_| rewrite(page, packing, &links)).await;
    match made.map_err(heavy_error)? {
        (_, Some(full)) if may_refuse => Err(full),
        (page, _) => Ok(builder.body(page)),
    }
}

/// The outcome of buffering a page.
enum Gathered {
    /// The whole page.
    All(BudgetedBody),
    /// Only its beginning: the page is too large or too slow, or the budget is exhausted, which the status says.
    Begun(BudgetedBody, Option<Box<Status>>),
}

async fn gather<S>(body: &mut S, mut held: Reservation, within: Duration) -> Result<Gathered>
where
    S: Stream<Item = io::Result<Bytes>> + Unpin,
{
    let mut page = BytesMut::new();
    let mut full = None;
    let mut late = pin!(sleep(within));
    while full.is_none() && page.len() <= PROXY_PAGE_BYTES {
        let piece = tokio::select! {
            biased;
            piece = body.next() => piece,
            () = &mut late => break,
        };
        let Some(piece) = piece else {
            return Ok(Gathered::All(BudgetedBody { bytes: page.freeze(), held }));
        };
        let broken = |error| Status::unavailable(format!("error trying to reach service: {error}"));
        page.extend_from_slice(&piece.map_err(broken)?);
        full = held.set(page.len()).err().map(Into::into);
    }
    Ok(Gathered::Begun(BudgetedBody { bytes: page.freeze(), held }, full))
}

/// Rewrites the links, or leaves the page unchanged if that fails. A status says if only the budget was missing.
fn rewrite(page: BudgetedBody, packing: Packing, links: &Links) -> (BudgetedBody, Option<Box<Status>>) {
    let BudgetedBody { bytes, mut held } = page;
    let (bytes, full) = match make(&bytes, packing, links, &mut held) {
        Ok(made) => (made.unwrap_or(bytes), None),
        Err(full) => (bytes, Some(full)),
    };
    // Shrinking cannot fail. The intermediate copies are gone.
    let left = bytes.len().min(held.bytes());
    let _ = held.set(left);
    (BudgetedBody { bytes, held }, full)
}

/// The rewritten page; `None` if it cannot be decoded.
fn make(page: &Bytes, packing: Packing, links: &Links, held: &mut Reservation) -> Result<Option<Bytes>> {
    let most = |length: usize| (GROWS_BY * length + GROWS_ANYWAY_BYTES).min(GROWN_PAGE_BYTES);
    if packing == Packing::Plain {
        held.set(page.len() + most(page.len()))?;
        return Ok(Some(links.rewrite_page(page, most(page.len())).into()));
    }
    held.set(page.len() + PROXY_PAGE_BYTES)?;
    let mut plain = Vec::new();
    let read = GzDecoder::new(&page[..]).take(PROXY_PAGE_BYTES as u64 + 1).read_to_end(&mut plain);
    // Too large or corrupt: the client gets the original.
    if !read.is_ok_and(|length| length <= PROXY_PAGE_BYTES) {
        return Ok(None);
    }
    let most = most(plain.len());
    // The unpacked page, the rewritten one, and that compressed again.
    held.set(page.len() + plain.len() + 2 * most)?;
    Ok(Some(gzip::pack(&links.rewrite_page(&plain, most))))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use pilothouse_types::memory::MemoryBudget;

    use super::*;

    fn links() -> Links {
        Links { prefix: "/p".to_owned(), there: "t".to_owned(), here: "h".to_owned() }
    }

    fn made(page: &Bytes, packing: Packing) -> Bytes {
        let held = MemoryBudget::alone(64 << 20).take(page.len()).unwrap();
        let (page, full) = rewrite(BudgetedBody { bytes: page.clone(), held }, packing, &links());
        assert!(full.is_none());
        page.bytes
    }

    #[test]
    fn a_packed_page_is_packed_again_and_a_broken_one_left_alone() {
        let page = gzip::pack(b"<a href=\"/x\">");
        let mut text = String::new();
        GzDecoder::new(&made(&page, Packing::Gzip)[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "<a href=\"/p/x\">");
        let broken = Bytes::from_static(b"no gzip");
        assert_eq!(made(&broken, Packing::Gzip), broken);
        let bomb = gzip::pack(&vec![0; PROXY_PAGE_BYTES + 1]);
        assert_eq!(made(&bomb, Packing::Gzip), bomb);
    }

    #[actix_rt::test]
    async fn pages_are_counted_until_they_are_sent() {
        let budget = MemoryBudget::alone(1 << 20);
        let page = Bytes::from(vec![b'x'; 100_000]);
        let gathering = |pieces: usize| {
            let (budget, page) = (&budget, &page);
            async move {
                let mut body = stream::iter(std::iter::repeat_n(page.clone(), pieces).map(Ok));
                gather(&mut body, budget.take(0).unwrap(), PROXY_PAGE_TIMEOUT).await.unwrap()
            }
        };
        let Gathered::All(first) = gathering(1).await else { panic!("there is room for all of it") };
        assert_eq!(budget.bytes(), 100_000);
        let (mut first, full) = rewrite(first, Packing::Plain, &links());
        assert!(full.is_none());
        assert_eq!(budget.bytes(), 100_000, "what making it took has been given back");
        let other = budget.take((1 << 20) - 200_000).unwrap();
        let Gathered::Begun(second, Some(full)) = gathering(2).await else { panic!("there is no room") };
        assert_eq!((full.code, second.bytes.len()), (429, 200_000), "what came is not lost");
        drop(second);
        let Gathered::All(third) = gathering(1).await else { panic!("there is room to gather it") };
        let (third, full) = rewrite(third, Packing::Plain, &links());
        assert_eq!((full.unwrap().code, &third.bytes), (429, &page), "and none to change it");
        drop((third, other));
        let begun = first.next().unwrap().len();
        assert!(begun < 100_000);
        assert_eq!(budget.bytes(), 100_000, "some of it is still here");
        assert_eq!(first.by_ref().map(|piece| piece.len()).sum::<usize>(), 100_000 - begun);
        assert_eq!(budget.bytes(), 0);
    }

    #[actix_rt::test]
    async fn a_page_that_is_too_large_or_too_slow_passes_as_it_is() {
        let budget = MemoryBudget::alone(64 << 20);
        let piece = Bytes::from(vec![b'x'; PROXY_PAGE_BYTES]);
        let mut large = stream::iter(vec![Ok(piece.clone()), Ok(piece)]).chain(stream::pending());
        let begun = gather(&mut large, budget.take(0).unwrap(), PROXY_PAGE_TIMEOUT);
        let Some(Ok(Gathered::Begun(begun, None))) = begun.now_or_never() else { panic!("it does not wait") };
        assert_eq!(begun.bytes.len(), 2 * PROXY_PAGE_BYTES);
        let first = stream::iter([Ok(Bytes::from_static(b"<html>"))]);
        let begun =
            gather(&mut first.chain(stream::pending()), budget.take(0).unwrap(), Duration::ZERO).await;
        let Ok(Gathered::Begun(begun, None)) = begun else { panic!("it does not come") };
        assert_eq!(begun.collect::<Vec<_>>().concat(), b"<html>");
    }
}
