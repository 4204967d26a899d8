//! Parsed policies and bindings, with compiled expressions.

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_cel::Program;

use super::expressions::{Compiler, EnvironmentType, ResultType};
use crate::matching::MatchConstraints;

/// An expression and the result of compiling it.
#[derive(Debug)]
pub struct Expression {
    /// The source text.
    pub text: String,
    /// The program, or the compile error.
    pub program: Result<Program, String>,
}

impl Expression {
    /// Compiles an expression of a stored object. `authorizer`: whether the authorizer is available.
    fn compile(compiler: &mut Compiler, text: &str, result_type: ResultType, authorizer: bool) -> Expression {
        let program = compiler.compile(text, result_type, authorizer, EnvironmentType::Stored);
        Expression { text: text.to_owned(), program }
    }

    /// The compile error with the source text, for logs and health checks.
    pub fn compile_error(&self) -> Option<String> {
        let error = self.program.as_ref().err()?;
        Some(format!("the expression {} does not compile: {error}", quoted(&self.text)))
    }
}

/// One of `spec.validations`.
#[derive(Debug)]
pub struct Validation {
    /// The expression that must be true.
    pub expression: Expression,
    /// messageExpression.
    pub message_expression: Option<Expression>,
    /// The message without a messageExpression.
    pub message: String,
    /// The status reason; empty for the default.
    pub reason: String,
}

impl Validation {
    fn read(item: &Value, compiler: &mut Compiler) -> Validation {
        let expression = Expression::compile(compiler, item.str("expression"), ResultType::Bool, true);
        let message_expression = Some(item.str("messageExpression"))
            .filter(|text| !text.is_empty())
            .map(|text| Expression::compile(compiler, text, ResultType::String, false));
        Validation {
            expression,
            message_expression,
            message: item.str("message").to_owned(),
            reason: item.str("reason").to_owned(),
        }
    }
}

/// One of `spec.mutations`.
#[derive(Debug)]
pub enum Mutation {
    /// ApplyConfiguration.
    Configuration(Expression),
    /// JSONPatch.
    Patch(Expression),
}

impl Mutation {
    fn read(item: &Value, compiler: &mut Compiler) -> Option<Mutation> {
        let mut compile = |field: &str, result_type: ResultType| {
            let text = item.get(field)?.str("expression");
            Some(Expression::compile(compiler, text, result_type, true))
        };
        match item.str("patchType") {
            "JSONPatch" => compile("jsonPatch", ResultType::JsonPatch).map(Mutation::Patch),
            _ => compile("applyConfiguration", ResultType::Object).map(Mutation::Configuration),
        }
    }

    /// The expression.
    pub fn expression(&self) -> &Expression {
        match self {
            Mutation::Configuration(expression) | Mutation::Patch(expression) => expression,
        }
    }
}

/// A parsed policy. Validating ones have validations and audit annotations, mutating ones have mutations.
#[derive(Debug)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Whether the failure policy is Fail.
    pub fails_on_error: bool,
    /// matchConstraints; a policy without them is misconfigured.
    pub matching: Option<MatchConstraints>,
    /// paramKind.
    pub params: Option<(GroupVersion, String)>,
    /// matchConditions, in order.
    pub conditions: Vec<Expression>,
    /// The composition variables by name, in order.
    pub variables: Vec<(String, Expression)>,
    /// The validations.
    pub validations: Vec<Validation>,
    /// The audit annotations by key.
    pub annotations: Vec<(String, Expression)>,
    /// The mutations, in order.
    pub mutations: Vec<Mutation>,
    /// Whether reinvocationPolicy is IfNeeded.
    pub reinvoke_if_needed: bool,
}

impl Policy {
    /// Parses a stored policy and compiles its expressions. Compile errors are kept.
    pub fn read(object: &Value) -> Policy {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let list = |field: &str| spec.get(field).map(Value::items).unwrap_or_default();
        let params = spec.get("paramKind").filter(|kind| !kind.is_null());
        let mut compiler = Compiler::stored(params.is_some(), true);
        let mut variables = Vec::new();
        for variable in list("variables") {
            let (name, text) = (variable.str("name"), variable.str("expression"));
            let expression = Expression::compile(&mut compiler, text, ResultType::Any, true);
            compiler.add(name, expression.program.as_ref().ok());
            variables.push((name.to_owned(), expression));
        }
        let conditions = list("matchConditions")
            .iter()
            .map(|item| Expression::compile(&mut compiler, item.str("expression"), ResultType::Bool, true))
            .collect();
        let validations =
            list("validations").iter().map(|item| Validation::read(item, &mut compiler)).collect();
        let annotations = list("auditAnnotations")
            .iter()
            .map(|item| {
                let text = item.str("valueExpression");
                let expression = Expression::compile(&mut compiler, text, ResultType::StringOrNull, true);
                (item.str("key").to_owned(), expression)
            })
            .collect();
        let mutations =
            list("mutations").iter().filter_map(|item| Mutation::read(item, &mut compiler)).collect();
        Policy {
            name: meta::name(object).to_owned(),
            fails_on_error: spec.str("failurePolicy") != "Ignore",
            matching: MatchConstraints::read(spec.get("matchConstraints")),
            params: params.map(|kind| {
                let version = GroupVersion::parse(kind.str("apiVersion"));
                (version.unwrap_or_else(|| GroupVersion::new("", "")), kind.str("kind").to_owned())
            }),
            conditions,
            variables,
            validations,
            annotations,
            mutations,
            reinvoke_if_needed: spec.str("reinvocationPolicy") == "IfNeeded",
        }
    }
}

impl Policy {
    /// The first expression that does not compile, and why. A later release may have stored it.
    pub fn first_compile_error(&self) -> Option<String> {
        let validations = self.validations.iter().flat_map(|validation| {
            std::iter::once(&validation.expression).chain(validation.message_expression.as_ref())
        });
        let by_name = self.variables.iter().chain(&self.annotations).map(|(_, expression)| expression);
        let mutations = self.mutations.iter().map(Mutation::expression);
        let mut all = self.conditions.iter().chain(by_name).chain(validations).chain(mutations);
        all.find_map(Expression::compile_error)
    }
}

/// A validationAction of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidationAction {
    /// The request is refused.
    Deny,
    /// The client gets a warning.
    Warn,
    /// The failure becomes an audit annotation.
    Audit,
}

/// The paramRef of a binding.
#[derive(Debug)]
pub struct ParamRef {
    /// The name; empty with a selector.
    pub name: String,
    /// The namespace; empty for that of the request.
    pub namespace: String,
    /// The label selector.
    pub selector: Option<Value>,
    /// Whether a missing parameter is an error (parameterNotFoundAction Deny).
    pub required: bool,
}

/// A parsed binding.
#[derive(Debug)]
pub struct Binding {
    /// Its name.
    pub name: String,
    /// The name of the policy.
    pub policy: String,
    /// matchResources: restricts the requests of the policy; `None` for all.
    pub matching: Option<MatchConstraints>,
    /// The parameters.
    pub params: Option<ParamRef>,
    /// validationActions.
    pub validation_actions: Vec<ValidationAction>,
}

impl Binding {
    /// Parses a stored binding.
    pub fn read(object: &Value) -> Binding {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let validation_actions = spec.get("validationActions").map(Value::items).unwrap_or_default();
        let action = |word: &Value| match word.as_str()? {
            "Deny" => Some(ValidationAction::Deny),
            "Warn" => Some(ValidationAction::Warn),
            "Audit" => Some(ValidationAction::Audit),
            _ => None,
        };
        let params = spec.get("paramRef").filter(|params| !params.is_null()).map(|params| ParamRef {
            name: params.str("name").to_owned(),
            namespace: params.str("namespace").to_owned(),
            selector: params.get("selector").filter(|selector| !selector.is_null()).cloned(),
            required: params.str("parameterNotFoundAction") == "Deny",
        });
        Binding {
            name: meta::name(object).to_owned(),
            policy: spec.str("policyName").to_owned(),
            matching: MatchConstraints::read(spec.get("matchResources")),
            params,
            validation_actions: validation_actions.iter().filter_map(action).collect(),
        }
    }
}
