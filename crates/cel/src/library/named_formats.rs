//! Functions of named string formats (`format.named`).

use super::context::CallContext;
use crate::value::{Fault, NamedFormat, Outcome, Val};

/// `format.uuid()`, `format.named('uuid')`, `format.uuid().validate(text)`.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("format.named", [Val::String(name)]) => {
            Ok(NamedFormat::by_function(name)
                .map_or(Val::Optional(None), |format| Val::Format(format).some()))
        }
        ("validate", [Val::Format(format), Val::String(text)]) => {
            let errors: Vec<Val<'v>> = format.validate(text).into_iter().map(Val::from).collect();
            Ok(if errors.is_empty() { Val::Optional(None) } else { Val::from(errors).some() })
        }
        (name, []) => {
            let format = name.strip_prefix("format.").and_then(NamedFormat::by_function);
            format.map(Val::Format).ok_or_else(Fault::no_overload)
        }
        _ => Err(Fault::no_overload()),
    }
}
