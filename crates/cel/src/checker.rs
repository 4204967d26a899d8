//! The type checker: computes the type of every node and the overloads of every call.

use std::collections::BTreeMap;

use super::ast::{Expr, Fold, Init, Kind, Literal};
use super::constructed_types;
use super::functions::{Functions, Overload, type_named};
use super::source::Issues;
use super::types::Type;
use super::unify::{Substitutions, rebuilt};

/// The result of type checking.
pub struct Checked {
    /// The type of each node, by ID.
    pub types: Vec<Type>,
    /// The candidate overloads of each call, by ID.
    pub overloads: Vec<Vec<String>>,
    /// The referenced variables.
    pub uses: Vec<String>,
}

/// The declarations that an expression may refer to.
#[derive(Clone, Copy)]
pub struct Names<'n> {
    /// The declared functions.
    pub functions: &'n Functions,
    /// The declared variables and their types.
    pub variables: &'n BTreeMap<String, Type>,
    /// Whether constructible object types are declared.
    pub makes: bool,
}

/// Type-checks an expression. Qualified names are merged into one identifier in the tree: `a.b` may be a namespaced function.
pub fn check(root: &mut Expr, places: &[usize], names: Names<'_>, issues: &mut Issues) -> Checked {
    let mut checker = Checker {
        places,
        names,
        issues,
        known: Substitutions::default(),
        scopes: Vec::new(),
        types: vec![None; places.len()],
        overloads: vec![Vec::new(); places.len()],
        uses: Vec::new(),
    };
    checker.check(root);
    let Checker { known, types, overloads, mut uses, .. } = checker;
    let types = types.into_iter().map(|kind| kind.map_or(Type::Dyn, |kind| known.resolved(&kind, true)));
    uses.sort();
    uses.dedup();
    Checked { types: types.collect(), overloads, uses }
}

struct Checker<'c> {
    places: &'c [usize],
    names: Names<'c>,
    issues: &'c mut Issues,
    known: Substitutions,
    /// The variables of enclosing comprehensions, innermost last.
    scopes: Vec<(String, Type)>,
    types: Vec<Option<Type>>,
    overloads: Vec<Vec<String>>,
    uses: Vec<String>,
}

impl Checker<'_> {
    fn issue(&mut self, id: usize, message: String) {
        let place = self.places.get(id).copied();
        self.issues.add(place, message);
    }

    fn set(&mut self, id: usize, kind: Type) {
        if let Some(place) = self.types.get_mut(id) {
            *place = Some(kind);
        }
    }

    fn of(&self, expr: &Expr) -> Type {
        self.types.get(expr.id).cloned().flatten().unwrap_or(Type::Error)
    }

    fn check(&mut self, expr: &mut Expr) {
        let kind = match &mut expr.kind {
            Kind::Broken => Type::Error,
            Kind::Literal(literal) => of_literal(literal),
            Kind::Ident(_) => self.ident(expr),
            Kind::Select { .. } => self.select(expr),
            Kind::Call { .. } => self.call(expr),
            Kind::List { .. } => self.list(expr),
            Kind::Map { .. } => self.map(expr),
            Kind::Object { .. } => self.object(expr),
            Kind::Fold(fold) => self.fold(fold),
        };
        self.set(expr.id, kind);
    }

    /// The type of an identifier, if it is declared.
    fn named(&mut self, name: &str) -> Option<Type> {
        if let Some((_, kind)) = self.scopes.iter().rev().find(|(own, _)| own == name) {
            return Some(kind.clone());
        }
        let plain = name.strip_prefix('.').unwrap_or(name);
        if let Some(kind) = self.names.variables.get(plain) {
            self.uses.push(plain.to_owned());
            return Some(kind.clone());
        }
        type_named(plain).or_else(|| constructed_types::type_named(plain).filter(|_| self.names.makes))
    }

    fn undeclared(&mut self, id: usize, name: &str) -> Type {
        self.issue(id, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }

    fn ident(&mut self, expr: &Expr) -> Type {
        let Kind::Ident(name) = &expr.kind else { return Type::Error };
        match self.named(name) {
            Some(kind) => kind,
            None => self.undeclared(expr.id, name),
        }
    }

    fn select(&mut self, expr: &mut Expr) -> Type {
        // A qualified name may be a variable or a type.
        if let Some(name) = expr.qualified_name()
            && let Some(kind) = self.named(&name)
        {
            expr.kind = Kind::Ident(name);
            return kind;
        }
        let id = expr.id;
        let Kind::Select { operand, field, test } = &mut expr.kind else { return Type::Error };
        let kind = self.field(id, operand, field, false);
        if *test { Type::Bool } else { kind }
    }

    /// The type of a field selection.
    fn field(&mut self, id: usize, operand: &mut Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let kind = self.known.resolved(&self.of(operand), false);
        let (target, was_optional) = match kind.unwrapped() {
            Some(inner) => (inner.clone(), true),
            None => (kind, false),
        };
        let found = match &target {
            Type::Map(_, values) => (**values).clone(),
            Type::Object(object) => match object.field(field) {
                Some(property) => property.shape.kind(),
                None => {
                    self.issue(id, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Made(of) => constructed_types::field(of, field).unwrap_or(Type::Dyn),
            Type::Var(_) => {
                self.known.fits(&Type::Dyn, &target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.issue(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        let found = self.known.resolved(&found, false);
        if was_optional || optional { Type::optional(found) } else { found }
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Call { function, target, args } = &mut expr.kind else { return Type::Error };
        if function == "_?._" {
            let [operand, field] = args.as_mut_slice() else { return Type::Error };
            let name = field.literal_text().unwrap_or_default().to_owned();
            self.set(field.id, Type::String);
            self.overloads[id].push("select_optional_field".to_owned());
            return self.field(id, operand, &name, true);
        }
        for arg in args.iter_mut() {
            self.check(arg);
        }
        let functions = self.names.functions;
        let Some(receiver) = target else {
            let Some(overloads) = functions.get(function) else {
                let name = function.clone();
                return self.undeclared(id, &name);
            };
            let arguments: Vec<(usize, Type)> = args.iter().map(|arg| (arg.id, self.of(arg))).collect();
            return self.resolve(id, function, overloads, &arguments, false);
        };
        // An apparent receiver may be the namespace of a function.
        if let Some(prefix) = receiver.qualified_name() {
            let joined = format!("{prefix}.{function}");
            if let Some(overloads) = functions.get(&joined) {
                let arguments: Vec<(usize, Type)> = args.iter().map(|arg| (arg.id, self.of(arg))).collect();
                let kind = self.resolve(id, &joined, overloads, &arguments, false);
                *function = joined;
                *target = None;
                return kind;
            }
        }
        self.check(receiver);
        let Some(overloads) = functions.get(function) else {
            let name = function.clone();
            return self.undeclared(id, &name);
        };
        let all = std::iter::once(&**receiver).chain(args.iter());
        let arguments: Vec<(usize, Type)> = all.map(|arg| (arg.id, self.of(arg))).collect();
        self.resolve(id, function, overloads, &arguments, true)
    }

    /// Resolves the candidate overloads of a call.
    fn resolve(
        &mut self,
        id: usize,
        function: &str,
        overloads: &[Overload],
        arguments: &[(usize, Type)],
        is_member: bool,
    ) -> Type {
        let types: Vec<Type> = arguments.iter().map(|(_, kind)| kind.clone()).collect();
        let mut result: Option<Type> = None;
        for overload in overloads.iter().filter(|overload| overload.is_member == is_member) {
            if matches!(function, "_&&_" | "_||_") {
                return self.logical(id, overload, arguments);
            }
            let mut fresh: BTreeMap<u8, Type> = BTreeMap::new();
            let takes: Vec<Type> =
                overload.takes.iter().map(|kind| self.instance(kind, &mut fresh)).collect();
            let answers = self.instance(&overload.answers, &mut fresh);
            if self.known.all_fit(&types, &takes) {
                self.overloads[id].push(overload.id.clone());
                let answers = self.known.resolved(&answers, false);
                result = Some(match result {
                    None => answers,
                    Some(before) if before == Type::Dyn || before == answers => before,
                    Some(_) => Type::Dyn,
                });
            }
        }
        result.unwrap_or_else(|| {
            let mut shown: Vec<String> =
                types.iter().map(|kind| self.known.resolved(kind, true).to_string()).collect();
            let receiver = if is_member { format!("{}.", shown.remove(0)) } else { String::new() };
            let applied = format!("{receiver}({})", shown.join(", "));
            self.issue(id, format!("found no matching overload for '{function}' applied to '{applied}'"));
            Type::Error
        })
    }

    fn logical(&mut self, id: usize, overload: &Overload, arguments: &[(usize, Type)]) -> Type {
        self.overloads[id].push(overload.id.clone());
        let mut result = Type::Bool;
        for (arg, kind) in arguments {
            if !self.known.fits(kind, &Type::Bool) {
                let shown = self.known.resolved(kind, false);
                self.issue(*arg, format!("expected type 'bool' but found '{shown}'"));
                result = Type::Error;
            }
        }
        result
    }

    /// Instantiates a signature type: type parameters are replaced by fresh type variables.
    fn instance(&mut self, kind: &Type, fresh: &mut BTreeMap<u8, Type>) -> Type {
        match kind {
            Type::Param(letter) => fresh.entry(*letter).or_insert_with(|| self.known.fresh()).clone(),
            other => rebuilt(other, &mut |inner| self.instance(inner, fresh)),
        }
    }

    /// The common type of list items. Whether mixed types are allowed is decided later, in `literal_checks`.
    fn joined(&mut self, before: Option<Type>, kind: Type) -> Type {
        let Some(before) = before else { return kind };
        self.known.joined(&before, &kind).unwrap_or(Type::Dyn)
    }

    fn mismatch(&mut self, id: usize, wanted: &Type, found: &Type) {
        self.issue(id, format!("expected type '{wanted}' but found '{found}'"));
    }

    /// The type inside an optional item.
    fn inner(&mut self, expr: &Expr, optional: bool) -> Type {
        let kind = self.of(expr);
        if !optional {
            return kind;
        }
        match kind.unwrapped() {
            Some(inner) => inner.clone(),
            None => {
                if kind != Type::Dyn {
                    self.mismatch(expr.id, &Type::optional(kind.clone()), &kind);
                }
                kind
            }
        }
    }

    fn list(&mut self, expr: &mut Expr) -> Type {
        let Kind::List { items } = &mut expr.kind else { return Type::Error };
        let mut together = None;
        for (item, optional) in items.iter_mut() {
            self.check(item);
            let kind = self.inner(item, *optional);
            together = Some(self.joined(together, kind));
        }
        Type::list(together.unwrap_or_else(|| self.known.fresh()))
    }

    fn map(&mut self, expr: &mut Expr) -> Type {
        let Kind::Map { entries } = &mut expr.kind else { return Type::Error };
        let (mut keys, mut values) = (None, None);
        for entry in entries.iter_mut() {
            self.check(&mut entry.key);
            let kind = self.of(&entry.key);
            keys = Some(self.joined(keys, kind));
            self.check(&mut entry.value);
            let kind = self.inner(&entry.value, entry.optional);
            values = Some(self.joined(values, kind));
        }
        let keys = keys.unwrap_or_else(|| self.known.fresh());
        Type::map(keys, values.unwrap_or_else(|| self.known.fresh()))
    }

    /// An object construction.
    fn object(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Object { name, fields } = &mut expr.kind else { return Type::Error };
        let mut is_value = false;
        // `dyn` is a function, not a type.
        let kind = match self.named(name).filter(|_| *name != "dyn") {
            None => {
                let name = name.clone();
                return self.undeclared(id, &name);
            }
            Some(Type::Type(Some(kind))) if matches!(*kind, Type::Made(_)) => (*kind).clone(),
            Some(Type::Type(Some(kind))) => {
                self.issue(id, format!("'{}' is not a message type", kind.name()));
                Type::Error
            }
            Some(kind) => {
                self.issue(id, format!("'{kind}' is not a type"));
                is_value = true;
                Type::Error
            }
        };
        let of = name.clone();
        let unknown = |field: &str| match is_value {
            true => format!("unexpected failed resolution of '{of}'"),
            false => format!("undefined field '{field}'"),
        };
        for field in fields.iter_mut() {
            self.check(&mut field.value);
            let found = self.inner(&field.value, field.optional);
            match &kind {
                Type::Made(of) => self.fits_field(of, field, &found),
                _ => self.issue(field.id, unknown(&field.name)),
            }
        }
        if let Type::Made(of) = &kind {
            (**of).clone_into(name);
        }
        kind
    }

    fn fits_field(&mut self, of: &str, field: &Init, found: &Type) {
        let wanted = constructed_types::field(of, &field.name);
        let fits = match &wanted {
            Some(wanted) => self.known.fits(wanted, found),
            // Dynamic values are checked at run time, when the object is constructed.
            None => found.is_dyn_or_error(),
        };
        if !fits {
            let wanted = wanted.map_or_else(String::new, |wanted| wanted.to_string());
            let found = self.known.resolved(found, false);
            let why = format!(
                "expected type of field '{}' is '{wanted}' but provided type is '{found}'",
                field.name
            );
            self.issue(field.id, why);
        }
    }

    fn fold(&mut self, fold: &mut Fold) -> Type {
        self.check(&mut fold.range);
        self.check(&mut fold.init);
        let range = self.known.resolved(&self.of(&fold.range), false);
        let two = fold.var2.is_some();
        let (first, second) = match &range {
            Type::List(items) if two => (Type::Int, (**items).clone()),
            Type::List(items) => ((**items).clone(), Type::Dyn),
            Type::Map(keys, values) => ((**keys).clone(), (**values).clone()),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.known.fits(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let why = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.issue(fold.range.id, why);
                (Type::Error, Type::Error)
            }
        };
        let accu = self.of(&fold.init);
        let depth = self.scopes.len();
        self.scopes.push((fold.accu.clone(), accu.clone()));
        self.scopes.push((fold.var.clone(), first));
        if let Some(var2) = &fold.var2 {
            self.scopes.push((var2.clone(), second));
        }
        self.check(&mut fold.condition);
        self.assert(&fold.condition, &Type::Bool);
        self.check(&mut fold.step);
        self.assert(&fold.step, &accu);
        self.scopes.truncate(depth + 1);
        self.check(&mut fold.result);
        self.scopes.truncate(depth);
        self.known.resolved(&self.of(&fold.result), false)
    }

    fn assert(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.of(expr);
        if !self.known.fits(wanted, &found) {
            self.mismatch(expr.id, wanted, &found);
        }
    }
}

fn of_literal(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}
