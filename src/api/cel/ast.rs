//! What an expression is, once it is read. Macros are gone: they have become what they stand for.

/// The name of what folds gather their result in. No expression can say it.
pub const ACCUMULATOR: &str = "@result";

/// One expression.
#[derive(Clone, Debug)]
pub struct Expr {
    /// Its number: places, types and overloads are kept by it.
    pub id: usize,
    /// What it is.
    pub kind: Kind,
}

/// The kinds of expressions.
#[derive(Clone, Debug)]
pub enum Kind {
    /// What could not be read; the reason has been told.
    Broken,
    /// A value that stands in the text.
    Literal(Literal),
    /// A name.
    Ident(String),
    /// A field of something.
    Select {
        /// Of what.
        operand: Box<Expr>,
        /// The field.
        field: String,
        /// Whether it is only asked whether it is there.
        test: bool,
    },
    /// A function or an operator.
    Call {
        /// Its name; `_+_` for operators.
        function: String,
        /// What stands before the dot.
        target: Option<Box<Expr>>,
        /// What stands between the parentheses.
        args: Vec<Expr>,
    },
    /// A list.
    List {
        /// Its items, and whether each is one only if it has a value.
        items: Vec<(Expr, bool)>,
    },
    /// A map.
    Map {
        /// Its entries.
        entries: Vec<Entry>,
    },
    /// An object of a type.
    Object {
        /// The type.
        name: String,
        /// Its fields.
        fields: Vec<Init>,
    },
    /// What is worked out by walking over something.
    Fold(Box<Fold>),
}

/// An entry of a map.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: Expr,
    /// The value.
    pub value: Expr,
    /// Whether it is there only if it has a value.
    pub optional: bool,
}

/// A field of an object that is made.
#[derive(Clone, Debug)]
pub struct Init {
    /// Its number, for its place.
    pub id: usize,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Expr,
    /// Whether it is there only if it has a value.
    pub optional: bool,
}

/// A walk over a list or a map.
#[derive(Clone, Debug)]
pub struct Fold {
    /// What is walked over.
    pub range: Expr,
    /// The name of what is seen: an item or a key; with a second name an index or a key.
    pub var: String,
    /// The name of the item or the value.
    pub var2: Option<String>,
    /// The name of what gathers the result.
    pub accu: String,
    /// What that is before the walk.
    pub init: Expr,
    /// Whether to go on.
    pub condition: Expr,
    /// What it is after one more step.
    pub step: Expr,
    /// What the whole is in the end.
    pub result: Expr,
}

/// A value that stands in the text.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// `1`.
    Int(i64),
    /// `1u`.
    Uint(u64),
    /// `1.0`.
    Double(f64),
    /// `'a'`.
    String(String),
    /// `b'a'`.
    Bytes(Vec<u8>),
}

impl Expr {
    /// The name that a chain of names and dots spells.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { operand, field, test: false } => {
                let mut name = operand.qualified_name()?;
                name.push('.');
                name.push_str(field);
                Some(name)
            }
            _ => None,
        }
    }

    /// The text, if it is a literal text.
    pub fn literal_text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Literal(Literal::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The expressions right inside of this one, in the order of the text as far as there is one.
    pub fn parts(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Broken | Kind::Literal(_) | Kind::Ident(_) => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call { target, args, .. } => target.as_deref().into_iter().chain(args).collect(),
            Kind::List { items } => items.iter().map(|(item, _)| item).collect(),
            Kind::Map { entries } => entries.iter().flat_map(|entry| [&entry.key, &entry.value]).collect(),
            Kind::Object { fields, .. } => fields.iter().map(|field| &field.value).collect(),
            Kind::Fold(fold) => {
                vec![&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result]
            }
        }
    }
}
