//! A row that is kept with the version of its object. Only its ages change while time goes on, so they are written when it is sent.
//!
//! As bytes, a row is a sequence of pieces: the length of a text in four bytes, the text, and, unless it is the last, the eight bytes
//! of the instant from which the age after it counts.

use bytes::{BufMut as _, Bytes, BytesMut};
use memchr::memmem;
use pilothouse_apimachinery::json::write_string;
use pilothouse_apimachinery::value::Value;

use super::table::{row_end, row_start};
use super::{completion, resource_cells};
#[cfg(doc)]
use crate::age::AGE_MARK;
use crate::age::Ages;
use crate::catalog::resource::Resource;

/// [`AGE_MARK`] in JSON.
const JSON_MARK: &[u8] = br"\u0000";

/// The cells and conditions of a row.
#[derive(Clone, Debug)]
pub struct KeptRow(Bytes);

impl KeptRow {
    /// The row of an object of this resource. `json`: the text of the object. `None` if that has a mark: then one in a cell might not be
    /// that of an age.
    pub fn new(resource: &Resource, object: &Value, json: &[u8]) -> Option<KeptRow> {
        if memmem::find(json, JSON_MARK).is_some() {
            return None;
        }
        let mut text = Vec::new();
        row_start(&mut text, &resource_cells(resource, object, Ages::Open), completion(resource, object));
        KeptRow::from_marked(&text)
    }

    /// `None` if the marks enclose something else than instants.
    fn from_marked(text: &[u8]) -> Option<KeptRow> {
        let (mut pieces, mut rest) = (BytesMut::with_capacity(text.len() + 4), text);
        while let Some(start) = memmem::find(rest, JSON_MARK) {
            let (before, after) = (&rest[..start], &rest[start + JSON_MARK.len()..]);
            let end = memmem::find(after, JSON_MARK)?;
            let instant: i64 = std::str::from_utf8(&after[..end]).ok()?.parse().ok()?;
            put_text(&mut pieces, before)?;
            pieces.put_i64(instant);
            rest = &after[end + JSON_MARK.len()..];
        }
        put_text(&mut pieces, rest)?;
        Some(KeptRow(pieces.freeze()))
    }

    /// The row from what [`KeptRow::bytes`] returned.
    pub fn from_bytes(bytes: Bytes) -> KeptRow {
        KeptRow(bytes)
    }

    /// What is kept.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Writes the row as it is now, without a comma before it. `whole`: what it says about the object itself.
    pub fn write(&self, out: &mut Vec<u8>, whole: Option<&[u8]>, now_seconds: i64) {
        let ages = Ages::At(now_seconds);
        out.reserve(self.0.len() + whole.map_or(0, <[u8]>::len) + 16);
        let mut rest = &self.0[..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (text, after) = after.split_at(after.len().min(u32::from_be_bytes(*length) as usize));
            out.extend_from_slice(text);
            rest = after;
            if let Some((instant, after)) = rest.split_first_chunk::<8>() {
                write_inside_string(out, &ages.since(Some(i64::from_be_bytes(*instant))));
                rest = after;
            }
        }
        row_end(out, whole);
    }
}

fn put_text(pieces: &mut BytesMut, text: &[u8]) -> Option<()> {
    pieces.put_u32(u32::try_from(text.len()).ok()?);
    pieces.put_slice(text);
    Some(())
}

/// Appends a text without the quotes around it.
fn write_inside_string(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    write_string(out, text);
    out.pop();
    out.remove(start);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;
    use crate::print::object_row;
    use crate::print::testing::value;

    fn with_resource(resource: &str, work: impl FnOnce(&Resource)) {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        work(catalog.find("", "v1", resource).expect("a resource"));
    }

    /// A pod with an age, one in a text, and a restart in the future.
    fn pod(restarted: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"a\\b\"<c>","creationTimestamp":"2024-05-01T12:00:00Z"}},"status":{{"phase":"Failed","containerStatuses":[{{"name":"c","restartCount":3,"lastState":{{"terminated":{{"finishedAt":"{restarted}"}}}}}}]}}}}"#
        )
    }

    #[test]
    fn kept_row_is_the_same_as_a_new_one_at_any_time() {
        with_resource("pods", |resource| {
            for restarted in ["2024-05-01T12:05:00Z", "2030-01-01T00:00:00Z"] {
                let json = pod(restarted);
                let object = value(&json);
                let kept = KeptRow::new(resource, &object, json.as_bytes()).unwrap();
                let kept = KeptRow::from_bytes(kept.bytes().clone());
                for now in [1_714_565_400, 1_714_565_401, 1_800_000_000, i64::MAX, i64::MIN] {
                    for whole in [None, Some(&b"{}"[..])] {
                        let (mut expected, mut found) = (Vec::new(), Vec::new());
                        object_row(&mut expected, resource, &object, whole, now);
                        kept.write(&mut found, whole, now);
                        assert_eq!(String::from_utf8(found), String::from_utf8(expected));
                    }
                }
                let mut row = Vec::new();
                kept.write(&mut row, None, 1_714_565_400);
                assert!(String::from_utf8(row).unwrap().contains("3 ("), "it has an age inside of a text");
            }
        });
    }

    #[test]
    fn mark_of_ages_is_found_in_json() {
        let mut text = Vec::new();
        write_string(&mut text, &crate::age::AGE_MARK.to_string());
        assert_eq!(text, [b"\"", JSON_MARK, b"\""].concat());
    }

    #[test]
    fn object_that_has_marks_is_not_kept() {
        with_resource("configmaps", |resource| {
            for name in [r"a\u00007\u0000", r"a\\u00007\\u0000", r"\u0000"] {
                let json = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
                assert!(KeptRow::new(resource, &value(&json), json.as_bytes()).is_none(), "{name}");
            }
        });
        for text in [r#""\u0000"#, r#""\u0000x\u0000"#, r#""\u0000\u0000"#] {
            assert!(KeptRow::from_marked(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn damaged_bytes_are_written_without_a_panic() {
        for bytes in [&b""[..], b"\0\0", b"\0\0\0\x09abc", b"\0\0\0\x01abcdefghij\0\0\0\x01"] {
            let mut out = Vec::new();
            KeptRow::from_bytes(Bytes::copy_from_slice(bytes)).write(&mut out, None, 0);
            assert!(out.ends_with(b",\"object\":null}"));
        }
    }
}
