//! Reading a value of which no type says anything: all of it is kept, and what stands twice is noted.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::notes::Notes;
use crate::api::codec::json;
use crate::api::value::{Object, Value};

/// Reads any value, `null` included.
pub(super) struct Free<'n, 'r>(pub(super) &'n mut Notes<'r>);

impl<'de> DeserializeSeed<'de> for Free<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, tokens: D) -> Result<Value, D::Error> {
        tokens.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Free<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Value, E> {
        json::Any.visit_i64(number)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Value, E> {
        json::Any.visit_u64(number)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        json::Any.visit_f64(number)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let notes = self.0;
        let mut all = Vec::new();
        loop {
            let mark = notes.mark();
            let item = items.next_element_seed(Free(&mut *notes));
            notes.left_item(mark, all.len());
            match item? {
                Some(item) => all.push(item),
                None => return Ok(Value::Array(all)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let notes = self.0;
        let mut all = Object::new();
        while let Some(key) = entries.next_key::<String>()? {
            if all.contains_key(&key) {
                notes.find("duplicate field", &key);
            }
            let mark = notes.mark();
            let value = entries.next_value_seed(Free(&mut *notes));
            notes.prefix(mark, &key);
            all.insert(key, value?);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::api::codec::{cbor, json};
    use crate::api::schema::registry::Addition;
    use crate::api::schema::{GroupVersionKind, Registry, decode, encode};

    #[test]
    fn all_is_kept_and_what_stands_twice_is_told() {
        let registry = Registry::builtin().unwrap();
        let ty = registry.free_object();
        let body =
            br#"{"spec":{"a":null,"b":[{"c":1,"c":2.5}],"e":{}},"kind":"K","apiVersion":"g/v1","data":null,
            "metadata":{"name":"n","odd":1,"labels":{}},"spec":{"z":[],"z":""}}"#;
        let decoded = decode::decode(&registry, ty, body).unwrap();
        let told = [
            "duplicate field \"spec.b[0].c\"",
            "unknown field \"metadata.odd\"",
            "duplicate field \"spec\"",
            "duplicate field \"spec.z\"",
        ];
        assert_eq!(decoded.strict, told);
        let text = encode::encode(&registry, ty, &decoded.value);
        assert!(text.starts_with(br#"{"kind":"K","apiVersion":"g/v1","metadata":{"name":"n""#));
        let again = decode::decode(&registry, ty, &text).unwrap();
        assert_eq!(again.value, decoded.value);
        let rest = json::read(br#"{"z":""}"#).unwrap();
        assert_eq!(again.value.fields().unwrap().get("spec"), Some(&rest));
        assert!(again.value.fields().unwrap().contains_key("data"), "a null is kept");
        let bytes = cbor::encode_object(&registry, ty, &decoded.value, encode::Form::Kept);
        let kind = GroupVersionKind::new("g", "v1", "K");
        let base = Arc::new(registry);
        let mut added = Addition::to(&base);
        added.kind(&kind, base.free());
        let again = cbor::decode_object(&bytes, &kind, &added.done()).unwrap();
        assert_eq!(again.value, decoded.value, "CBOR keeps it too");
    }
}
