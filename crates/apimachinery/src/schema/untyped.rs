//! Decodes a value without a type: everything is kept, including `null`, and duplicate keys are recorded.

use super::notes::{Mark, Notes};
use crate::json::ParseObserver;

impl ParseObserver for Notes<'_> {
    type Mark = Mark;

    fn enter_field(&mut self, name: &str, is_duplicate: impl FnOnce() -> bool) -> Mark {
        if is_duplicate() {
            self.add_finding("duplicate field", name);
        }
        self.mark()
    }

    fn leave_field(&mut self, mark: Mark, name: &str) {
        self.prefix(mark, name);
    }

    fn enter_item(&mut self, _: usize) -> Mark {
        self.mark()
    }

    fn leave_item(&mut self, mark: Mark, index: usize) {
        self.leave_list_item(mark, index);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::codec::cbor;
    use crate::json;
    use crate::schema::registry::Addition;
    use crate::schema::{GroupVersionKind, Registry, decode, encode};

    #[test]
    fn untyped_values_are_kept_and_duplicates_reported() {
        let registry = Registry::builtin().unwrap();
        let ty = registry.free_object();
        let body =
            br#"{"spec":{"a":null,"b":[{"c":1,"c":2.5}],"e":{}},"kind":"K","apiVersion":"g/v1","data":null,
            "metadata":{"name":"n","odd":1,"labels":{}},"spec":{"z":[],"z":""}}"#;
        let decoded = decode::decode(&registry, ty, body).unwrap();
        let expected = [
            "duplicate field \"spec.b[0].c\"",
            "unknown field \"metadata.odd\"",
            "duplicate field \"spec\"",
            "duplicate field \"spec.z\"",
        ];
        assert_eq!(decoded.strict, expected);
        let text = encode::encode(&registry, ty, &decoded.value);
        assert!(text.starts_with(br#"{"kind":"K","apiVersion":"g/v1","metadata":{"name":"n""#));
        let again = decode::decode(&registry, ty, &text).unwrap();
        assert_eq!(again.value, decoded.value);
        let rest = json::read(br#"{"z":""}"#).unwrap();
        assert_eq!(again.value.fields().unwrap().get("spec"), Some(&rest));
        assert!(again.value.fields().unwrap().contains_key("data"), "a null is kept");
        let bytes = cbor::encode_object(&registry, ty, &decoded.value, encode::EmptyLists::AsStored);
        let kind = GroupVersionKind::new("g", "v1", "K");
        let base = Arc::new(registry);
        let mut added = Addition::new(&base);
        added.kind(&kind, base.free());
        let again = cbor::decode_object(&bytes, &kind, &added.build()).unwrap();
        assert_eq!(again.value, decoded.value, "CBOR keeps it too");
    }
}
