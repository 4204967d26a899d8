//! Writes a list in YAML as a stream of its items: neither the list nor its text is ever in memory as a whole.
//!
//! YAML sorts keys, so some fields of a list come before its items and some after them. In JSON the items come last, so all the
//! other fields are known when the first item comes. A document without items, such as one object, is written the same way.

use std::collections::VecDeque;

use bytes::Bytes;

use super::yaml_write::{Document, sorted};
use crate::json;
use crate::value::Value;

/// A list that is written piece by piece.
pub struct YamlList {
    document: Document,
    /// Items in JSON that are not written yet.
    pending: VecDeque<Bytes>,
    stage: Stage,
}

/// The progress of writing.
enum Stage {
    /// Nothing is written. The JSON of the list without its items, and the key of the items.
    Envelope(Bytes, &'static str),
    /// Among the items. The fields after them.
    Items(Vec<(String, Value)>),
    /// Behind the last item.
    Fields,
    /// Everything is written.
    Done,
}

impl YamlList {
    /// `envelope` is the JSON of the list without items, and `key` the field that holds them.
    pub fn new(envelope: Bytes, key: &'static str) -> YamlList {
        let stage = Stage::Envelope(envelope, key);
        YamlList { document: Document::new(), pending: VecDeque::new(), stage }
    }

    /// Adds the JSON of the next item.
    pub fn push(&mut self, item: Bytes) {
        self.pending.push_back(item);
    }

    /// Writes about `limit` bytes, or less if more items are needed. `is_complete`: all items were pushed. The result is empty at
    /// the end.
    pub fn write(&mut self, limit: usize, is_complete: bool) -> Result<Vec<u8>, serde_json::Error> {
        while self.document.len() < limit {
            if self.document.step(limit) {
                continue;
            }
            if let Some(item) = self.pending.pop_front() {
                self.begin_items()?;
                self.document.item(json::read(&item)?);
            } else if !is_complete || matches!(self.stage, Stage::Done) {
                break;
            } else {
                self.end_items()?;
            }
        }
        Ok(self.document.take())
    }

    /// Whether all items that were pushed so far are written.
    pub fn needs_items(&self) -> bool {
        self.pending.is_empty() && self.document.is_idle()
    }

    /// Whether the whole list is written.
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Writes what comes before the first item.
    fn begin_items(&mut self) -> Result<(), serde_json::Error> {
        let Stage::Envelope(envelope, key) = &self.stage else { return Ok(()) };
        let (envelope, key) = (json::read(envelope)?, *key);
        let mut before = match envelope {
            Value::Object(fields) => sorted(fields),
            _ => Vec::new(),
        };
        let position = before.iter().position(|(name, _)| name == key).unwrap_or(before.len());
        let after = before.split_off(position).into_iter().skip(1).collect();
        self.stage = Stage::Items(after);
        self.document.fields(before);
        while self.document.step(usize::MAX) {}
        self.document.list(key);
        Ok(())
    }

    /// Begins what comes after the last item, or ends the list.
    fn end_items(&mut self) -> Result<(), serde_json::Error> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Envelope(envelope, _) => {
                self.document.value(json::read(&envelope)?);
                Stage::Fields
            }
            Stage::Items(after) => {
                self.document.fields(after);
                Stage::Fields
            }
            Stage::Fields | Stage::Done => {
                self.document.end();
                Stage::Done
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::yaml::to_yaml;
    use crate::json::tests::any_value;

    /// The text of a list in JSON: what comes before its items, the items, and what comes after them.
    #[derive(Debug)]
    struct JsonList {
        head: String,
        items: Vec<Bytes>,
        tail: &'static str,
        key: &'static str,
    }

    impl JsonList {
        fn joined(&self) -> Vec<u8> {
            let items: Vec<&[u8]> = self.items.iter().map(|item| &**item).collect();
            [self.head.as_bytes(), &items.join(&b','), self.tail.as_bytes()].concat()
        }
    }

    /// Writes a list, with `batch` items pushed at a time, in pieces of `limit` bytes.
    fn streamed(list_json: &JsonList, batch: usize, limit: usize) -> Vec<u8> {
        let envelope = [list_json.head.as_bytes(), list_json.tail.as_bytes()].concat();
        let mut list = YamlList::new(envelope.into(), list_json.key);
        let (mut items, mut text) = (list_json.items.iter().cloned().peekable(), Vec::new());
        while !list.is_done() {
            if list.needs_items() {
                items.by_ref().take(batch).for_each(|item| list.push(item));
            }
            text.extend(list.write(limit, items.peek().is_none()).unwrap());
        }
        assert!(list.write(limit, true).unwrap().is_empty());
        text
    }

    fn any_list() -> impl Strategy<Value = JsonList> {
        // Texts that are folded or written as literal blocks.
        let long = "[a-c \n:\"é]{0,200}|[a-c ]{0,300}".prop_map(Value::String);
        let nested = (long, 0..60usize)
            .prop_map(|(text, depth)| (0..depth).fold(text, |inner, _| Value::Array(vec![inner].into())));
        let items = proptest::collection::vec(prop_oneof![any_value(), nested], 0..6);
        (items, any_value(), any::<bool>(), any::<bool>()).prop_map(|(items, extra, is_table, is_null)| {
            let items: Vec<Bytes> = items.iter().map(|item| json::to_json(item).into()).collect();
            let extra = String::from_utf8(json::to_json(&extra)).unwrap();
            let key = if is_table { "rows" } else { "items" };
            let columns = if is_table { r#""columnDefinitions":[{"name":"Age"}],"# } else { "" };
            let (open, tail) = match items.is_empty() {
                true if is_null => ("null", "}\n"),
                true => ("[]", "}\n"),
                false => ("[", "]}\n"),
            };
            let head = format!(
                r#"{{"kind":"L","apiVersion":"v1","metadata":{{"resourceVersion":"1","x":{extra}}},{columns}"{key}":{open}"#
            );
            JsonList { head, items, tail, key }
        })
    }

    #[test]
    fn items_are_written_between_the_fields_sorted_around_them() {
        let head = r#"{"kind":"L","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":["#.to_owned();
        let items =
            [r#"{"b":"x y","a":[1]}"#, "[]", r#"["p"]"#].map(|item| Bytes::from_static(item.as_bytes()));
        let list = JsonList { head, items: items.to_vec(), tail: "]}", key: "items" };
        let expected = "apiVersion: v1\nitems:\n- a:\n  - 1\n  b: x y\n- []\n- - p\nkind: L\nmetadata:\n  resourceVersion: \"1\"\n";
        assert_eq!(String::from_utf8(streamed(&list, 1, 1)).unwrap(), expected);
        assert_eq!(to_yaml(json::read(&list.joined()).unwrap()), expected.as_bytes());
    }

    #[test]
    fn invalid_item_is_an_error() {
        let mut list = YamlList::new(Bytes::from_static(br#"{"items":[]}"#), "items");
        list.push(Bytes::from_static(b"{"));
        assert!(list.write(1_000, false).is_err());
        assert!(YamlList::new(Bytes::from_static(b"{"), "items").write(1, true).is_err());
    }

    proptest! {
        #[test]
        fn list_written_in_pieces_equals_the_whole(
            list in any_list(),
            batch in 1..4usize,
            limit in 1..200usize,
        ) {
            let whole = to_yaml(json::read(&list.joined()).unwrap());
            let text = streamed(&list, batch, limit);
            prop_assert_eq!(String::from_utf8(text).unwrap(), String::from_utf8(whole).unwrap());
        }
    }
}
