//! The difference of two states of an object, field by field.
//!
//! The states are compared as clients see them: a field that is printed though not set counts as present.

use std::cmp::Ordering;

use super::field_set::{FieldSet, PathElement};
use super::shape::{self, Position, Shape};
use crate::limits::OWNED_DEPTH;
use crate::schema::encode::{EmptyLists, Print, encode, printed};
use crate::schema::{Field, Registry, Struct, TypeId};
use crate::value::{Object, Value};

/// The difference of two states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that only the new state has.
    pub added: FieldSet,
    /// Fields that both have, with different values.
    pub modified: FieldSet,
    /// Fields that only the old state has.
    pub removed: FieldSet,
}

impl Comparison {
    /// Fields that the new state adds or changes.
    pub fn set(&self) -> FieldSet {
        self.added.union(&self.modified)
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Leaves out these fields and all below them.
    #[must_use]
    pub fn without(self, fields: &FieldSet) -> Comparison {
        if fields.is_empty() {
            return self;
        }
        Comparison {
            added: self.added.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            removed: self.removed.recursive_difference(fields),
        }
    }

    fn push(&mut self, element: impl Fn() -> PathElement, below: Comparison) {
        if !below.added.is_empty() {
            self.added.push(element(), below.added);
        }
        if !below.modified.is_empty() {
            self.modified.push(element(), below.modified);
        }
        if !below.removed.is_empty() {
            self.removed.push(element(), below.removed);
        }
    }

    fn sort(&mut self) {
        self.added.sort();
        self.modified.sort();
        self.removed.sort();
    }
}

/// Compares two states of an object. `None` is an object without any fields.
///
/// Fails when a list item cannot be identified.
pub fn compare(
    registry: &Registry,
    ty: TypeId,
    old: Option<&Value>,
    new: &Value,
) -> Result<Comparison, String> {
    let old = old.map_or(Side::Zero, Side::Value);
    Comparer::new(registry).compare(ty, old, Side::Value(new))
}

/// Compares two states literally: a field is present if and only if it is stated, also with a zero value. Used for the printed
/// object and the undecoded result of merging a configuration into it.
///
/// Fails like [`compare`].
pub fn compare_exact(
    registry: &Registry,
    ty: TypeId,
    old: &Value,
    new: &Value,
) -> Result<Comparison, String> {
    let comparer = Comparer { registry, is_exact: true };
    comparer.compare(ty, Side::Value(old), Side::Value(new))
}

/// One of the two states at a position.
#[derive(Clone, Copy)]
pub(super) enum Side<'v> {
    Absent,
    Null,
    /// The zero value of the type.
    Zero,
    Value(&'v Value),
}

impl<'v> Side<'v> {
    pub(super) fn from_value(value: Option<&'v Value>) -> Side<'v> {
        match value {
            None => Side::Absent,
            Some(Value::Null) => Side::Null,
            Some(value) => Side::Value(value),
        }
    }

    fn is_absent(self) -> bool {
        matches!(self, Side::Absent)
    }

    fn value(self) -> Option<&'v Value> {
        match self {
            Side::Value(value) => Some(value),
            _ => None,
        }
    }

    fn entries(self) -> Option<&'v Object> {
        match self {
            Side::Value(value) => value.fields(),
            _ => None,
        }
    }

    fn items(self) -> &'v [Value] {
        match self {
            Side::Value(value) => value.items(),
            _ => &[],
        }
    }

    /// The state of a field of an object with these fields, as it is printed.
    pub(super) fn from_field(registry: &Registry, field: &Field, fields: Option<&'v Object>) -> Side<'v> {
        match printed(registry, field, fields, EmptyLists::Exact) {
            Print::Omit => Side::Absent,
            Print::Null => Side::Null,
            Print::Zero => Side::Zero,
            Print::Value(value) => Side::Value(value),
        }
    }
}

/// A value in both states.
#[derive(Clone, Copy)]
struct Node<'v> {
    old: Side<'v>,
    new: Side<'v>,
    position: Position,
    /// How many levels below are compared.
    depth: usize,
}

impl Node<'_> {
    /// A part of this value.
    fn child<'v>(self, old: Side<'v>, new: Side<'v>) -> Node<'v> {
        Node { old, new, position: Position::Inside, depth: self.depth.saturating_sub(1) }
    }
}

/// A walk over both states at once. The steps add to the comparison of the value that they are about.
pub(super) struct Comparer<'r> {
    registry: &'r Registry,
    is_exact: bool,
}

impl<'r> Comparer<'r> {
    pub(super) fn new(registry: &'r Registry) -> Comparer<'r> {
        Comparer { registry, is_exact: false }
    }

    fn compare(&self, ty: TypeId, old: Side<'_>, new: Side<'_>) -> Result<Comparison, String> {
        let mut comparison = Comparison::default();
        let shape = shape::for_type(self.registry, ty, None);
        let root = Node { old, new, position: Position::Root, depth: OWNED_DEPTH - 1 };
        self.visit(shape, root, &mut comparison)?;
        Ok(comparison)
    }

    /// The state of a field of this state.
    fn field<'v>(&self, side: Side<'v>, field: &Field) -> Side<'v> {
        let fields = match side {
            Side::Absent | Side::Null => return Side::Absent,
            Side::Zero => None,
            Side::Value(value) => value.fields(),
        };
        if self.is_exact {
            return Side::from_value(fields.and_then(|fields| fields.get(&field.name)));
        }
        Side::from_field(self.registry, field, fields)
    }

    /// Whether two states with equal parts are equal themselves.
    pub(super) fn same(&self, shape: Shape<'_>, old: Side<'_>, new: Side<'_>) -> bool {
        match (old, new) {
            (Side::Absent, Side::Absent) => true,
            (Side::Absent, _) | (_, Side::Absent) => false,
            _ => self.equal(shape, old, new, true),
        }
    }

    fn visit(&self, shape: Shape<'r>, node: Node<'_>, comparison: &mut Comparison) -> Result<(), String> {
        let Node { old, new, depth, .. } = node;
        let shape = shape.resolve([old.value(), new.value()]);
        let has_parts = depth > 0
            && match shape {
                Shape::Struct(structure) => self.visit_fields(structure, node, comparison)?,
                Shape::Map(ty) => {
                    let has_entries = self.visit_entries(ty, node, |_| true, comparison)?;
                    comparison.sort();
                    has_entries
                }
                Shape::Set(item) | Shape::Keyed(item, _) => {
                    self.visit_items(shape, item, node, comparison)?
                }
                Shape::Atomic(_) | Shape::Untyped(_) => false,
            };
        match (old, new) {
            (Side::Absent, Side::Absent) => {}
            (Side::Absent, _) => comparison.added.member = true,
            (_, Side::Absent) => comparison.removed.member = true,
            // A value with parts differs in its parts. A value without differs as a whole.
            _ => comparison.modified.member = !has_parts && !self.equal(shape, old, new, depth > 0),
        }
        Ok(())
    }

    /// Compares the fields. Returns whether there are any.
    fn visit_fields(
        &self,
        structure: &'r Struct,
        node: Node<'_>,
        comparison: &mut Comparison,
    ) -> Result<bool, String> {
        let mut any = false;
        for field in &structure.fields {
            let (old, new) = (self.field(node.old, field), self.field(node.new, field));
            if old.is_absent() && new.is_absent() {
                continue;
            }
            any = true;
            if node.position.is_unowned(&field.name) {
                continue;
            }
            let mut below = Comparison::default();
            let shape = shape::for_field(self.registry, field);
            let position = node.position.child(&field.name);
            self.visit(shape, Node { position, ..node.child(old, new) }, &mut below)
                .map_err(|error| format!(".{}{error}", field.name))?;
            if position == Position::Metadata {
                // The metadata as a whole has no owner.
                below.added.member = false;
                below.removed.member = false;
            }
            comparison.push(|| PathElement::Field(field.name.clone()), below);
        }
        if let Some(ty) = structure.open {
            let is_undeclared = |name: &str| structure.field(name).is_none();
            any |= self.visit_entries(ty, node, is_undeclared, comparison)?;
        }
        comparison.sort();
        Ok(any)
    }

    /// Compares the entries of an object whose names satisfy `is_included`, without sorting them. Returns whether there are any.
    fn visit_entries(
        &self,
        ty: TypeId,
        node: Node<'_>,
        is_included: impl Fn(&str) -> bool,
        comparison: &mut Comparison,
    ) -> Result<bool, String> {
        let shape = shape::for_type(self.registry, ty, None);
        let none = Object::new();
        let (old, new) = (node.old.entries().unwrap_or(&none), node.new.entries().unwrap_or(&none));
        let only_new = new.iter().filter(|(key, _)| !old.contains_key(key));
        let all = old
            .iter()
            .map(|(key, value)| (key, Side::from_value(Some(value)), Side::from_value(new.get(key))));
        let all = all.chain(only_new.map(|(key, value)| (key, Side::Absent, Side::from_value(Some(value)))));
        let mut any = false;
        for (key, old, new) in all.filter(|(key, ..)| is_included(key)) {
            any = true;
            let mut below = Comparison::default();
            self.visit(shape, node.child(old, new), &mut below).map_err(|error| format!(".{key}{error}"))?;
            comparison.push(|| PathElement::field(key), below);
        }
        Ok(any)
    }

    /// Compares the items of an associative list. Returns whether there are any.
    fn visit_items<'v>(
        &self,
        shape: Shape<'r>,
        item: TypeId,
        node: Node<'v>,
        comparison: &mut Comparison,
    ) -> Result<bool, String> {
        let (old, new) = (self.elements(shape, node.old.items())?, self.elements(shape, node.new.items())?);
        let inner = shape::for_item(self.registry, shape, item);
        let (mut left, mut right) = (old.as_slice(), new.as_slice());
        loop {
            let order = match (left.first(), right.first()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            let (a, b);
            (a, left) = if order.is_le() { split_equal(left) } else { (&[][..], left) };
            (b, right) = if order.is_ge() { split_equal(right) } else { (&[][..], right) };
            let Some((element, _)) = a.first().or(b.first()) else { break };
            let mut below = Comparison::default();
            // Duplicate items are owned together, as one.
            match (a.len() > 1, b.len() > 1) {
                (true, true) => {
                    below.modified.member =
                        !a.iter().map(|(_, value)| value).eq(b.iter().map(|(_, value)| value));
                }
                (is_duplicate_before, is_duplicate_after) => {
                    let before = if is_duplicate_before { None } else { a.first() };
                    let after = if is_duplicate_after { None } else { b.first() };
                    if before.is_some() || after.is_some() {
                        let side = |item: Option<&(PathElement, &'v Value)>| {
                            Side::from_value(item.map(|(_, value)| *value))
                        };
                        let (before, after) = (side(before), side(after));
                        self.visit(inner, node.child(before, after), &mut below)
                            .map_err(|error| format!("{element}{error}"))?;
                    }
                    below.removed.member |= is_duplicate_before;
                    below.added.member |= is_duplicate_after;
                }
            }
            comparison.push(|| element.clone(), below);
        }
        Ok(!old.is_empty() || !new.is_empty())
    }

    fn elements<'v>(
        &self,
        shape: Shape<'_>,
        items: &'v [Value],
    ) -> Result<Vec<(PathElement, &'v Value)>, String> {
        let mut elements = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let element = shape::element(self.registry, shape, item)
                .map_err(|error| format!(": element {index}: {error}"))?;
            elements.push((element, item));
        }
        elements.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(elements)
    }

    /// Whether two states without parts are equal. `is_searched`: whether their parts were compared.
    fn equal(&self, shape: Shape<'_>, old: Side<'_>, new: Side<'_>, is_searched: bool) -> bool {
        match (old, new) {
            (Side::Null, Side::Null) | (Side::Zero, Side::Zero) => true,
            (Side::Value(old), Side::Value(new)) if old == new => true,
            (Side::Null, _) | (_, Side::Null) => false,
            _ => match shape {
                Shape::Atomic(_) | Shape::Untyped(_) if self.is_exact => false,
                // Two values of one type may be equal in different forms; their JSON is unique.
                Shape::Atomic(ty) | Shape::Untyped(ty) => self.json(ty, old) == self.json(ty, new),
                Shape::Struct(_) | Shape::Map(_) | Shape::Set(_) | Shape::Keyed(..) => is_searched,
            },
        }
    }

    fn json(&self, ty: TypeId, side: Side<'_>) -> Vec<u8> {
        match side {
            Side::Value(value) => encode(self.registry, ty, value),
            Side::Zero => crate::schema::encode::encode_zero(self.registry, ty),
            Side::Absent | Side::Null => Vec::new(),
        }
    }
}

/// Items of a list, each with its path element.
type Items<'e, 'v> = &'e [(PathElement, &'v Value)];

/// The leading items with the same path element, and the rest.
fn split_equal<'e, 'v>(items: Items<'e, 'v>) -> (Items<'e, 'v>, Items<'e, 'v>) {
    let count = match items.first() {
        Some((first, _)) => items.iter().take_while(|(element, _)| element == first).count(),
        None => 0,
    };
    items.split_at(count)
}
