//! The fields of a JSON object, in order and unparsed: for callers that pass most of it on.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// The unparsed fields of one object.
pub type RawFields<'t> = Vec<(String, &'t RawValue)>;

/// The fields of a JSON object; `None` if the text is not one.
pub fn raw_fields(text: &[u8]) -> Option<RawFields<'_>> {
    struct Ordered;
    impl<'de> Visitor<'de> for Ordered {
        type Value = RawFields<'de>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawFields<'de>, A::Error> {
            let mut all = Vec::new();
            while let Some(field) = map.next_entry()? {
                all.push(field);
            }
            Ok(all)
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let fields = reader.deserialize_map(Ordered).ok()?;
    reader.end().ok()?;
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_fields_keep_order_duplicates_and_text() {
        let fields = raw_fields(br#" {"b": 1.0, "a\u0031": {"x" : [ ]}, "b": null} "#).unwrap();
        let pairs: Vec<(&str, &str)> = fields.iter().map(|(name, raw)| (name.as_str(), raw.get())).collect();
        assert_eq!(pairs, [("b", "1.0"), ("a1", r#"{"x" : [ ]}"#), ("b", "null")]);
        for invalid in ["", "7", "[]", "{", "{} x", r#"{"a":}"#] {
            assert!(raw_fields(invalid.as_bytes()).is_none(), "{invalid}");
        }
    }
}
