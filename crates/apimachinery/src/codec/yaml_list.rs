//! Writes a list in YAML as its items come: neither the list nor its text is ever held as a whole.
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
    waiting: VecDeque<Bytes>,
    stage: Stage,
}

/// Where in the list the text is.
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
        YamlList { document: Document::new(), waiting: VecDeque::new(), stage }
    }

    /// Adds the JSON of the next item.
    pub fn push(&mut self, item: Bytes) {
        self.waiting.push_back(item);
    }

    /// Writes about `most` bytes, or less if more items are needed. `is_complete`: all items were given. The result is empty at the
    /// end.
    pub fn write(&mut self, most: usize, is_complete: bool) -> Result<Vec<u8>, serde_json::Error> {
        while self.document.len() < most {
            if self.document.step(most) {
                continue;
            }
            if let Some(item) = self.waiting.pop_front() {
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

    /// Whether everything that was given so far is written.
    pub fn needs_items(&self) -> bool {
        self.waiting.is_empty() && self.document.is_idle()
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
        let at = before.iter().position(|(name, _)| name == key).unwrap_or(before.len());
        let after = before.split_off(at).into_iter().skip(1).collect();
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
    struct Given {
        head: String,
        items: Vec<Bytes>,
        tail: &'static str,
        key: &'static str,
    }

    impl Given {
        fn whole(&self) -> Vec<u8> {
            let items: Vec<&[u8]> = self.items.iter().map(|item| &**item).collect();
            [self.head.as_bytes(), &items.join(&b','), self.tail.as_bytes()].concat()
        }
    }

    /// Writes a list, given so many items at a time, in pieces of so many bytes.
    fn streamed(given: &Given, at_a_time: usize, most: usize) -> Vec<u8> {
        let envelope = [given.head.as_bytes(), given.tail.as_bytes()].concat();
        let mut list = YamlList::new(envelope.into(), given.key);
        let (mut items, mut text) = (given.items.iter().cloned().peekable(), Vec::new());
        while !list.is_done() {
            if list.needs_items() {
                items.by_ref().take(at_a_time).for_each(|item| list.push(item));
            }
            text.extend(list.write(most, items.peek().is_none()).unwrap());
        }
        assert!(list.write(most, true).unwrap().is_empty());
        text
    }

    fn any_list() -> impl Strategy<Value = Given> {
        // Texts that are folded, or stand on lines of their own.
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
            Given { head, items, tail, key }
        })
    }

    #[test]
    fn items_stand_between_the_fields_that_sort_before_and_after_them() {
        let head = r#"{"kind":"L","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":["#.to_owned();
        let items =
            [r#"{"b":"x y","a":[1]}"#, "[]", r#"["p"]"#].map(|item| Bytes::from_static(item.as_bytes()));
        let list = Given { head, items: items.to_vec(), tail: "]}", key: "items" };
        let expected = "apiVersion: v1\nitems:\n- a:\n  - 1\n  b: x y\n- []\n- - p\nkind: L\nmetadata:\n  resourceVersion: \"1\"\n";
        assert_eq!(String::from_utf8(streamed(&list, 1, 1)).unwrap(), expected);
        assert_eq!(to_yaml(json::read(&list.whole()).unwrap()), expected.as_bytes());
    }

    #[test]
    fn an_item_that_is_no_json_ends_the_list() {
        let mut list = YamlList::new(Bytes::from_static(br#"{"items":[]}"#), "items");
        list.push(Bytes::from_static(b"{"));
        assert!(list.write(1_000, false).is_err());
        assert!(YamlList::new(Bytes::from_static(b"{"), "items").write(1, true).is_err());
    }

    proptest! {
        #[test]
        fn a_list_in_pieces_is_the_list_as_a_whole(
            list in any_list(),
            at_a_time in 1..4usize,
            most in 1..200usize,
        ) {
            let whole = to_yaml(json::read(&list.whole()).unwrap());
            let text = streamed(&list, at_a_time, most);
            prop_assert_eq!(String::from_utf8(text).unwrap(), String::from_utf8(whole).unwrap());
        }
    }
}
