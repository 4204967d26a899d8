//! All types of all group versions, compiled from the schema table.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::table::{Facts, FieldFact, FieldType, FillFact, ListFact, TableError, TypeFact};
use super::{
    Either, Field, GroupVersionKind, List, Map, Other, Rules, Scalar, Struct, Type, TypeId, WireContent,
    WireField, builtin, by_name, table,
};
use crate::json;
use crate::limits;
use crate::value::Value;
use crate::well_known;

/// The types of every known group version.
#[derive(Debug, Default)]
pub struct Registry {
    /// The types that these extend, if any. Their ids come first.
    base: Option<Arc<Registry>>,
    /// The number of those.
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
        Registry::of_files(builtin::FILES.iter())
    }

    /// The registry of built-in and removed kinds, for tools that convert files. A server must not know the latter, because it
    /// would accept them.
    pub fn complete() -> Result<Registry, TableError> {
        Registry::of_files(builtin::FILES.iter().chain(&builtin::REMEMBERED))
    }

    /// The registry of metadata alone.
    pub fn metadata() -> Result<Registry, TableError> {
        Registry::of_files(builtin::FILES.iter().filter(|(name, _)| *name == "meta_v1"))
    }

    fn of_files<'a>(
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
            Some(at) => self.types.get(at).unwrap_or(NONE),
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
        let found = self.version(group, version)?.kinds.get(kind).copied();
        let shared = || EVERYWHERE.contains(&kind) || (group.is_empty() && IN_CORE.contains(&kind));
        found.or_else(|| if shared() { self.meta(kind) } else { None })
    }

    /// The type of a kind, for walks into its objects; custom kinds have one, too.
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

    /// How many types there are.
    pub fn len(&self) -> usize {
        self.first + self.types.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn version(&self, group: &str, version: &str) -> Option<&Version> {
        let own = self.versions.iter().find(|known| *known.group == *group && *known.version == *version);
        own.or_else(|| self.base.as_ref()?.version(group, version))
    }
}

/// Types that extend a registry: custom resources. See [`Registry::lookup`].
#[derive(Debug)]
pub struct Addition(Registry);

impl Addition {
    /// Empty, on top of these types.
    pub fn to(base: &Arc<Registry>) -> Addition {
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
        let same = |known: &&mut Version| *known.group == **group && *known.version == **version;
        let held = match self.0.versions.iter_mut().find(same) {
            Some(held) => held,
            None => {
                self.0.versions.push(Version {
                    group: group.as_str().into(),
                    version: version.as_str().into(),
                    family: group.as_str().into(),
                    kinds: HashMap::new(),
                    described: HashMap::new(),
                });
                match self.0.versions.last_mut() {
                    Some(held) => held,
                    None => return,
                }
            }
        };
        held.kinds.insert(kind.as_str().into(), self.0.free_object);
        held.described.insert(kind.as_str().into(), described);
    }

    /// The finished registry.
    pub fn done(self) -> Registry {
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

/// The state of a compilation.
struct Compiler<'a> {
    registry: Registry,
    /// Types by `package/version.Name`, as the files refer to them.
    named: HashMap<(String, &'a str), TypeId>,
    scalars: HashMap<Scalar, TypeId>,
    lists: HashMap<List, TypeId>,
    maps: HashMap<Map, TypeId>,
    eithers: HashMap<Either, TypeId>,
    words: HashSet<Arc<str>>,
}

impl<'a> Compiler<'a> {
    fn new(files: &'a [Facts]) -> Result<Compiler<'a>, String> {
        let mut compiler = Compiler {
            registry: Registry::default(),
            named: HashMap::new(),
            scalars: HashMap::new(),
            lists: HashMap::new(),
            maps: HashMap::new(),
            eithers: HashMap::new(),
            words: HashSet::new(),
        };
        for file in files {
            let place = place(&file.package)?;
            let family = place.split_once('/').map_or("", |(family, _)| family);
            let mut kinds = HashMap::new();
            for fact in &file.types {
                let id = compiler.add(Type::Struct(Struct::default()))?;
                compiler.named.insert((place.clone(), &fact.name), id);
                // Types of the meta group are looked up by name, whether or not they are objects.
                if fact.object || file.group == well_known::META_GROUP {
                    kinds.insert(fact.name.as_str().into(), id);
                }
            }
            compiler.registry.versions.push(Version {
                group: file.group.as_str().into(),
                version: file.version.as_str().into(),
                family: family.into(),
                kinds,
                described: HashMap::new(),
            });
        }
        Ok(compiler)
    }

    fn compile(&mut self, files: &'a [Facts]) -> Result<Registry, String> {
        let facts: HashMap<TypeId, (&'a Facts, &'a TypeFact)> = files
            .iter()
            .flat_map(|file| file.types.iter().map(move |fact| (file, fact)))
            .map(|(file, fact)| Ok((self.find(file, &fact.name)?, (file, fact))))
            .collect::<Result<_, String>>()?;
        for (file, fact) in files.iter().flat_map(|file| file.types.iter().map(move |fact| (file, fact))) {
            let id = self.find(file, &fact.name)?;
            let made = match &fact.wraps {
                Some(shape) => self.wrapper(file, fact, shape)?,
                None => self.structure(&facts, file, fact)?,
            };
            if let Some(slot) = self.registry.types.get_mut(id.0 as usize) {
                *slot = made;
            }
        }
        let nameless = TypeFact { object: true, ..TypeFact::default() };
        let nowhere = Facts::default();
        let type_meta = self.structure(&facts, &nowhere, &nameless)?;
        self.registry.type_meta = self.add(type_meta)?;
        self.free()?;
        self.mark();
        Ok(std::mem::take(&mut self.registry))
    }

    /// The type of custom resources.
    fn free(&mut self) -> Result<(), String> {
        let free = self.scalar(Scalar::Free)?;
        self.registry.free = free;
        let Some(metadata) = self.registry.meta("ObjectMeta") else { return Ok(()) };
        let text = self.scalar(Scalar::String)?;
        let mut fields: Vec<Field> =
            ["kind", "apiVersion"].into_iter().map(|name| plain_field(self.word(name), text)).collect();
        fields.push(plain_field(self.word("metadata"), metadata));
        self.registry.free_object = self.add(Type::Struct(structure("", true, fields, Some(free))))?;
        Ok(())
    }

    fn wrapper(&mut self, file: &Facts, fact: &TypeFact, shape: &FieldType) -> Result<Type, String> {
        let FieldType::List(item) = shape else {
            return Err(format!("{} wraps no list", fact.name));
        };
        let item = self.resolve(file, item, &ListFact::Unsaid)?;
        let name = Some(format!("{}.{}", file.version, fact.name).into());
        Ok(Type::List(List { item, merge: ListFact::Unsaid, name }))
    }

    fn structure(
        &mut self,
        facts: &HashMap<TypeId, (&Facts, &TypeFact)>,
        file: &Facts,
        fact: &TypeFact,
    ) -> Result<Type, String> {
        let mut fields = Vec::with_capacity(fact.fields.len() + 2);
        if fact.object {
            let ty = self.scalar(Scalar::String)?;
            for name in ["kind", "apiVersion"] {
                let name = self.word(name);
                fields.push(plain_field(name, ty));
            }
        }
        let mut nested = Vec::new();
        self.flatten(facts, file, fact, limits::INLINE_DEPTH, &mut fields, Some(&mut nested))?;
        let count = u16::try_from(fields.len()).map_err(|error| error.to_string())?;
        // The fields of an inlined type have numbers of the message that declares them.
        let own = fields.iter().zip(0..count).filter(|(field, _)| !field.inlined && field.number > 0);
        let own = own.map(|(field, at)| WireField { number: field.number, what: WireContent::Field(at) });
        let mut wire: Vec<WireField> = own.chain(nested.iter().copied()).collect();
        wire.sort_unstable_by_key(|slot| slot.number);
        Ok(Type::Struct(Struct {
            name: self.word(&fact.name),
            package: self.word(&file.package),
            object: fact.object,
            atomic: fact.atomic,
            union: fact.union.as_deref().map(Into::into),
            inlined: nested.iter().filter_map(WireField::inlined).collect(),
            wire: wire.into(),
            defaulted: Box::default(),
            ruled: Box::default(),
            open: None,
            by_name: by_name(&fields),
            fields: fields.into(),
        }))
    }

    /// Appends the fields of a type, including those of inlined types. The outermost type records which types it inlines.
    fn flatten(
        &mut self,
        facts: &HashMap<TypeId, (&Facts, &TypeFact)>,
        file: &Facts,
        fact: &TypeFact,
        depth: usize,
        fields: &mut Vec<Field>,
        mut outermost: Option<&mut Vec<WireField>>,
    ) -> Result<(), String> {
        let depth = depth.checked_sub(1).ok_or_else(|| format!("{} inlines itself", fact.name))?;
        for field in &fact.fields {
            let ty = self.resolve(file, &field.shape, &field.list)?;
            if field.name.is_empty() {
                let (file, fact) =
                    facts.get(&ty).ok_or_else(|| format!("{} inlines no struct", fact.name))?;
                if let Some(nested) = &mut outermost {
                    let from = u16::try_from(fields.len()).map_err(|error| error.to_string())?;
                    nested.push(WireField { number: field.number, what: WireContent::Inlined(ty, from) });
                }
                self.flatten(facts, file, fact, depth, fields, None)?;
            } else {
                fields.push(self.field(field, ty, outermost.is_none())?);
            }
        }
        Ok(())
    }

    fn field(&mut self, fact: &FieldFact, ty: TypeId, inlined: bool) -> Result<Field, String> {
        let fill = match &fact.fill {
            FillFact::Always(text) => Some(Box::new(literal(text)?)),
            FillFact::None | FillFact::Sometimes(_) | FillFact::Code => None,
        };
        Ok(Field {
            number: fact.number,
            pointer: fact.pointer,
            emit: fact.emit,
            given: fact.given,
            nullable: fact.nullable,
            required: fact.required,
            deprecated: fact.deprecated,
            inlined,
            map_atomic: fact.map_atomic,
            list_atomic: fact.list == ListFact::Atomic && !matches!(fact.shape, FieldType::List(_)),
            patch: fact.patch.clone().map(Box::new),
            default: fact.default.as_deref().map(literal).transpose()?.map(Box::new),
            fill,
            values: fact.values.iter().map(|value| self.word(value)).collect(),
            item_values: fact.item_values.iter().map(|value| self.word(value)).collect(),
            rules: (fact.rules != Rules::default()).then(|| Box::new(fact.rules.clone())),
            ..plain_field(self.word(&fact.name), ty)
        })
    }

    fn resolve(&mut self, file: &Facts, shape: &FieldType, merge: &ListFact) -> Result<TypeId, String> {
        match shape {
            FieldType::List(item) => {
                let item = self.resolve(file, item, &ListFact::Unsaid)?;
                let list = List { item, merge: merge.clone(), name: None };
                self.interned(|me| &mut me.lists, list, Type::List)
            }
            FieldType::Map(value) => {
                let value = self.resolve(file, value, &ListFact::Unsaid)?;
                self.interned(|me| &mut me.maps, Map { value }, Type::Map)
            }
            FieldType::Name(name) => match Scalar::named(name) {
                Some(scalar) => self.scalar(scalar),
                None => self.either(file, name)?.map_or_else(|| self.find(file, name), Ok),
            },
        }
    }

    /// The three unions of JSON schemas: a schema, or something simpler instead.
    fn either(&mut self, file: &Facts, name: &str) -> Result<Option<TypeId>, String> {
        let Some(other) = name.strip_prefix("schema_or_") else { return Ok(None) };
        let object = self.find(file, "JSONSchemaProps")?;
        let other = match other {
            "bool" => Other::Bool,
            "array" | "strings" => {
                let item = if other == "array" { object } else { self.scalar(Scalar::String)? };
                let list = List { item, merge: ListFact::Unsaid, name: None };
                Other::List(self.interned(|me| &mut me.lists, list, Type::List)?)
            }
            _ => return Err(format!("unknown type {name:?}")),
        };
        self.interned(|me| &mut me.eithers, Either { object, other }, Type::Either).map(Some)
    }

    fn find(&self, file: &Facts, name: &str) -> Result<TypeId, String> {
        let missing = || format!("{}: no type {name}", file.package);
        let (place, name) = match name.rsplit_once('.') {
            Some((place, name)) => (place.to_owned(), name),
            None => (place(&file.package)?, name),
        };
        self.named.get(&(place, name)).copied().ok_or_else(missing)
    }

    fn scalar(&mut self, scalar: Scalar) -> Result<TypeId, String> {
        self.interned(|me| &mut me.scalars, scalar, Type::Scalar)
    }

    fn interned<K: Clone + Eq + std::hash::Hash>(
        &mut self,
        pool: impl Fn(&mut Self) -> &mut HashMap<K, TypeId>,
        key: K,
        make: impl FnOnce(K) -> Type,
    ) -> Result<TypeId, String> {
        if let Some(id) = pool(self).get(&key) {
            return Ok(*id);
        }
        let id = self.add(make(key.clone()))?;
        pool(self).insert(key, id);
        Ok(id)
    }

    fn add(&mut self, ty: Type) -> Result<TypeId, String> {
        let id = u32::try_from(self.registry.types.len()).map_err(|error| error.to_string())?;
        self.registry.types.push(ty);
        Ok(TypeId(id))
    }

    fn word(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.words.get(word) {
            return known.clone();
        }
        let new: Arc<str> = word.into();
        self.words.insert(new.clone());
        new
    }

    fn mark(&mut self) {
        let quantity = |ty: &Type| matches!(ty, Type::Scalar(Scalar::Quantity));
        let defaults = |field: &Field| field.default.is_some() || field.fill.is_some();
        let defaulted = self.spread(defaults, quantity);
        let rules = |field: &Field| field.rules.is_some();
        let ruled = self.spread(rules, |_| false);
        for ty in &mut self.registry.types {
            let Type::Struct(structure) = ty else { continue };
            structure.defaulted = positions(&structure.fields, &defaulted, defaults);
            structure.ruled = positions(&structure.fields, &ruled, rules);
        }
    }

    /// The types with such a field somewhere below them, or such a value in a map. Types refer to each other in cycles, so the
    /// mark spreads until nothing changes.
    fn spread(&self, has: impl Fn(&Field) -> bool, in_map: impl Fn(&Type) -> bool) -> Vec<bool> {
        let mut marked = vec![false; self.registry.types.len()];
        loop {
            let mut changed = false;
            for (at, ty) in self.registry.types.iter().enumerate() {
                let is = |id: TypeId| marked.get(id.0 as usize).copied().unwrap_or(false);
                let now = match ty {
                    Type::Struct(structure) => {
                        structure.fields.iter().any(|field| has(field) || is(field.ty))
                    }
                    Type::List(list) => is(list.item),
                    Type::Map(map) => is(map.value) || in_map(self.registry.get(map.value)),
                    Type::Either(_) | Type::Scalar(_) => false,
                };
                if now && !marked[at] {
                    marked[at] = true;
                    changed = true;
                }
            }
            if !changed {
                return marked;
            }
        }
    }
}

/// The indices of fields into which a walk must descend.
fn positions(fields: &[Field], marked: &[bool], has: impl Fn(&Field) -> bool) -> Box<[u16]> {
    let below = |field: &Field| marked.get(field.ty.0 as usize).copied().unwrap_or(false);
    let wanted = (0u16..).zip(fields).filter(|(_, field)| has(field) || below(field));
    wanted.map(|(at, _)| at).collect()
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

/// `core/v1` of `k8s.io.api.core.v1`: how the files refer to each other.
fn place(package: &str) -> Result<String, String> {
    let mut parts = package.rsplit('.');
    match (parts.next(), parts.next()) {
        (Some(version), Some(name)) => Ok(format!("{name}/{version}")),
        _ => Err(format!("bad package {package:?}")),
    }
}

fn literal(text: &str) -> Result<Value, String> {
    json::read(text.as_bytes()).map_err(|error| format!("bad literal {text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_and_their_fields_stand_in_order() {
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
    fn inlined_fields_stand_among_their_parents() {
        let registry = Registry::builtin().unwrap();
        let find = |name: &str| {
            let mut structs = (0..registry.len()).filter_map(|at| registry.structure(TypeId(at as u32)));
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
    fn types_are_named_as_errors_print_them() {
        let registry = Registry::builtin().unwrap();
        let of = |kind: &str, field: &str| {
            let structure = registry.structure(registry.kind("", "v1", kind).unwrap()).unwrap();
            registry.type_name(structure.field(field).unwrap().ty)
        };
        assert_eq!(of("ConfigMap", "data"), "map[string]string");
        assert_eq!(of("ConfigMap", "binaryData"), "map[string][]uint8");
        assert_eq!(of("ConfigMap", "metadata"), "v1.ObjectMeta");
        assert_eq!(of("Endpoints", "subsets"), "[]v1.EndpointSubset");
    }
}
