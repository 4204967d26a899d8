//! The CEL environments of admission policies and match conditions, and the compilation of their expressions.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_cel::types::{DeclKind, DeclType, ListKind, ObjectType, Property, Type};
use pilothouse_cel::{Environment, JSON_PATCH, Library, OBJECT as MADE_OBJECT, Program};

use crate::limits::VARIABLES_AS_ONE;

/// The new object.
pub const OBJECT: &str = "object";
/// The old object.
pub const OLD_OBJECT: &str = "oldObject";
/// The parameters of the binding.
pub const PARAMS: &str = "params";
/// The request.
pub const REQUEST: &str = "request";
/// The namespace of the request.
pub const NAMESPACE: &str = "namespaceObject";
/// The authorizer.
pub const AUTHORIZER: &str = "authorizer";
/// The authorizer, preset to the resource of the request.
pub const OF_REQUEST: &str = "authorizer.requestResource";
/// The composition variables of the policy.
pub const VARIABLES: &str = "variables";

/// The environment of an expression, by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvironmentType {
    /// For new expressions: only functions that the previous release knows, so that a rollback is possible.
    New,
    /// For stored expressions: all functions, because they were accepted before.
    Stored,
}

/// The prefix of errors after type checking.
pub const UNPLANNED: &str = "program instantiation failed";

/// The required result type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// A boolean.
    Truth,
    /// A string.
    Text,
    /// A string or null.
    TextOrNull,
    /// An apply configuration (`Object`).
    Object,
    /// A list of JSON Patch operations.
    Operations,
    /// Any type.
    Anything,
}

impl ResultType {
    fn types(self) -> &'static [Type] {
        static OBJECTS: LazyLock<[Type; 1]> = LazyLock::new(|| [Type::Made(MADE_OBJECT.into())]);
        static OPERATIONS: LazyLock<[Type; 1]> =
            LazyLock::new(|| [Type::list(Type::Made(JSON_PATCH.into()))]);
        match self {
            ResultType::Truth => &[Type::Bool],
            ResultType::Text => &[Type::String],
            ResultType::TextOrNull => &[Type::String, Type::Null],
            ResultType::Object => &*OBJECTS,
            ResultType::Operations => &*OPERATIONS,
            ResultType::Anything => &[],
        }
    }

    /// Whether it needs object construction.
    fn makes(self) -> bool {
        matches!(self, ResultType::Object | ResultType::Operations)
    }
}

/// Compiles the expressions of a policy. Each can use the variables that were added before.
#[derive(Debug)]
pub struct Compiler {
    /// The environments of new and of stored expressions.
    known: [Known; 2],
    /// The types of composition variables; `None` if there are none in this context.
    variables: Option<BTreeMap<String, Type>>,
    patterns: Patterns,
}

/// The capabilities of an environment.
#[derive(Clone, Copy)]
enum Capabilities {
    /// Plain variables only.
    Plain,
    /// With the authorizer.
    Rights,
    /// With the authorizer and object construction.
    Making,
}

/// Environments by [`Capabilities`].
type Known = [Environment; 3];

/// The environments for untyped objects.
static ANY: LazyLock<[Known; 2]> = LazyLock::new(|| known(&Type::Dyn));

fn known(object: &Type) -> [Known; 2] {
    /// The libraries by age, without and with object construction.
    static LIBRARIES: LazyLock<[[Environment; 2]; 2]> = LazyLock::new(|| {
        let with = |more: &[Library]| Environment::with_libraries(&[&Library::NEW[..], more].concat());
        [
            [Environment::standard(), with(&[Library::JsonPatch]).making()],
            [with(&[Library::Semver]), with(&[Library::Semver, Library::JsonPatch]).making()],
        ]
    });
    let of_request = |environment: &Environment| {
        environment
            .clone()
            .variable(OBJECT, object.clone())
            .variable(OLD_OBJECT, object.clone())
            .variable(NAMESPACE, NAMESPACE_TYPE.clone())
            .variable(REQUEST, REQUEST_TYPE.clone())
    };
    let with_rights = |environment: Environment| {
        environment
            .variable(AUTHORIZER, Type::named("kubernetes.authorization.Authorizer"))
            .variable(OF_REQUEST, Type::named("kubernetes.authorization.ResourceCheck"))
    };
    LIBRARIES.each_ref().map(|[plain, making]| {
        let (plain, making) = (of_request(plain), of_request(making));
        [plain.clone(), with_rights(plain), with_rights(making)]
    })
}

impl Compiler {
    /// For untyped objects. `composed`: with composition variables.
    pub fn new(has_params: bool, composed: bool) -> Compiler {
        Compiler::made(ANY.clone(), has_params.then_some(Type::Dyn), composed)
    }

    /// For objects and parameters of known types. Without a type there are no parameters.
    pub fn typed(object: &Type, params: Option<Type>) -> Compiler {
        Compiler::made(known(object), params, true)
    }

    fn made(known: [Known; 2], params: Option<Type>, composed: bool) -> Compiler {
        let variables = composed.then(BTreeMap::new);
        let mut compiler = Compiler { known, variables, patterns: Patterns::default() };
        if let Some(params) = params {
            compiler.declare(PARAMS, &params);
        }
        if composed {
            compiler.declare(VARIABLES, &all_of(&BTreeMap::new()));
        }
        compiler
    }

    fn declare(&mut self, name: &str, kind: &Type) {
        for environment in self.known.as_flattened_mut() {
            let before = std::mem::replace(environment, Environment::standard());
            *environment = before.variable(name, kind.clone());
        }
    }

    /// Compiles a text. `authorizer`: whether the authorizer is available.
    pub fn compile(
        &mut self,
        text: &str,
        wanted: ResultType,
        authorizer: bool,
        age: EnvironmentType,
    ) -> Result<Program, String> {
        let access = match (wanted.makes(), authorizer) {
            (true, _) => Capabilities::Making,
            (false, true) => Capabilities::Rights,
            (false, false) => Capabilities::Plain,
        };
        let program = self.program(text, access, age);
        let program = program.map_err(|why| format!("compilation failed: {why}"))?;
        let (kind, types) = (program.kind(), wanted.types());
        if types.is_empty() || types.contains(&kind) {
            return match program.named_type() {
                Some(name) => Err(format!("{UNPLANNED}: reference to undefined type: {name}")),
                None => Ok(program),
            };
        }
        let found = full_name(&kind);
        let names: Vec<String> = types.iter().map(full_name).collect();
        Err(match names.as_slice() {
            [one] => format!("must evaluate to {one} but got {found}"),
            several => format!("must evaluate to one of [{}] but got {found}", several.join(" ")),
        })
    }

    /// Compiles a text without checking the result type. The error has no prefix.
    pub fn read(&mut self, text: &str, authorizer: bool, age: EnvironmentType) -> Result<Program, String> {
        self.program(text, if authorizer { Capabilities::Rights } else { Capabilities::Plain }, age)
    }

    fn program(&mut self, text: &str, access: Capabilities, age: EnvironmentType) -> Result<Program, String> {
        let [new, stored] = &self.known;
        let [plain, rights, making] = if age == EnvironmentType::New { new } else { stored };
        let environment = match access {
            Capabilities::Plain => plain,
            Capabilities::Rights => rights,
            Capabilities::Making => making,
        };
        environment.compile(text, &mut self.patterns)
    }

    /// Adds a composition variable with the type of this program, or `dyn` without one.
    pub fn add(&mut self, name: &str, program: Option<&Program>) {
        let Some(variables) = &mut self.variables else { return };
        let kind = program.map_or(Type::Dyn, |program| shape_of(&program.kind()).kind());
        variables.insert(name.to_owned(), kind.clone());
        // The type of all variables is rebuilt for each, so their number is bounded: it would be quadratic.
        let all = (variables.len() <= VARIABLES_AS_ONE).then(|| all_of(variables));
        // Declared by its qualified name, because each is evaluated on first use.
        self.declare(&format!("{VARIABLES}.{name}"), &kind);
        if let Some(all) = all {
            self.declare(VARIABLES, &all);
        }
    }
}

/// The type of `variables` as a whole, for presence tests.
fn all_of(variables: &BTreeMap<String, Type>) -> Type {
    let fields = variables.iter().map(|(name, kind)| (name.as_str(), Arc::new(shape_of(kind))));
    object_type("kubernetes.variables", fields)
}

/// The declared type of a variable; `dyn` for types that have none.
fn shape_of(kind: &Type) -> DeclType {
    let form = match kind {
        Type::Bool => DeclKind::Bool,
        Type::Int => DeclKind::Int,
        Type::Double => DeclKind::Double,
        Type::String => DeclKind::String,
        Type::Bytes => DeclKind::Bytes,
        Type::Timestamp => DeclKind::Timestamp,
        Type::Duration => DeclKind::Duration,
        Type::List(items) => DeclKind::List(Arc::new(shape_of(items)), ListKind::Ordered),
        Type::Map(keys, values) if **keys == Type::String => DeclKind::Map(Arc::new(shape_of(values))),
        _ => DeclKind::Dyn,
    };
    DeclType { form, most: u64::MAX, least: 1 }
}

/// The type with its parameters, for messages.
pub fn full_name(kind: &Type) -> String {
    let inner: Vec<String> = kind.parameters().into_iter().map(full_name).collect();
    if inner.is_empty() { kind.name() } else { format!("{}({})", kind.name(), inner.join(", ")) }
}

/// A declared type of this kind, of unknown size.
pub fn plain(form: DeclKind) -> Arc<DeclType> {
    Arc::new(DeclType { form, most: u64::MAX, least: 1 })
}

/// An object with these fields.
pub fn object_type<'n>(name: &str, fields: impl IntoIterator<Item = (&'n str, Arc<DeclType>)>) -> Type {
    let property =
        |(name, shape): (&str, Arc<DeclType>)| (name.to_owned(), Property { name: name.to_owned(), shape });
    Type::Object(Arc::new(ObjectType {
        name: name.to_owned(),
        fields: fields.into_iter().map(property).collect(),
    }))
}

/// The declared type of a nested object.
pub fn nested(kind: Type) -> Arc<DeclType> {
    match kind {
        Type::Object(object) => plain(DeclKind::Object(object)),
        _ => plain(DeclKind::Dyn),
    }
}

/// String fields.
pub fn texts(names: &[&'static str]) -> Vec<(&'static str, Arc<DeclType>)> {
    names.iter().map(|name| (*name, plain(DeclKind::String))).collect()
}

/// A list of this type.
pub fn list(items: Arc<DeclType>) -> Arc<DeclType> {
    plain(DeclKind::List(items, ListKind::Ordered))
}

static REQUEST_TYPE: LazyLock<Type> = LazyLock::new(|| {
    let kind = object_type("kubernetes.GroupVersionKind", texts(&["group", "version", "kind"]));
    let resource = object_type("kubernetes.GroupVersionResource", texts(&["group", "version", "resource"]));
    let mut user = texts(&["username", "uid"]);
    user.push(("groups", list(plain(DeclKind::String))));
    user.push(("extra", plain(DeclKind::Map(list(plain(DeclKind::String))))));
    let mut fields = texts(&["subResource", "requestSubResource", "name", "namespace", "operation"]);
    fields.extend([("kind", nested(kind.clone())), ("requestKind", nested(kind))]);
    fields.extend([("resource", nested(resource.clone())), ("requestResource", nested(resource))]);
    fields.push(("userInfo", nested(object_type("kubernetes.UserInfo", user))));
    fields.extend([("dryRun", plain(DeclKind::Bool)), ("options", plain(DeclKind::Dyn))]);
    object_type("kubernetes.AdmissionRequest", fields)
});

static NAMESPACE_TYPE: LazyLock<Type> = LazyLock::new(|| {
    let finalizers = || ("finalizers", list(plain(DeclKind::String)));
    let map = || plain(DeclKind::Map(plain(DeclKind::String)));
    let mut condition = texts(&["status", "type", "message", "reason"]);
    condition.push(("lastTransitionTime", plain(DeclKind::Timestamp)));
    let condition = object_type("kubernetes.NamespaceCondition", condition);
    let mut status = texts(&["phase"]);
    status.push(("conditions", list(nested(condition))));
    let mut metadata = texts(&["name", "generateName", "namespace", "UID", "resourceVersion"]);
    metadata.extend([("labels", map()), ("annotations", map()), finalizers()]);
    metadata
        .extend(["creationTimestamp", "deletionTimestamp"].map(|name| (name, plain(DeclKind::Timestamp))));
    metadata.extend(["deletionGracePeriodSeconds", "generation"].map(|name| (name, plain(DeclKind::Int))));
    object_type(
        "kubernetes.Namespace",
        [
            ("metadata", nested(object_type("kubernetes.NamespaceMetadata", metadata))),
            ("spec", nested(object_type("kubernetes.NamespaceSpec", [finalizers()]))),
            ("status", nested(object_type("kubernetes.NamespaceStatus", status))),
        ],
    )
});
