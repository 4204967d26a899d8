//! Estimates the cost of an expression at compile time. The arithmetic is the reference's, including its oddities, because it
//! decides which validation rules a CustomResourceDefinition may have.

use std::collections::BTreeMap;

use super::ast::{ACCUMULATOR, Expr, Fold, Kind, Literal};
use super::checker::Checked;
use super::cost::{CHARACTER, LIST, MAP, NAME, OBJECT};
use super::estimate_calls::{self, Argument};
use super::types::Type;

/// A minimum and a maximum: of a cost or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The minimum.
    pub least: u64,
    /// The maximum.
    pub most: u64,
}

impl Range {
    /// A known number.
    pub const fn fixed(number: u64) -> Range {
        Range { least: number, most: number }
    }

    /// Any number.
    pub const UNKNOWN: Range = Range { least: 0, most: u64::MAX };
    const NONE: Range = Range::fixed(0);
    const NOTHING_SEEN: Range = Range { least: u64::MAX, most: 0 };

    /// The sum.
    pub fn plus(self, other: Range) -> Range {
        Range { least: self.least.saturating_add(other.least), most: self.most.saturating_add(other.most) }
    }

    /// The product.
    pub fn times(self, other: Range) -> Range {
        Range { least: self.least.saturating_mul(other.least), most: self.most.saturating_mul(other.most) }
    }

    /// Multiplied by a factor and rounded up.
    pub fn scaled(self, factor: f64) -> Range {
        let scaled = |number: u64| {
            let product = (number as f64 * factor).ceil();
            if product >= 18_446_744_073_709_551_615.0 { u64::MAX } else { product as u64 }
        };
        Range { least: scaled(self.least), most: scaled(self.most) }
    }

    /// The union of both ranges.
    pub fn or(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), most: self.most.max(other.most) }
    }
}

/// The sizes of the keys and values of a list or map.
#[derive(Clone, Copy, Debug)]
struct ElementSizes {
    is_list: bool,
    key: Range,
    value: Range,
}

/// What is known of a variable of a comprehension.
struct Local {
    name: String,
    path: Vec<String>,
    size: Option<Range>,
    parts: Option<ElementSizes>,
}

/// The maximum size of the value at a path, whose first element is a variable.
pub type Sizes<'s> = &'s dyn Fn(&[String]) -> Option<u64>;

/// Estimates the cost of an expression.
pub fn estimate(root: &Expr, checked: &Checked, sizes: Sizes<'_>) -> Range {
    let mut estimator = Estimator {
        checked,
        sizes,
        locals: Vec::new(),
        paths: BTreeMap::new(),
        known: BTreeMap::new(),
        parts: BTreeMap::new(),
    };
    estimator.cost(root)
}

struct Estimator<'e> {
    checked: &'e Checked,
    sizes: Sizes<'e>,
    locals: Vec<Local>,
    paths: BTreeMap<usize, Vec<String>>,
    known: BTreeMap<usize, Range>,
    parts: BTreeMap<usize, ElementSizes>,
}

impl Estimator<'_> {
    fn kind(&self, expr: &Expr) -> Type {
        self.checked.types.get(expr.id).cloned().unwrap_or(Type::Dyn)
    }

    fn cost(&mut self, expr: &Expr) -> Range {
        match &expr.kind {
            Kind::Broken | Kind::Literal(_) => Range::NONE,
            Kind::Ident(name) => {
                let path = self.local(name).map_or_else(|| vec![name.clone()], |local| local.path.clone());
                self.paths.insert(expr.id, path);
                Range::fixed(NAME)
            }
            // A presence test costs only its operand.
            Kind::Select { operand, test: true, .. } => self.cost(operand),
            Kind::Select { operand, field, test: false } => {
                let mut sum = self.cost(operand);
                if matches!(self.kind(operand), Type::Map(..) | Type::Object(_)) {
                    sum = sum.plus(Range::fixed(NAME));
                }
                let path = self.path(operand).into_iter().chain([field.clone()]).collect();
                self.paths.insert(expr.id, path);
                sum
            }
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List { items } => {
                let mut sum = Range::fixed(LIST);
                let mut size = if items.is_empty() { Range::NONE } else { Range::NOTHING_SEEN };
                for (item, _) in items {
                    sum = sum.plus(self.cost(item));
                    size = size.or(self.size_or_unknown(item));
                }
                self.parts.insert(expr.id, ElementSizes { is_list: true, key: Range::fixed(1), value: size });
                sum
            }
            Kind::Map { entries } => {
                let mut sum = Range::fixed(MAP);
                let first = if entries.is_empty() { Range::NONE } else { Range::NOTHING_SEEN };
                let (mut key, mut value) = (first, first);
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.or(self.size_or_unknown(&entry.key));
                    value = value.or(self.size_or_unknown(&entry.value));
                }
                self.parts.insert(expr.id, ElementSizes { is_list: false, key, value });
                sum
            }
            Kind::Object { fields, .. } => {
                fields.iter().fold(Range::fixed(OBJECT), |sum, field| sum.plus(self.cost(&field.value)))
            }
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn path(&self, expr: &Expr) -> Vec<String> {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    /// The size of a value, if the expression or its type tells.
    fn size(&self, expr: &Expr) -> Option<Range> {
        if let Some(known) = self.known.get(&expr.id) {
            return Some(*known);
        }
        let written = match &expr.kind {
            Kind::Literal(Literal::String(text)) => Some(text.chars().count()),
            Kind::Literal(Literal::Bytes(bytes)) => Some(bytes.len()),
            Kind::Literal(_) => Some(1),
            Kind::List { items } => Some(items.len()),
            Kind::Map { entries } => Some(entries.len()),
            _ => None,
        };
        if let Some(size) = written {
            return Some(Range::fixed(size as u64));
        }
        let path = self.path(expr);
        if !path.is_empty()
            && let Some(most) = (self.sizes)(&path)
        {
            return Some(Range { least: 0, most });
        }
        if self.kind(expr).is_scalar() {
            return Some(Range::fixed(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn size_or_unknown(&self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(Range::UNKNOWN)
    }

    fn parts(&self, expr: &Expr) -> Option<ElementSizes> {
        if let Some(parts) = self.parts.get(&expr.id) {
            return Some(*parts);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.parts),
            _ => None,
        }
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Range {
        // `dyn` only changes the type.
        if let ("dyn", [arg]) = (function, args) {
            let cost = self.cost(arg).plus(Range::fixed(1));
            if let Some(size) = self.size(arg) {
                self.known.insert(expr.id, size);
            }
            if let Some(parts) = self.parts(arg) {
                self.parts.insert(expr.id, parts);
            }
            return cost;
        }
        let costs: Vec<Range> = args.iter().map(|arg| self.cost(arg)).collect();
        let arguments: Vec<Argument> = args.iter().map(|arg| self.argument(arg)).collect();
        let before = target.map_or(Range::NONE, |target| self.cost(target));
        let receiver = target.map(|target| self.argument(target));
        let overloads = self.checked.overloads.get(expr.id).map(Vec::as_slice).unwrap_or_default();
        if overloads.is_empty() {
            return Range::NONE;
        }
        let mut cost = Range::NOTHING_SEEN;
        let mut size: Option<Range> = None;
        for overload in overloads {
            let (one, result) =
                self.one_call(expr, (function, overload), receiver.as_ref(), (args, &arguments), &costs);
            cost = cost.or(one);
            size = match (size, result) {
                (Some(size), Some(result)) => Some(size.or(result)),
                (size, result) => size.or(result),
            };
            if let ("index_list" | "index_map", Some(list)) = (overload.as_str(), args.first()) {
                size = self.parts(list).map(|parts| parts.value);
                let step = if overload == "index_list" { "@items" } else { "@values" };
                let path = self.path(list).into_iter().chain([step.to_owned()]).collect();
                self.paths.insert(expr.id, path);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if let Some(size) = size {
            self.known.insert(expr.id, size);
        }
        before.plus(cost)
    }

    fn argument(&self, expr: &Expr) -> Argument {
        let path = self.path(expr);
        let path = if path.first().is_some_and(|first| first == ACCUMULATOR) { Vec::new() } else { path };
        let kind = self.kind(expr);
        let item = match kind.parameters().first() {
            Some(item) => {
                let mut path = path;
                let size = if path.is_empty() {
                    None
                } else {
                    path.push("@items".to_owned());
                    (self.sizes)(&path).map(|most| Range { least: 0, most })
                };
                Some(((*item).clone(), size.unwrap_or(Range::UNKNOWN)))
            }
            None => None,
        };
        let number = match &expr.kind {
            Kind::Literal(Literal::Int(number)) => Some(*number),
            _ => None,
        };
        Argument { size: self.size_or_unknown(expr), kind, item, number }
    }

    /// The cost of one overload of a call, and the size of its result.
    fn one_call(
        &mut self,
        expr: &Expr,
        (function, overload): (&str, &str),
        target: Option<&Argument>,
        (args, arguments): (&[Expr], &[Argument]),
        costs: &[Range],
    ) -> (Range, Option<Range>) {
        let sum = costs.iter().fold(Range::NONE, |sum, cost| sum.plus(*cost));
        if let Some((cost, size)) = estimate_calls::of_library(function, overload, target, arguments) {
            return (cost.plus(sum), size);
        }
        match (overload, costs) {
            ("logical_or" | "logical_and", [left, right]) => {
                (Range { least: left.least, most: left.plus(*right).most }, None)
            }
            ("conditional", [condition, yes, no]) => {
                let [_, one, other] = arguments else { return (sum, None) };
                if let (Some(one), Some(other)) =
                    (args.get(1).and_then(|arg| self.parts(arg)), args.get(2).and_then(|arg| self.parts(arg)))
                {
                    self.parts.insert(expr.id, joined(one, other));
                }
                (condition.plus(yes.or(*no)), Some(one.size.or(other.size)))
            }
            ("add_string" | "add_bytes" | "add_list", [_, _]) => {
                let [one, other] = arguments else { return (sum, None) };
                let size = one.size.plus(other.size);
                if let (Some(one), Some(other)) = (
                    args.first().and_then(|arg| self.parts(arg)),
                    args.get(1).and_then(|arg| self.parts(arg)),
                ) {
                    self.parts.insert(expr.id, joined(one, other));
                }
                let cost = if overload == "add_list" { Range::fixed(1) } else { size.scaled(CHARACTER) };
                (cost.plus(sum), Some(size))
            }
            _ => {
                let (cost, size) = estimate_calls::of_standard(overload, target, arguments);
                (cost.plus(sum), size)
            }
        }
    }

    fn push(&mut self, name: &str, range: &Expr, part: Part) {
        let parts = self.parts(range);
        let is_list = parts.map_or_else(|| matches!(self.kind(range), Type::List(_)), |parts| parts.is_list);
        let (step, size) = match part {
            Part::Key => (if is_list { "@indices" } else { "@keys" }, parts.map(|parts| parts.key)),
            Part::Value => (if is_list { "@items" } else { "@values" }, parts.map(|parts| parts.value)),
            Part::Single if is_list => ("@items", parts.map(|parts| parts.value)),
            Part::Single => ("@keys", parts.map(|parts| parts.key)),
        };
        let path = self.path(range).into_iter().chain([step.to_owned()]).collect();
        self.locals.push(Local { name: name.to_owned(), path, size, parts: None });
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> Range {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        let depth = self.locals.len();
        let local = Local {
            name: fold.accu.clone(),
            path: self.path(&fold.init),
            size: self.size(&fold.init),
            parts: self.parts(&fold.init),
        };
        self.locals.push(local);
        if is_bind(fold) {
            sum = sum.plus(self.cost(&fold.result));
            let (size, parts) = (self.size(&fold.result), self.parts(&fold.result));
            self.locals.truncate(depth);
            self.known.extend(size.map(|size| (expr.id, size)));
            self.parts.extend(parts.map(|parts| (expr.id, parts)));
            return sum;
        }
        match &fold.var2 {
            Some(var2) => {
                self.push(&fold.var, &fold.range, Part::Key);
                self.push(var2, &fold.range, Part::Value);
            }
            None => self.push(&fold.var, &fold.range, Part::Single),
        }
        let each = self.cost(&fold.condition).plus(self.cost(&fold.step));
        self.locals.truncate(depth + 1);
        sum = sum.plus(self.cost(&fold.result));
        self.locals.truncate(depth);
        let count = self.size_or_unknown(&fold.range);
        match &fold.init.kind {
            Kind::Literal(_) => self.known.extend(self.size(&fold.init).map(|size| (expr.id, size))),
            Kind::List { .. } | Kind::Map { .. } => {
                self.known.insert(expr.id, count);
                self.parts.extend(self.parts(&fold.step).map(|parts| (expr.id, parts)));
            }
            _ => {}
        }
        sum.plus(count.times(each))
    }
}

/// What an iteration variable stands for.
#[derive(Clone, Copy)]
enum Part {
    Key,
    Value,
    Single,
}

fn joined(one: ElementSizes, other: ElementSizes) -> ElementSizes {
    ElementSizes { is_list: one.is_list, key: one.key.or(other.key), value: one.value.or(other.value) }
}

/// Whether a comprehension is the expansion of `cel.bind`.
fn is_bind(fold: &Fold) -> bool {
    matches!(&fold.range.kind, Kind::List { items } if items.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Literal::Bool(false)))
}
