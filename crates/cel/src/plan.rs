//! The planner: turns a checked expression into a tree of evaluation steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::pattern::Patterns;
use regex::Regex;

use crate::checker::CheckedExpression;
use crate::constructed_types;
use crate::functions::type_named;
use crate::library::{self, CallContext, FunctionImpl};
use crate::syntax::ast::{ACCUMULATOR, Expr, Fold, Kind, Literal, MAP_INSERT};
use crate::types::Type;
use crate::value::{Map, Text, Val};

/// A node of the plan.
#[derive(Debug)]
pub enum Node {
    /// A constant.
    Const(Val<'static>),
    /// A variable, by its index in the program.
    Variable(usize),
    /// A variable of a comprehension, by its slot.
    Local(usize),
    /// A field selection.
    Select(Box<Node>, String),
    /// A presence test.
    Has(Box<Node>, String),
    /// An optional selection (`.?field`).
    OptionalSelect(Box<Node>, String),
    /// `&&`.
    And(Box<(Node, Node)>),
    /// `||`.
    Or(Box<(Node, Node)>),
    /// The conditional operator.
    If(Box<(Node, Node, Node)>),
    /// `@not_strictly_false`: true for anything but `false`, including errors.
    NotFalse(Box<Node>),
    /// `orValue` and `or`.
    OrElse(Box<(Node, Node)>, Unwrap),
    /// A function call.
    Call(Call),
    /// A list.
    List(Vec<(Node, bool)>),
    /// A map.
    Map(Vec<(Node, Node, bool)>),
    /// An object construction: its type and fields, each with a flag for optional ones.
    Object(Arc<str>, Vec<(Arc<str>, Node, bool)>),
    /// A comprehension.
    Fold(Box<FoldNode>),
    /// Appends an item to the accumulator in this slot.
    Append(usize, Box<Node>),
    /// Inserts an entry, or all entries of a map, into the accumulator in this slot.
    Insert(usize, Vec<Node>),
}

/// Whether an optional is unwrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwrap {
    /// `orValue`: unwrapped.
    Yes,
    /// `or`: stays optional.
    No,
}

/// A function call.
pub struct Call {
    /// Its name.
    pub name: Arc<str>,
    /// The implementation.
    pub run: FunctionImpl,
    /// The arguments.
    pub args: Vec<Node>,
    /// The compiled regular expression, if the pattern is constant.
    pub pattern: Option<Regex>,
}

impl Node {
    /// Whether it is an attribute: a variable, or a selection from one.
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

/// A comprehension.
#[derive(Debug)]
pub struct FoldNode {
    /// The list or map.
    pub range: Node,
    /// The slot of the first iteration variable.
    pub var: usize,
    /// The slot of the second iteration variable.
    pub var2: Option<usize>,
    /// The slot of the accumulator.
    pub accu: usize,
    /// The initial value of the accumulator.
    pub init: Node,
    /// The loop condition.
    pub condition: Node,
    /// The next value of the accumulator.
    pub step: Node,
    /// The result.
    pub result: Node,
}

/// Plans an expression.
pub fn plan(root: &Expr, checked: &CheckedExpression, patterns: &mut Patterns) -> Option<Node> {
    let variables = checked.uses.iter().enumerate().map(|(slot, name)| (name.clone(), slot)).collect();
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
        if let Some(slot) = self.scopes.iter().rposition(|scope| scope == name) {
            return Some(Node::Local(slot));
        }
        let plain = name.strip_prefix('.').unwrap_or(name);
        if let Some(slot) = self.variables.get(plain) {
            return Some(Node::Variable(*slot));
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
                let operands = Box::new((nodes.pop()?, second));
                return Some(match function {
                    "_&&_" => Node::And(operands),
                    "_||_" => Node::Or(operands),
                    "or" => Node::OrElse(operands, Unwrap::No),
                    _ => Node::OrElse(operands, Unwrap::Yes),
                });
            }
            ("_?_:_", 3) => {
                let (no, yes) = (nodes.pop()?, nodes.pop()?);
                return Some(Node::If(Box::new((nodes.pop()?, yes, no))));
            }
            ("@not_strictly_false", 1) => return nodes.pop().map(|inner| Node::NotFalse(Box::new(inner))),
            _ => {}
        }
        // Constant folding of conversions that succeed.
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

    /// Recognizes an accumulator that grows by concatenation, to append in place: copying it for each item would be quadratic.
    fn append(&mut self, function: &str, args: &[Expr]) -> Option<Option<Node>> {
        let Kind::Ident(name) = &args.first()?.kind else { return None };
        let slot = self.scopes.iter().rposition(|scope| scope == name).filter(|_| name == ACCUMULATOR)?;
        let items = args.get(1..).unwrap_or_default();
        if function == MAP_INSERT {
            let nodes: Option<Vec<Node>> = items.iter().map(|arg| self.node(arg)).collect();
            return Some(nodes.map(|nodes| Node::Insert(slot, nodes)));
        }
        let ("_+_", [Expr { kind: Kind::List { items }, .. }]) = (function, items) else { return None };
        let [(item, false)] = items.as_slice() else { return None };
        Some(self.node(item).map(|item| Node::Append(slot, Box::new(item))))
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

/// Folds a map of constants to a constant.
fn map(entries: Vec<(Node, Node, bool)>) -> Node {
    let mut values = BTreeMap::new();
    for (key, value, optional) in &entries {
        let (Node::Const(key), Node::Const(value), false) = (key, value, optional) else {
            return Node::Map(entries);
        };
        let Some(map_key) = key.key() else { return Node::Map(entries) };
        if values.insert(map_key, (key.clone(), value.clone())).is_some() {
            return Node::Map(entries);
        }
    }
    Node::Const(Val::Map(Map::Computed(Arc::new(values))))
}

/// Folds a list of constants to a constant.
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
        Literal::Bool(boolean) => Val::Bool(*boolean),
        Literal::Int(number) => Val::Int(*number),
        Literal::Uint(number) => Val::Uint(*number),
        Literal::Double(number) => Val::Double(*number),
        Literal::String(text) => Val::String(Text::Owned(text.as_str().into())),
        Literal::Bytes(bytes) => Val::Bytes(bytes.as_slice().into()),
    }
}
