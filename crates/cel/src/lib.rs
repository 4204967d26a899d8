//! The Common Expression Language (CEL): expressions over API objects, type-checked at compile time.
//!
//! An [`Environment`] declares the variables with their types, and the function libraries. It compiles a source text to a
//! [`Program`], or returns the compile errors with the reference's messages. A program is compiled once and evaluated many times,
//! by many threads. The cost of an evaluation is limited, and so are all sizes. Objects are not copied: [`Val`] borrows from
//! them.
//!
//! ```
//! use pilothouse_apimachinery::json;
//! use pilothouse_apimachinery::pattern::Patterns;
//! use pilothouse_cel::limits::RULE_COST;
//! use pilothouse_cel::types::Type;
//! use pilothouse_cel::{Environment, Val};
//!
//! let environment = Environment::standard().variable("object", Type::Dyn);
//! let program = environment.compile("object.spec.replicas <= 5", &mut Patterns::default())?;
//! assert_eq!(program.result_type(), Type::Bool);
//!
//! let object = json::read(br#"{"spec": {"replicas": 3}}"#)?;
//! let resolve = |name: &str| (name == "object").then(|| Ok(Val::untyped(&object)));
//! let result = program.evaluate(&resolve, RULE_COST);
//! assert!(matches!(result.outcome, Ok(Val::Bool(true))));
//! assert_eq!(result.cost, 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Reading order
//!
//! Each module imports only modules of this list that come before it, and the small ones below the list.
//!
//! 1. [`syntax`]: a text becomes a tree, and macros become comprehensions. Compile errors with their positions are here, too.
//! 2. [`types`], with those that expressions can construct ([`constructed_types`]) and the unification of types ([`unify`]).
//! 3. [`value`]: values at run time, with their [`timestamps`].
//! 4. [`functions`]: the declarations of the function libraries.
//! 5. [`checker`]: the type of every node and the overloads of every call. [`literal_checks`] checks what types cannot express.
//! 6. [`cost`]: the runtime cost of each step. [`estimate`]: the maximum cost of an expression, at compile time.
//! 7. [`library`]: the implementations of functions.
//! 8. [`plan`] turns the tree into evaluation steps, [`eval`] evaluates them.
//! 9. [`program`] and [`environment`]: the API of this crate.
//!
//! [`limits`] has all bounds. [`meter`] limits the total cost of several evaluations. [`escape`] makes identifiers of field names
//! and needs [`reserved_words`]. [`format_string`] parses the format strings that [`literal_checks`] checks and [`library`] uses.

mod checker;
mod constructed_types;
mod cost;
mod environment;
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
mod program;
pub mod reserved_words;
mod syntax;
#[cfg(test)]
mod tests;
mod timestamps;
pub mod types;
mod unify;
mod value;

pub use constructed_types::{JSON_PATCH, OBJECT};
pub use environment::Environment;
pub use functions::{Library, RecentLibraries};
pub use program::{EvaluationResult, Program};
pub use value::{ConstructedObject, Fault, Foreign, List, Map, NativeError, Outcome, SizeBudget, Text, Val};
