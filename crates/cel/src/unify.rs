//! Type unification: assignability, and the substitution of type variables.

use crate::types::{OPTIONAL, Type};

/// The substitutions of type variables.
#[derive(Debug, Default)]
pub struct Substitutions {
    /// The substituted types, by the number of the variable.
    bindings: Vec<Option<Type>>,
    /// Previous values since the start of an attempt, to roll back.
    undo_log: Vec<(usize, Option<Type>)>,
}

impl Substitutions {
    /// A new type variable.
    pub fn fresh_variable(&mut self) -> Type {
        self.bindings.push(None);
        Type::Var(self.bindings.len() - 1)
    }

    fn get(&self, var: usize) -> Option<&Type> {
        self.bindings.get(var).and_then(Option::as_ref)
    }

    fn bind(&mut self, var: usize, kind: Type) {
        if let Some(slot) = self.bindings.get_mut(var) {
            self.undo_log.push((var, slot.replace(kind)));
        }
    }

    /// Keeps the substitutions of a successful attempt, and rolls back those of a failed one.
    fn commit_if(&mut self, success: bool) -> bool {
        for (var, previous) in self.undo_log.drain(..).rev().filter(|_| !success) {
            if let Some(slot) = self.bindings.get_mut(var) {
                *slot = previous;
            }
        }
        success
    }

    /// Returns whether one type is assignable to another. Substitutions are kept only on success.
    pub fn try_assign(&mut self, left: &Type, right: &Type) -> bool {
        let is_assignable = self.assign(left, right);
        self.commit_if(is_assignable)
    }

    /// The same for two lists of types.
    pub fn try_assign_all(&mut self, left_types: &[Type], right_types: &[Type]) -> bool {
        if left_types.len() != right_types.len() {
            return false;
        }
        let are_assignable = left_types.iter().zip(right_types).all(|(left, right)| self.assign(left, right));
        self.commit_if(are_assignable)
    }

    fn assign(&mut self, left: &Type, right: &Type) -> bool {
        if let Type::Var(var) = right {
            let (valid, known) = self.bind_variable(left, *var);
            if valid || known {
                return valid;
            }
        }
        if let Type::Var(var) = left {
            return self.bind_variable(right, *var).0;
        }
        if left.is_dyn_or_error() || right.is_dyn_or_error() {
            return true;
        }
        match (left, right) {
            (Type::Null, other) | (other, Type::Null) => may_be_null(other),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(left), Type::List(right)) => self.assign(left, right),
            (Type::Map(key, value), Type::Map(other_key, other_value)) => {
                self.assign(key, other_key) && self.assign(value, other_value)
            }
            (Type::Opaque(name, inner), Type::Opaque(other_name, other_inner)) => {
                name == other_name
                    && inner.len() == other_inner.len()
                    && inner.iter().zip(other_inner.iter()).all(|(left, right)| self.assign(left, right))
            }
            (left, right) => left == right,
        }
    }

    /// Whether a type can be substituted for a type variable, and whether the variable had a substitution.
    fn bind_variable(&mut self, kind: &Type, var: usize) -> (bool, bool) {
        if *kind == Type::Var(var) {
            return (true, true);
        }
        if let Some(known) = self.get(var).cloned() {
            if *kind == known {
                return (true, true);
            }
            if self.assign(kind, &known) {
                let general = most_general(kind, &known).clone();
                if self.does_not_occur(var, &general) {
                    self.bind(var, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.does_not_occur(var, kind) {
            self.bind(var, kind.clone());
            return (true, false);
        }
        (false, false)
    }

    /// The occurs check.
    fn does_not_occur(&self, var: usize, within: &Type) -> bool {
        match within {
            Type::Var(other) if *other == var => false,
            Type::Var(other) => self.get(*other).is_none_or(|known| self.does_not_occur(var, known)),
            other => other.parameters().into_iter().all(|inner| self.does_not_occur(var, inner)),
        }
    }

    /// Applies the substitutions to a type. With `close`, remaining type variables become `dyn`.
    pub fn apply(&self, kind: &Type, close: bool) -> Type {
        match kind {
            Type::Var(var) => match self.get(*var) {
                Some(known) => self.apply(known, close),
                None if close => Type::Dyn,
                None => kind.clone(),
            },
            other => map_parameters(other, &mut |inner| self.apply(inner, close)),
        }
    }

    /// The common supertype of two types.
    pub fn join(&mut self, left: &Type, right: &Type) -> Option<Type> {
        self.try_assign(left, right).then(|| most_general(left, right).clone())
    }
}

/// Maps the parameters of a type.
pub fn map_parameters(kind: &Type, map: &mut impl FnMut(&Type) -> Type) -> Type {
    match kind {
        Type::List(items) => Type::list(map(items)),
        Type::Map(keys, values) => {
            let keys = map(keys);
            Type::map(keys, map(values))
        }
        Type::Opaque(name, inner) => Type::Opaque(name, inner.iter().map(map).collect()),
        Type::Type(Some(inner)) => Type::type_of(map(inner)),
        other => other.clone(),
    }
}

/// Whether `null` is assignable to a type.
fn may_be_null(kind: &Type) -> bool {
    matches!(
        kind,
        Type::Null
            | Type::Opaque(..)
            | Type::Object(_)
            | Type::Constructed(_)
            | Type::Duration
            | Type::Timestamp
    )
}

/// The more general of two compatible types.
fn most_general<'t>(left: &'t Type, right: &'t Type) -> &'t Type {
    if is_equal_or_wider(left, right) { left } else { right }
}

fn is_equal_or_wider(left: &Type, right: &Type) -> bool {
    match (left, right) {
        (Type::Dyn | Type::Var(_), _) => true,
        (_, Type::Dyn | Type::Var(_)) => false,
        (Type::List(left), Type::List(right)) => is_equal_or_wider(left, right),
        (Type::Map(key, value), Type::Map(other_key, other_value)) => {
            is_equal_or_wider(key, other_key) && is_equal_or_wider(value, other_value)
        }
        (Type::Opaque(name, inner), Type::Opaque(other_name, other_inner)) => {
            name == other_name
                && inner.len() == other_inner.len()
                && inner.iter().zip(other_inner.iter()).all(|(left, right)| is_equal_or_wider(left, right))
        }
        (Type::Type(_), Type::Type(_)) => true,
        (left, right) => left == right,
    }
}

/// Whether two types are equivalent, as required of list items.
pub fn are_equivalent(left: &Type, right: &Type) -> bool {
    let is_same_constructor = match (left, right) {
        (Type::Opaque(OPTIONAL, _), Type::Opaque(OPTIONAL, _)) => true,
        (Type::Opaque(name, _), Type::Opaque(right, _)) => name == right,
        (Type::Object(_) | Type::Constructed(_), _) => left == right,
        _ => std::mem::discriminant(left) == std::mem::discriminant(right),
    };
    let (left_types, right_types) = (left.parameters(), right.parameters());
    is_same_constructor
        && left_types.len() == right_types.len()
        && left_types.into_iter().zip(right_types).all(|(left, right)| are_equivalent(left, right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unification_substitutes_type_variables() {
        let mut substitutions = Substitutions::default();
        let (a, b) = (substitutions.fresh_variable(), substitutions.fresh_variable());
        assert!(substitutions.try_assign(&Type::list(a.clone()), &Type::list(Type::Int)));
        assert_eq!(
            substitutions.apply(&Type::map(a.clone(), b.clone()), true),
            Type::map(Type::Int, Type::Dyn)
        );
        assert!(!substitutions.try_assign(&a, &Type::String));
        assert!(!substitutions.try_assign(&b, &Type::list(b.clone())), "no type contains itself");
        assert_eq!(substitutions.apply(&b, false), b);
        assert!(substitutions.try_assign_all(&[b.clone(), b.clone()], &[Type::Dyn, Type::Int]));
        assert_eq!(substitutions.apply(&b, true), Type::Dyn);
        assert!(
            substitutions.try_assign(&Type::Null, &Type::Timestamp)
                && !substitutions.try_assign(&Type::Null, &Type::Int)
        );
    }
}
