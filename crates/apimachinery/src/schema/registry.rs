//! All types of all group versions, compiled from the schema table.

mod compiler;

use std::collections::HashMap;
use std::sync::Arc;

use self::compiler::Compiler;
use super::table::{Facts, TableError};
use super::{Field, GroupVersionKind, List, Scalar, Struct, Type, TypeId, builtin, by_name, table};
use crate::well_known;

/// The types of every known group version.
#[derive(Debug, Default)]
pub struct Registry {
    /// The types that these extend, if any. Their ids come first.
    base: Option<Arc<Registry>>,
    /// The number of types in `base`.
    first: usize,
    types: Vec<Type>,
    versions: Vec<Version>,
    type_meta: TypeId,
    free: TypeId,
    free_object: TypeId,
}

#[derive(Debug)]
struct Version {
    group: Box<str>,
    version: Box<str>,
    /// The group's name in messages about conversions.
    family: Box<str>,
    kinds: HashMap<Box<str>, TypeId>,
    /// The types of custom kinds, whose objects are decoded without a type.
    described: HashMap<Box<str>, TypeId>,
}

/// Kinds of the meta group that every group version has: request bodies and parts of responses.
const EVERYWHERE: [&str; 7] = [
    "WatchEvent",
    "ListOptions",
    "GetOptions",
    "DeleteOptions",
    "CreateOptions",
    "UpdateOptions",
    "PatchOptions",
];
/// Kinds of the meta group that core v1 has as well.
const IN_CORE: [&str; 6] = ["Status", "List", "APIVersions", "APIGroup", "APIGroupList", "APIResourceList"];

impl Registry {
    /// The registry of the built-in kinds.
    pub fn builtin() -> Result<Registry, TableError> {
        Registry::from_files(builtin::FILES.iter())
    }

    /// The registry of built-in and removed kinds, for tools that convert files. A server must not know the latter, because it
    /// would accept them.
    pub fn complete() -> Result<Registry, TableError> {
        Registry::from_files(builtin::FILES.iter().chain(&builtin::REMOVED_FILES))
    }

    /// The registry of metadata alone.
    pub fn metadata() -> Result<Registry, TableError> {
        Registry::from_files(builtin::FILES.iter().filter(|(name, _)| *name == "meta_v1"))
    }

    fn from_files<'a>(
        files: impl Iterator<Item = &'a (&'static str, &'static str)>,
    ) -> Result<Registry, TableError> {
        let facts = files.map(|(_, text)| table::parse(text)).collect::<Result<Vec<_>, _>>()?;
        Registry::compile(&facts)
    }

    /// Compiles the files. They may refer to each other in any order.
    pub fn compile(files: &[Facts]) -> Result<Registry, TableError> {
        Compiler::new(files)
            .and_then(|mut compiler| compiler.compile(files))
            .map_err(|message| TableError { line: 0, message })
    }

    /// The type with this id.
    pub fn get(&self, id: TypeId) -> &Type {
        // Only this registry makes ids, so the fallback is unreachable; it avoids a panic path.
        const NONE: &Type = &Type::Scalar(Scalar::RawJson);
        match (id.0 as usize).checked_sub(self.first) {
            Some(index) => self.types.get(index).unwrap_or(NONE),
            None => self.base.as_ref().map_or(NONE, |base| base.get(id)),
        }
    }

    /// The struct with this id, if it is one.
    pub fn structure(&self, id: TypeId) -> Option<&Struct> {
        match self.get(id) {
            Type::Struct(structure) => Some(structure),
            _ => None,
        }
    }

    /// The type of a kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        let own = self.version(group, version)?.kinds.get(kind).copied();
        let is_shared = || EVERYWHERE.contains(&kind) || (group.is_empty() && IN_CORE.contains(&kind));
        own.or_else(|| if is_shared() { self.meta(kind) } else { None })
    }

    /// The type that describes the fields of a kind; custom kinds have one, too.
    pub fn described(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        let described = self.version(group, version).and_then(|version| version.described.get(kind).copied());
        described.or_else(|| self.kind(group, version, kind))
    }

    /// The type of a kind.
    pub fn lookup(&self, kind: &GroupVersionKind) -> Option<TypeId> {
        self.kind(&kind.group, &kind.version, &kind.kind)
    }

    /// Every kind with its type, in no order.
    pub fn kinds(&self) -> impl Iterator<Item = (GroupVersionKind, TypeId)> {
        let named = self.versions.iter().flat_map(|version| {
            let name = |kind: &str| GroupVersionKind::new(&version.group, &version.version, kind);
            version.kinds.iter().map(move |(kind, id)| (name(kind), *id))
        });
        named.filter(|(_, id)| self.structure(*id).is_some_and(|structure| structure.object))
    }

    /// A type of the meta group, such as `Status` or `ObjectMeta`.
    pub fn meta(&self, name: &str) -> Option<TypeId> {
        self.version(well_known::META_GROUP, "v1")?.kinds.get(name).copied()
    }

    /// The group and version that define a type.
    pub fn home(&self, id: TypeId) -> Option<(&str, &str)> {
        let name = &*self.structure(id)?.name;
        let version = self.versions.iter().find(|version| version.kinds.get(name) == Some(&id))?;
        Some((&version.group, &version.version))
    }

    /// The struct with only kind and apiVersion: decoded before the kind is known.
    pub fn type_meta(&self) -> TypeId {
        self.type_meta
    }

    /// Any value without a schema.
    pub fn free(&self) -> TypeId {
        self.free
    }

    /// An object with metadata and no other schema: how custom resources are decoded and stored.
    pub fn free_object(&self) -> TypeId {
        self.free_object
    }

    /// The group's name in messages about conversions: `core`, `apps`.
    pub fn family(&self, group: &str) -> &str {
        let known = self.versions.iter().find(|version| *version.group == *group);
        match (known, &self.base) {
            (Some(version), _) => &version.family,
            (None, Some(base)) => base.family(group),
            (None, None) => "",
        }
    }

    /// The Go type name in errors.
    pub fn type_name(&self, id: TypeId) -> String {
        match self.get(id) {
            Type::Struct(structure) => structure.type_name(),
            Type::List(List { name: Some(name), .. }) => name.to_string(),
            Type::List(list) => format!("[]{}", self.type_name(list.item)),
            Type::Map(map) => match self.get(map.value) {
                Type::Scalar(Scalar::Quantity) => "v1.ResourceList".to_owned(),
                _ => format!("map[string]{}", self.type_name(map.value)),
            },
            Type::Either(either) => self.type_name(either.object),
            Type::Scalar(scalar) => scalar.type_name().to_owned(),
        }
    }

    /// The number of types.
    pub fn len(&self) -> usize {
        self.first + self.types.len()
    }

    /// Whether there are no types.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn version(&self, group: &str, version: &str) -> Option<&Version> {
        let own = self.versions.iter().find(|entry| *entry.group == *group && *entry.version == *version);
        own.or_else(|| self.base.as_ref()?.version(group, version))
    }
}

/// Types that extend a registry: custom resources. See [`Registry::lookup`].
#[derive(Debug)]
pub struct Addition(Registry);

impl Addition {
    /// Empty, on top of these types.
    pub fn new(base: &Arc<Registry>) -> Addition {
        Addition(Registry {
            base: Some(base.clone()),
            first: base.len(),
            type_meta: base.type_meta,
            free: base.free,
            free_object: base.free_object,
            ..Registry::default()
        })
    }

    /// Adds a type.
    pub fn add(&mut self, ty: Type) -> TypeId {
        // A definition has a few thousand types at most, because its size is bounded.
        let id = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.types.push(ty);
        TypeId(id)
    }

    /// Adds a kind whose objects are decoded without a type, and described by this one.
    pub fn kind(&mut self, kind: &GroupVersionKind, described: TypeId) {
        let GroupVersionKind { group, version, kind } = kind;
        let is_same = |entry: &&mut Version| *entry.group == **group && *entry.version == **version;
        let entry = match self.0.versions.iter_mut().find(is_same) {
            Some(entry) => entry,
            None => {
                self.0.versions.push(Version {
                    group: group.as_str().into(),
                    version: version.as_str().into(),
                    family: group.as_str().into(),
                    kinds: HashMap::new(),
                    described: HashMap::new(),
                });
                match self.0.versions.last_mut() {
                    Some(entry) => entry,
                    None => return,
                }
            }
        };
        entry.kinds.insert(kind.as_str().into(), self.0.free_object);
        entry.described.insert(kind.as_str().into(), described);
    }

    /// The finished registry.
    pub fn build(self) -> Registry {
        self.0
    }
}

/// A struct with these fields, for custom resources: without a Protobuf form and rules of the table.
pub fn structure(name: &str, object: bool, fields: Vec<Field>, open: Option<TypeId>) -> Struct {
    Struct {
        name: name.into(),
        object,
        by_name: by_name(&fields),
        fields: fields.into(),
        open,
        ..Struct::default()
    }
}

/// A field with only a name and a type.
pub fn plain_field(name: Arc<str>, ty: TypeId) -> Field {
    Field {
        name,
        number: 0,
        ty,
        pointer: false,
        emit: false,
        given: false,
        nullable: false,
        required: false,
        deprecated: false,
        inlined: false,
        map_atomic: None,
        list_atomic: false,
        patch: None,
        default: None,
        fill: None,
        values: Box::default(),
        item_values: Box::default(),
        rules: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_fields_in_order() {
        let registry = Registry::builtin().unwrap();
        let pod = registry.structure(registry.kind("", "v1", "Pod").unwrap()).unwrap();
        let names: Vec<&str> = pod.fields.iter().map(|field| &*field.name).collect();
        assert_eq!(names, ["kind", "apiVersion", "metadata", "spec", "status"]);
        assert!(!pod.defaulted.is_empty());
        assert_eq!(pod.position("spec"), Some(3));
        assert_eq!(pod.position("Spec"), None);
        assert!(registry.kind("", "v1", "Nope").is_none());
        assert!(registry.kind("apps", "v1", "DeleteOptions").is_some());
        assert!(
            registry.kind("", "v1", "Status").is_some() && registry.kind("apps", "v1", "Status").is_none()
        );
        assert_eq!((registry.family(""), registry.family("rbac.authorization.k8s.io")), ("core", "rbac"));
    }

    #[test]
    fn inlined_fields_are_fields_of_the_parent() {
        let registry = Registry::builtin().unwrap();
        let find = |name: &str| {
            let mut structs =
                (0..registry.len()).filter_map(|index| registry.structure(TypeId(index as u32)));
            structs.find(|structure| &*structure.name == name).unwrap()
        };
        let volume = find("Volume");
        assert_eq!(&*volume.fields[0].name, "name");
        assert!(volume.field("emptyDir").is_some_and(|field| field.inlined));
        assert_eq!(volume.inlined.len(), 1);
        let rule = find("NamedRuleWithOperations");
        assert!(rule.field("resourceNames").is_some() && rule.field("apiGroups").is_some());
    }

    #[test]
    fn type_names_are_those_of_go() {
        let registry = Registry::builtin().unwrap();
        let field_type = |kind: &str, field: &str| {
            let structure = registry.structure(registry.kind("", "v1", kind).unwrap()).unwrap();
            registry.type_name(structure.field(field).unwrap().ty)
        };
        assert_eq!(field_type("ConfigMap", "data"), "map[string]string");
        assert_eq!(field_type("ConfigMap", "binaryData"), "map[string][]uint8");
        assert_eq!(field_type("ConfigMap", "metadata"), "v1.ObjectMeta");
        assert_eq!(field_type("Endpoints", "subsets"), "[]v1.EndpointSubset");
    }
}
