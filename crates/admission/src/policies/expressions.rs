//! The CEL environments of admission policies and match conditions, and the compilation of their expressions.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_cel::types::{DeclKind, DeclType, ListKind, ObjectType, Property, Type};
use pilothouse_cel::{
    Environment, JSON_PATCH, Library, OBJECT as CONSTRUCTED_OBJECT, Program, RecentLibraries,
};

use crate::limits::VARIABLES_IN_TYPE;

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
pub const REQUEST_RESOURCE: &str = "authorizer.requestResource";
/// The composition variables of the policy.
pub const VARIABLES: &str = "variables";

/// The environment of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvironmentType {
    /// For new expressions: only functions that the release before this one knows, so that a rollback is possible.
    New,
    /// For stored expressions: all functions, because they were accepted before.
    Stored,
}

/// The libraries of new expressions, with the features that are enabled.
pub fn new_libraries(features: EnabledFeatures) -> RecentLibraries {
    let selectors = features.has(Feature::AuthorizeWithSelectors);
    RecentLibraries::of_new_expressions(features.compatibility(), selectors)
}

/// The prefix of errors after type checking.
pub const PROGRAM_ERROR: &str = "program instantiation failed";

/// The required result type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// A boolean.
    Bool,
    /// A string.
    String,
    /// A string or null.
    StringOrNull,
    /// An apply configuration (`Object`).
    Object,
    /// A list of JSON Patch operations.
    JsonPatch,
    /// Any type.
    Any,
}

impl ResultType {
    fn types(self) -> &'static [Type] {
        static OBJECTS: LazyLock<[Type; 1]> =
            LazyLock::new(|| [Type::Constructed(CONSTRUCTED_OBJECT.into())]);
        static OPERATIONS: LazyLock<[Type; 1]> =
            LazyLock::new(|| [Type::list(Type::Constructed(JSON_PATCH.into()))]);
        match self {
            ResultType::Bool => &[Type::Bool],
            ResultType::String => &[Type::String],
            ResultType::StringOrNull => &[Type::String, Type::Null],
            ResultType::Object => &*OBJECTS,
            ResultType::JsonPatch => &*OPERATIONS,
            ResultType::Any => &[],
        }
    }

    /// Whether it needs object construction.
    fn constructs_objects(self) -> bool {
        matches!(self, ResultType::Object | ResultType::JsonPatch)
    }
}

/// Compiles the expressions of a policy. Each can use the variables that were added before.
#[derive(Debug)]
pub struct Compiler {
    /// The environments of new and of stored expressions.
    environments: [EnvironmentSet; 2],
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
    Authorizer,
    /// With the authorizer and object construction.
    ObjectConstruction,
}

/// Environments by [`Capabilities`].
type EnvironmentSet = [Environment; 3];

/// The environments for untyped objects, by the recent libraries.
static UNTYPED_ENVIRONMENTS: LazyLock<[EnvironmentSet; RecentLibraries::COUNT]> = LazyLock::new(|| {
    std::array::from_fn(|index| environments_for(&Type::Dyn, RecentLibraries::with_index(index)))
});

fn untyped_environments(libraries: RecentLibraries) -> EnvironmentSet {
    let environments = UNTYPED_ENVIRONMENTS.get(libraries.index()).cloned();
    environments.unwrap_or_else(|| environments_for(&Type::Dyn, libraries))
}

fn environments_for(object: &Type, libraries: RecentLibraries) -> EnvironmentSet {
    /// The environments for object construction, by the recent libraries: their functions are costly to make.
    static CONSTRUCTING: LazyLock<[Environment; RecentLibraries::COUNT]> =
        LazyLock::new(|| std::array::from_fn(|index| constructing(RecentLibraries::with_index(index))));
    let with_request_variables = |environment: Environment| {
        environment
            .variable(OBJECT, object.clone())
            .variable(OLD_OBJECT, object.clone())
            .variable(NAMESPACE, NAMESPACE_TYPE.clone())
            .variable(REQUEST, REQUEST_TYPE.clone())
    };
    let with_authorizer = |environment: Environment| {
        environment
            .variable(AUTHORIZER, Type::opaque("kubernetes.authorization.Authorizer"))
            .variable(REQUEST_RESOURCE, Type::opaque("kubernetes.authorization.ResourceCheck"))
    };
    let constructing =
        CONSTRUCTING.get(libraries.index()).cloned().unwrap_or_else(|| constructing(libraries));
    let plain = with_request_variables(Environment::with_recent(libraries));
    [plain.clone(), with_authorizer(plain), with_authorizer(with_request_variables(constructing))]
}

/// An environment for object construction, without variables.
fn constructing(recent: RecentLibraries) -> Environment {
    let mut libraries = recent.libraries();
    libraries.push(Library::JsonPatch);
    Environment::with_libraries(&libraries).with_object_construction()
}

impl Compiler {
    /// For untyped objects of a write. `composed`: with composition variables.
    pub fn new(new: RecentLibraries, has_params: bool, composed: bool) -> Compiler {
        let environments = [untyped_environments(new), untyped_environments(RecentLibraries::STORED)];
        Compiler::with_environments(environments, has_params.then_some(Type::Dyn), composed)
    }

    /// For expressions that are stored.
    pub fn stored(has_params: bool, composed: bool) -> Compiler {
        Compiler::new(RecentLibraries::STORED, has_params, composed)
    }

    /// For stored expressions, with objects and parameters of known types. Without a type there are no parameters.
    pub fn typed(object: &Type, params: Option<Type>) -> Compiler {
        let environments = environments_for(object, RecentLibraries::STORED);
        Compiler::with_environments([environments.clone(), environments], params, true)
    }

    fn with_environments(
        environments: [EnvironmentSet; 2],
        params: Option<Type>,
        composed: bool,
    ) -> Compiler {
        let variables = composed.then(BTreeMap::new);
        let mut compiler = Compiler { environments, variables, patterns: Patterns::default() };
        if let Some(params) = params {
            compiler.declare(PARAMS, &params);
        }
        if composed {
            compiler.declare(VARIABLES, &variables_type(&BTreeMap::new()));
        }
        compiler
    }

    fn declare(&mut self, name: &str, kind: &Type) {
        for environment in self.environments.as_flattened_mut() {
            let previous = std::mem::replace(environment, Environment::standard());
            *environment = previous.variable(name, kind.clone());
        }
    }

    /// Compiles a text. `authorizer`: whether the authorizer is available.
    pub fn compile(
        &mut self,
        text: &str,
        result_type: ResultType,
        authorizer: bool,
        environment_type: EnvironmentType,
    ) -> Result<Program, String> {
        let capabilities = match (result_type.constructs_objects(), authorizer) {
            (true, _) => Capabilities::ObjectConstruction,
            (false, true) => Capabilities::Authorizer,
            (false, false) => Capabilities::Plain,
        };
        let program = self.program(text, capabilities, environment_type);
        let program = program.map_err(|error| format!("compilation failed: {error}"))?;
        let (kind, types) = (program.result_type(), result_type.types());
        if types.is_empty() || types.contains(&kind) {
            return match program.named_type() {
                Some(name) => Err(format!("{PROGRAM_ERROR}: reference to undefined type: {name}")),
                None => Ok(program),
            };
        }
        let actual = full_name(&kind);
        let names: Vec<String> = types.iter().map(full_name).collect();
        Err(match names.as_slice() {
            [expected] => format!("must evaluate to {expected} but got {actual}"),
            several => format!("must evaluate to one of [{}] but got {actual}", several.join(" ")),
        })
    }

    /// Compiles a text without checking the result type. The error is that of the CEL compiler.
    pub fn read(
        &mut self,
        text: &str,
        authorizer: bool,
        environment_type: EnvironmentType,
    ) -> Result<Program, String> {
        self.program(
            text,
            if authorizer { Capabilities::Authorizer } else { Capabilities::Plain },
            environment_type,
        )
    }

    fn program(
        &mut self,
        text: &str,
        capabilities: Capabilities,
        environment_type: EnvironmentType,
    ) -> Result<Program, String> {
        let [new, stored] = &self.environments;
        let [plain, authorizer, constructing] =
            if environment_type == EnvironmentType::New { new } else { stored };
        let environment = match capabilities {
            Capabilities::Plain => plain,
            Capabilities::Authorizer => authorizer,
            Capabilities::ObjectConstruction => constructing,
        };
        environment.compile(text, &mut self.patterns)
    }

    /// Adds a composition variable with the type of this program, or `dyn` without one.
    pub fn add(&mut self, name: &str, program: Option<&Program>) {
        let Some(variables) = &mut self.variables else { return };
        let kind = program.map_or(Type::Dyn, |program| declared_type(&program.result_type()).kind());
        variables.insert(name.to_owned(), kind.clone());
        // The type of all variables is rebuilt for each, so their number is bounded: it would be quadratic.
        let all_variables = (variables.len() <= VARIABLES_IN_TYPE).then(|| variables_type(variables));
        // Declared by its qualified name, because each is evaluated on first use.
        self.declare(&format!("{VARIABLES}.{name}"), &kind);
        if let Some(all_variables) = all_variables {
            self.declare(VARIABLES, &all_variables);
        }
    }
}

/// The type of `variables` as a whole, for presence tests.
fn variables_type(variables: &BTreeMap<String, Type>) -> Type {
    let fields = variables.iter().map(|(name, kind)| (name.as_str(), Arc::new(declared_type(kind))));
    object_type("kubernetes.variables", fields)
}

/// The declared type of a variable; `dyn` for types that have none.
fn declared_type(kind: &Type) -> DeclType {
    let decl_kind = match kind {
        Type::Bool => DeclKind::Bool,
        Type::Int => DeclKind::Int,
        Type::Double => DeclKind::Double,
        Type::String => DeclKind::String,
        Type::Bytes => DeclKind::Bytes,
        Type::Timestamp => DeclKind::Timestamp,
        Type::Duration => DeclKind::Duration,
        Type::List(items) => DeclKind::List(Arc::new(declared_type(items)), ListKind::Ordered),
        Type::Map(keys, values) if **keys == Type::String => DeclKind::Map(Arc::new(declared_type(values))),
        _ => DeclKind::Dyn,
    };
    DeclType { decl_kind, max_elements: u64::MAX, min_serialized_size: 1 }
}

/// The type with its parameters, for messages.
pub fn full_name(kind: &Type) -> String {
    let inner: Vec<String> = kind.parameters().into_iter().map(full_name).collect();
    if inner.is_empty() { kind.name() } else { format!("{}({})", kind.name(), inner.join(", ")) }
}

/// A declared type of this kind, of unknown size.
pub fn plain(decl_kind: DeclKind) -> Arc<DeclType> {
    Arc::new(DeclType { decl_kind, max_elements: u64::MAX, min_serialized_size: 1 })
}

/// An object with these fields.
pub fn object_type<'n>(name: &str, fields: impl IntoIterator<Item = (&'n str, Arc<DeclType>)>) -> Type {
    let property = |(name, decl_type): (&str, Arc<DeclType>)| {
        (name.to_owned(), Property { name: name.to_owned(), decl_type })
    };
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
