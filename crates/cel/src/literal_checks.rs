//! Checks the values of literals after type checking: timestamps, durations, regular expressions, and lists of mixed types.

mod format;

use pilothouse_apimachinery::pattern::Patterns;

use crate::checker::CheckedExpression;
use crate::syntax::ast::{Expr, Kind, Literal};
use crate::syntax::source::Issues;
use crate::timestamps::{self, Instant};
use crate::types::Type;
use crate::unify::are_equivalent;

/// Checks the literals of an expression.
pub fn check(
    root: &Expr,
    positions: &[usize],
    checked: &CheckedExpression,
    patterns: &mut Patterns,
    issues: &mut Issues,
) {
    LiteralChecker { positions, checked, patterns, issues }.walk(root, false);
}

struct LiteralChecker<'w> {
    positions: &'w [usize],
    checked: &'w CheckedExpression,
    patterns: &'w mut Patterns,
    issues: &'w mut Issues,
}

impl LiteralChecker<'_> {
    fn report(&mut self, id: usize, message: String) {
        let position = self.positions.get(id).copied();
        self.issues.add(position, message);
    }

    fn type_of(&self, expr: &Expr, optional: bool) -> Type {
        let kind = self.checked.types.get(expr.id).cloned().unwrap_or(Type::Dyn);
        match kind.unwrap_optional() {
            Some(inner) if optional => inner.clone(),
            _ => kind,
        }
    }

    /// `allows_mixed`: lists may have mixed types here, because they are the arguments of `format`.
    fn walk(&mut self, expr: &Expr, allows_mixed: bool) {
        let mut allows_mixed = allows_mixed;
        match &expr.kind {
            Kind::Call { function, target, args } => {
                allows_mixed |= function == "format";
                self.call(expr, function, target.as_deref(), args);
            }
            Kind::List { items } if !allows_mixed => self.list(items),
            Kind::Map { entries } if !allows_mixed => {
                let (mut key_type, mut value_type) = (None, None);
                for entry in entries {
                    let (key, value) =
                        (self.type_of(&entry.key, false), self.type_of(&entry.value, entry.optional));
                    self.expect_same_type(entry.key.id, &mut key_type, key);
                    self.expect_same_type(entry.value.id, &mut value_type, value);
                }
            }
            _ => {}
        }
        for part in expr.parts() {
            self.walk(part, allows_mixed);
        }
    }

    fn list(&mut self, items: &[(Expr, bool)]) {
        let mut item_type = None;
        for (item, optional) in items {
            let kind = self.type_of(item, *optional);
            if !self.expect_same_type(item.id, &mut item_type, kind) {
                break;
            }
        }
    }

    /// Whether a type equals the previous one. Reports it otherwise.
    fn expect_same_type(&mut self, id: usize, previous: &mut Option<Type>, kind: Type) -> bool {
        let Some(expected) = previous.as_ref() else {
            *previous = Some(kind);
            return true;
        };
        let is_same = are_equivalent(expected, &kind);
        if !is_same {
            let message = format!("expected type '{expected}' but found '{kind}'");
            self.report(id, message);
        }
        is_same
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) {
        let Some(first) = args.first() else { return };
        if let (Kind::Literal(literal), "duration" | "timestamp" | "matches") = (&first.kind, function) {
            let is_valid = match (function, literal) {
                ("duration", Literal::String(text)) => timestamps::parse_duration(text).is_ok(),
                ("timestamp", Literal::String(text)) => Instant::parse(text).is_ok(),
                ("timestamp", Literal::Int(seconds)) => Instant::from_unix(*seconds, 0).is_some(),
                ("matches", Literal::String(text)) => self.patterns.compiled(text).is_some(),
                _ => true,
            };
            if !is_valid {
                self.report(first.id, format!("invalid {function} argument"));
            }
        }
        if function == "format"
            && let (Some(format), Kind::List { items }) = (target.and_then(Expr::literal_text), &first.kind)
            && let Some((id, message)) = format::check(expr, format, items, &self.checked.types)
        {
            self.report(id, message);
        }
    }
}
