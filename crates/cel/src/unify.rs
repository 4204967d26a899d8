//! Type unification: assignability, and the substitution of type variables.

use super::types::{OPTIONAL, Type};

/// The substitutions of type variables.
#[derive(Debug, Default)]
pub struct Substitutions {
    /// By the number of the variable.
    found: Vec<Option<Type>>,
    /// Previous values since the start of an attempt, to roll back.
    changed: Vec<(usize, Option<Type>)>,
}

impl Substitutions {
    /// A new type variable.
    pub fn fresh(&mut self) -> Type {
        self.found.push(None);
        Type::Var(self.found.len() - 1)
    }

    fn of(&self, var: usize) -> Option<&Type> {
        self.found.get(var).and_then(Option::as_ref)
    }

    fn learn(&mut self, var: usize, kind: Type) {
        if let Some(place) = self.found.get_mut(var) {
            self.changed.push((var, place.replace(kind)));
        }
    }

    /// Rolls back the substitutions of a failed attempt.
    fn keep_if(&mut self, good: bool) -> bool {
        for (var, before) in self.changed.drain(..).rev().filter(|_| !good) {
            if let Some(place) = self.found.get_mut(var) {
                *place = before;
            }
        }
        good
    }

    /// Whether one type is assignable to another. Substitutions are kept only on success.
    pub fn fits(&mut self, one: &Type, other: &Type) -> bool {
        let fits = self.assign(one, other);
        self.keep_if(fits)
    }

    /// The same for two lists of types.
    pub fn all_fit(&mut self, ones: &[Type], others: &[Type]) -> bool {
        if ones.len() != others.len() {
            return false;
        }
        let fit = ones.iter().zip(others).all(|(one, other)| self.assign(one, other));
        self.keep_if(fit)
    }

    fn assign(&mut self, one: &Type, other: &Type) -> bool {
        if let Type::Var(var) = other {
            let (valid, known) = self.substitutes(one, *var);
            if valid || known {
                return valid;
            }
        }
        if let Type::Var(var) = one {
            return self.substitutes(other, *var).0;
        }
        if one.is_dyn_or_error() || other.is_dyn_or_error() {
            return true;
        }
        match (one, other) {
            (Type::Null, other) | (other, Type::Null) => may_be_null(other),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(one), Type::List(other)) => self.assign(one, other),
            (Type::Map(key, value), Type::Map(other_key, other_value)) => {
                self.assign(key, other_key) && self.assign(value, other_value)
            }
            (Type::Opaque(name, inner), Type::Opaque(other_name, other_inner)) => {
                name == other_name
                    && inner.len() == other_inner.len()
                    && inner.iter().zip(other_inner.iter()).all(|(one, other)| self.assign(one, other))
            }
            (one, other) => one == other,
        }
    }

    /// Whether a type can be substituted for a type variable, and whether the variable had a substitution.
    fn substitutes(&mut self, one: &Type, var: usize) -> (bool, bool) {
        if *one == Type::Var(var) {
            return (true, true);
        }
        if let Some(known) = self.of(var).cloned() {
            if *one == known {
                return (true, true);
            }
            if self.assign(one, &known) {
                let general = most_general(one, &known).clone();
                if self.is_not_in(var, &general) {
                    self.learn(var, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.is_not_in(var, one) {
            self.learn(var, one.clone());
            return (true, false);
        }
        (false, false)
    }

    /// The occurs check.
    fn is_not_in(&self, var: usize, within: &Type) -> bool {
        match within {
            Type::Var(other) if *other == var => false,
            Type::Var(other) => self.of(*other).is_none_or(|known| self.is_not_in(var, known)),
            other => other.parameters().into_iter().all(|inner| self.is_not_in(var, inner)),
        }
    }

    /// Applies the substitutions to a type. With `close`, remaining type variables become `dyn`.
    pub fn resolved(&self, kind: &Type, close: bool) -> Type {
        match kind {
            Type::Var(var) => match self.of(*var) {
                Some(known) => self.resolved(known, close),
                None if close => Type::Dyn,
                None => kind.clone(),
            },
            other => rebuilt(other, &mut |inner| self.resolved(inner, close)),
        }
    }

    /// The common supertype of two types.
    pub fn joined(&mut self, one: &Type, other: &Type) -> Option<Type> {
        self.fits(one, other).then(|| most_general(one, other).clone())
    }
}

/// Maps the parameters of a type.
pub fn rebuilt(kind: &Type, make: &mut impl FnMut(&Type) -> Type) -> Type {
    match kind {
        Type::List(items) => Type::list(make(items)),
        Type::Map(keys, values) => {
            let keys = make(keys);
            Type::map(keys, make(values))
        }
        Type::Opaque(name, inner) => Type::Opaque(name, inner.iter().map(make).collect()),
        Type::Type(Some(inner)) => Type::of(make(inner)),
        other => other.clone(),
    }
}

/// Whether `null` is assignable to a type.
fn may_be_null(kind: &Type) -> bool {
    matches!(
        kind,
        Type::Null | Type::Opaque(..) | Type::Object(_) | Type::Made(_) | Type::Duration | Type::Timestamp
    )
}

/// The more general of two compatible types.
fn most_general<'t>(one: &'t Type, other: &'t Type) -> &'t Type {
    if is_equal_or_wider(one, other) { one } else { other }
}

fn is_equal_or_wider(one: &Type, other: &Type) -> bool {
    match (one, other) {
        (Type::Dyn | Type::Var(_), _) => true,
        (_, Type::Dyn | Type::Var(_)) => false,
        (Type::List(one), Type::List(other)) => is_equal_or_wider(one, other),
        (Type::Map(key, value), Type::Map(other_key, other_value)) => {
            is_equal_or_wider(key, other_key) && is_equal_or_wider(value, other_value)
        }
        (Type::Opaque(name, inner), Type::Opaque(other_name, other_inner)) => {
            name == other_name
                && inner.len() == other_inner.len()
                && inner.iter().zip(other_inner.iter()).all(|(one, other)| is_equal_or_wider(one, other))
        }
        (Type::Type(_), Type::Type(_)) => true,
        (one, other) => one == other,
    }
}

/// Whether two types are equivalent, as required of list items.
pub fn are_equivalent(one: &Type, other: &Type) -> bool {
    let same = match (one, other) {
        (Type::Opaque(OPTIONAL, _), Type::Opaque(OPTIONAL, _)) => true,
        (Type::Opaque(name, _), Type::Opaque(other, _)) => name == other,
        (Type::Object(_) | Type::Made(_), _) => one == other,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    };
    let (inner, others) = (one.parameters(), other.parameters());
    same && inner.len() == others.len()
        && inner.into_iter().zip(others).all(|(one, other)| are_equivalent(one, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_types_become_what_is_seen_of_them() {
        let mut known = Substitutions::default();
        let (a, b) = (known.fresh(), known.fresh());
        assert!(known.fits(&Type::list(a.clone()), &Type::list(Type::Int)));
        assert_eq!(known.resolved(&Type::map(a.clone(), b.clone()), true), Type::map(Type::Int, Type::Dyn));
        assert!(!known.fits(&a, &Type::String));
        assert!(!known.fits(&b, &Type::list(b.clone())), "no type contains itself");
        assert_eq!(known.resolved(&b, false), b);
        assert!(known.all_fit(&[b.clone(), b.clone()], &[Type::Dyn, Type::Int]));
        assert_eq!(known.resolved(&b, true), Type::Dyn);
        assert!(known.fits(&Type::Null, &Type::Timestamp) && !known.fits(&Type::Null, &Type::Int));
    }
}
