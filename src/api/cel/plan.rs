//! From a checked expression to what is evaluated.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::Regex;

use super::ast::{ACCUMULATOR, Expr, Fold, Kind, Literal};
use super::checker::Checked;
use super::constructed_types;
use super::eval::CallContext;
use super::functions::type_named;
use super::library::{self, FunctionImpl};
use super::macros::MAP_INSERT;
use super::types::Type;
use super::value::{Map, Text, Val};
use crate::api::custom::pattern::Patterns;

/// One step of an evaluation.
#[derive(Debug)]
pub enum Node {
    /// A value that is there already.
    Const(Val<'static>),
    /// A variable, by its place among those of the program.
    Variable(usize),
    /// What a fold has named, by its place.
    Local(usize),
    /// A field.
    Select(Box<Node>, String),
    /// Whether there is a field.
    Has(Box<Node>, String),
    /// A field that may not be there.
    OptionalSelect(Box<Node>, String),
    /// Both.
    And(Box<(Node, Node)>),
    /// One of both.
    Or(Box<(Node, Node)>),
    /// The second or the third.
    If(Box<(Node, Node, Node)>),
    /// Anything but a plain false.
    NotFalse(Box<Node>),
    /// The value of an optional, or of something else.
    OrElse(Box<(Node, Node)>, Unwrap),
    /// A function.
    Call(Call),
    /// A list.
    List(Vec<(Node, bool)>),
    /// A map.
    Map(Vec<(Node, Node, bool)>),
    /// An object of a type that expressions make: its fields, and whether each is there only if it has a value.
    Object(Arc<str>, Vec<(Arc<str>, Node, bool)>),
    /// A fold.
    Fold(Box<FoldNode>),
    /// What a fold has gathered, with one more item.
    Append(usize, Box<Node>),
    /// The same of a map: a key and its value, or another map.
    Insert(usize, Vec<Node>),
}

/// Whether an optional is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwrap {
    /// It is.
    Yes,
    /// It stays one.
    No,
}

/// The call of a function.
pub struct Call {
    /// Its name.
    pub name: Arc<str>,
    /// What it does.
    pub run: FunctionImpl,
    /// What it is given.
    pub args: Vec<Node>,
    /// The pattern that it is given, if that is known.
    pub pattern: Option<Regex>,
}

impl Node {
    /// Whether it is a name, or a part of what a name stands for.
    pub fn is_attribute(&self) -> bool {
        match self {
            Node::Variable(_) | Node::Local(_) => true,
            Node::Select(operand, _) => operand.is_attribute(),
            Node::Call(call) => &*call.name == "_[_]" && call.args.first().is_some_and(Node::is_attribute),
            _ => false,
        }
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Call").field(&self.name).field(&self.args).finish()
    }
}

/// A walk.
#[derive(Debug)]
pub struct FoldNode {
    /// Over what.
    pub range: Node,
    /// Where the item or key stands.
    pub var: usize,
    /// Where the value stands.
    pub var2: Option<usize>,
    /// Where the result is gathered.
    pub accu: usize,
    /// What that is at first.
    pub init: Node,
    /// Whether to go on.
    pub condition: Node,
    /// One step.
    pub step: Node,
    /// The whole.
    pub result: Node,
}

/// Plans an expression.
pub fn plan(root: &Expr, checked: &Checked, patterns: &mut Patterns) -> Option<Node> {
    let variables = checked.uses.iter().enumerate().map(|(place, name)| (name.clone(), place)).collect();
    Planner { variables, scopes: Vec::new(), patterns }.node(root)
}

struct Planner<'p> {
    variables: BTreeMap<String, usize>,
    scopes: Vec<String>,
    patterns: &'p mut Patterns,
}

impl Planner<'_> {
    fn node(&mut self, expr: &Expr) -> Option<Node> {
        Some(match &expr.kind {
            Kind::Broken => return None,
            Kind::Object { name, fields } => {
                let planned = fields.iter().map(|field| {
                    Some((field.name.as_str().into(), self.node(&field.value)?, field.optional))
                });
                Node::Object(name.as_str().into(), planned.collect::<Option<_>>()?)
            }
            Kind::Literal(literal) => Node::Const(constant(literal)),
            Kind::Ident(name) => self.ident(name)?,
            Kind::Select { operand, field, test: false } => {
                Node::Select(Box::new(self.node(operand)?), field.clone())
            }
            Kind::Select { operand, field, test: true } => {
                Node::Has(Box::new(self.node(operand)?), field.clone())
            }
            Kind::Call { function, target, args } => return self.call(function, target.as_deref(), args),
            Kind::List { items } => {
                let items: Option<Vec<_>> =
                    items.iter().map(|(item, optional)| Some((self.node(item)?, *optional))).collect();
                return items.map(list);
            }
            Kind::Map { entries } => {
                let planned = entries
                    .iter()
                    .map(|entry| Some((self.node(&entry.key)?, self.node(&entry.value)?, entry.optional)));
                map(planned.collect::<Option<_>>()?)
            }
            Kind::Fold(fold) => Node::Fold(Box::new(self.fold(fold)?)),
        })
    }

    fn ident(&mut self, name: &str) -> Option<Node> {
        if let Some(place) = self.scopes.iter().rposition(|own| own == name) {
            return Some(Node::Local(place));
        }
        let plain = name.strip_prefix('.').unwrap_or(name);
        if let Some(place) = self.variables.get(plain) {
            return Some(Node::Variable(*place));
        }
        match type_named(plain).or_else(|| constructed_types::type_named(plain))? {
            Type::Type(Some(kind)) => Some(Node::Const(Val::Type(kind.name().into()))),
            _ => None,
        }
    }

    fn call(&mut self, function: &str, target: Option<&Expr>, args: &[Expr]) -> Option<Node> {
        if let ("_?._", [operand, field]) = (function, args) {
            let name = field.literal_text()?.to_owned();
            return Some(Node::OptionalSelect(Box::new(self.node(operand)?), name));
        }
        if let Some(appended) = self.append(function, args) {
            return appended;
        }
        let all = target.into_iter().chain(args);
        let mut nodes: Vec<Node> = all.map(|arg| self.node(arg)).collect::<Option<_>>()?;
        match (function, nodes.len()) {
            ("_&&_" | "_||_" | "or" | "orValue", 2) => {
                let second = nodes.pop()?;
                let both = Box::new((nodes.pop()?, second));
                return Some(match function {
                    "_&&_" => Node::And(both),
                    "_||_" => Node::Or(both),
                    "or" => Node::OrElse(both, Unwrap::No),
                    _ => Node::OrElse(both, Unwrap::Yes),
                });
            }
            ("_?_:_", 3) => {
                let (no, yes) = (nodes.pop()?, nodes.pop()?);
                return Some(Node::If(Box::new((nodes.pop()?, yes, no))));
            }
            ("@not_strictly_false", 1) => return nodes.pop().map(|inner| Node::NotFalse(Box::new(inner))),
            _ => {}
        }
        // A conversion of a constant is one itself, if it can be done.
        if let [Node::Const(value)] = nodes.as_slice()
            && CONVERSIONS.contains(&function)
            && let Some(Ok(converted)) = library::run(function)
                .map(|run| run(function, std::slice::from_ref(value), &mut CallContext::default()))
        {
            return Some(Node::Const(converted));
        }
        let pattern = match (function, nodes.get(1)) {
            ("matches" | "find" | "findAll", Some(Node::Const(Val::String(text)))) => {
                self.patterns.compiled(text)
            }
            _ => None,
        };
        Some(Node::Call(Call { name: function.into(), run: library::run(function)?, args: nodes, pattern }))
    }

    /// What gathers a list adds to it in place: copying it for each item would take the square of its length.
    fn append(&mut self, function: &str, args: &[Expr]) -> Option<Option<Node>> {
        let Kind::Ident(name) = &args.first()?.kind else { return None };
        let place = self.scopes.iter().rposition(|own| own == name).filter(|_| name == ACCUMULATOR)?;
        let more = args.get(1..).unwrap_or_default();
        if function == MAP_INSERT {
            let nodes: Option<Vec<Node>> = more.iter().map(|arg| self.node(arg)).collect();
            return Some(nodes.map(|nodes| Node::Insert(place, nodes)));
        }
        let ("_+_", [Expr { kind: Kind::List { items }, .. }]) = (function, more) else { return None };
        let [(item, false)] = items.as_slice() else { return None };
        Some(self.node(item).map(|item| Node::Append(place, Box::new(item))))
    }

    fn fold(&mut self, fold: &Fold) -> Option<FoldNode> {
        let (range, init) = (self.node(&fold.range)?, self.node(&fold.init)?);
        let accu = self.scopes.len();
        self.scopes.push(fold.accu.clone());
        let var = self.scopes.len();
        self.scopes.push(fold.var.clone());
        let var2 = fold.var2.as_ref().map(|name| {
            self.scopes.push(name.clone());
            self.scopes.len() - 1
        });
        let (condition, step) = (self.node(&fold.condition)?, self.node(&fold.step)?);
        self.scopes.truncate(accu + 1);
        let result = self.node(&fold.result)?;
        self.scopes.truncate(accu);
        Some(FoldNode { range, var, var2, accu, init, condition, step, result })
    }
}

const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// A map of constants is one itself.
fn map(entries: Vec<(Node, Node, bool)>) -> Node {
    let mut made = BTreeMap::new();
    for (key, value, optional) in &entries {
        let (Node::Const(key), Node::Const(value), false) = (key, value, optional) else {
            return Node::Map(entries);
        };
        let Some(found) = key.key() else { return Node::Map(entries) };
        if made.insert(found, (key.clone(), value.clone())).is_some() {
            return Node::Map(entries);
        }
    }
    Node::Const(Val::Map(Map::Made(Arc::new(made))))
}

/// A list of constants is one itself.
fn list(items: Vec<(Node, bool)>) -> Node {
    if items.iter().any(|(item, optional)| *optional || !matches!(item, Node::Const(_))) {
        return Node::List(items);
    }
    let values = items.into_iter().filter_map(|(item, _)| match item {
        Node::Const(value) => Some(value),
        _ => None,
    });
    Node::Const(Val::from(values.collect::<Vec<_>>()))
}

fn constant(literal: &Literal) -> Val<'static> {
    match literal {
        Literal::Null => Val::Null,
        Literal::Bool(truth) => Val::Bool(*truth),
        Literal::Int(number) => Val::Int(*number),
        Literal::Uint(number) => Val::Uint(*number),
        Literal::Double(number) => Val::Double(*number),
        Literal::String(text) => Val::String(Text::Owned(text.as_str().into())),
        Literal::Bytes(bytes) => Val::Bytes(bytes.as_slice().into()),
    }
}
