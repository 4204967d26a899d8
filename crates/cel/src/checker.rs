//! The type checker: computes the type of every node and the overloads of every call.

use std::collections::BTreeMap;

use crate::constructed_types;
use crate::functions::{Functions, Overload, type_named};
use crate::syntax::ast::{Expr, Fold, Init, Kind, Literal};
use crate::syntax::source::Issues;
use crate::types::Type;
use crate::unify::{Substitutions, map_parameters};

/// The result of type checking.
pub struct CheckedExpression {
    /// The type of each node, by ID.
    pub types: Vec<Type>,
    /// The candidate overloads of each call, by ID.
    pub overloads: Vec<Vec<String>>,
    /// The referenced variables.
    pub uses: Vec<String>,
}

/// The declarations that an expression may refer to.
#[derive(Clone, Copy)]
pub struct Declarations<'n> {
    /// The declared functions.
    pub functions: &'n Functions,
    /// The declared variables and their types.
    pub variables: &'n BTreeMap<String, Type>,
    /// Whether constructible object types are declared.
    pub constructs_objects: bool,
}

/// Type-checks an expression. Qualified names are merged into one identifier in the tree: `a.b` may be a namespaced function.
pub fn check(
    root: &mut Expr,
    positions: &[usize],
    declarations: Declarations<'_>,
    issues: &mut Issues,
) -> CheckedExpression {
    let mut checker = Checker {
        positions,
        declarations,
        issues,
        substitutions: Substitutions::default(),
        scopes: Vec::new(),
        types: vec![None; positions.len()],
        overloads: vec![Vec::new(); positions.len()],
        uses: Vec::new(),
    };
    checker.check(root);
    let Checker { substitutions, types, overloads, mut uses, .. } = checker;
    let types = types.into_iter().map(|kind| kind.map_or(Type::Dyn, |kind| substitutions.apply(&kind, true)));
    uses.sort();
    uses.dedup();
    CheckedExpression { types: types.collect(), overloads, uses }
}

struct Checker<'c> {
    positions: &'c [usize],
    declarations: Declarations<'c>,
    issues: &'c mut Issues,
    substitutions: Substitutions,
    /// The variables of enclosing comprehensions, innermost last.
    scopes: Vec<(String, Type)>,
    types: Vec<Option<Type>>,
    overloads: Vec<Vec<String>>,
    uses: Vec<String>,
}

impl Checker<'_> {
    fn report(&mut self, id: usize, message: String) {
        let position = self.positions.get(id).copied();
        self.issues.add(position, message);
    }

    fn set(&mut self, id: usize, kind: Type) {
        if let Some(slot) = self.types.get_mut(id) {
            *slot = Some(kind);
        }
    }

    fn type_of(&self, expr: &Expr) -> Type {
        self.types.get(expr.id).cloned().flatten().unwrap_or(Type::Error)
    }

    fn check(&mut self, expr: &mut Expr) {
        let kind = match &mut expr.kind {
            Kind::Broken => Type::Error,
            Kind::Literal(literal) => literal_type(literal),
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
    fn resolve_name(&mut self, name: &str) -> Option<Type> {
        if let Some((_, kind)) = self.scopes.iter().rev().find(|(scope_name, _)| scope_name == name) {
            return Some(kind.clone());
        }
        let plain = name.strip_prefix('.').unwrap_or(name);
        if let Some(kind) = self.declarations.variables.get(plain) {
            self.uses.push(plain.to_owned());
            return Some(kind.clone());
        }
        type_named(plain)
            .or_else(|| constructed_types::type_named(plain).filter(|_| self.declarations.constructs_objects))
    }

    fn undeclared(&mut self, id: usize, name: &str) -> Type {
        self.report(id, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }

    fn ident(&mut self, expr: &Expr) -> Type {
        let Kind::Ident(name) = &expr.kind else { return Type::Error };
        match self.resolve_name(name) {
            Some(kind) => kind,
            None => self.undeclared(expr.id, name),
        }
    }

    fn select(&mut self, expr: &mut Expr) -> Type {
        // A qualified name may be a variable or a type.
        if let Some(name) = expr.qualified_name()
            && let Some(kind) = self.resolve_name(&name)
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
        let kind = self.substitutions.apply(&self.type_of(operand), false);
        let (target, operand_is_optional) = match kind.unwrap_optional() {
            Some(inner) => (inner.clone(), true),
            None => (kind, false),
        };
        let field_type = match &target {
            Type::Map(_, values) => (**values).clone(),
            Type::Object(object) => match object.field(field) {
                Some(property) => property.decl_type.kind(),
                None => {
                    self.report(id, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Constructed(type_name) => {
                constructed_types::field_type(type_name, field).unwrap_or(Type::Dyn)
            }
            Type::Var(_) => {
                self.substitutions.try_assign(&Type::Dyn, &target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.report(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        let field_type = self.substitutions.apply(&field_type, false);
        if operand_is_optional || optional { Type::optional(field_type) } else { field_type }
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
        let functions = self.declarations.functions;
        let Some(receiver) = target else {
            let Some(overloads) = functions.get(function) else {
                let name = function.clone();
                return self.undeclared(id, &name);
            };
            let arguments: Vec<(usize, Type)> = args.iter().map(|arg| (arg.id, self.type_of(arg))).collect();
            return self.resolve(id, function, overloads, &arguments, false);
        };
        // An apparent receiver may be the namespace of a function.
        if let Some(prefix) = receiver.qualified_name() {
            let qualified = format!("{prefix}.{function}");
            if let Some(overloads) = functions.get(&qualified) {
                let arguments: Vec<(usize, Type)> =
                    args.iter().map(|arg| (arg.id, self.type_of(arg))).collect();
                let kind = self.resolve(id, &qualified, overloads, &arguments, false);
                *function = qualified;
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
        let arguments: Vec<(usize, Type)> = all.map(|arg| (arg.id, self.type_of(arg))).collect();
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
            let parameters: Vec<Type> =
                overload.parameters.iter().map(|kind| self.instantiate(kind, &mut fresh)).collect();
            let result_type = self.instantiate(&overload.result, &mut fresh);
            if self.substitutions.try_assign_all(&types, &parameters) {
                self.overloads[id].push(overload.id.clone());
                let result_type = self.substitutions.apply(&result_type, false);
                result = Some(match result {
                    None => result_type,
                    Some(previous) if previous == Type::Dyn || previous == result_type => previous,
                    Some(_) => Type::Dyn,
                });
            }
        }
        result.unwrap_or_else(|| {
            let mut argument_types: Vec<String> =
                types.iter().map(|kind| self.substitutions.apply(kind, true).to_string()).collect();
            let receiver = if is_member { format!("{}.", argument_types.remove(0)) } else { String::new() };
            let arguments_text = format!("{receiver}({})", argument_types.join(", "));
            self.report(
                id,
                format!("found no matching overload for '{function}' applied to '{arguments_text}'"),
            );
            Type::Error
        })
    }

    fn logical(&mut self, id: usize, overload: &Overload, arguments: &[(usize, Type)]) -> Type {
        self.overloads[id].push(overload.id.clone());
        let mut result = Type::Bool;
        for (arg, kind) in arguments {
            if !self.substitutions.try_assign(kind, &Type::Bool) {
                let actual = self.substitutions.apply(kind, false);
                self.report(*arg, format!("expected type 'bool' but found '{actual}'"));
                result = Type::Error;
            }
        }
        result
    }

    /// Instantiates a signature type: type parameters are replaced by fresh type variables.
    fn instantiate(&mut self, kind: &Type, fresh: &mut BTreeMap<u8, Type>) -> Type {
        match kind {
            Type::Param(parameter) => {
                fresh.entry(*parameter).or_insert_with(|| self.substitutions.fresh_variable()).clone()
            }
            other => map_parameters(other, &mut |inner| self.instantiate(inner, fresh)),
        }
    }

    /// The common type of list items. Whether mixed types are allowed is decided later, in `literal_checks`.
    fn join_types(&mut self, previous: Option<Type>, kind: Type) -> Type {
        let Some(previous) = previous else { return kind };
        self.substitutions.join(&previous, &kind).unwrap_or(Type::Dyn)
    }

    fn report_mismatch(&mut self, id: usize, expected: &Type, actual: &Type) {
        self.report(id, format!("expected type '{expected}' but found '{actual}'"));
    }

    /// The type inside an optional item.
    fn inner(&mut self, expr: &Expr, optional: bool) -> Type {
        let kind = self.type_of(expr);
        if !optional {
            return kind;
        }
        match kind.unwrap_optional() {
            Some(inner) => inner.clone(),
            None => {
                if kind != Type::Dyn {
                    self.report_mismatch(expr.id, &Type::optional(kind.clone()), &kind);
                }
                kind
            }
        }
    }

    fn list(&mut self, expr: &mut Expr) -> Type {
        let Kind::List { items } = &mut expr.kind else { return Type::Error };
        let mut item_type = None;
        for (item, optional) in items.iter_mut() {
            self.check(item);
            let kind = self.inner(item, *optional);
            item_type = Some(self.join_types(item_type, kind));
        }
        Type::list(item_type.unwrap_or_else(|| self.substitutions.fresh_variable()))
    }

    fn map(&mut self, expr: &mut Expr) -> Type {
        let Kind::Map { entries } = &mut expr.kind else { return Type::Error };
        let (mut keys, mut values) = (None, None);
        for entry in entries.iter_mut() {
            self.check(&mut entry.key);
            let kind = self.type_of(&entry.key);
            keys = Some(self.join_types(keys, kind));
            self.check(&mut entry.value);
            let kind = self.inner(&entry.value, entry.optional);
            values = Some(self.join_types(values, kind));
        }
        let keys = keys.unwrap_or_else(|| self.substitutions.fresh_variable());
        Type::map(keys, values.unwrap_or_else(|| self.substitutions.fresh_variable()))
    }

    /// An object construction.
    fn object(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Object { name, fields } = &mut expr.kind else { return Type::Error };
        let mut is_value = false;
        // `dyn` is a function, not a type.
        let kind = match self.resolve_name(name).filter(|_| *name != "dyn") {
            None => {
                let name = name.clone();
                return self.undeclared(id, &name);
            }
            Some(Type::Type(Some(kind))) if matches!(*kind, Type::Constructed(_)) => (*kind).clone(),
            Some(Type::Type(Some(kind))) => {
                self.report(id, format!("'{}' is not a message type", kind.name()));
                Type::Error
            }
            Some(kind) => {
                self.report(id, format!("'{kind}' is not a type"));
                is_value = true;
                Type::Error
            }
        };
        let type_name = name.clone();
        let unknown = |field: &str| match is_value {
            true => format!("unexpected failed resolution of '{type_name}'"),
            false => format!("undefined field '{field}'"),
        };
        for field in fields.iter_mut() {
            self.check(&mut field.value);
            let actual = self.inner(&field.value, field.optional);
            match &kind {
                Type::Constructed(type_name) => self.check_field(type_name, field, &actual),
                _ => self.report(field.id, unknown(&field.name)),
            }
        }
        if let Type::Constructed(type_name) = &kind {
            (**type_name).clone_into(name);
        }
        kind
    }

    fn check_field(&mut self, type_name: &str, field: &Init, actual: &Type) {
        let expected = constructed_types::field_type(type_name, &field.name);
        let fits = match &expected {
            Some(expected) => self.substitutions.try_assign(expected, actual),
            // Dynamic values are checked at run time, when the object is constructed.
            None => actual.is_dyn_or_error(),
        };
        if !fits {
            let expected = expected.map_or_else(String::new, |expected| expected.to_string());
            let actual = self.substitutions.apply(actual, false);
            let message = format!(
                "expected type of field '{}' is '{expected}' but provided type is '{actual}'",
                field.name
            );
            self.report(field.id, message);
        }
    }

    fn fold(&mut self, fold: &mut Fold) -> Type {
        self.check(&mut fold.range);
        self.check(&mut fold.init);
        let range = self.substitutions.apply(&self.type_of(&fold.range), false);
        let has_second_variable = fold.var2.is_some();
        let (first, second) = match &range {
            Type::List(items) if has_second_variable => (Type::Int, (**items).clone()),
            Type::List(items) => ((**items).clone(), Type::Dyn),
            Type::Map(keys, values) => ((**keys).clone(), (**values).clone()),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.substitutions.try_assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        let accu = self.type_of(&fold.init);
        let depth = self.scopes.len();
        self.scopes.push((fold.accu.clone(), accu.clone()));
        self.scopes.push((fold.var.clone(), first));
        if let Some(var2) = &fold.var2 {
            self.scopes.push((var2.clone(), second));
        }
        self.check(&mut fold.condition);
        self.expect_type(&fold.condition, &Type::Bool);
        self.check(&mut fold.step);
        self.expect_type(&fold.step, &accu);
        self.scopes.truncate(depth + 1);
        self.check(&mut fold.result);
        self.scopes.truncate(depth);
        self.substitutions.apply(&self.type_of(&fold.result), false)
    }

    fn expect_type(&mut self, expr: &Expr, expected: &Type) {
        let actual = self.type_of(expr);
        if !self.substitutions.try_assign(expected, &actual) {
            self.report_mismatch(expr.id, expected, &actual);
        }
    }
}

fn literal_type(literal: &Literal) -> Type {
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
