//! The Common Expression Language (CEL): expressions over API objects, type-checked at compile time.
//!
//! An [`Environment`] declares the variables with their types, and the function libraries. It compiles a source text to a
//! [`Program`], or returns the compile errors with the reference's messages. A program is compiled once and evaluated many times,
//! by many threads. The cost of an evaluation is limited, and so are all sizes. Objects are not copied: [`Val`] borrows from
//! them.
//!
//! A text passes through [`lexer`], [`parser`] (with [`macros`]), [`checker`] (with [`types`], [`unify`] and [`functions`]),
//! [`literal_checks`] and [`plan`]. [`eval`] evaluates the plan with the functions of [`library`] and charges runtime cost
//! ([`cost`]). [`estimate`] computes the maximum cost at compile time.

mod checker;
mod constructed_types;
mod cost;
pub mod escape;
mod estimate;
mod eval;
mod format_string;
mod functions;
mod library;
pub mod limits;
mod literal_checks;
pub mod meter;
mod plan;
pub mod reserved_words;
mod syntax;
#[cfg(test)]
mod tests;
mod timestamps;
pub mod types;
mod unify;
mod value;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use checker::{CheckedExpression, Declarations};
pub use constructed_types::{JSON_PATCH, OBJECT};
use eval::Evaluator;
use functions::Functions;
pub use functions::Library;
use plan::Node;
use syntax::ast::{Expr, Kind};
use syntax::parser;
use syntax::source::{Issues, Source};
use types::Type;
pub use value::{
    ConstructedObject, Fault, Foreign, List, Map, NativeError, Outcome, Semver, SizeBudget, Text, Val,
};

use pilothouse_apimachinery::pattern::Patterns;

/// The functions of the environment for new expressions.
static NEW: LazyLock<Arc<Functions>> = LazyLock::new(|| Arc::new(Functions::from_libraries(&Library::NEW)));

/// The variables and functions that expressions may use.
#[derive(Clone, Debug)]
pub struct Environment {
    functions: Arc<Functions>,
    variables: BTreeMap<String, Type>,
    /// Whether the macro `cel.bind` is enabled.
    allows_bind: bool,
    /// Whether expressions may construct objects (`Object{}`).
    constructs_objects: bool,
}

impl Environment {
    /// The environment for new expressions, without variables.
    pub fn standard() -> Environment {
        Environment {
            functions: NEW.clone(),
            variables: BTreeMap::new(),
            allows_bind: false,
            constructs_objects: false,
        }
    }

    /// An environment with these libraries, without variables.
    pub fn with_libraries(libraries: &[Library]) -> Environment {
        let functions = Arc::new(Functions::from_libraries(libraries));
        Environment { functions, variables: BTreeMap::new(), allows_bind: false, constructs_objects: false }
    }

    /// Adds a variable. Its name may contain dots.
    pub fn variable(mut self, name: &str, kind: Type) -> Environment {
        self.variables.insert(name.to_owned(), kind);
        self
    }

    /// Enables `cel.bind`.
    pub fn with_bind_macro(self) -> Environment {
        Environment { allows_bind: true, ..self }
    }

    /// Enables the construction of `Object` and `JSONPatch` values.
    pub fn with_object_construction(self) -> Environment {
        Environment { constructs_objects: true, ..self }
    }

    /// Compiles a text. The error lists all compile errors. Regular expressions in the text count towards the limit of
    /// `patterns`.
    pub fn compile(&self, text: &str, patterns: &mut Patterns) -> Result<Program, String> {
        let source = Source::new(text);
        let mut issues = Issues::default();
        let Some(parsed) = parser::parse(&source, self.allows_bind, &mut issues) else {
            return Err(issues.render(&source));
        };
        let (mut root, positions) = (parsed.root, parsed.positions);
        let declarations = Declarations {
            functions: &self.functions,
            variables: &self.variables,
            constructs_objects: self.constructs_objects,
        };
        let checked = checker::check(&mut root, &positions, declarations, &mut issues);
        if issues.is_empty() {
            literal_checks::check(&root, &positions, &checked, patterns, &mut issues);
        }
        if !issues.is_empty() {
            return Err(issues.render(&source));
        }
        let node = plan::plan(&root, &checked, patterns);
        let node =
            node.ok_or_else(|| "ERROR: <input>:-1:0: the expression cannot be evaluated".to_owned())?;
        Ok(Program { root, checked, node })
    }
}

/// A compiled expression. Can be evaluated many times, by many threads.
pub struct Program {
    root: Expr,
    checked: CheckedExpression,
    node: Node,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Program").field(&self.node).finish()
    }
}

/// The result of an evaluation.
#[derive(Debug)]
pub struct EvaluationResult<'v> {
    /// The value, or the error.
    pub outcome: Outcome<'v>,
    /// The runtime cost, including the step that exceeded the limit.
    pub cost: u64,
}

impl Program {
    /// The result type.
    pub fn result_type(&self) -> Type {
        self.checked.types.get(self.root.id).cloned().unwrap_or(Type::Dyn)
    }

    /// Whether the result is a value of a map, so that its type is the value type of the map.
    pub fn is_map_lookup(&self) -> bool {
        let mut expr = &self.root;
        loop {
            let operand = match &expr.kind {
                Kind::Fold(fold) => {
                    expr = &fold.result;
                    continue;
                }
                Kind::Select { operand, test: false, .. } => operand,
                Kind::Call { function, args, .. } if function == "_[_]" => match args.first() {
                    Some(operand) => operand,
                    None => return false,
                },
                _ => return false,
            };
            return matches!(self.checked.types.get(operand.id), Some(Type::Map(..)));
        }
    }

    /// The constructible type that the expression names without constructing it, which is no value.
    pub fn named_type(&self) -> Option<&str> {
        let mut pending = vec![&self.root];
        while let Some(expr) = pending.pop() {
            match &expr.kind {
                Kind::Ident(name) if !self.uses(name) && constructed_types::type_named(name).is_some() => {
                    return Some(name);
                }
                _ => pending.extend(expr.parts()),
            }
        }
        None
    }

    /// Whether the expression uses this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.checked.uses.iter().any(|used| used == variable)
    }

    /// Whether the expression selects this field of this variable, or tests its presence, as `variable.field`.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        let is_variable = |expr: &Expr| matches!(&expr.kind, Kind::Ident(name) if name == variable);
        let mut pending = vec![&self.root];
        while let Some(expr) = pending.pop() {
            let is_match = match &expr.kind {
                Kind::Select { operand, field: selected, .. } => selected == field && is_variable(operand),
                Kind::Call { function, target: None, args } if function == "_?._" => {
                    matches!(args.as_slice(), [operand, name] if is_variable(operand) && name.literal_text() == Some(field))
                }
                _ => false,
            };
            if is_match {
                return true;
            }
            pending.extend(expr.parts());
        }
        false
    }

    /// The estimated maximum cost. `sizes` gives the maximum number of items, entries or bytes of the value at a path; the first
    /// element of the path is a variable.
    pub fn max_cost(&self, sizes: &dyn Fn(&[String]) -> Option<u64>) -> u64 {
        estimate::estimate(&self.root, &self.checked, sizes).max
    }

    /// Evaluates the program within the cost limit. `resolve` is called once per variable, on first use.
    pub fn evaluate<'v>(
        &'v self,
        resolve: &dyn Fn(&str) -> Option<Outcome<'v>>,
        limit: u64,
    ) -> EvaluationResult<'v> {
        let mut evaluator = Evaluator::new(&self.checked.uses, resolve, meter::limit(limit));
        let outcome = evaluator.eval(&self.node);
        meter::spend(evaluator.spent());
        EvaluationResult { outcome, cost: evaluator.cost }
    }
}
