//! Keys that stand twice in a YAML document, and where: asked only once it is known that there are some.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::json;
use super::yaml::key_text;
use crate::api::limits::FIELD_ERRORS;

/// The repeated keys of a value, each with the line of what it says the second time, in the order in which they are met.
#[derive(Default)]
pub(super) struct Twice(pub Vec<(u64, String)>);

impl Twice {
    fn join(&mut self, inner: Twice) {
        let room = FIELD_ERRORS.saturating_sub(self.0.len());
        self.0.extend(inner.0.into_iter().take(room));
    }
}

impl<'de> Deserialize<'de> for Twice {
    fn deserialize<D: Deserializer<'de>>(document: D) -> Result<Twice, D::Error> {
        document.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = Twice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_i128<E>(self, _: i128) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_u128<E>(self, _: u128) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_unit<E>(self) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_none<E>(self) -> Result<Twice, E> {
        Ok(Twice::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, document: D) -> Result<Twice, D::Error> {
        document.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Twice, A::Error> {
        let mut all = Twice::default();
        while let Some(inner) = items.next_element::<Twice>()? {
            all.join(inner);
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Twice, A::Error> {
        let (mut all, mut known) = (Twice::default(), BTreeSet::new());
        while let Some(key) = entries.next_key_seed(json::Any(&mut json::Silent))? {
            let inner: Spanned<Twice> = entries.next_value()?;
            // What is inside was read before it was found to be there already.
            all.join(inner.value);
            let Some(key) = key_text(key) else { continue };
            if !known.insert(key.clone()) {
                all.join(Twice(vec![(inner.referenced.line(), key)]));
            }
        }
        Ok(all)
    }
}
