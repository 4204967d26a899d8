//! Macro expansion.

use super::ast::{ACCUMULATOR, Expr, Fold, Kind, Literal};
use super::parser::{ParseAborted, Parser};

type Read<T> = Result<T, ParseAborted>;

/// Inserts an entry into the map of a comprehension.
pub const MAP_INSERT: &str = "cel.@mapInsert";

/// Expands a global call.
pub fn global(parser: &mut Parser<'_>, place: usize, function: &str, mut args: Vec<Expr>) -> Read<Expr> {
    if function == "has" && args.len() == 1 {
        let Some(arg) = args.pop() else { return Err(ParseAborted) };
        return match arg.kind {
            Kind::Select { operand, field, test: false } => {
                parser.made(place, Kind::Select { operand, field, test: true })
            }
            _ => {
                let place = parser.place(&arg);
                Ok(parser.issue(place, "invalid argument to has() macro".to_owned()))
            }
        };
    }
    parser.made(place, Kind::Call { function: function.to_owned(), target: None, args })
}

/// Expands a member call.
pub fn member(
    parser: &mut Parser<'_>,
    place: usize,
    function: &str,
    target: Expr,
    args: Vec<Expr>,
) -> Read<Expr> {
    let mut make = Make { parser, place };
    match (function, args.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => make.quantifier(function, target, args),
        ("map", 2 | 3) => make.listed(target, args, 1),
        ("filter", 2) => make.filter(target, args),
        ("transformList", 3 | 4) => make.listed(target, args, 2),
        ("transformMap" | "transformMapEntry", 3 | 4) => make.mapped(function, target, args),
        ("optMap" | "optFlatMap", 2) => make.optional(function, target, args),
        ("bind", 3) if make.parser.binds() && is_named(&target, "cel") => make.bound(args),
        _ => parser
            .made(place, Kind::Call { function: function.to_owned(), target: Some(Box::new(target)), args }),
    }
}

fn is_named(expr: &Expr, name: &str) -> bool {
    matches!(&expr.kind, Kind::Ident(found) if found == name)
}

struct Make<'m, 's> {
    parser: &'m mut Parser<'s>,
    /// The position of the macro, which its expansion gets.
    place: usize,
}

/// The iteration variables of a comprehension.
type Names = (String, Option<String>);

impl Make<'_, '_> {
    fn made(&mut self, kind: Kind) -> Read<Expr> {
        self.parser.made(self.place, kind)
    }

    fn literal(&mut self, literal: Literal) -> Read<Expr> {
        self.made(Kind::Literal(literal))
    }

    fn ident(&mut self, name: &str) -> Read<Expr> {
        self.made(Kind::Ident(name.to_owned()))
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Read<Expr> {
        self.made(Kind::Call { function: function.to_owned(), target: None, args })
    }

    fn method(&mut self, function: &str, target: Expr) -> Read<Expr> {
        let target = Some(Box::new(target));
        self.made(Kind::Call { function: function.to_owned(), target, args: Vec::new() })
    }

    fn issue(&mut self, at: &Expr, message: &str) -> Expr {
        let place = self.parser.place(at);
        self.parser.issue(place, message.to_owned())
    }

    /// The iteration variables from the first arguments, or the error node if they are no identifiers.
    fn names(&mut self, args: &[Expr], count: usize, why: &str) -> Result<Names, Expr> {
        let mut names = Vec::new();
        for arg in args.iter().take(count) {
            let Kind::Ident(name) = &arg.kind else { return Err(self.issue(arg, why)) };
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

    fn fold(&mut self, range: Expr, names: Names, [init, condition, step, result]: [Expr; 4]) -> Read<Expr> {
        let (var, var2) = names;
        let accu = ACCUMULATOR.to_owned();
        self.made(Kind::Fold(Box::new(Fold { range, var, var2, accu, init, condition, step, result })))
    }

    fn quantifier(&mut self, function: &str, target: Expr, mut args: Vec<Expr>) -> Read<Expr> {
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
                let before = self.ident(ACCUMULATOR)?;
                [init, condition, self.call("_&&_", vec![before, predicate])?, result]
            }
            "exists" => {
                let init = self.literal(Literal::Bool(false))?;
                let not = self.call("!_", vec![accu])?;
                let condition = self.call("@not_strictly_false", vec![not])?;
                let before = self.ident(ACCUMULATOR)?;
                [init, condition, self.call("_||_", vec![before, predicate])?, result]
            }
            _ => {
                let (init, condition) = (self.literal(Literal::Int(0))?, self.literal(Literal::Bool(true))?);
                let one = self.literal(Literal::Int(1))?;
                let more = self.call("_+_", vec![accu, one])?;
                let before = self.ident(ACCUMULATOR)?;
                let step = self.call("_?_:_", vec![predicate, more, before])?;
                let one = self.literal(Literal::Int(1))?;
                [init, condition, step, self.call("_==_", vec![result, one])?]
            }
        };
        self.fold(target, names, parts)
    }

    /// A conditional step.
    fn if_only(&mut self, condition: Option<Expr>, step: Expr) -> Read<Expr> {
        let Some(condition) = condition else { return Ok(step) };
        let before = self.ident(ACCUMULATOR)?;
        self.call("_?_:_", vec![condition, step, before])
    }

    /// `map`.
    fn listed(&mut self, target: Expr, mut args: Vec<Expr>, vars: usize) -> Read<Expr> {
        let names = match self.names(&args, vars, "argument is not an identifier") {
            Ok(names) => names,
            Err(broken) => return Ok(broken),
        };
        let Some(item) = args.pop() else { return Err(ParseAborted) };
        let condition = if args.len() > vars { args.pop() } else { None };
        self.gathered(target, names, item, condition)
    }

    fn filter(&mut self, target: Expr, mut args: Vec<Expr>) -> Read<Expr> {
        let names = match self.names(&args, 1, "argument is not an identifier") {
            Ok(names) => names,
            Err(broken) => return Ok(broken),
        };
        let condition = args.pop();
        let Some(item) = args.pop() else { return Err(ParseAborted) };
        self.gathered(target, names, item, condition)
    }

    fn gathered(&mut self, target: Expr, names: Names, item: Expr, condition: Option<Expr>) -> Read<Expr> {
        let init = self.made(Kind::List { items: Vec::new() })?;
        let go_on = self.literal(Literal::Bool(true))?;
        let accu = self.ident(ACCUMULATOR)?;
        let one = self.made(Kind::List { items: vec![(item, false)] })?;
        let step = self.call("_+_", vec![accu, one])?;
        let step = self.if_only(condition, step)?;
        let result = self.ident(ACCUMULATOR)?;
        self.fold(target, names, [init, go_on, step, result])
    }

    fn mapped(&mut self, function: &str, target: Expr, mut args: Vec<Expr>) -> Read<Expr> {
        let names = match self.names(&args, 2, "argument must be a simple name") {
            Ok(names) => names,
            Err(broken) => return Ok(broken),
        };
        let Some(value) = args.pop() else { return Err(ParseAborted) };
        let condition = if args.len() > 2 { args.pop() } else { None };
        let init = self.made(Kind::Map { entries: Vec::new() })?;
        let go_on = self.literal(Literal::Bool(true))?;
        let mut put = vec![self.ident(ACCUMULATOR)?];
        if function == "transformMap" {
            put.push(self.ident(&names.0)?);
        }
        put.push(value);
        let step = self.call(MAP_INSERT, put)?;
        let step = self.if_only(condition, step)?;
        let result = self.ident(ACCUMULATOR)?;
        self.fold(target, names, [init, go_on, step, result])
    }

    /// `cel.bind`.
    fn bound(&mut self, mut args: Vec<Expr>) -> Read<Expr> {
        let (Some(result), Some(value), Some(name)) = (args.pop(), args.pop(), args.pop()) else {
            return Err(ParseAborted);
        };
        match name.kind {
            Kind::Ident(name) => self.with_name(name, value, result),
            _ => Ok(self.issue(&name, "cel.bind() variable names must be simple identifiers")),
        }
    }

    /// `cel.bind` is a comprehension over an empty list.
    fn with_name(&mut self, accu: String, init: Expr, result: Expr) -> Read<Expr> {
        let range = self.made(Kind::List { items: Vec::new() })?;
        let condition = self.literal(Literal::Bool(false))?;
        let step = self.ident(&accu)?;
        let var = "#unused".to_owned();
        self.made(Kind::Fold(Box::new(Fold { range, var, var2: None, accu, init, condition, step, result })))
    }

    /// `optMap` and `optFlatMap`.
    fn optional(&mut self, function: &str, target: Expr, mut args: Vec<Expr>) -> Read<Expr> {
        let Some(value) = args.pop() else { return Err(ParseAborted) };
        let Some(name) = args.pop() else { return Err(ParseAborted) };
        let Kind::Ident(accu) = name.kind else {
            let why = format!("{function}() variable name must be a simple identifier");
            return Ok(self.issue(&name, &why));
        };
        let again = self.copied(&target)?;
        let has_value = self.method("hasValue", target)?;
        let init = self.method("value", again)?;
        let mut some = self.with_name(accu, init, value)?;
        if function == "optMap" {
            some = self.call("optional.of", vec![some])?;
        }
        let none = self.call("optional.none", Vec::new())?;
        self.call("_?_:_", vec![has_value, some, none])
    }

    /// The same expression with numbers of its own. Copies of copies double: the number of parts is bounded.
    fn copied(&mut self, expr: &Expr) -> Read<Expr> {
        self.parser.copied(expr)
    }
}
