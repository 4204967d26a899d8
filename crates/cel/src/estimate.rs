//! Estimates the cost of an expression at compile time. The arithmetic is the reference's, including its oddities, because it
//! decides which validation rules a CustomResourceDefinition may have.

mod calls;
mod range;

use std::collections::BTreeMap;

use calls::Argument;
use range::Range;

use crate::checker::CheckedExpression;
use crate::cost::{CHARACTER, LIST, MAP, NAME, OBJECT};
use crate::syntax::ast::{ACCUMULATOR, Expr, Fold, Kind, Literal};
use crate::types::Type;

/// The sizes of the keys and values of a list or map.
#[derive(Clone, Copy, Debug)]
struct ElementSizes {
    is_list: bool,
    key: Range,
    value: Range,
}

/// A variable of a comprehension: the path and the size of its values.
struct Local {
    name: String,
    path: Vec<String>,
    size: Option<Range>,
    element_sizes: Option<ElementSizes>,
}

/// The maximum size of the value at a path, whose first element is a variable.
pub type Sizes<'s> = &'s dyn Fn(&[String]) -> Option<u64>;

/// Estimates the cost of an expression.
pub fn estimate(root: &Expr, checked: &CheckedExpression, sizes: Sizes<'_>) -> Range {
    let mut estimator = Estimator {
        checked,
        sizes,
        locals: Vec::new(),
        paths: BTreeMap::new(),
        computed_sizes: BTreeMap::new(),
        element_sizes: BTreeMap::new(),
    };
    estimator.cost(root)
}

/// A call, with the estimates of what it is given.
struct Call<'e> {
    expr: &'e Expr,
    function: &'e str,
    receiver: Option<Argument>,
    args: &'e [Expr],
    /// The estimates of `args`, and their costs.
    arguments: Vec<Argument>,
    costs: Vec<Range>,
}

struct Estimator<'e> {
    checked: &'e CheckedExpression,
    sizes: Sizes<'e>,
    locals: Vec<Local>,
    paths: BTreeMap<usize, Vec<String>>,
    computed_sizes: BTreeMap<usize, Range>,
    element_sizes: BTreeMap<usize, ElementSizes>,
}

impl Estimator<'_> {
    fn type_of(&self, expr: &Expr) -> Type {
        self.checked.types.get(expr.id).cloned().unwrap_or(Type::Dyn)
    }

    fn cost(&mut self, expr: &Expr) -> Range {
        match &expr.kind {
            Kind::Broken | Kind::Literal(_) => Range::ZERO,
            Kind::Ident(name) => {
                let path = self.local(name).map_or_else(|| vec![name.clone()], |local| local.path.clone());
                self.paths.insert(expr.id, path);
                Range::fixed(NAME)
            }
            // A presence test costs only its operand.
            Kind::Select { operand, test: true, .. } => self.cost(operand),
            Kind::Select { operand, field, test: false } => {
                let mut sum = self.cost(operand);
                if matches!(self.type_of(operand), Type::Map(..) | Type::Object(_)) {
                    sum = sum.plus(Range::fixed(NAME));
                }
                let path = self.path(operand).into_iter().chain([field.clone()]).collect();
                self.paths.insert(expr.id, path);
                sum
            }
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List { items } => {
                let mut sum = Range::fixed(LIST);
                let mut size = if items.is_empty() { Range::ZERO } else { Range::EMPTY };
                for (item, _) in items {
                    sum = sum.plus(self.cost(item));
                    size = size.union(self.size_or_unknown(item));
                }
                self.element_sizes
                    .insert(expr.id, ElementSizes { is_list: true, key: Range::fixed(1), value: size });
                sum
            }
            Kind::Map { entries } => {
                let mut sum = Range::fixed(MAP);
                let first = if entries.is_empty() { Range::ZERO } else { Range::EMPTY };
                let (mut key, mut value) = (first, first);
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.element_sizes.insert(expr.id, ElementSizes { is_list: false, key, value });
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

    /// The size of a value, if it is known from the expression, its path or its type.
    fn size(&self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.computed_sizes.get(&expr.id) {
            return Some(*size);
        }
        let literal_size = match &expr.kind {
            Kind::Literal(Literal::String(text)) => Some(text.chars().count()),
            Kind::Literal(Literal::Bytes(bytes)) => Some(bytes.len()),
            Kind::Literal(_) => Some(1),
            Kind::List { items } => Some(items.len()),
            Kind::Map { entries } => Some(entries.len()),
            _ => None,
        };
        if let Some(size) = literal_size {
            return Some(Range::fixed(size as u64));
        }
        let path = self.path(expr);
        if !path.is_empty()
            && let Some(max) = (self.sizes)(&path)
        {
            return Some(Range { min: 0, max });
        }
        if self.type_of(expr).is_scalar() {
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

    fn element_sizes(&self, expr: &Expr) -> Option<ElementSizes> {
        if let Some(sizes) = self.element_sizes.get(&expr.id) {
            return Some(*sizes);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.element_sizes),
            _ => None,
        }
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Range {
        // `dyn` only changes the type.
        if let ("dyn", [arg]) = (function, args) {
            let cost = self.cost(arg).plus(Range::fixed(1));
            if let Some(size) = self.size(arg) {
                self.computed_sizes.insert(expr.id, size);
            }
            if let Some(sizes) = self.element_sizes(arg) {
                self.element_sizes.insert(expr.id, sizes);
            }
            return cost;
        }
        let costs: Vec<Range> = args.iter().map(|arg| self.cost(arg)).collect();
        let arguments: Vec<Argument> = args.iter().map(|arg| self.argument(arg)).collect();
        let target_cost = target.map_or(Range::ZERO, |target| self.cost(target));
        let receiver = target.map(|target| self.argument(target));
        let overloads = self.checked.overloads.get(expr.id).map(Vec::as_slice).unwrap_or_default();
        if overloads.is_empty() {
            return Range::ZERO;
        }
        let call = Call { expr, function, receiver, args, arguments, costs };
        let mut cost = Range::EMPTY;
        let mut size: Option<Range> = None;
        for overload in overloads {
            let (overload_cost, result) = self.estimate_overload(&call, overload);
            cost = cost.union(overload_cost);
            size = match (size, result) {
                (Some(size), Some(result)) => Some(size.union(result)),
                (size, result) => size.or(result),
            };
            if let ("index_list" | "index_map", Some(list)) = (overload.as_str(), args.first()) {
                size = self.element_sizes(list).map(|sizes| sizes.value);
                let step = if overload == "index_list" { "@items" } else { "@values" };
                let path = self.path(list).into_iter().chain([step.to_owned()]).collect();
                self.paths.insert(expr.id, path);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if let Some(size) = size {
            self.computed_sizes.insert(expr.id, size);
        }
        target_cost.plus(cost)
    }

    fn argument(&self, expr: &Expr) -> Argument {
        let path = self.path(expr);
        let path = if path.first().is_some_and(|first| first == ACCUMULATOR) { Vec::new() } else { path };
        let kind = self.type_of(expr);
        let item = match kind.parameters().first() {
            Some(item) => {
                let mut path = path;
                let size = if path.is_empty() {
                    None
                } else {
                    path.push("@items".to_owned());
                    (self.sizes)(&path).map(|max| Range { min: 0, max })
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
    fn estimate_overload(&mut self, call: &Call<'_>, overload: &str) -> (Range, Option<Range>) {
        let Call { expr, function, args, ref arguments, ref costs, .. } = *call;
        let receiver = call.receiver.as_ref();
        let sum = costs.iter().fold(Range::ZERO, |sum, cost| sum.plus(*cost));
        if let Some((cost, size)) = calls::library_call(function, overload, receiver, arguments) {
            return (cost.plus(sum), size);
        }
        match (overload, costs.as_slice()) {
            ("logical_or" | "logical_and", [left, right]) => {
                (Range { min: left.min, max: left.plus(*right).max }, None)
            }
            ("conditional", [condition, yes, no]) => {
                let [_, left, right] = arguments.as_slice() else { return (sum, None) };
                if let (Some(left), Some(right)) = (
                    args.get(1).and_then(|arg| self.element_sizes(arg)),
                    args.get(2).and_then(|arg| self.element_sizes(arg)),
                ) {
                    self.element_sizes.insert(expr.id, union_sizes(left, right));
                }
                (condition.plus(yes.union(*no)), Some(left.size.union(right.size)))
            }
            ("add_string" | "add_bytes" | "add_list", [_, _]) => {
                let [left, right] = arguments.as_slice() else { return (sum, None) };
                let size = left.size.plus(right.size);
                if let (Some(left), Some(right)) = (
                    args.first().and_then(|arg| self.element_sizes(arg)),
                    args.get(1).and_then(|arg| self.element_sizes(arg)),
                ) {
                    self.element_sizes.insert(expr.id, union_sizes(left, right));
                }
                let cost = if overload == "add_list" { Range::fixed(1) } else { size.scaled(CHARACTER) };
                (cost.plus(sum), Some(size))
            }
            _ => {
                let (cost, size) = calls::standard_call(overload, receiver, arguments);
                (cost.plus(sum), size)
            }
        }
    }

    fn push(&mut self, name: &str, range: &Expr, variable: LoopVariable) {
        let element_sizes = self.element_sizes(range);
        let is_list =
            element_sizes.map_or_else(|| matches!(self.type_of(range), Type::List(_)), |sizes| sizes.is_list);
        let (step, size) = match variable {
            LoopVariable::Key => {
                (if is_list { "@indices" } else { "@keys" }, element_sizes.map(|sizes| sizes.key))
            }
            LoopVariable::Value => {
                (if is_list { "@items" } else { "@values" }, element_sizes.map(|sizes| sizes.value))
            }
            LoopVariable::Single if is_list => ("@items", element_sizes.map(|sizes| sizes.value)),
            LoopVariable::Single => ("@keys", element_sizes.map(|sizes| sizes.key)),
        };
        let path = self.path(range).into_iter().chain([step.to_owned()]).collect();
        self.locals.push(Local { name: name.to_owned(), path, size, element_sizes: None });
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> Range {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        let depth = self.locals.len();
        let local = Local {
            name: fold.accu.clone(),
            path: self.path(&fold.init),
            size: self.size(&fold.init),
            element_sizes: self.element_sizes(&fold.init),
        };
        self.locals.push(local);
        if is_bind(fold) {
            sum = sum.plus(self.cost(&fold.result));
            let (size, element_sizes) = (self.size(&fold.result), self.element_sizes(&fold.result));
            self.locals.truncate(depth);
            self.computed_sizes.extend(size.map(|size| (expr.id, size)));
            self.element_sizes.extend(element_sizes.map(|sizes| (expr.id, sizes)));
            return sum;
        }
        match &fold.var2 {
            Some(var2) => {
                self.push(&fold.var, &fold.range, LoopVariable::Key);
                self.push(var2, &fold.range, LoopVariable::Value);
            }
            None => self.push(&fold.var, &fold.range, LoopVariable::Single),
        }
        let iteration_cost = self.cost(&fold.condition).plus(self.cost(&fold.step));
        self.locals.truncate(depth + 1);
        sum = sum.plus(self.cost(&fold.result));
        self.locals.truncate(depth);
        let count = self.size_or_unknown(&fold.range);
        match &fold.init.kind {
            Kind::Literal(_) => self.computed_sizes.extend(self.size(&fold.init).map(|size| (expr.id, size))),
            Kind::List { .. } | Kind::Map { .. } => {
                self.computed_sizes.insert(expr.id, count);
                self.element_sizes.extend(self.element_sizes(&fold.step).map(|sizes| (expr.id, sizes)));
            }
            _ => {}
        }
        sum.plus(count.times(iteration_cost))
    }
}

/// What an iteration variable holds in each iteration.
#[derive(Clone, Copy)]
enum LoopVariable {
    Key,
    Value,
    Single,
}

fn union_sizes(left: ElementSizes, right: ElementSizes) -> ElementSizes {
    ElementSizes {
        is_list: left.is_list,
        key: left.key.union(right.key),
        value: left.value.union(right.value),
    }
}

/// Whether a comprehension is the expansion of `cel.bind`.
fn is_bind(fold: &Fold) -> bool {
    matches!(&fold.range.kind, Kind::List { items } if items.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Literal::Bool(false)))
}
