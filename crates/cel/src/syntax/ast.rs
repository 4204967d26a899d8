//! The abstract syntax tree of an expression, with macros expanded.

/// The accumulator variable of comprehensions. Not a valid identifier, so that no expression can refer to it.
pub const ACCUMULATOR: &str = "@result";
/// The function that inserts an entry into the map of a comprehension.
pub const MAP_INSERT: &str = "cel.@mapInsert";

/// One expression.
#[derive(Clone, Debug)]
pub struct Expr {
    /// The ID by which source positions, types and overloads are looked up.
    pub id: usize,
    /// The kind of node.
    pub kind: Kind,
}

/// The kinds of expressions.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A syntax error, already reported.
    Broken,
    /// A literal.
    Literal(Literal),
    /// An identifier.
    Ident(String),
    /// A field selection.
    Select {
        /// The operand.
        operand: Box<Expr>,
        /// The field.
        field: String,
        /// Whether this is a presence test (`has`).
        test: bool,
    },
    /// A call of a function or an operator.
    Call {
        /// Its name; `_+_` for operators.
        function: String,
        /// The receiver of a member call.
        target: Option<Box<Expr>>,
        /// The arguments.
        args: Vec<Expr>,
    },
    /// A list literal.
    List {
        /// The items, each with a flag for optional ones (`?x`).
        items: Vec<(Expr, bool)>,
    },
    /// A map literal.
    Map {
        /// Its entries.
        entries: Vec<Entry>,
    },
    /// An object construction.
    Object {
        /// The type.
        name: String,
        /// Its fields.
        fields: Vec<Init>,
    },
    /// A comprehension.
    Fold(Box<Fold>),
}

/// An entry of a map literal.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: Expr,
    /// The value.
    pub value: Expr,
    /// Whether it is optional (`?`).
    pub optional: bool,
}

/// A field initializer of an object construction.
#[derive(Clone, Debug)]
pub struct Init {
    /// The ID, for its source position.
    pub id: usize,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Expr,
    /// Whether it is optional (`?`).
    pub optional: bool,
}

/// A comprehension over a list or a map.
#[derive(Clone, Debug)]
pub struct Fold {
    /// The list or map.
    pub range: Expr,
    /// The first iteration variable: the item or the key; with a second variable, the index or the key.
    pub var: String,
    /// The second iteration variable: the item or the value.
    pub var2: Option<String>,
    /// The accumulator variable.
    pub accu: String,
    /// The initial value of the accumulator.
    pub init: Expr,
    /// The loop condition.
    pub condition: Expr,
    /// The next value of the accumulator.
    pub step: Expr,
    /// The result of the comprehension.
    pub result: Expr,
}

/// A literal.
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
    /// The qualified name, if the expression is a chain of identifiers and dots.
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

    /// The value of a string literal.
    pub fn literal_text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Literal(Literal::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The direct subexpressions, in source order where they have one.
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
