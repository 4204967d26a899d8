//! Checks the values of literals after type checking: timestamps, durations, regular expressions, and lists of mixed types.

use pilothouse_apimachinery::pattern::Patterns;

use super::ast::{Expr, Kind, Literal};
use super::checker::Checked;
use super::library;
use super::source::Issues;
use super::timestamps::{self, Instant};
use super::types::Type;
use super::unify::are_equivalent;

/// Checks the literals of an expression.
pub fn check(root: &Expr, places: &[usize], checked: &Checked, patterns: &mut Patterns, issues: &mut Issues) {
    Walk { places, checked, patterns, issues }.walk(root, false);
}

struct Walk<'w> {
    places: &'w [usize],
    checked: &'w Checked,
    patterns: &'w mut Patterns,
    issues: &'w mut Issues,
}

impl Walk<'_> {
    fn issue(&mut self, id: usize, message: String) {
        let place = self.places.get(id).copied();
        self.issues.add(place, message);
    }

    fn kind(&self, expr: &Expr, optional: bool) -> Type {
        let kind = self.checked.types.get(expr.id).cloned().unwrap_or(Type::Dyn);
        match kind.unwrapped() {
            Some(inner) if optional => inner.clone(),
            _ => kind,
        }
    }

    /// `mixed`: lists may have mixed types here, because they are the arguments of `format`.
    fn walk(&mut self, expr: &Expr, mixed: bool) {
        let mut mixed = mixed;
        match &expr.kind {
            Kind::Call { function, target, args } => {
                mixed |= function == "format";
                self.call(expr, function, target.as_deref(), args);
            }
            Kind::List { items } if !mixed => self.list(items),
            Kind::Map { entries } if !mixed => {
                let (mut keys, mut values) = (None, None);
                for entry in entries {
                    let (key, value) =
                        (self.kind(&entry.key, false), self.kind(&entry.value, entry.optional));
                    self.same(entry.key.id, &mut keys, key);
                    self.same(entry.value.id, &mut values, value);
                }
            }
            _ => {}
        }
        for part in expr.parts() {
            self.walk(part, mixed);
        }
    }

    fn list(&mut self, items: &[(Expr, bool)]) {
        let mut together = None;
        for (item, optional) in items {
            let kind = self.kind(item, *optional);
            if !self.same(item.id, &mut together, kind) {
                break;
            }
        }
    }

    /// Whether a type equals the previous one. Reports it otherwise.
    fn same(&mut self, id: usize, before: &mut Option<Type>, kind: Type) -> bool {
        let Some(wanted) = before.as_ref() else {
            *before = Some(kind);
            return true;
        };
        let fits = are_equivalent(wanted, &kind);
        if !fits {
            let message = format!("expected type '{wanted}' but found '{kind}'");
            self.issue(id, message);
        }
        fits
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) {
        let Some(first) = args.first() else { return };
        if let (Kind::Literal(literal), "duration" | "timestamp" | "matches") = (&first.kind, function) {
            let good = match (function, literal) {
                ("duration", Literal::String(text)) => timestamps::duration(text).is_ok(),
                ("timestamp", Literal::String(text)) => Instant::parse(text).is_ok(),
                ("timestamp", Literal::Int(seconds)) => Instant::at(*seconds, 0).is_some(),
                ("matches", Literal::String(text)) => self.patterns.compiled(text).is_some(),
                _ => true,
            };
            if !good {
                self.issue(first.id, format!("invalid {function} argument"));
            }
        }
        if function == "format"
            && let (Some(format), Kind::List { items }) = (target.and_then(Expr::literal_text), &first.kind)
            && let Some((id, why)) = library::check_format(expr, format, items, &self.checked.types)
        {
            self.issue(id, why);
        }
    }
}
