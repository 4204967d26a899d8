//! Macro expansion.

use super::ast::{ACCUMULATOR, Expr, Fold, Kind, Literal, MAP_INSERT};
use super::tree_builder::{ParseAborted, ParseResult, TreeBuilder};

/// Expands the macro at one position.
pub struct Expander<'m, 's> {
    /// Builds the nodes of the expansion.
    pub builder: &'m mut TreeBuilder<'s>,
    /// The position of the macro, which its expansion gets.
    pub position: usize,
    /// The macros that not every environment has.
    pub optional: OptionalMacros,
}

/// Macros that not every environment has.
#[derive(Clone, Copy, Debug)]
pub struct OptionalMacros {
    /// `cel.bind`.
    pub bind: bool,
    /// Comprehensions with two variables.
    pub two_variables: bool,
}

fn is_named(expr: &Expr, name: &str) -> bool {
    matches!(&expr.kind, Kind::Ident(ident) if ident == name)
}

/// The iteration variables of a comprehension.
type IterationVariables = (String, Option<String>);

impl Expander<'_, '_> {
    /// Expands a global call.
    pub fn expand_global(mut self, function: &str, mut args: Vec<Expr>) -> ParseResult<Expr> {
        if function == "has" && args.len() == 1 {
            let Some(arg) = args.pop() else { return Err(ParseAborted) };
            return match arg.kind {
                Kind::Select { operand, field, test: false } => {
                    self.node(Kind::Select { operand, field, test: true })
                }
                _ => Ok(self.issue(&arg, "invalid argument to has() macro")),
            };
        }
        self.call(function, args)
    }

    /// Expands a member call.
    pub fn expand_member(mut self, function: &str, target: Expr, args: Vec<Expr>) -> ParseResult<Expr> {
        let has_two_variables = self.optional.two_variables;
        match (function, args.len()) {
            ("all" | "exists" | "exists_one" | "existsOne", 2) => self.quantifier(function, target, args),
            ("map", 2 | 3) => self.transform_list(target, args, 1),
            ("filter", 2) => self.filter(target, args),
            ("all" | "exists" | "exists_one" | "existsOne", 3) if has_two_variables => {
                self.quantifier(function, target, args)
            }
            ("transformList", 3 | 4) if has_two_variables => self.transform_list(target, args, 2),
            ("transformMap" | "transformMapEntry", 3 | 4) if has_two_variables => {
                self.transform_map(function, target, args)
            }
            ("optMap" | "optFlatMap", 2) => self.optional(function, target, args),
            ("bind", 3) if self.optional.bind && is_named(&target, "cel") => self.bind(args),
            _ => self.method(function, target, args),
        }
    }

    fn node(&mut self, kind: Kind) -> ParseResult<Expr> {
        self.builder.new_node(self.position, kind)
    }

    fn literal(&mut self, literal: Literal) -> ParseResult<Expr> {
        self.node(Kind::Literal(literal))
    }

    fn ident(&mut self, name: &str) -> ParseResult<Expr> {
        self.node(Kind::Ident(name.to_owned()))
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> ParseResult<Expr> {
        self.node(Kind::Call { function: function.to_owned(), target: None, args })
    }

    fn method(&mut self, function: &str, target: Expr, args: Vec<Expr>) -> ParseResult<Expr> {
        let target = Some(Box::new(target));
        self.node(Kind::Call { function: function.to_owned(), target, args })
    }

    fn issue(&mut self, expr: &Expr, message: &str) -> Expr {
        let position = self.builder.position_of(expr);
        self.builder.broken_node(position, message.to_owned())
    }

    /// The iteration variables from the first arguments, or the error node if they are no identifiers.
    fn names(&mut self, args: &[Expr], count: usize, message: &str) -> Result<IterationVariables, Expr> {
        let mut names = Vec::new();
        for arg in args.iter().take(count) {
            let Kind::Ident(name) = &arg.kind else { return Err(self.issue(arg, message)) };
            if name == ACCUMULATOR || name == "__result__" {
                return Err(self.issue(arg, "iteration variable overwrites accumulator variable"));
            }
            if names.contains(name) {
                return Err(self.issue(arg, &format!("duplicate variable name: {name}")));
            }
            names.push(name.clone());
        }
        let second = if count > 1 { names.pop() } else { None };
        Ok((names.pop().unwrap_or_default(), second))
    }

    fn fold(
        &mut self,
        range: Expr,
        names: IterationVariables,
        [init, condition, step, result]: [Expr; 4],
    ) -> ParseResult<Expr> {
        let (var, var2) = names;
        let accu = ACCUMULATOR.to_owned();
        self.node(Kind::Fold(Box::new(Fold { range, var, var2, accu, init, condition, step, result })))
    }

    fn quantifier(&mut self, function: &str, target: Expr, mut args: Vec<Expr>) -> ParseResult<Expr> {
        let names = match self.names(&args, args.len() - 1, "argument must be a simple name") {
            Ok(names) => names,
            Err(broken) => return Ok(broken),
        };
        let Some(predicate) = args.pop() else { return Err(ParseAborted) };
        let accu = self.ident(ACCUMULATOR)?;
        let result = self.ident(ACCUMULATOR)?;
        let parts = match function {
            "all" => {
                let init = self.literal(Literal::Bool(true))?;
                let condition = self.call("@not_strictly_false", vec![accu])?;
                let previous = self.ident(ACCUMULATOR)?;
                [init, condition, self.call("_&&_", vec![previous, predicate])?, result]
            }
            "exists" => {
                let init = self.literal(Literal::Bool(false))?;
                let not = self.call("!_", vec![accu])?;
                let condition = self.call("@not_strictly_false", vec![not])?;
                let previous = self.ident(ACCUMULATOR)?;
                [init, condition, self.call("_||_", vec![previous, predicate])?, result]
            }
            _ => {
                let (init, condition) = (self.literal(Literal::Int(0))?, self.literal(Literal::Bool(true))?);
                let one = self.literal(Literal::Int(1))?;
                let incremented = self.call("_+_", vec![accu, one])?;
                let previous = self.ident(ACCUMULATOR)?;
                let step = self.call("_?_:_", vec![predicate, incremented, previous])?;
                let one = self.literal(Literal::Int(1))?;
                [init, condition, step, self.call("_==_", vec![result, one])?]
            }
        };
        self.fold(target, names, parts)
    }

    /// A conditional step.
    fn conditional_step(&mut self, condition: Option<Expr>, step: Expr) -> ParseResult<Expr> {
        let Some(condition) = condition else { return Ok(step) };
        let unchanged = self.ident(ACCUMULATOR)?;
        self.call("_?_:_", vec![condition, step, unchanged])
    }

    /// `map` and `transformList`.
    fn transform_list(&mut self, target: Expr, mut args: Vec<Expr>, vars: usize) -> ParseResult<Expr> {
        let names = match self.names(&args, vars, "argument is not an identifier") {
            Ok(names) => names,
            Err(broken) => return Ok(broken),
        };
        let Some(item) = args.pop() else { return Err(ParseAborted) };
        let condition = if args.len() > vars { args.pop() } else { None };
        self.collect_list(target, names, item, condition)
    }

    fn filter(&mut self, target: Expr, mut args: Vec<Expr>) -> ParseResult<Expr> {
        let names = match self.names(&args, 1, "argument is not an identifier") {
            Ok(names) => names,
            Err(broken) => return Ok(broken),
        };
        let condition = args.pop();
        let Some(item) = args.pop() else { return Err(ParseAborted) };
        self.collect_list(target, names, item, condition)
    }

    fn collect_list(
        &mut self,
        target: Expr,
        names: IterationVariables,
        item: Expr,
        condition: Option<Expr>,
    ) -> ParseResult<Expr> {
        let init = self.node(Kind::List { items: Vec::new() })?;
        let always = self.literal(Literal::Bool(true))?;
        let accu = self.ident(ACCUMULATOR)?;
        let item_list = self.node(Kind::List { items: vec![(item, false)] })?;
        let step = self.call("_+_", vec![accu, item_list])?;
        let step = self.conditional_step(condition, step)?;
        let result = self.ident(ACCUMULATOR)?;
        self.fold(target, names, [init, always, step, result])
    }

    fn transform_map(&mut self, function: &str, target: Expr, mut args: Vec<Expr>) -> ParseResult<Expr> {
        let names = match self.names(&args, 2, "argument must be a simple name") {
            Ok(names) => names,
            Err(broken) => return Ok(broken),
        };
        let Some(value) = args.pop() else { return Err(ParseAborted) };
        let condition = if args.len() > 2 { args.pop() } else { None };
        let init = self.node(Kind::Map { entries: Vec::new() })?;
        let always = self.literal(Literal::Bool(true))?;
        let mut insert_args = vec![self.ident(ACCUMULATOR)?];
        if function == "transformMap" {
            insert_args.push(self.ident(&names.0)?);
        }
        insert_args.push(value);
        let step = self.call(MAP_INSERT, insert_args)?;
        let step = self.conditional_step(condition, step)?;
        let result = self.ident(ACCUMULATOR)?;
        self.fold(target, names, [init, always, step, result])
    }

    /// `cel.bind`.
    fn bind(&mut self, mut args: Vec<Expr>) -> ParseResult<Expr> {
        let (Some(result), Some(value), Some(name)) = (args.pop(), args.pop(), args.pop()) else {
            return Err(ParseAborted);
        };
        match name.kind {
            Kind::Ident(name) => self.bind_name(name, value, result),
            _ => Ok(self.issue(&name, "cel.bind() variable names must be simple identifiers")),
        }
    }

    /// `cel.bind` is a comprehension over an empty list.
    fn bind_name(&mut self, accu: String, init: Expr, result: Expr) -> ParseResult<Expr> {
        let range = self.node(Kind::List { items: Vec::new() })?;
        let condition = self.literal(Literal::Bool(false))?;
        let step = self.ident(&accu)?;
        let var = "#unused".to_owned();
        self.node(Kind::Fold(Box::new(Fold { range, var, var2: None, accu, init, condition, step, result })))
    }

    /// `optMap` and `optFlatMap`.
    fn optional(&mut self, function: &str, target: Expr, mut args: Vec<Expr>) -> ParseResult<Expr> {
        let Some(value) = args.pop() else { return Err(ParseAborted) };
        let Some(name) = args.pop() else { return Err(ParseAborted) };
        let Kind::Ident(accu) = name.kind else {
            let message = format!("{function}() variable name must be a simple identifier");
            return Ok(self.issue(&name, &message));
        };
        let target_copy = self.builder.clone_subtree(&target)?;
        let has_value = self.method("hasValue", target, Vec::new())?;
        let init = self.method("value", target_copy, Vec::new())?;
        let mut some = self.bind_name(accu, init, value)?;
        if function == "optMap" {
            some = self.call("optional.of", vec![some])?;
        }
        let none = self.call("optional.none", Vec::new())?;
        self.call("_?_:_", vec![has_value, some, none])
    }
}
