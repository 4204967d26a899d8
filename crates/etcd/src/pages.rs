//! Ranges that are read page by page at one revision, so that a range of any size needs the memory of one page.

use bytes::Bytes;
use prost::Message as _;

use crate::client::Client;
use crate::error::Error;
use crate::limits::{FIRST_PAGE_KEYS, PAGE_BYTES, PAGE_KEYS};
use crate::messages::{KeyValue, RangeRequest, after};

/// A range that is read page by page. The pages are those of the revision of the first one.
pub struct Pages {
    client: Client,
    /// What is read next; `None` after the last page.
    request: Option<RangeRequest>,
    /// The keys that the whole range may still have, if the request has a limit.
    remaining_keys: Option<i64>,
    page_bytes: usize,
}

/// One page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The revision of all pages.
    pub revision: i64,
    /// The keys, in their order.
    pub kvs: Vec<KeyValue>,
    /// How many keys of the range there were when this page was read, with those of this page and those after it.
    pub count: i64,
}

impl Client {
    /// Reads a range page by page, at the revision of the request or at the newest one. Its limit is that of all pages together; it
    /// must be sorted by key.
    pub fn pages(&self, request: RangeRequest) -> Pages {
        let remaining_keys = Some(request.limit).filter(|limit| *limit > 0);
        let request = RangeRequest { limit: FIRST_PAGE_KEYS, ..request };
        Pages { client: self.clone(), request: Some(request), remaining_keys, page_bytes: PAGE_BYTES }
    }
}

impl Pages {
    /// About how many bytes a page shall have. One that does not fit into a response is read again with fewer keys.
    pub fn with_page_bytes(mut self, page_bytes: usize) -> Pages {
        self.page_bytes = page_bytes.max(1);
        self
    }

    /// Whether there is a page that was not read yet.
    pub fn has_next(&self) -> bool {
        self.request.is_some()
    }

    /// The next page; `None` after the last. After an error, the same page is read again.
    pub async fn next(&mut self) -> Result<Option<Page>, Error> {
        let Some(request) = &mut self.request else { return Ok(None) };
        let response = loop {
            let mut attempt = request.clone();
            attempt.limit = self.remaining_keys.map_or(attempt.limit, |keys| keys.min(attempt.limit));
            match self.client.range(attempt).await {
                Err(Error::ResponseTooLarge { .. }) if request.limit > 1 => request.limit /= 2,
                result => break result?,
            }
        };
        let header = response.header.unwrap_or_default();
        if request.revision <= 0 {
            request.revision = header.revision;
        }
        let revision = request.revision;
        let read = i64::try_from(response.kvs.len()).unwrap_or(i64::MAX);
        self.remaining_keys = self.remaining_keys.map(|keys| keys.saturating_sub(read));
        let last_key = response.kvs.last().map(|last| last.key.clone());
        match last_key.filter(|_| response.more && self.remaining_keys != Some(0)) {
            Some(last_key) => continue_after(request, &last_key, &response.kvs, self.page_bytes),
            None => self.request = None,
        }
        Ok(Some(Page { revision, kvs: response.kvs, count: response.count }))
    }
}

/// Lets a request read what follows after a page, with as many keys as have the wanted size if they are like those of the page.
fn continue_after(request: &mut RangeRequest, last_key: &Bytes, page: &[KeyValue], page_bytes: usize) {
    request.key = after(last_key);
    let bytes = page.iter().map(KeyValue::encoded_len).sum::<usize>().max(1);
    let keys = page.len().saturating_mul(page_bytes) / bytes;
    // Keys further on may be larger: the page at most doubles.
    let limit = i64::try_from(keys).unwrap_or(PAGE_KEYS).min(request.limit.saturating_mul(2));
    request.limit = limit.clamp(1, PAGE_KEYS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_adapt_to_the_size_of_keys() {
        let page = |keys: usize, bytes: usize| {
            vec![KeyValue { value: vec![7; bytes].into(), ..KeyValue::default() }; keys]
        };
        for (page, wanted, limit) in [
            (page(100, 1_000), 1 << 20, 200),
            (page(100, 1_000), 50_000, 49),
            (page(100, 1_000), 1, 1),
            (page(2, 0), usize::MAX, 200),
        ] {
            let mut request = RangeRequest { limit: 100, ..RangeRequest::default() };
            continue_after(&mut request, &Bytes::from_static(b"a"), &page, wanted);
            assert_eq!((request.limit, request.key), (limit, Bytes::from_static(b"a\0")));
        }
    }
}
