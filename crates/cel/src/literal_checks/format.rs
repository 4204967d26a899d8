//! Checks calls of `string.format([...])` with a constant format string.

use crate::format_string::{Segment, parse_format, unsupported_type};
use crate::syntax::ast::{Expr, Kind};
use crate::types::Type;

/// Checks a constant format string against its arguments. Errors have a position and a message.
pub fn check(call: &Expr, format: &str, items: &[(Expr, bool)], types: &[Type]) -> Option<(usize, String)> {
    let type_of = |expr: &Expr| types.get(expr.id).cloned().unwrap_or(Type::Dyn);
    let mut error_id = call.id;
    let parsed = parse_format(format, items.len(), |segment, index| {
        let (Segment::Clause(verb, _), Some((item, _))) = (segment, items.get(index)) else { return Ok(()) };
        let invalid = if verb == 's' {
            invalid_string_argument(item, &type_of)
        } else {
            invalid_clause_argument(verb, item, &type_of)
        };
        match invalid {
            None => Ok(()),
            Some((id, name)) => {
                error_id = id;
                Err(unsupported_type(verb, &name))
            }
        }
    });
    match parsed {
        Err(message) => Some((error_id, message)),
        Ok(used) if items.len() > used => {
            let count = items.len();
            Some((
                call.id,
                format!("too many arguments supplied to string.format (expected {used}, got {count})"),
            ))
        }
        Ok(_) => None,
    }
}

fn invalid_clause_argument(
    verb: char,
    item: &Expr,
    type_of: &impl Fn(&Expr) -> Type,
) -> Option<(usize, String)> {
    let actual = type_of(item);
    let fits = matches!(
        (verb, &actual),
        (_, Type::Dyn)
            | ('d' | 'o' | 'b' | 'x' | 'X', Type::Int | Type::Uint)
            | ('b', Type::Bool)
            | ('x' | 'X', Type::String | Type::Bytes)
            | ('f' | 'e', Type::Double | Type::String)
    );
    (!fits).then(|| (item.id, actual.name()))
}

fn invalid_string_argument(item: &Expr, type_of: &impl Fn(&Expr) -> Type) -> Option<(usize, String)> {
    let actual = type_of(item);
    if matches!(actual, Type::Opaque(..) | Type::Object(_)) {
        return Some((item.id, actual.name()));
    }
    match &item.kind {
        Kind::List { items } => items.iter().find_map(|(item, _)| invalid_string_argument(item, type_of)),
        Kind::Map { entries } => entries
            .iter()
            .flat_map(|entry| [&entry.key, &entry.value])
            .find_map(|part| invalid_string_argument(part, type_of)),
        _ => None,
    }
}
