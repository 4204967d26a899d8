//! Policies and their bindings, read from what is stored and made ready to be asked.

use super::expressions::{Compiler, EnvironmentType, ResultType};
use crate::api::cel::Program;
use crate::api::matching::MatchConstraints;
use crate::api::meta;
use crate::api::value::Value;
use crate::api::version::GroupVersion;

/// An expression and what came of it.
#[derive(Debug)]
pub struct Expression {
    /// As it was written.
    pub text: String,
    /// The program, or why there is none.
    pub program: Result<Program, String>,
}

/// What a policy says of objects.
#[derive(Debug)]
pub struct Validation {
    /// What must hold.
    pub expression: Expression,
    /// What says what is wrong when it does not.
    pub message_expression: Option<Expression>,
    /// What is said if that says nothing.
    pub message: String,
    /// The word for machines; empty for the usual one.
    pub reason: String,
}

/// How a policy says what shall become of objects.
#[derive(Debug)]
pub enum Mutation {
    /// By what some of their fields shall be.
    Configuration(Expression),
    /// By the operations of a JSON Patch.
    Patch(Expression),
}

impl Mutation {
    /// What it says.
    pub fn expression(&self) -> &Expression {
        match self {
            Mutation::Configuration(expression) | Mutation::Patch(expression) => expression,
        }
    }
}

/// A policy that can be asked. Those that check have demands and notes, those that change have mutations.
#[derive(Debug)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Whether a request fails when the policy cannot be asked.
    pub fails: bool,
    /// Which requests it is about; a policy that does not say is broken.
    pub matching: Option<MatchConstraints>,
    /// The kind of its parameters.
    pub params: Option<(GroupVersion, String)>,
    /// What must hold of a request for the policy to be about it, in order.
    pub conditions: Vec<Expression>,
    /// What it works out for itself, by name, in order.
    pub variables: Vec<(String, Expression)>,
    /// What it demands.
    pub validations: Vec<Validation>,
    /// What it notes, by key.
    pub annotations: Vec<(String, Expression)>,
    /// What it changes, in order.
    pub mutations: Vec<Mutation>,
    /// Whether it wants to be asked again when others have changed something after it.
    pub reinvoke_if_needed: bool,
}

impl Policy {
    /// Reads a stored policy and compiles its expressions. What does not compile is kept as that.
    pub fn read(object: &Value) -> Policy {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let list = |field: &str| spec.get(field).map(Value::items).unwrap_or_default();
        let params = spec.get("paramKind").filter(|kind| !kind.is_null());
        let mut compiler = Compiler::new(params.is_some(), true);
        let expression = |compiler: &mut Compiler, text: &str, wanted: ResultType, authorizer: bool| {
            let program = compiler.compile(text, wanted, authorizer, EnvironmentType::Stored);
            Expression { text: text.to_owned(), program }
        };
        let mut variables = Vec::new();
        for variable in list("variables") {
            let made = expression(&mut compiler, variable.str("expression"), ResultType::Anything, true);
            compiler.add(variable.str("name"), made.program.as_ref().ok());
            variables.push((variable.str("name").to_owned(), made));
        }
        let conditions = list("matchConditions")
            .iter()
            .map(|one| expression(&mut compiler, one.str("expression"), ResultType::Truth, true))
            .collect();
        let validations = list("validations")
            .iter()
            .map(|one| Validation {
                expression: expression(&mut compiler, one.str("expression"), ResultType::Truth, true),
                message_expression: Some(one.str("messageExpression"))
                    .filter(|text| !text.is_empty())
                    .map(|text| expression(&mut compiler, text, ResultType::Text, false)),
                message: one.str("message").to_owned(),
                reason: one.str("reason").to_owned(),
            })
            .collect();
        let annotations = list("auditAnnotations")
            .iter()
            .map(|one| {
                let made =
                    expression(&mut compiler, one.str("valueExpression"), ResultType::TextOrNull, true);
                (one.str("key").to_owned(), made)
            })
            .collect();
        let mutations = list("mutations").iter().filter_map(|one| {
            let mut made = |field: &str, wanted: ResultType| {
                one.get(field).map(|said| expression(&mut compiler, said.str("expression"), wanted, true))
            };
            match one.str("patchType") {
                "JSONPatch" => made("jsonPatch", ResultType::Operations).map(Mutation::Patch),
                _ => made("applyConfiguration", ResultType::Object).map(Mutation::Configuration),
            }
        });
        let mutations = mutations.collect();
        Policy {
            name: meta::name(object).to_owned(),
            fails: spec.str("failurePolicy") != "Ignore",
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

/// What a binding does with what a policy finds wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidationAction {
    /// The request is refused.
    Deny,
    /// The client is told.
    Warn,
    /// It is noted.
    Audit,
}

/// Which objects a binding gives a policy as its parameters.
#[derive(Debug)]
pub struct ParamRef {
    /// The one of this name; empty if they are selected.
    pub name: String,
    /// Where; empty for the namespace of the request.
    pub namespace: String,
    /// Those that are selected.
    pub selector: Option<Value>,
    /// Whether there must be one.
    pub required: bool,
}

/// What puts a policy to use.
#[derive(Debug)]
pub struct Binding {
    /// Its name.
    pub name: String,
    /// The policy.
    pub policy: String,
    /// Of the requests that the policy is about, those that it is used for; all if it does not say.
    pub matching: Option<MatchConstraints>,
    /// The parameters.
    pub params: Option<ParamRef>,
    /// What happens to what the policy finds wrong.
    pub validation_actions: Vec<ValidationAction>,
}

impl Binding {
    /// Reads a stored binding.
    pub fn read(object: &Value) -> Binding {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let validation_actions = spec.get("validationActions").map(Value::items).unwrap_or_default();
        let reaction = |word: &Value| match word.as_str()? {
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
            validation_actions: validation_actions.iter().filter_map(reaction).collect(),
        }
    }
}
