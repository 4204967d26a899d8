//! Environments: the declarations that expressions are compiled with.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use pilothouse_apimachinery::pattern::Patterns;

use crate::checker::{self, Declarations};
use crate::functions::{Functions, Library, RecentLibraries};
use crate::literal_checks;
use crate::program::Program;
use crate::syntax::macros::OptionalMacros;
use crate::syntax::parser;
use crate::syntax::source::{Issues, Source};
use crate::types::Type;

/// The functions by the recent libraries.
static FUNCTIONS: LazyLock<[Arc<Functions>; RecentLibraries::COUNT]> = LazyLock::new(|| {
    std::array::from_fn(|index| {
        Arc::new(Functions::from_libraries(&RecentLibraries::with_index(index).libraries()))
    })
});

/// The variables and functions that expressions may use.
#[derive(Clone, Debug)]
pub struct Environment {
    functions: Arc<Functions>,
    variables: BTreeMap<String, Type>,
    /// The macros beside those that every environment has.
    macros: OptionalMacros,
    /// Whether expressions may construct objects (`Object{}`).
    constructs_objects: bool,
}

impl Environment {
    /// The environment for new expressions of this release, without variables.
    pub fn standard() -> Environment {
        Environment::with_recent(RecentLibraries::default())
    }

    /// An environment with these recent libraries, without variables.
    pub fn with_recent(recent: RecentLibraries) -> Environment {
        let functions = FUNCTIONS.get(recent.index()).cloned();
        let functions = functions.unwrap_or_else(|| Arc::new(Functions::from_libraries(&recent.libraries())));
        Environment::with_functions(functions, recent.two_variables)
    }

    /// An environment with these libraries, without variables.
    pub fn with_libraries(libraries: &[Library]) -> Environment {
        let functions = Arc::new(Functions::from_libraries(libraries));
        Environment::with_functions(functions, libraries.contains(&Library::TwoVariables))
    }

    fn with_functions(functions: Arc<Functions>, two_variables: bool) -> Environment {
        let macros = OptionalMacros { bind: false, two_variables };
        Environment { functions, variables: BTreeMap::new(), macros, constructs_objects: false }
    }

    /// Adds a variable. Its name may contain dots.
    pub fn variable(mut self, name: &str, kind: Type) -> Environment {
        self.variables.insert(name.to_owned(), kind);
        self
    }

    /// Enables `cel.bind`.
    pub fn with_bind_macro(self) -> Environment {
        Environment { macros: OptionalMacros { bind: true, ..self.macros }, ..self }
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
        let Some(parsed) = parser::parse(&source, self.macros, &mut issues) else {
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
