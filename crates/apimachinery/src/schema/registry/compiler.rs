//! Compiles the files of the schema table into the types of a registry.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Registry, Version, plain_field, structure};
use crate::json;
use crate::limits;
use crate::schema::table::{Facts, FieldFact, FieldType, FillFact, ListFact, TypeFact};
use crate::schema::{
    Either, Field, List, Map, Other, Rules, Scalar, Struct, Type, TypeId, WireContent, WireField, by_name,
};
use crate::value::Value;
use crate::well_known;

/// A type, and the file that declares it.
#[derive(Clone, Copy)]
struct Declaration<'a> {
    file: &'a Facts,
    fact: &'a TypeFact,
}

/// The fields of a type, including those of inlined types.
struct FlatFields {
    fields: Vec<Field>,
    /// The types that it inlines itself.
    inlined: Vec<WireField>,
}

/// The state of a compilation.
pub(super) struct Compiler<'a> {
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
    pub(super) fn new(files: &'a [Facts]) -> Result<Compiler<'a>, String> {
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
            let path = import_path(&file.package)?;
            let family = path.split_once('/').map_or("", |(family, _)| family);
            let mut kinds = HashMap::new();
            for fact in &file.types {
                let id = compiler.add(Type::Struct(Struct::default()))?;
                compiler.named.insert((path.clone(), &fact.name), id);
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

    pub(super) fn compile(&mut self, files: &'a [Facts]) -> Result<Registry, String> {
        let all: Vec<Declaration<'a>> = files
            .iter()
            .flat_map(|file| file.types.iter().map(move |fact| Declaration { file, fact }))
            .collect();
        let declarations: HashMap<TypeId, Declaration<'a>> = all
            .iter()
            .map(|declaration| Ok((self.find(declaration.file, &declaration.fact.name)?, *declaration)))
            .collect::<Result<_, String>>()?;
        for declaration in all {
            let Declaration { file, fact } = declaration;
            let id = self.find(file, &fact.name)?;
            let ty = match &fact.wraps {
                Some(shape) => self.wrapper(file, fact, shape)?,
                None => self.structure(&declarations, declaration)?,
            };
            if let Some(slot) = self.registry.types.get_mut(id.0 as usize) {
                *slot = ty;
            }
        }
        let anonymous = TypeFact { object: true, ..TypeFact::default() };
        let no_file = Facts::default();
        let type_meta = self.structure(&declarations, Declaration { file: &no_file, fact: &anonymous })?;
        self.registry.type_meta = self.add(type_meta)?;
        self.free()?;
        self.mark_defaults_and_rules();
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
        let item = self.resolve(file, item, &ListFact::Unspecified)?;
        let name = Some(format!("{}.{}", file.version, fact.name).into());
        Ok(Type::List(List { item, merge: ListFact::Unspecified, name }))
    }

    fn structure(
        &mut self,
        declarations: &HashMap<TypeId, Declaration<'_>>,
        declaration: Declaration<'_>,
    ) -> Result<Type, String> {
        let Declaration { file, fact } = declaration;
        let mut flat = FlatFields { fields: Vec::with_capacity(fact.fields.len() + 2), inlined: Vec::new() };
        if fact.object {
            let ty = self.scalar(Scalar::String)?;
            for name in ["kind", "apiVersion"] {
                let name = self.word(name);
                flat.fields.push(plain_field(name, ty));
            }
        }
        self.flatten(declarations, declaration, limits::INLINE_DEPTH, &mut flat)?;
        let FlatFields { fields, inlined } = flat;
        let count = u16::try_from(fields.len()).map_err(|error| error.to_string())?;
        // The fields of an inlined type have numbers of the message that declares them.
        let own = fields.iter().zip(0..count).filter(|(field, _)| !field.inlined && field.number > 0);
        let own =
            own.map(|(field, index)| WireField { number: field.number, content: WireContent::Field(index) });
        let mut wire: Vec<WireField> = own.chain(inlined.iter().copied()).collect();
        wire.sort_unstable_by_key(|slot| slot.number);
        Ok(Type::Struct(Struct {
            name: self.word(&fact.name),
            package: self.word(&file.package),
            object: fact.object,
            atomic: fact.atomic,
            union: fact.union.as_deref().map(Into::into),
            inlined: inlined.iter().filter_map(WireField::inlined).collect(),
            wire: wire.into(),
            defaulted: Box::default(),
            ruled: Box::default(),
            open: None,
            by_name: by_name(&fields),
            fields: fields.into(),
        }))
    }

    /// Appends the fields of a type, including those of inlined types.
    fn flatten(
        &mut self,
        declarations: &HashMap<TypeId, Declaration<'_>>,
        declaration: Declaration<'_>,
        depth: usize,
        flat: &mut FlatFields,
    ) -> Result<(), String> {
        let Declaration { file, fact } = declaration;
        let is_outermost = depth == limits::INLINE_DEPTH;
        let depth = depth.checked_sub(1).ok_or_else(|| format!("{} inlines itself", fact.name))?;
        for field in &fact.fields {
            let ty = self.resolve(file, &field.shape, &field.list)?;
            if field.name.is_empty() {
                let inlined =
                    *declarations.get(&ty).ok_or_else(|| format!("{} inlines no struct", fact.name))?;
                if is_outermost {
                    let start = u16::try_from(flat.fields.len()).map_err(|error| error.to_string())?;
                    let content = WireContent::Inlined(ty, start);
                    flat.inlined.push(WireField { number: field.number, content });
                }
                self.flatten(declarations, inlined, depth, flat)?;
            } else {
                flat.fields.push(self.field(field, ty, !is_outermost)?);
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
                let item = self.resolve(file, item, &ListFact::Unspecified)?;
                let list = List { item, merge: merge.clone(), name: None };
                self.intern(|compiler| &mut compiler.lists, list, Type::List)
            }
            FieldType::Map(value) => {
                let value = self.resolve(file, value, &ListFact::Unspecified)?;
                self.intern(|compiler| &mut compiler.maps, Map { value }, Type::Map)
            }
            FieldType::Name(name) => match Scalar::from_name(name) {
                Some(scalar) => self.scalar(scalar),
                None => self.either(file, name)?.map_or_else(|| self.find(file, name), Ok),
            },
        }
    }

    /// The three unions of JSON schemas: a schema, or a simpler value instead.
    fn either(&mut self, file: &Facts, name: &str) -> Result<Option<TypeId>, String> {
        let Some(other) = name.strip_prefix("schema_or_") else { return Ok(None) };
        let object = self.find(file, "JSONSchemaProps")?;
        let other = match other {
            "bool" => Other::Bool,
            "array" | "strings" => {
                let item = if other == "array" { object } else { self.scalar(Scalar::String)? };
                let list = List { item, merge: ListFact::Unspecified, name: None };
                Other::List(self.intern(|compiler| &mut compiler.lists, list, Type::List)?)
            }
            _ => return Err(format!("unknown type {name:?}")),
        };
        self.intern(|compiler| &mut compiler.eithers, Either { object, other }, Type::Either).map(Some)
    }

    fn find(&self, file: &Facts, name: &str) -> Result<TypeId, String> {
        let error = || format!("{}: no type {name}", file.package);
        let (path, name) = match name.rsplit_once('.') {
            Some((path, name)) => (path.to_owned(), name),
            None => (import_path(&file.package)?, name),
        };
        self.named.get(&(path, name)).copied().ok_or_else(error)
    }

    fn scalar(&mut self, scalar: Scalar) -> Result<TypeId, String> {
        self.intern(|compiler| &mut compiler.scalars, scalar, Type::Scalar)
    }

    fn intern<K: Clone + Eq + std::hash::Hash>(
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
        if let Some(interned) = self.words.get(word) {
            return interned.clone();
        }
        let new: Arc<str> = word.into();
        self.words.insert(new.clone());
        new
    }

    fn mark_defaults_and_rules(&mut self) {
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
            for (index, ty) in self.registry.types.iter().enumerate() {
                let is_marked = |id: TypeId| marked.get(id.0 as usize).copied().unwrap_or(false);
                let is_affected = match ty {
                    Type::Struct(structure) => {
                        structure.fields.iter().any(|field| has(field) || is_marked(field.ty))
                    }
                    Type::List(list) => is_marked(list.item),
                    Type::Map(map) => is_marked(map.value) || in_map(self.registry.get(map.value)),
                    Type::Either(_) | Type::Scalar(_) => false,
                };
                if is_affected && !marked[index] {
                    marked[index] = true;
                    changed = true;
                }
            }
            if !changed {
                return marked;
            }
        }
    }
}

/// The indices of fields into which a traversal must descend.
fn positions(fields: &[Field], marked: &[bool], has: impl Fn(&Field) -> bool) -> Box<[u16]> {
    let below = |field: &Field| marked.get(field.ty.0 as usize).copied().unwrap_or(false);
    let relevant = (0u16..).zip(fields).filter(|(_, field)| has(field) || below(field));
    relevant.map(|(index, _)| index).collect()
}

/// `core/v1` for `k8s.io.api.core.v1`: the form in which files refer to each other.
fn import_path(package: &str) -> Result<String, String> {
    let mut parts = package.rsplit('.');
    match (parts.next(), parts.next()) {
        (Some(version), Some(name)) => Ok(format!("{name}/{version}")),
        _ => Err(format!("bad package {package:?}")),
    }
}

fn literal(text: &str) -> Result<Value, String> {
    json::read(text.as_bytes()).map_err(|error| format!("bad literal {text:?}: {error}"))
}
