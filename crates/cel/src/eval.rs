//! Evaluates a plan.

use std::sync::Arc;

use crate::cost;
use crate::library::{self, CallContext};
use crate::plan::{Call, FoldNode, Node, Unwrap};
use crate::value::{ConstructedObject, Fault, List, Map, Outcome, Val};

/// The state of one evaluation.
pub struct Evaluator<'v, 'r> {
    /// Resolves variables.
    resolve: &'r dyn Fn(&str) -> Option<Outcome<'v>>,
    names: &'v [String],
    variables: Vec<Option<Outcome<'v>>>,
    locals: Vec<Outcome<'v>>,
    /// The runtime cost so far.
    pub cost: u64,
    limit: u64,
    /// State that the called functions share.
    context: CallContext,
}

impl<'v, 'r> Evaluator<'v, 'r> {
    /// Starts an evaluation.
    pub fn new(
        names: &'v [String],
        resolve: &'r dyn Fn(&str) -> Option<Outcome<'v>>,
        limit: u64,
    ) -> Evaluator<'v, 'r> {
        let variables = names.iter().map(|_| None).collect();
        Evaluator {
            resolve,
            names,
            variables,
            locals: Vec::new(),
            cost: 0,
            limit,
            context: CallContext::default(),
        }
    }

    /// The work so far: the cost, or the uncharged steps if there were more.
    pub fn spent(&self) -> u64 {
        self.cost.max(self.context.uncharged_steps())
    }

    /// The value of a node.
    pub fn eval(&mut self, node: &'v Node) -> Outcome<'v> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Variable(slot) => self.variable(*slot),
            Node::Local(slot) => self.local(*slot),
            Node::Select(operand, field) => self.select(operand, field),
            Node::Has(operand, field) => self.has(operand, field),
            Node::OptionalSelect(operand, field) => self.optional_select(operand, field),
            Node::And(operands) => self.logical(&operands.0, &operands.1, false),
            Node::Or(operands) => self.logical(&operands.0, &operands.1, true),
            Node::If(parts) => self.conditional(&parts.0, &parts.1, &parts.2),
            Node::NotFalse(inner) => self.not_false(inner),
            Node::OrElse(operands, unwrap) => self.or_else(&operands.0, &operands.1, *unwrap),
            Node::Call(call) => self.call(call),
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Object(name, fields) => self.object(name, fields),
            Node::Fold(fold) => self.fold(fold),
            Node::Append(slot, item) => self.append(*slot, item),
            Node::Insert(slot, args) => self.insert(*slot, args),
        }
    }

    fn charge(&mut self, cost: u64) -> Result<(), Fault> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Fault::Budget) } else { Ok(()) }
    }

    /// Refunds the cost of an identifier that is only a branch of a conditional or an index key, as the reference does not charge
    /// it.
    fn refund(&mut self, node: &Node) {
        if node.is_attribute() {
            self.cost = self.cost.saturating_sub(cost::NAME);
        }
    }

    fn variable(&mut self, slot: usize) -> Outcome<'v> {
        self.charge(cost::NAME)?;
        if let Some(Some(value)) = self.variables.get(slot) {
            return value.clone();
        }
        let name = self.names.get(slot).map(String::as_str).unwrap_or_default();
        let missing = || Err(Fault::error(format!("no such attribute(s): {name}")));
        let value = (self.resolve)(name).unwrap_or_else(missing);
        if let Some(cached) = self.variables.get_mut(slot) {
            *cached = Some(value.clone());
        }
        value
    }

    fn local(&mut self, index: usize) -> Outcome<'v> {
        self.charge(cost::NAME)?;
        self.locals.get(index).cloned().unwrap_or_else(|| Err(Fault::no_overload()))
    }

    fn set(&mut self, index: usize, value: Outcome<'v>) {
        while self.locals.len() <= index {
            self.locals.push(Ok(Val::Null));
        }
        if let Some(slot) = self.locals.get_mut(index) {
            *slot = value;
        }
    }

    fn select(&mut self, operand: &'v Node, field: &str) -> Outcome<'v> {
        let operand = self.eval(operand)?;
        self.charge(cost::NAME)?;
        // Selecting a field of an optional gives an optional.
        if let Val::Optional(inner) = operand {
            return optional_field(inner.as_deref(), field);
        }
        if let Val::Constructed(object) = &operand {
            return Ok(object.select(field));
        }
        field_of(&operand, field)?.unwrap_or_else(|| Err(Fault::error(format!("no such key: {field}"))))
    }

    fn has(&mut self, operand: &'v Node, field: &str) -> Outcome<'v> {
        let operand = self.eval(operand)?;
        let is_present = match &operand {
            Val::Optional(None) => false,
            Val::Optional(Some(inner)) => field_of(inner, field)?.transpose()?.is_some(),
            other => field_of(other, field)?.transpose()?.is_some(),
        };
        Ok(Val::Bool(is_present))
    }

    fn optional_select(&mut self, operand: &'v Node, field: &str) -> Outcome<'v> {
        let operand = self.eval(operand)?;
        self.charge(cost::NAME)?;
        match operand {
            Val::Optional(inner) => optional_field(inner.as_deref(), field),
            other => optional_field(Some(&other), field),
        }
    }

    /// `&&` and `||` are commutative: an error of one operand does not matter if the other decides.
    fn logical(&mut self, left: &'v Node, right: &'v Node, deciding: bool) -> Outcome<'v> {
        let left = to_bool(self.eval(left))?;
        if left == Ok(deciding) {
            return Ok(Val::Bool(deciding));
        }
        let right = to_bool(self.eval(right))?;
        if right == Ok(deciding) {
            return Ok(Val::Bool(deciding));
        }
        left.and(right).map(Val::Bool)
    }

    fn conditional(&mut self, condition: &'v Node, yes: &'v Node, no: &'v Node) -> Outcome<'v> {
        let branch = match self.eval(condition)? {
            Val::Bool(true) => yes,
            Val::Bool(false) => no,
            _ => return Err(Fault::no_overload()),
        };
        let value = self.eval(branch);
        self.refund(branch);
        value
    }

    fn not_false(&mut self, inner: &'v Node) -> Outcome<'v> {
        let inner = self.eval(inner);
        self.charge(1)?;
        match inner {
            Err(Fault::Budget) => inner,
            Ok(Val::Bool(false)) => inner,
            _ => Ok(Val::Bool(true)),
        }
    }

    fn or_else(&mut self, left: &'v Node, right: &'v Node, unwrap: Unwrap) -> Outcome<'v> {
        let left = self.eval(left)?;
        match (left, unwrap) {
            (Val::Optional(Some(inner)), Unwrap::Yes) => Ok((*inner).clone()),
            (some @ Val::Optional(Some(_)), Unwrap::No) => Ok(some),
            (Val::Optional(None), _) => self.eval(right),
            _ => Err(Fault::no_overload()),
        }
    }

    fn call(&mut self, call: &'v Call) -> Outcome<'v> {
        let mut args = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            args.push(self.eval(arg)?);
        }
        match (&*call.name, call.args.get(1)) {
            // Membership in a constant list is a lookup.
            ("@in", Some(Node::Const(Val::List(_)))) => {}
            ("_[_]", Some(key)) => {
                self.refund(key);
                self.charge(1)?;
            }
            _ => self.charge(cost::call_cost(&call.name, &args))?,
        }
        self.context.set_pattern(call.pattern.as_ref());
        let result = if let Some(Val::Foreign(foreign)) = args.first() {
            let foreign = foreign.clone();
            foreign.call(&call.name, args.get(1..).unwrap_or_default())
        } else {
            (call.run)(&call.name, &args, &mut self.context)
        };
        if let Ok(value) = &result {
            self.charge(cost::result_cost(&call.name, value))?;
        }
        result
    }

    fn list(&mut self, items: &'v [(Node, bool)]) -> Outcome<'v> {
        let mut values = Vec::with_capacity(items.len());
        for (item, optional) in items {
            match (self.eval(item)?, optional) {
                (Val::Optional(Some(inner)), true) => values.push((*inner).clone()),
                (Val::Optional(None), true) => {}
                (value, _) => values.push(value),
            }
        }
        self.charge(cost::LIST)?;
        Ok(Val::from(values))
    }

    fn map(&mut self, entries: &'v [(Node, Node, bool)]) -> Outcome<'v> {
        let mut values = std::collections::BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = match (self.eval(value)?, optional) {
                (Val::Optional(Some(inner)), true) => (*inner).clone(),
                (Val::Optional(None), true) => {
                    key.key().map(|map_key| values.remove(&map_key));
                    continue;
                }
                (value, _) => value,
            };
            let Some(map_key) = key.key() else {
                return Err(Fault::error(format!("unsupported key type: {}", key.type_name())));
            };
            // Of a repeated key the last entry counts.
            values.insert(map_key, (key.clone(), value));
        }
        self.charge(cost::MAP)?;
        Ok(Val::Map(Map::Computed(Arc::new(values))))
    }

    fn object(&mut self, name: &'v Arc<str>, fields: &'v [(Arc<str>, Node, bool)]) -> Outcome<'v> {
        let mut values = std::collections::BTreeMap::new();
        for (field, value, optional) in fields {
            let value = match (self.eval(value)?, optional) {
                (Val::Optional(Some(inner)), true) => (*inner).clone(),
                (Val::Optional(None), true) => {
                    values.remove(&**field);
                    continue;
                }
                (other, true) => {
                    let message =
                        format!("cannot initialize optional entry '{field}' from non-optional value {other}");
                    return Err(Fault::error(message));
                }
                (value, false) => value,
            };
            values.insert(&**field, value);
        }
        self.charge(cost::OBJECT)?;
        ConstructedObject::new(name, values).map(|object| Val::Constructed(Arc::new(object)))
    }

    /// Takes the accumulator out of its slot, so that it has no other owner and grows in place.
    fn take_accumulator(&mut self, index: usize) -> Outcome<'v> {
        self.charge(cost::NAME)?;
        match self.locals.get_mut(index) {
            Some(slot) if slot.is_ok() => std::mem::replace(slot, Ok(Val::Null)),
            Some(slot) => slot.clone(),
            None => Err(Fault::no_overload()),
        }
    }

    fn insert(&mut self, slot: usize, args: &'v [Node]) -> Outcome<'v> {
        let Val::Map(Map::Computed(mut entries)) = self.take_accumulator(slot)? else {
            return Err(Fault::no_overload());
        };
        let args: Vec<Val<'v>> = args.iter().map(|arg| self.eval(arg)).collect::<Result<_, _>>()?;
        self.charge(1)?;
        library::insert(Arc::make_mut(&mut entries), &args)?;
        Ok(Val::Map(Map::Computed(entries)))
    }

    fn append(&mut self, slot: usize, item: &'v Node) -> Outcome<'v> {
        let Val::List(List::Computed(mut items)) = self.take_accumulator(slot)? else {
            return Err(Fault::no_overload());
        };
        let item = self.eval(item)?;
        self.charge(cost::LIST + 1)?;
        Arc::make_mut(&mut items).push(item);
        Ok(Val::List(List::Computed(items)))
    }

    fn fold(&mut self, fold: &'v FoldNode) -> Outcome<'v> {
        let range = self.eval(&fold.range)?;
        let init = self.eval(&fold.init);
        if let Err(Fault::Budget) = init {
            return init;
        }
        self.set(fold.accu, init);
        match range {
            Val::List(list) => {
                for index in 0..list.len() {
                    let item = list.get(index).unwrap_or(Ok(Val::Null));
                    if !self.step(fold, Ok(Val::Int(index as i64)), item, true)? {
                        break;
                    }
                }
            }
            Val::Map(map) => {
                for key in map.keys() {
                    let value = match fold.var2 {
                        Some(_) => map.get(&key)?.map_or(Ok(Val::Null), Ok),
                        None => Ok(Val::Null),
                    };
                    if !self.step(fold, Ok(key), value, false)? {
                        break;
                    }
                }
            }
            _ => return Err(Fault::no_overload()),
        }
        self.eval(&fold.result)
    }

    /// Evaluates one iteration. Returns whether to continue.
    fn step(
        &mut self,
        fold: &'v FoldNode,
        key: Outcome<'v>,
        value: Outcome<'v>,
        is_list: bool,
    ) -> Result<bool, Fault> {
        match fold.var2 {
            Some(var2) => {
                self.set(fold.var, key);
                self.set(var2, value);
            }
            None => self.set(fold.var, if is_list { value } else { key }),
        }
        let condition = self.eval(&fold.condition);
        match condition {
            Ok(Val::Bool(true)) => {}
            Err(Fault::Budget) => return Err(Fault::Budget),
            _ => return Ok(false),
        }
        let next = self.eval(&fold.step);
        if let Err(Fault::Budget) = next {
            return Err(Fault::Budget);
        }
        // With a constant loop condition, an error would only be repeated.
        let stop = next.is_err() && matches!(fold.condition, Node::Const(_));
        self.set(fold.accu, next);
        Ok(!stop)
    }
}

/// A boolean or an error. Exceeding the cost limit ends the evaluation.
fn to_bool(outcome: Outcome<'_>) -> Result<Result<bool, Fault>, Fault> {
    match outcome {
        Ok(Val::Bool(boolean)) => Ok(Ok(boolean)),
        Ok(_) => Ok(Err(Fault::no_overload())),
        Err(Fault::Budget) => Err(Fault::Budget),
        Err(error) => Ok(Err(error)),
    }
}

/// Selects a field of a value. Selecting from a list is an error; other values without fields have no such field.
fn field_of<'v>(value: &Val<'v>, field: &str) -> Result<Option<Outcome<'v>>, Fault> {
    match value {
        Val::Map(map) => Ok(map.field(field)),
        Val::List(_) => Err(Fault::no_overload()),
        Val::Constructed(object) => Ok(object.field(field).map(Ok)),
        _ => Ok(None),
    }
}

fn optional_field<'v>(value: Option<&Val<'v>>, field: &str) -> Outcome<'v> {
    let field_value = match value {
        Some(value) => field_of(value, field)?.transpose()?,
        None => None,
    };
    Ok(match field_value {
        // An optional is not wrapped again.
        Some(optional @ Val::Optional(_)) => optional,
        Some(value) => value.some(),
        None => Val::Optional(None),
    })
}
