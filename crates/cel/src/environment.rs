//! Environments: the declarations that expressions are compiled with.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use pilothouse_apimachinery::pattern::Patterns;

use crate::checker::{self, Declarations};
use crate::functions::{Functions, Library};
use crate::literal_checks;
use crate::program::Program;
use crate::syntax::parser;
use crate::syntax::source::{Issues, Source};
use crate::types::Type;

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
        Program::new(root, checked, patterns)
            .ok_or_else(|| "ERROR: <input>:-1:0: the expression cannot be evaluated".to_owned())
    }
}
