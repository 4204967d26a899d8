//! Chunked lists: continue tokens, and the pages of a snapshot.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_apimachinery::codec::syntax;
use pilothouse_apimachinery::json::read;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::filter::Filter;
use pilothouse_types::object::Object;

use crate::limits::CONTINUE_TOKEN_BYTES;

/// The contents of a continue token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    /// The resourceVersion of the whole list; `None` continues with the current state, for clients that prefer inconsistent pages
    /// to starting over.
    pub revision: Option<u64>,
    /// The key at which the next chunk begins, within the scope of the list: without the namespace if the list has one.
    pub from: String,
    /// The time of the first chunk, in milliseconds since 1970.
    pub since: Option<u64>,
    /// The version that the list began with, if it goes on with what is there now.
    pub expired: Option<u64>,
    /// The number of objects from that key on, so that no chunk has to count what follows it. Only told where `revision` is.
    pub left: Option<usize>,
}

/// Objects that are matched before the worker's other requests get a turn: well below a millisecond.
const OBJECTS_PER_TURN: usize = 4096;
/// The resourceVersion of tokens that continue with the current state.
const LATEST: i64 = -1;
const FORM: &str = "meta.k8s.io/v1";

impl Continue {
    /// Encodes the token.
    pub fn encode(&self) -> String {
        let revision = self.revision.map_or(LATEST, |revision| i64::try_from(revision).unwrap_or(i64::MAX));
        let mut token = serde_json::json!({"v": FORM, "rv": revision, "start": self.from});
        let left = self.left.and_then(|left| u64::try_from(left).ok());
        for (name, value) in [("t", self.since), ("expired", self.expired), ("left", left)] {
            if let Some(value) = value {
                token[name] = value.into();
            }
        }
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    /// The token that goes on with what is there now.
    #[must_use]
    pub fn inconsistent(self) -> Continue {
        Continue { revision: None, since: None, expired: self.revision, from: self.from, left: None }
    }

    /// Whether the list began longer ago than versions are kept. Clients rely on that: some wait for the expiry, even if nothing
    /// was written and the version could still be served.
    pub fn is_over(&self, now: Timestamp, history: Duration) -> bool {
        let age = self.since.map(|since| Duration::from_millis(millis(now).saturating_sub(since)));
        age.is_some_and(|age| age > history)
    }

    /// Parses a token. One that this server could not have made is refused.
    pub fn decode(text: &str) -> Result<Continue> {
        let invalid = |why: &str| {
            Status::bad_request(format!("invalid continue token: continue key is not valid{why}"))
        };
        if text.len() > CONTINUE_TOKEN_BYTES {
            return Err(invalid(": too long"));
        }
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid(&not_base64(text)))?;
        syntax::check(&json).map_err(|error| invalid(&format!(": {error}")))?;
        let value = read(&json).map_err(|error| invalid(&format!(": {error}")))?;
        let Token { form, revision, start, since, expired, left } =
            Token::read(&value).map_err(|error| invalid(&format!(": json: cannot unmarshal {error}")))?;
        if form != FORM {
            return Err(invalid(&format!(": server does not recognize this encoded version {form}")));
        }
        if revision == 0 {
            return Err(invalid(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if start.is_empty() {
            return Err(invalid(": encoded start key empty (version meta.k8s.io/v1)"));
        }
        // A key cannot lead above or beside its collection.
        let from = start.strip_prefix('/').unwrap_or(start);
        if from.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(invalid(&format!(": {start}")));
        }
        let revision = u64::try_from(revision).ok();
        Ok(Continue {
            left: left.filter(|_| revision.is_some()),
            revision,
            from: from.to_owned(),
            since,
            expired,
        })
    }
}

/// The raw fields of a token; missing ones are empty.
#[derive(Default)]
struct Token<'a> {
    form: &'a str,
    revision: i64,
    start: &'a str,
    since: Option<u64>,
    expired: Option<u64>,
    left: Option<usize>,
}

impl Token<'_> {
    /// Reads the fields; the error names a field of the wrong type.
    fn read(value: &Value) -> std::result::Result<Token<'_>, String> {
        let mut token = Token::default();
        let fields = match value {
            Value::Null => return Ok(token),
            Value::Object(fields) => fields,
            other => {
                return Err(format!("{} into Go value of type storage.continueToken", other.json_word()));
            }
        };
        let wrong = |found: &Value, field: &str, ty: &str| {
            let number = match found {
                Value::Float(number) if ty == "int64" => format!(" {number}"),
                _ => String::new(),
            };
            let found = found.json_word();
            Err(format!("{found}{number} into Go struct field continueToken.{field} of type {ty}"))
        };
        for (name, value) in fields {
            match (name.to_ascii_lowercase().as_str(), value) {
                (_, Value::Null) => {}
                ("v", Value::String(form)) => token.form = form,
                ("rv", Value::Int(revision)) => token.revision = *revision,
                ("start", Value::String(start)) => token.start = start,
                ("t", Value::Int(since)) => token.since = u64::try_from(*since).ok(),
                ("expired", Value::Int(revision)) => token.expired = u64::try_from(*revision).ok(),
                ("left", Value::Int(left)) => token.left = usize::try_from(*left).ok(),
                (field @ ("v" | "start"), found) => return wrong(found, field, "string"),
                ("rv", found) => return wrong(found, "rv", "int64"),
                _ => {}
            }
        }
        Ok(token)
    }
}

/// The position of invalid base64, as Go's decoder reports it.
fn not_base64(text: &str) -> String {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let at = text.bytes().position(|byte| !known(byte)).unwrap_or_else(|| text.len().saturating_sub(1));
    format!(": illegal base64 data at input byte {at}")
}

/// A time in the format of tokens.
fn millis(at: Timestamp) -> u64 {
    at.0 / 1_000
}

/// One chunk of a list.
pub struct Page {
    /// The objects of this chunk.
    pub items: Vec<Arc<Object>>,
    /// The start of the next chunk, if there is one.
    pub next: Option<Continue>,
    /// The number of objects of the same scope that follow.
    pub remaining: usize,
    /// Corrupt objects of this chunk. It is unknown whether they match.
    pub unreadable: Vec<Arc<Object>>,
}

impl Page {
    /// Refuses a page with corrupt objects.
    pub fn check(&self, of: GroupResource<'_>) -> Result<()> {
        if self.unreadable.is_empty() {
            return Ok(());
        }
        let named = self.unreadable.iter().map(|object| (object.key.as_str(), object.revision.0));
        Err(Status::unreadable_list(of, named))
    }
}

/// Where a chunk of a list begins.
#[derive(Clone, Debug)]
pub struct Start {
    /// The first key, in the form of continue tokens; `None` in the first chunk.
    pub from: Option<String>,
    /// The time of the first chunk, in milliseconds since 1970.
    pub since: u64,
    /// The number of objects from there on, if an earlier chunk counted them.
    pub left: Option<usize>,
}

impl Start {
    /// The first key, within a namespace or in all of them.
    pub fn key(&self, namespace: Option<&str>) -> Option<String> {
        self.from.as_ref().map(|from| match namespace {
            Some(namespace) => format!("{namespace}/{from}"),
            None => from.clone(),
        })
    }

    /// The first chunk of a list.
    pub fn first(now: Timestamp) -> Start {
        Start { from: None, since: millis(now), left: None }
    }

    /// The chunk that a token asks for.
    pub fn at(token: Continue, now: Timestamp) -> Start {
        Start { since: token.since.unwrap_or(millis(now)), from: Some(token.from), left: token.left }
    }
}

/// The matching objects from `start` on, at most `limit`. Yields to the worker's other requests in between.
pub async fn select_page(snapshot: &Snapshot, filter: &Filter, start: Start, limit: Option<usize>) -> Page {
    let namespace = filter.namespace.as_deref();
    let from = start.key(namespace);
    let mut rest = snapshot.scan(namespace, from.as_deref().map_or(Bound::Unbounded, Bound::Included));
    let mut page = Page { items: Vec::new(), next: None, remaining: 0, unreadable: Vec::new() };
    let mut seen = 0_usize;
    let mut turn = YieldEvery::new(OBJECTS_PER_TURN);
    while limit.is_none_or(|limit| page.items.len() < limit) {
        let Some(object) = rest.next() else { return page };
        if !object.is_readable() && filter.wants_key(&object.key) {
            page.unreadable.push(object.clone());
        } else if filter.matches(object) {
            page.items.push(object.clone());
        }
        seen += 1;
        turn.worked(1).await;
    }
    // The following objects are not matched, so the last chunk may be empty. With a selector their number is not reported, so it
    // is not counted.
    let Some(_) = rest.next() else { return page };
    page.remaining = match start.left.and_then(|left| left.checked_sub(seen)).filter(|left| *left > 0) {
        _ if filter.is_selective() => 1,
        Some(left) => left,
        None => 1 + rest.count(),
    };
    // Only one object has a given name, so nothing follows it.
    let is_single = |key: &str| filter.name.is_some() && (namespace.is_some() || !key.contains('/'));
    if let Some(last) = page.items.last().filter(|last| !is_single(last.key.as_str())) {
        let within = namespace.map_or(0, |namespace| namespace.len() + 1);
        let key = last.key.as_str().get(within..).unwrap_or_default();
        page.next = Some(Continue {
            revision: Some(snapshot.revision.0),
            // The smallest key after that one.
            from: format!("{key}\0"),
            since: Some(start.since),
            expired: None,
            left: Some(page.remaining).filter(|_| !filter.is_selective()),
        });
    }
    page
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_types::object::{Draft, Key, Pairs, Revision};

    use super::*;

    fn token(from: &str) -> Continue {
        Continue { revision: Some(7), from: from.to_owned(), since: None, expired: None, left: None }
    }

    #[test]
    fn a_token_comes_back_as_it_went() {
        let token = Continue { since: Some(5), left: Some(9), ..token("default/a\0") };
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
        let token = token.inconsistent();
        assert_eq!((token.revision, token.since, token.expired, token.left), (None, None, Some(7), None));
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
    }

    #[test]
    fn a_token_is_over_when_its_history_is() {
        let token = |since| Continue { since, ..token("a\0") };
        let (now, minute) = (Timestamp(120_000_000), Duration::from_secs(60));
        assert!(token(Some(59_999)).is_over(now, minute));
        assert!(!token(Some(60_000)).is_over(now, minute));
        assert!(!token(Some(999_999)).is_over(now, minute) && !token(None).is_over(now, minute));
    }

    fn snapshot(names: impl Iterator<Item = String>) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        for name in names {
            let draft = Draft {
                key: Key::from_path(&name),
                bytes: Bytes::from_static(b"{}"),
                revision_at: 1,
                item_at: 1,
                labels: Pairs::default(),
                fields: Pairs::default(),
            };
            let object = Arc::new(Object::new(draft, Revision(2)));
            snapshot.objects.insert(object.key.clone(), object);
        }
        snapshot
    }

    /// Reads a namespace in chunks of three, with tokens as a client sends them, and tells what remained after each chunk.
    async fn remaining_after_each(tamper: impl Fn(&mut Continue)) -> Vec<usize> {
        let names = (0..4).map(|at| format!("a/{at}")).chain((0..10).map(|at| format!("b/{at}")));
        let snapshot = snapshot(names.chain(["c/0".to_owned()]));
        let filter = Filter { namespace: Some("b".into()), ..Filter::default() };
        let (mut remaining, mut items) = (Vec::new(), 0);
        let mut start = Start::first(Timestamp(0));
        loop {
            let page = select_page(&snapshot, &filter, start, Some(3)).await;
            items += page.items.len();
            remaining.push(page.remaining);
            let Some(mut next) = page.next else { break };
            tamper(&mut next);
            start = Start::at(Continue::decode(&next.encode()).unwrap(), Timestamp(0));
        }
        assert_eq!(items, 10);
        remaining
    }

    #[tokio::test]
    async fn what_remains_is_counted_once() {
        assert_eq!(remaining_after_each(|_| {}).await, [7, 4, 1, 0]);
        assert_eq!(remaining_after_each(|token| token.left = None).await, [7, 4, 1, 0]);
        // A number that a token cannot have is counted anew; no number makes a list end early.
        assert_eq!(remaining_after_each(|token| token.left = Some(3)).await, [7, 4, 1, 0]);
        assert_eq!(remaining_after_each(|token| token.left = Some(99)).await, [7, 96, 96, 0]);
    }

    #[test]
    fn a_token_that_was_tampered_with_is_refused() {
        let made = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let table = [
            ("!!".to_owned(), "illegal base64 data at input byte 0"),
            ("abcde".to_owned(), "illegal base64 data at input byte 4"),
            (made("{}"), "server does not recognize this encoded version "),
            (made("null"), "server does not recognize this encoded version "),
            (made("{"), ": unexpected end of JSON input"),
            (made("x"), ": invalid character 'x' looking for beginning of value"),
            (made("[]"), ": json: cannot unmarshal array into Go value of type storage.continueToken"),
            (
                made(r#"{"rv":"1"}"#),
                ": json: cannot unmarshal string into Go struct field continueToken.rv of type int64",
            ),
            (
                made(r#"{"rv":1.5}"#),
                ": json: cannot unmarshal number 1.5 into Go struct field continueToken.rv of type int64",
            ),
            (
                made(r#"{"start":5}"#),
                ": json: cannot unmarshal number into Go struct field continueToken.start of type string",
            ),
            (made(r#"{"v":"v9","rv":1,"start":"a\u0000"}"#), "does not recognize this encoded version v9"),
            (
                made(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a\u0000"}"#),
                "incorrect encoded start resourceVersion",
            ),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":""}"#), "encoded start key empty"),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../a\u0000"}"#), ": ../a"),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a//b\u0000"}"#), ": a//b"),
            ("a".repeat(CONTINUE_TOKEN_BYTES + 1), "too long"),
        ];
        for (bad, why) in table {
            let status = Continue::decode(&bad).unwrap_err();
            let wanted = "invalid continue token: continue key is not valid";
            assert_eq!(status.code, 400, "{bad}");
            assert!(status.message.starts_with(wanted) && status.message.contains(why), "{bad}: {status}");
        }
    }
}
