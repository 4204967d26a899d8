//! Chunked lists: the continue token, and one page of a state.

use std::ops::Bound;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pilothouse_actors::filter::Filter;
use pilothouse_actors::object::Object;
use pilothouse_actors::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use crate::api::status::{GroupResource, Result, Status};

/// What a continue token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    /// The version of the whole list; `None` goes on with what is there now, for clients that would rather have that than
    /// begin again.
    pub revision: Option<u64>,
    /// The key of the last object that was sent: the next chunk begins behind it.
    pub after: String,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

/// The version of a token that goes on with what is there.
const LATEST: i64 = -1;
const FORM: &str = "meta.k8s.io/v1";
/// Longer than any key with its wrapping can be: a larger token was not made here.
const LONGEST: usize = 4 << 10;

impl Continue {
    /// The token as clients carry it.
    pub fn encode(&self) -> String {
        let token = Token {
            v: FORM.to_owned(),
            rv: self.revision.map_or(LATEST, |revision| i64::try_from(revision).unwrap_or(i64::MAX)),
            start: format!("{}\0", self.after),
        };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    /// Reads a token that a client sent back. A token that was not made here is refused, not repaired.
    pub fn decode(text: &str) -> Result<Continue> {
        let invalid = |why: &str| {
            Status::bad_request(format!("invalid continue token: continue key is not valid{why}"))
        };
        if text.len() > LONGEST {
            return Err(invalid(": too long"));
        }
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid(&not_base64(text)))?;
        let token: Token = serde_json::from_slice(&json).map_err(|error| invalid(&format!(": {error}")))?;
        if token.v != FORM {
            return Err(invalid(&format!(": server does not recognize this encoded version {}", token.v)));
        }
        if token.rv == 0 {
            return Err(invalid(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if token.start.is_empty() {
            return Err(invalid(": encoded start key empty (version meta.k8s.io/v1)"));
        }
        // What lies above or beside the collection cannot be reached by a key of it.
        let strange = |part: &str| matches!(part, "" | "." | "..");
        let after = token.start.strip_suffix('\0').filter(|after| !after.split('/').any(strange));
        let after = after.ok_or_else(|| invalid(&format!(": {}", token.start)))?;
        Ok(Continue { revision: u64::try_from(token.rv).ok(), after: after.to_owned() })
    }
}

/// Where a token stops being one, as the reference's decoder says it.
fn not_base64(text: &str) -> String {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let at = text.bytes().position(|byte| !known(byte)).unwrap_or_else(|| text.len().saturating_sub(1));
    format!(": illegal base64 data at input byte {at}")
}

/// One chunk of a list.
pub struct Page {
    /// The objects of this chunk.
    pub items: Vec<Arc<Object>>,
    /// Where the next chunk begins, if there is one.
    pub next: Option<Continue>,
    /// How many objects of the same scope follow.
    pub remaining: usize,
    /// Objects of this chunk whose records are damaged. Nobody knows whether they match.
    pub unreadable: Vec<Arc<Object>>,
}

impl Page {
    /// Refuses to show a page that is not all there.
    pub fn check(&self, of: GroupResource<'_>) -> Result<()> {
        if self.unreadable.is_empty() {
            return Ok(());
        }
        let named = self.unreadable.iter().map(|object| (object.key.as_str(), object.revision.0));
        Err(Status::unreadable_list(of, named))
    }
}

/// The matching objects behind `after`, at most `limit`.
pub fn select_page(snapshot: &Snapshot, filter: &Filter, after: Option<&str>, limit: Option<usize>) -> Page {
    let start = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut rest = snapshot.scan(filter.namespace.as_deref(), start);
    let mut page = Page { items: Vec::new(), next: None, remaining: 0, unreadable: Vec::new() };
    while limit.is_none_or(|limit| page.items.len() < limit) {
        let Some(object) = rest.next() else { return page };
        if !object.is_readable() && filter.wants_key(&object.key) {
            page.unreadable.push(object.clone());
        } else if filter.matches(object) {
            page.items.push(object.clone());
        }
    }
    // Whether what follows matches is not looked at: the last chunk may be empty.
    // With a selector nobody is told how much is left, so it is not counted.
    page.remaining = if filter.is_selective() { usize::from(rest.next().is_some()) } else { rest.count() };
    if let Some(last) = page.items.last().filter(|_| page.remaining > 0) {
        page.next =
            Some(Continue { revision: Some(snapshot.revision.0), after: last.key.as_str().to_owned() });
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_went() {
        for revision in [Some(7), None] {
            let token = Continue { revision, after: "default/a".to_owned() };
            assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
        }
    }

    #[test]
    fn a_token_that_was_tampered_with_is_refused() {
        let made = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let table = [
            ("!!".to_owned(), "illegal base64 data at input byte 0"),
            ("abcde".to_owned(), "illegal base64 data at input byte 4"),
            (made("{}"), ""),
            (made(r#"{"v":"v9","rv":1,"start":"a\u0000"}"#), "does not recognize this encoded version v9"),
            (
                made(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a\u0000"}"#),
                "incorrect encoded start resourceVersion",
            ),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":""}"#), "encoded start key empty"),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../a\u0000"}"#), ": ../a"),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a//b\u0000"}"#), ": a//b"),
            ("a".repeat(LONGEST + 1), "too long"),
        ];
        for (bad, why) in table {
            let status = Continue::decode(&bad).unwrap_err();
            let wanted = "invalid continue token: continue key is not valid";
            assert_eq!(status.code, 400, "{bad}");
            assert!(status.message.starts_with(wanted) && status.message.contains(why), "{bad}: {status}");
        }
    }
}
