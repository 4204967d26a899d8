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
    pub start_key: String,
    /// The time of the first chunk, in milliseconds since 1970.
    pub started_at: Option<u64>,
    /// The resourceVersion that the list began with, if it continues with the current state.
    pub expired_revision: Option<u64>,
    /// The number of objects from that key on, so that later chunks need not count them. Only set if `revision` is.
    pub remaining_hint: Option<usize>,
}

/// Objects that are matched before the worker's other requests get a turn: well below a millisecond.
const OBJECTS_PER_TURN: usize = 4096;
/// The resourceVersion of tokens that continue with the current state.
const LATEST: i64 = -1;
const VERSION: &str = "meta.k8s.io/v1";

impl Continue {
    /// Encodes the token.
    pub fn encode(&self) -> String {
        let revision = self.revision.map_or(LATEST, |revision| i64::try_from(revision).unwrap_or(i64::MAX));
        let mut token = serde_json::json!({"v": VERSION, "rv": revision, "start": self.start_key});
        let remaining_hint =
            self.remaining_hint.and_then(|remaining_hint| u64::try_from(remaining_hint).ok());
        for (name, value) in
            [("t", self.started_at), ("expired", self.expired_revision), ("left", remaining_hint)]
        {
            if let Some(value) = value {
                token[name] = value.into();
            }
        }
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    /// The token that continues with the current state.
    #[must_use]
    pub fn continue_with_latest(self) -> Continue {
        Continue {
            revision: None,
            started_at: None,
            expired_revision: self.revision,
            start_key: self.start_key,
            remaining_hint: None,
        }
    }

    /// Whether the list began longer ago than history is kept. Some clients rely on the expiry, even if nothing was written and
    /// the revision could still be served.
    pub fn is_expired(&self, now: Timestamp, history: Duration) -> bool {
        let age = self
            .started_at
            .map(|started_at| Duration::from_millis(to_millis(now).saturating_sub(started_at)));
        age.is_some_and(|age| age > history)
    }

    /// Parses a token. One that this server could not have made is refused.
    pub fn decode(text: &str) -> Result<Continue> {
        let invalid = |reason: &str| {
            Status::bad_request(format!("invalid continue token: continue key is not valid{reason}"))
        };
        if text.len() > CONTINUE_TOKEN_BYTES {
            return Err(invalid(": too long"));
        }
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid(&base64_error(text)))?;
        syntax::check(&json).map_err(|error| invalid(&format!(": {error}")))?;
        let value = read(&json).map_err(|error| invalid(&format!(": {error}")))?;
        let Token { version, revision, start, started_at, expired_revision, remaining_hint } =
            Token::read(&value).map_err(|error| invalid(&format!(": json: cannot unmarshal {error}")))?;
        if version != VERSION {
            return Err(invalid(&format!(": server does not recognize this encoded version {version}")));
        }
        if revision == 0 {
            return Err(invalid(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if start.is_empty() {
            return Err(invalid(": encoded start key empty (version meta.k8s.io/v1)"));
        }
        // A key must not lead out of its collection.
        let start_key = start.strip_prefix('/').unwrap_or(start);
        if start_key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(invalid(&format!(": {start}")));
        }
        let revision = u64::try_from(revision).ok();
        Ok(Continue {
            remaining_hint: remaining_hint.filter(|_| revision.is_some()),
            revision,
            start_key: start_key.to_owned(),
            started_at,
            expired_revision,
        })
    }
}

/// The raw fields of a token; missing ones are empty.
#[derive(Default)]
struct Token<'a> {
    version: &'a str,
    revision: i64,
    start: &'a str,
    started_at: Option<u64>,
    expired_revision: Option<u64>,
    remaining_hint: Option<usize>,
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
        let type_error = |actual: &Value, field: &str, ty: &str| {
            let number = match actual {
                Value::Float(number) if ty == "int64" => format!(" {number}"),
                _ => String::new(),
            };
            let word = actual.json_word();
            Err(format!("{word}{number} into Go struct field continueToken.{field} of type {ty}"))
        };
        for (name, value) in fields {
            match (name.to_ascii_lowercase().as_str(), value) {
                (_, Value::Null) => {}
                ("v", Value::String(version)) => token.version = version,
                ("rv", Value::Int(revision)) => token.revision = *revision,
                ("start", Value::String(start)) => token.start = start,
                ("t", Value::Int(started_at)) => token.started_at = u64::try_from(*started_at).ok(),
                ("expired", Value::Int(revision)) => token.expired_revision = u64::try_from(*revision).ok(),
                ("left", Value::Int(remaining_hint)) => {
                    token.remaining_hint = usize::try_from(*remaining_hint).ok();
                }
                (field @ ("v" | "start"), other) => return type_error(other, field, "string"),
                ("rv", other) => return type_error(other, "rv", "int64"),
                _ => {}
            }
        }
        Ok(token)
    }
}

/// The position of invalid base64, as Go's decoder reports it.
fn base64_error(text: &str) -> String {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let index =
        text.bytes().position(|byte| !is_base64(byte)).unwrap_or_else(|| text.len().saturating_sub(1));
    format!(": illegal base64 data at input byte {index}")
}

/// A time in the format of tokens.
fn to_millis(time: Timestamp) -> u64 {
    time.0 / 1_000
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
    /// How many objects were looked at.
    pub scanned: usize,
}

impl Page {
    /// Refuses a page with corrupt objects.
    pub fn check(&self, resource: GroupResource<'_>) -> Result<()> {
        if self.unreadable.is_empty() {
            return Ok(());
        }
        Err(Status::unreadable_list(resource, self.unreadable.iter()))
    }
}

/// The start of a chunk of a list.
#[derive(Clone, Debug)]
pub struct Start {
    /// The first key, in the form of continue tokens; `None` in the first chunk.
    pub start_key: Option<String>,
    /// The time of the first chunk, in milliseconds since 1970.
    pub started_at: u64,
    /// The number of objects from there on, if an earlier chunk counted them.
    pub remaining_hint: Option<usize>,
}

impl Start {
    /// The first key, within a namespace or in all of them.
    pub fn key(&self, namespace: Option<&str>) -> Option<String> {
        self.start_key.as_ref().map(|start_key| match namespace {
            Some(namespace) => format!("{namespace}/{start_key}"),
            None => start_key.clone(),
        })
    }

    /// The first chunk of a list.
    pub fn first(now: Timestamp) -> Start {
        Start { start_key: None, started_at: to_millis(now), remaining_hint: None }
    }

    /// The start of the chunk that a token asks for.
    pub fn from_token(token: Continue, now: Timestamp) -> Start {
        Start {
            started_at: token.started_at.unwrap_or(to_millis(now)),
            start_key: Some(token.start_key),
            remaining_hint: token.remaining_hint,
        }
    }
}

/// The matching objects from `start` on, at most `limit`. Yields to the worker's other requests in between.
pub async fn select_page(snapshot: &Snapshot, filter: &Filter, start: Start, limit: Option<usize>) -> Page {
    let namespace = filter.namespace.as_deref();
    let start_key = start.key(namespace);
    let mut objects =
        snapshot.scan(namespace, start_key.as_deref().map_or(Bound::Unbounded, Bound::Included));
    let mut page = Page { items: Vec::new(), next: None, remaining: 0, unreadable: Vec::new(), scanned: 0 };
    let mut turn = YieldEvery::new(OBJECTS_PER_TURN);
    while limit.is_none_or(|limit| page.items.len() < limit) {
        let Some(object) = objects.next() else { return page };
        if !object.is_readable() && filter.matches_key(&object.key) {
            page.unreadable.push(object.clone());
        } else if filter.matches(object) {
            page.items.push(object.clone());
        }
        page.scanned += 1;
        turn.worked(1).await;
    }
    // The following objects are not matched, so the last chunk may be empty. With a selector their number is not reported, so it
    // is not counted.
    let Some(_) = objects.next() else { return page };
    page.remaining = match start
        .remaining_hint
        .and_then(|remaining_hint| remaining_hint.checked_sub(page.scanned))
        .filter(|remaining_hint| *remaining_hint > 0)
    {
        _ if filter.is_selective() => 1,
        Some(remaining_hint) => remaining_hint,
        None => 1 + objects.count(),
    };
    // Only one object has a given name, so nothing follows it.
    let is_last_match = |key: &str| filter.name.is_some() && (namespace.is_some() || !key.contains('/'));
    if let Some(last) = page.items.last().filter(|last| !is_last_match(last.key.as_str())) {
        let prefix_len = namespace.map_or(0, |namespace| namespace.len() + 1);
        let key = last.key.as_str().get(prefix_len..).unwrap_or_default();
        page.next = Some(Continue {
            revision: Some(snapshot.revision.0),
            // The smallest key after that one.
            start_key: format!("{key}\0"),
            started_at: Some(start.started_at),
            expired_revision: None,
            remaining_hint: Some(page.remaining).filter(|_| !filter.is_selective()),
        });
    }
    page
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_types::object::{Draft, Key, Pairs, Revision};

    use super::*;

    fn token(start_key: &str) -> Continue {
        Continue {
            revision: Some(7),
            start_key: start_key.to_owned(),
            started_at: None,
            expired_revision: None,
            remaining_hint: None,
        }
    }

    #[test]
    fn continue_token_round_trips() {
        let token = Continue { started_at: Some(5), remaining_hint: Some(9), ..token("default/a\0") };
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
        let token = token.continue_with_latest();
        assert_eq!(
            (token.revision, token.started_at, token.expired_revision, token.remaining_hint),
            (None, None, Some(7), None)
        );
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
    }

    #[test]
    fn continue_token_expires_with_history() {
        let token = |started_at| Continue { started_at, ..token("a\0") };
        let (now, minute) = (Timestamp(120_000_000), Duration::from_secs(60));
        assert!(token(Some(59_999)).is_expired(now, minute));
        assert!(!token(Some(60_000)).is_expired(now, minute));
        assert!(!token(Some(999_999)).is_expired(now, minute) && !token(None).is_expired(now, minute));
    }

    fn snapshot(names: impl Iterator<Item = String>) -> Snapshot {
        let mut snapshot = Snapshot::empty(Revision::FIRST);
        for name in names {
            let draft = Draft {
                key: Key::from_path(&name),
                bytes: Bytes::from_static(b"{}"),
                revision_offset: 1,
                item_offset: 1,
                labels: Pairs::default(),
                fields: Pairs::default(),
            };
            let object = Arc::new(Object::new(draft, Revision(2)));
            snapshot.objects.insert(object.key.clone(), object);
        }
        snapshot
    }

    /// Reads a namespace in chunks of three with encoded tokens. Returns the remaining items after each chunk.
    async fn remaining_after_each(modify: impl Fn(&mut Continue)) -> Vec<usize> {
        let names = (0..4).map(|index| format!("a/{index}")).chain((0..10).map(|index| format!("b/{index}")));
        let snapshot = snapshot(names.chain(["c/0".to_owned()]));
        let filter = Filter { namespace: Some("b".into()), ..Filter::default() };
        let (mut remaining, mut items) = (Vec::new(), 0);
        let mut start = Start::first(Timestamp(0));
        loop {
            let page = select_page(&snapshot, &filter, start, Some(3)).await;
            items += page.items.len();
            remaining.push(page.remaining);
            let Some(mut next) = page.next else { break };
            modify(&mut next);
            start = Start::from_token(Continue::decode(&next.encode()).unwrap(), Timestamp(0));
        }
        assert_eq!(items, 10);
        remaining
    }

    #[tokio::test]
    async fn remaining_item_count_is_carried_in_token() {
        assert_eq!(remaining_after_each(|_| {}).await, [7, 4, 1, 0]);
        assert_eq!(remaining_after_each(|token| token.remaining_hint = None).await, [7, 4, 1, 0]);
        // An impossible number is counted anew, and no number ends a list early.
        assert_eq!(remaining_after_each(|token| token.remaining_hint = Some(3)).await, [7, 4, 1, 0]);
        assert_eq!(remaining_after_each(|token| token.remaining_hint = Some(99)).await, [7, 96, 96, 0]);
    }

    #[test]
    fn invalid_continue_token_is_refused() {
        let encode_token = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let table = [
            ("!!".to_owned(), "illegal base64 data at input byte 0"),
            ("abcde".to_owned(), "illegal base64 data at input byte 4"),
            (encode_token("{}"), "server does not recognize this encoded version "),
            (encode_token("null"), "server does not recognize this encoded version "),
            (encode_token("{"), ": unexpected end of JSON input"),
            (encode_token("x"), ": invalid character 'x' looking for beginning of value"),
            (
                encode_token("[]"),
                ": json: cannot unmarshal array into Go value of type storage.continueToken",
            ),
            (
                encode_token(r#"{"rv":"1"}"#),
                ": json: cannot unmarshal string into Go struct field continueToken.rv of type int64",
            ),
            (
                encode_token(r#"{"rv":1.5}"#),
                ": json: cannot unmarshal number 1.5 into Go struct field continueToken.rv of type int64",
            ),
            (
                encode_token(r#"{"start":5}"#),
                ": json: cannot unmarshal number into Go struct field continueToken.start of type string",
            ),
            (
                encode_token(r#"{"v":"v9","rv":1,"start":"a\u0000"}"#),
                "does not recognize this encoded version v9",
            ),
            (
                encode_token(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a\u0000"}"#),
                "incorrect encoded start resourceVersion",
            ),
            (encode_token(r#"{"v":"meta.k8s.io/v1","rv":5,"start":""}"#), "encoded start key empty"),
            (encode_token(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../a\u0000"}"#), ": ../a"),
            (encode_token(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a//b\u0000"}"#), ": a//b"),
            ("a".repeat(CONTINUE_TOKEN_BYTES + 1), "too long"),
        ];
        for (token_text, reason) in table {
            let status = Continue::decode(&token_text).unwrap_err();
            let expected = "invalid continue token: continue key is not valid";
            assert_eq!(status.code, 400, "{token_text}");
            assert!(
                status.message.starts_with(expected) && status.message.contains(reason),
                "{token_text}: {status}"
            );
        }
    }
}
