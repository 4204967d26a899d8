//! Pages that come back through a proxy, with their links led back. They are gathered for that, up to a bound; a larger one
//! passes as it is.

use std::io::{self, Read as _};

use actix_web::{HttpResponse, web};
use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use futures::{StreamExt as _, stream};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName};

use crate::api::connect::links::Links;
use crate::api::status::{Result, Status};
use crate::limits::PROXY_PAGE_BYTES;

/// What a page may grow to when its links are led back.
const GROWN_PAGE_BYTES: usize = 2 * PROXY_PAGE_BYTES;
use crate::upstream::Answer;

use super::super::gzip;
use super::proxy;

/// How a page is packed.
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

/// Whether an answer is a page whose links can be read.
pub(super) fn is_page(headers: &HeaderMap) -> bool {
    let media = value(headers, CONTENT_TYPE).split(';').next().unwrap_or_default();
    media.trim() == "text/html" && packing(headers).is_some()
}

/// The answer with its links led back.
pub(super) async fn led_back(answer: Answer, links: &Links) -> Result<HttpResponse> {
    let Answer { status, headers, mut body } = answer;
    let packing = packing(&headers).unwrap_or(Packing::Plain);
    let mut builder = proxy::head(status.as_u16(), &headers);
    let mut page = BytesMut::new();
    while let Some(piece) = body.next().await {
        let broken = |error| Status::unavailable(format!("error trying to reach service: {error}"));
        page.extend_from_slice(&piece.map_err(broken)?);
        if page.len() > PROXY_PAGE_BYTES {
            let begun = stream::once(std::future::ready(Ok::<_, io::Error>(page.freeze())));
            return Ok(builder.streaming(begun.chain(body)));
        }
    }
    let (page, links) = (page.freeze(), links.clone());
    // A large page takes milliseconds: the other requests of this thread shall not wait for it.
    let made = web::block(move || rewrite(&page, packing, &links)).await;
    Ok(builder.body(made.map_err(|error| Status::internal(error.to_string()))?))
}

fn rewrite(page: &Bytes, packing: Packing, links: &Links) -> Bytes {
    match packing {
        Packing::Plain => links.rewrite_page(page, GROWN_PAGE_BYTES).into(),
        Packing::Gzip => {
            let mut plain = Vec::new();
            let read = GzDecoder::new(&page[..]).take(PROXY_PAGE_BYTES as u64 + 1).read_to_end(&mut plain);
            match read {
                Ok(length) if length <= PROXY_PAGE_BYTES => {
                    gzip::pack(&links.rewrite_page(&plain, GROWN_PAGE_BYTES))
                }
                // Too large, or broken: the client shall see what is there.
                _ => page.clone(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_page_is_packed_again_and_a_broken_one_left_alone() {
        let links = Links { prefix: "/p".to_owned(), there: "t".to_owned(), here: "h".to_owned() };
        let page = gzip::pack(b"<a href=\"/x\">");
        let made = rewrite(&page, Packing::Gzip, &links);
        let mut text = String::new();
        GzDecoder::new(&made[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "<a href=\"/p/x\">");
        let broken = Bytes::from_static(b"no gzip");
        assert_eq!(rewrite(&broken, Packing::Gzip, &links), broken);
        let bomb = gzip::pack(&vec![0; PROXY_PAGE_BYTES + 1]);
        assert_eq!(rewrite(&bomb, Packing::Gzip, &links), bomb);
    }
}
