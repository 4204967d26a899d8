//! Match conditions of authorization webhooks.

use std::sync::LazyLock;

use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::types::{DeclKind, Type};
use pilothouse_cel::{Environment, Val};

use super::{ALL, Expression};
use crate::policies::expressions::{full_name, list, nested, object_type, plain, texts};

/// The CEL variable: the spec of a SubjectAccessReview.
const REQUEST: &str = "request";

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let selector = |name: &str| {
        let mut requirement = texts(&["key", "operator"]);
        requirement.push(("values", list(plain(DeclKind::String))));
        let requirement = nested(object_type("kubernetes.SelectorRequirement", requirement));
        nested(object_type(
            name,
            [("rawSelector", plain(DeclKind::String)), ("requirements", list(requirement))],
        ))
    };
    let mut resource = texts(&["namespace", "verb", "group", "version", "resource", "subresource", "name"]);
    resource.push(("fieldSelector", selector("kubernetes.FieldSelectorAttributes")));
    resource.push(("labelSelector", selector("kubernetes.LabelSelectorAttributes")));
    let path = object_type("kubernetes.NonResourceAttributes", texts(&["path", "verb"]));
    let mut request = texts(&["user", "uid"]);
    request.push(("groups", list(plain(DeclKind::String))));
    request.push(("extra", plain(DeclKind::Map(list(plain(DeclKind::String))))));
    request.push(("resourceAttributes", nested(object_type("kubernetes.ResourceAttributes", resource))));
    request.push(("nonResourceAttributes", nested(path)));
    ALL.clone().variable(REQUEST, object_type("kubernetes.SubjectAccessReviewSpec", request))
});

/// Compiles the conditions of one configuration file.
#[derive(Debug, Default)]
pub struct Compiler(Patterns);

impl Compiler {
    /// Compiles a condition, or explains the error in its text.
    pub fn compile(&mut self, text: &str) -> Result<Expression, String> {
        let expression = Expression::compile(&ENVIRONMENT, text, &mut self.0)?;
        match expression.kind() {
            Type::Bool => Ok(expression),
            other => Err(format!("must evaluate to bool but got {}", full_name(&other))),
        }
    }
}

/// The result of evaluating the match conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionMatch {
    /// All are true.
    Yes,
    /// One is false, which decides, even if others could not be evaluated.
    No {
        /// Whether an earlier condition could not be evaluated, which is only counted.
        some_failed: bool,
    },
    /// None is false, but some could not be evaluated.
    Failed(String),
}

/// Evaluates match conditions for a request.
pub fn matched(conditions: &[Expression], request: &Value) -> ConditionMatch {
    let mut errors: Vec<String> = Vec::new();
    for condition in conditions {
        let error = match condition.evaluate(REQUEST, request) {
            Ok(Val::Bool(true)) => continue,
            Ok(Val::Bool(false)) => return ConditionMatch::No { some_failed: !errors.is_empty() },
            Ok(other) => {
                format!("expression '{}' eval result type should be bool but got {other}", condition.text())
            }
            Err(error) => error,
        };
        let error = format!("cel evaluation error: {error}");
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
    match errors.as_slice() {
        [] => ConditionMatch::Yes,
        [error] => ConditionMatch::Failed(error.clone()),
        several => ConditionMatch::Failed(format!("[{}]", several.join(", "))),
    }
}
