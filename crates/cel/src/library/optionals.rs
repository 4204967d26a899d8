//! Functions of optional values.

use super::context::CallContext;
use crate::value::{Fault, Outcome, Val};

/// `optional.of(x)`, `x.value()` and their like.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    Ok(match (name, args) {
        ("optional.none", []) => Val::Optional(None),
        ("optional.of", [value]) => value.clone().some(),
        ("optional.ofNonZeroValue", [value]) if value.is_zero() => Val::Optional(None),
        ("optional.ofNonZeroValue", [value]) => value.clone().some(),
        ("hasValue", [Val::Optional(inner)]) => Val::Bool(inner.is_some()),
        ("value", [Val::Optional(Some(inner))]) => (**inner).clone(),
        ("value", [Val::Optional(None)]) => return Err(Fault::error("optional.none() dereference")),
        ("optional.unwrap" | "unwrapOpt", [Val::List(list)]) => {
            let mut values = Vec::new();
            for item in list.iter() {
                match item? {
                    Val::Optional(Some(inner)) => values.push((*inner).clone()),
                    Val::Optional(None) => {}
                    _ => return Err(Fault::no_overload()),
                }
            }
            Val::from(values)
        }
        _ => return Err(Fault::no_overload()),
    })
}
