//! Sets of fields, as trees.
//!
//! A list item is identified by its keys, its value or its index, never by a path as text: no text is built until a set is printed.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::field::quoted;
use crate::value::Value;

/// A path element below an object or a list.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A field, or the entry of a map.
    Field(Arc<str>),
    /// The list item with these key values, sorted by name.
    Key(Box<[(Arc<str>, Value)]>),
    /// The list item with this value.
    Value(Value),
    /// The list item at this index.
    Index(i64),
}

impl PathElement {
    /// The field of this name.
    pub fn field(name: &str) -> PathElement {
        PathElement::Field(name.into())
    }

    fn rank(&self) -> u8 {
        match self {
            PathElement::Field(_) => 0,
            PathElement::Key(_) => 1,
            PathElement::Value(_) => 2,
            PathElement::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &PathElement) -> Ordering {
        match (self, other) {
            (PathElement::Field(a), PathElement::Field(b)) => a.cmp(b),
            (PathElement::Key(a), PathElement::Key(b)) => compare_keys(a, b),
            (PathElement::Value(a), PathElement::Value(b)) => compare_values(a, b),
            (PathElement::Index(a), PathElement::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &PathElement) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &PathElement) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

fn compare_keys(a: &[(Arc<str>, Value)], b: &[(Arc<str>, Value)]) -> Ordering {
    let pairs = a.iter().zip(b);
    let unequal = pairs
        .map(|((name, value), (other_name, other_value))| {
            name.cmp(other_name).then_with(|| compare_values(value, other_value))
        })
        .find(|order| order.is_ne());
    unequal.unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// A total order of values: numbers, strings, booleans, lists, objects, null.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Int(_) | Value::Float(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Int(a), Value::Float(b)) => (*a as f64).total_cmp(b),
        (Value::Float(a), Value::Int(b)) => a.total_cmp(&(*b as f64)),
        (Value::Float(a), Value::Float(b)) => a.total_cmp(b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let unequal = a.iter().zip(b).map(|(a, b)| compare_values(a, b)).find(|order| order.is_ne());
            unequal.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let pairs = a
                .iter()
                .zip(b)
                .map(|((key, a), (other, b))| key.cmp(other).then_with(|| compare_values(a, b)));
            let mut unequal = pairs.filter(|order| order.is_ne());
            unequal.next().unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// The element as conflicts print it: `.name`, `[name="a"]`, `[="a"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Key(keys) => {
                f.write_str("[")?;
                for (index, (name, value)) in keys.iter().enumerate() {
                    if index > 0 {
                        f.write_str(",")?;
                    }
                    write!(f, "{name}={}", render(value))?;
                }
                f.write_str("]")
            }
            PathElement::Value(value) => write!(f, "[={}]", render(value)),
            PathElement::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A value as messages about list items print it.
pub(super) fn render(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(boolean) => boolean.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(render).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| format!("{key}={}", render(value))).collect()
        }
    }
}

/// A set of fields at and below one position.
///
/// No part of it is empty: a position that is not a member and has nothing below is not in the tree.
#[derive(Clone, Debug, Default)]
pub struct FieldSet {
    /// Whether the position itself is in the set. The root never is: a whole object has no owner.
    pub member: bool,
    /// The sets below, sorted; `None` if there are none. Copies share them: most elements of a union come from one side
    /// only, and a body of many short fields has a set several times its size.
    below: Option<Arc<Vec<(PathElement, FieldSet)>>>,
}

impl PartialEq for FieldSet {
    fn eq(&self, other: &FieldSet) -> bool {
        self.member == other.member && self.below() == other.below()
    }
}

impl Eq for FieldSet {}

impl FieldSet {
    /// The set of the position itself and nothing below.
    pub fn leaf() -> FieldSet {
        FieldSet { member: true, below: None }
    }

    /// The set of these fields, each a path of names.
    pub fn from_paths(paths: &[&[&str]]) -> FieldSet {
        let to_set = |path: &&[&str]| {
            path.iter().rev().fold(FieldSet::leaf(), |below, name| {
                let mut set = FieldSet::default();
                set.push(PathElement::field(name), below);
                set
            })
        };
        paths.iter().map(to_set).fold(FieldSet::default(), |all, path| all.union(&path))
    }

    /// Whether the set has no members.
    pub fn is_empty(&self) -> bool {
        !self.member && self.below().is_empty()
    }

    /// The sets below, sorted.
    pub fn below(&self) -> &[(PathElement, FieldSet)] {
        self.below.as_ref().map_or(&[], |below| below.as_slice())
    }

    /// The sets below, mutable.
    fn below_mut(&mut self) -> &mut Vec<(PathElement, FieldSet)> {
        Arc::make_mut(self.below.get_or_insert_default())
    }

    /// The set at and below a path element.
    pub fn get(&self, element: &PathElement) -> Option<&FieldSet> {
        self.below().get(self.position(element)?).map(|(_, set)| set)
    }

    /// The index of a path element.
    fn position(&self, element: &PathElement) -> Option<usize> {
        self.below().binary_search_by(|(other, _)| other.cmp(element)).ok()
    }

    /// The set at and below a field.
    pub fn get_field(&self, name: &str) -> Option<&FieldSet> {
        let index = self.below().binary_search_by(|(element, _)| match element {
            PathElement::Field(field) => (**field).cmp(name),
            _ => Ordering::Greater,
        });
        self.below().get(index.ok()?).map(|(_, set)| set)
    }

    /// Appends a nonempty set. Call [`FieldSet::sort`] afterwards.
    pub(super) fn push(&mut self, element: PathElement, set: FieldSet) {
        if !set.is_empty() {
            self.below_mut().push((element, set));
        }
    }

    /// Reserves memory for so many elements.
    pub(super) fn reserve(&mut self, count: usize) {
        if count > 0 {
            self.below_mut().reserve_exact(count);
        }
    }

    /// Sorts appended elements.
    pub(super) fn sort(&mut self) {
        if self.below().len() > 1 {
            self.below_mut().sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        }
    }

    /// Merges equal elements: duplicate items are owned together.
    pub(super) fn merge_duplicates(&mut self) {
        if self.below().len() < 2 {
            return;
        }
        self.below_mut().dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 = FieldSet::leaf();
            }
            same
        });
    }

    /// The members of either set.
    #[must_use]
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        if self.below().is_empty() || other.below().is_empty() {
            let larger = if self.below().is_empty() { other } else { self };
            return larger.clone().with_member(self.member || other.member);
        }
        self.combine(other, &|a, b| match (a, b) {
            (Some(a), Some(b)) => a.union(b),
            (Some(set), None) | (None, Some(set)) => set.clone(),
            (None, None) => FieldSet::default(),
        })
        .with_member(self.member || other.member)
    }

    /// The members of any set. Joined in pairs, so that many small sets take linear and not quadratic time.
    pub fn union_all(sets: impl IntoIterator<Item = FieldSet>) -> FieldSet {
        let mut sets: Vec<FieldSet> = sets.into_iter().collect();
        while sets.len() > 1 {
            let mut rest = sets.into_iter();
            let mut joined = Vec::with_capacity(rest.len().div_ceil(2));
            while let Some(first) = rest.next() {
                joined.push(match rest.next() {
                    Some(second) => first.union(&second),
                    None => first,
                });
            }
            sets = joined;
        }
        sets.pop().unwrap_or_default()
    }

    /// The members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        self.combine(other, &|a, b| match (a, b) {
            (Some(a), Some(b)) => a.intersection(b),
            _ => FieldSet::default(),
        })
        .with_member(self.member && other.member)
    }

    /// The members of this set that are not in `other`. A field in `other` does not remove the fields below it.
    #[must_use]
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        if other.below().is_empty() {
            return self.clone().with_member(self.member && !other.member);
        }
        self.combine(other, &|a, b| match (a, b) {
            (Some(a), Some(b)) => a.difference(b),
            (Some(a), None) => a.clone(),
            _ => FieldSet::default(),
        })
        .with_member(self.member && !other.member)
    }

    /// The members of this set that are neither in `other` nor below a member of it.
    #[must_use]
    pub fn recursive_difference(&self, other: &FieldSet) -> FieldSet {
        if other.below().is_empty() {
            return self.clone().with_member(self.member && !other.member);
        }
        self.combine(other, &|a, b| match (a, b) {
            (Some(_), Some(b)) if b.member => FieldSet::default(),
            (Some(a), Some(b)) => a.recursive_difference(b),
            (Some(a), None) => a.clone(),
            _ => FieldSet::default(),
        })
        .with_member(self.member && !other.member)
    }

    /// The members without anything below.
    #[must_use]
    pub fn leaves(&self) -> FieldSet {
        let mut leaves = FieldSet { member: self.member && self.below().is_empty(), below: None };
        for (element, set) in self.below() {
            leaves.push(element.clone(), set.leaves());
        }
        leaves
    }

    fn with_member(mut self, member: bool) -> FieldSet {
        self.member = member;
        self
    }

    /// Walks down both sets in parallel.
    fn combine(
        &self,
        other: &FieldSet,
        join: &dyn Fn(Option<&FieldSet>, Option<&FieldSet>) -> FieldSet,
    ) -> FieldSet {
        let mut joined = Vec::with_capacity(self.below().len());
        let (mut left, mut right) = (self.below().iter().peekable(), other.below().iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            let a = if order.is_le() { left.next() } else { None };
            let b = if order.is_ge() { right.next() } else { None };
            if let Some((element, _)) = a.or(b) {
                let set = join(a.map(|(_, set)| set), b.map(|(_, set)| set));
                if !set.is_empty() {
                    joined.push((element.clone(), set));
                }
            }
        }
        FieldSet { member: false, below: (!joined.is_empty()).then(|| Arc::new(joined)) }
    }

    /// The paths of all members: direct children before deeper ones.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        let members = self.below().iter().filter(|(_, set)| set.member);
        paths.extend(members.map(|(element, _)| format!("{prefix}{element}")));
        for (element, set) in self.below().iter().filter(|(_, set)| !set.below().is_empty()) {
            set.collect_paths(&format!("{prefix}{element}"), paths);
        }
    }
}
