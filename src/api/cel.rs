//! The Common Expression Language: small expressions over objects, checked before there are any.
//!
//! An [`Environment`] says which variables there are, of which types, and which libraries of functions. It makes a [`Program`]
//! of a text, or tells what is wrong with it in the words of the reference. A program is made once and evaluated many
//! times, by many threads; what an evaluation may cost is bounded, and so is every size on the way. Objects are not copied:
//! [`Val`] borrows from them.
//!
//! A text goes through [`lexer`], [`parser`] (with [`macros`]), [`checker`] (with [`types`], [`unify`] and
//! [`functions`]), [`literal_checks`] and [`plan`]; [`eval`] runs what comes out with the functions of [`library`] and charges for it
//! ([`cost`]). [`estimate`] tells what it can cost at most.

mod ast;
mod checker;
mod constructed_types;
mod cost;
pub mod escape;
mod estimate;
mod estimate_calls;
mod eval;
mod functions;
mod lexer;
mod library;
mod literal_checks;
mod literal_values;
mod macros;
mod parser;
mod plan;
pub mod reserved_words;
mod source;
#[cfg(test)]
mod tests;
mod timestamps;
pub mod types;
mod unify;
mod value;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use ast::{Expr, Kind};
use checker::{Checked, Names};
pub use constructed_types::{JSON_PATCH, OBJECT};
use eval::Evaluator;
use functions::Functions;
pub use functions::Library;
pub use library::semver::Semver;
use plan::Node;
use source::{Issues, Source};
use types::Type;
pub use value::{ConstructedObject, Fault, Foreign, List, Map, NativeError, Outcome, SizeBudget, Text, Val};

use super::custom::pattern::Patterns;

/// What new expressions may call; read once.
static NEW: LazyLock<Arc<Functions>> = LazyLock::new(|| Arc::new(Functions::of(&Library::NEW)));

/// Which names expressions may use.
#[derive(Clone, Debug)]
pub struct Environment {
    functions: Arc<Functions>,
    variables: BTreeMap<String, Type>,
    /// Whether expressions may give values names (`cel.bind`).
    binds: bool,
    /// Whether they may make objects (`Object{}`).
    makes: bool,
}

impl Environment {
    /// With the functions that new expressions may use, and no variables.
    pub fn standard() -> Environment {
        Environment { functions: NEW.clone(), variables: BTreeMap::new(), binds: false, makes: false }
    }

    /// With the functions of some libraries, and no variables.
    pub fn with_libraries(libraries: &[Library]) -> Environment {
        let functions = Arc::new(Functions::of(libraries));
        Environment { functions, variables: BTreeMap::new(), binds: false, makes: false }
    }

    /// The same with one more variable. Its name may have dots.
    pub fn variable(mut self, name: &str, kind: Type) -> Environment {
        self.variables.insert(name.to_owned(), kind);
        self
    }

    /// The same where expressions may give values names.
    pub fn binding(self) -> Environment {
        Environment { binds: true, ..self }
    }

    /// The same where expressions may make parts of objects and the operations of a JSON Patch.
    pub fn making(self) -> Environment {
        Environment { makes: true, ..self }
    }

    /// Makes a program of a text, or tells what is wrong with it. The patterns in it count towards those of `patterns`.
    pub fn compile(&self, text: &str, patterns: &mut Patterns) -> Result<Program, String> {
        let source = Source::new(text);
        let mut issues = Issues::default();
        let Some(parsed) = parser::parse(&source, self.binds, &mut issues) else {
            return Err(issues.told(&source));
        };
        let (mut root, places) = (parsed.root, parsed.places);
        let names = Names { functions: &self.functions, variables: &self.variables, makes: self.makes };
        let checked = checker::check(&mut root, &places, names, &mut issues);
        if issues.is_empty() {
            literal_checks::check(&root, &places, &checked, patterns, &mut issues);
        }
        if !issues.is_empty() {
            return Err(issues.told(&source));
        }
        let node = plan::plan(&root, &checked, patterns);
        let node =
            node.ok_or_else(|| "ERROR: <input>:-1:0: the expression cannot be evaluated".to_owned())?;
        Ok(Program { root, checked, node })
    }
}

/// An expression that can be evaluated, many times and by many threads.
pub struct Program {
    root: Expr,
    checked: Checked,
    node: Node,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Program").field(&self.node).finish()
    }
}

/// What came out of an evaluation.
#[derive(Debug)]
pub struct Evaluated<'v> {
    /// The value, or why there is none.
    pub outcome: Outcome<'v>,
    /// What it has cost, to the step that was too much.
    pub cost: u64,
}

impl Program {
    /// The type of its value.
    pub fn kind(&self) -> Type {
        self.checked.types.get(self.root.id).cloned().unwrap_or(Type::Dyn)
    }

    /// Whether its value is one that was looked up in a map: of the type that the map says its values have.
    pub fn is_looked_up(&self) -> bool {
        let mut part = &self.root;
        loop {
            let holder = match &part.kind {
                Kind::Fold(fold) => {
                    part = &fold.result;
                    continue;
                }
                Kind::Select { operand, test: false, .. } => operand,
                Kind::Call { function, args, .. } if function == "_[_]" => match args.first() {
                    Some(holder) => holder,
                    None => return false,
                },
                _ => return false,
            };
            return matches!(self.checked.types.get(holder.id), Some(Type::Map(..)));
        }
    }

    /// The type of objects that expressions make which it names without making one. There is no such value.
    pub fn named_type(&self) -> Option<&str> {
        let mut rest = vec![&self.root];
        while let Some(part) = rest.pop() {
            match &part.kind {
                Kind::Ident(name) if !self.uses(name) && constructed_types::type_named(name).is_some() => {
                    return Some(name);
                }
                _ => rest.extend(part.parts()),
            }
        }
        None
    }

    /// Whether it uses a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.checked.uses.iter().any(|used| used == variable)
    }

    /// Whether it reads this field of this variable, or asks whether it is there, by its name after a dot.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        let is_variable = |part: &Expr| matches!(&part.kind, Kind::Ident(name) if name == variable);
        let mut rest = vec![&self.root];
        while let Some(part) = rest.pop() {
            let found = match &part.kind {
                Kind::Select { operand, field: own, .. } => own == field && is_variable(operand),
                Kind::Call { function, target: None, args } if function == "_?._" => {
                    matches!(args.as_slice(), [of, name] if is_variable(of) && name.literal_text() == Some(field))
                }
                _ => false,
            };
            if found {
                return true;
            }
            rest.extend(part.parts());
        }
        false
    }

    /// What it can cost at most. `sizes` tells the most items, entries or bytes that the value at the end of a path
    /// has, whose first step is a variable.
    pub fn most_cost(&self, sizes: &dyn Fn(&[String]) -> Option<u64>) -> u64 {
        estimate::estimate(&self.root, &self.checked, sizes).most
    }

    /// Evaluates it, for no more than `limit`. `resolve` is asked for each variable once, when it is needed.
    pub fn evaluate<'v>(
        &'v self,
        resolve: &dyn Fn(&str) -> Option<Outcome<'v>>,
        limit: u64,
    ) -> Evaluated<'v> {
        let mut run = Evaluator::new(&self.checked.uses, resolve, limit);
        let outcome = run.eval(&self.node);
        Evaluated { outcome, cost: run.cost }
    }
}
