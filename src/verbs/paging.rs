//! Chunked lists: the continue token, the state at an older version, and one page of it.

use std::ops::Bound;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pilothouse_actors::filter::Filter;
use pilothouse_actors::object::{Object, Revision};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;
use pilothouse_actors::window::Read;
use serde::{Deserialize, Serialize};

use crate::api::status::{GroupResource, Result, Status};

/// What a continue token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    /// The version of the whole list.
    pub revision: u64,
    /// The key of the last object that was sent: the next chunk begins behind it.
    pub after: String,
}

#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

const FORM: &str = "meta.k8s.io/v1";
/// Longer than any key with its wrapping can be: a larger token was not made here.
const LONGEST: usize = 4 << 10;

impl Continue {
    /// The token as clients carry it.
    pub fn encode(&self) -> String {
        let token = Token {
            v: FORM.to_owned(),
            rv: i64::try_from(self.revision).unwrap_or(i64::MAX),
            start: format!("{}\0", self.after),
        };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    /// Reads a token that a client sent back.
    pub fn decode(text: &str) -> Result<Continue> {
        let invalid = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
        if text.len() > LONGEST {
            return Err(invalid("too long"));
        }
        let json = URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|error| invalid(&error.to_string()))?;
        let token: Token = serde_json::from_slice(&json).map_err(|error| invalid(&error.to_string()))?;
        if token.v != FORM {
            return Err(invalid("server does not recognize this encoded version"));
        }
        let revision = u64::try_from(token.rv).ok().filter(|revision| *revision > 0);
        let revision = revision
            .ok_or_else(|| invalid("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"))?;
        let after = token.start.strip_suffix('\0').filter(|after| !after.is_empty());
        let after = after.ok_or_else(|| invalid("encoded start key empty (version meta.k8s.io/v1)"))?;
        if after.starts_with('/') || after.split('/').any(|part| part == "..") {
            return Err(invalid(&format!("invalid encoded start key {after}")));
        }
        Ok(Continue { revision, after: after.to_owned() })
    }
}

/// The state as it was at `revision`: the present one with every later event undone, newest first. `None` if the history
/// no longer reaches back that far.
pub fn rewind(position: &Position, revision: Revision) -> Option<Snapshot> {
    let head = position.snapshot.revision;
    if revision > head {
        return None;
    }
    let Read::Events(events) = position.window.read(revision, usize::MAX) else { return None };
    let mut objects = position.snapshot.objects.clone();
    for event in events.iter().rev().filter(|event| event.revision() <= head) {
        match &event.previous {
            Some(previous) => objects.insert(previous.key.clone(), previous.clone()),
            None => objects.remove(&event.object.key),
        };
    }
    Some(Snapshot { revision, objects })
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
        page.next = Some(Continue { revision: snapshot.revision.0, after: last.key.as_str().to_owned() });
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_went() {
        let token = Continue { revision: 7, after: "default/a".to_owned() };
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
    }

    #[test]
    fn a_token_that_was_tampered_with_is_refused() {
        for bad in
            ["", "x", "!!", &URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a\u0000"}"#)]
        {
            assert_eq!(Continue::decode(bad).unwrap_err().code, 400, "{bad}");
        }
        assert!(Continue::decode(&"a".repeat(LONGEST + 1)).is_err());
    }
}
