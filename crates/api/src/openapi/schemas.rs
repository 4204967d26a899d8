//! The schemas of types and of the types that they refer to.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::schema::{
    Field, ListFact, Scalar, Struct, Type, TypeId, enum_descriptions, text_types,
};

use super::json::JsonWriter;
use super::names::{self, META};
use super::{Dialect, Sources};
use crate::descriptions;

/// The referenced schemas of a document, by published name.
pub(super) type ReferencedSchemas = BTreeMap<String, Schema>;

/// A named schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schema {
    /// A type of the registry.
    Type(TypeId),
    /// A custom kind, by its index.
    Custom(usize),
    /// The body of a patch: any object.
    Patch,
    /// The response of `/version`.
    Version,
}

/// The fields of that response, and whether they are required.
const VERSION: [(&str, bool); 13] = [
    ("major", true),
    ("minor", true),
    ("emulationMajor", false),
    ("emulationMinor", false),
    ("minCompatibilityMajor", false),
    ("minCompatibilityMinor", false),
    ("gitVersion", true),
    ("gitCommit", true),
    ("gitTreeState", true),
    ("buildDate", true),
    ("goVersion", true),
    ("compiler", true),
    ("platform", true),
];

/// Groups that the reference omits where it describes custom resources.
const OMITTED_GROUPS: [&str; 4] =
    ["admission.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "imagepolicy.k8s.io"];

/// The group versions that list the common kinds of the meta group: all that ever existed, because clients look them up by
/// the version they speak.
const COMMON_KIND_VERSIONS: [(&str, &[&str]); 26] = [
    ("", &["v1"]),
    ("admission.k8s.io", &["v1", "v1beta1"]),
    ("admissionregistration.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("apiextensions.k8s.io", &["v1", "v1beta1"]),
    ("apiregistration.k8s.io", &["v1", "v1beta1"]),
    ("apps", &["v1", "v1beta1", "v1beta2"]),
    ("authentication.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("authorization.k8s.io", &["v1", "v1beta1"]),
    ("autoscaling", &["v1", "v2", "v2beta1", "v2beta2"]),
    ("batch", &["v1", "v1beta1"]),
    ("certificates.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("coordination.k8s.io", &["v1", "v1alpha2", "v1beta1"]),
    ("discovery.k8s.io", &["v1", "v1beta1"]),
    ("events.k8s.io", &["v1", "v1beta1"]),
    ("extensions", &["v1beta1"]),
    ("flowcontrol.apiserver.k8s.io", &["v1", "v1beta1", "v1beta2", "v1beta3"]),
    ("imagepolicy.k8s.io", &["v1alpha1"]),
    ("internal.apiserver.k8s.io", &["v1alpha1"]),
    ("networking.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("node.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("policy", &["v1", "v1beta1"]),
    ("rbac.authorization.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("resource.k8s.io", &["v1alpha3", "v1beta1", "v1beta2"]),
    ("scheduling.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("storage.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("storagemigration.k8s.io", &["v1alpha1"]),
];

impl Sources<'_> {
    /// Writes the schemas in `referenced`, and transitively those that they refer to.
    pub(super) fn schemas(&self, out: &mut JsonWriter, dialect: Dialect, mut referenced: ReferencedSchemas) {
        self.add_references(&mut referenced);
        out.object(|out| {
            for (name, schema) in &referenced {
                out.key(name);
                self.schema(out, dialect, name, *schema);
            }
        });
    }

    /// Adds the schemas that these refer to, transitively.
    fn add_references(&self, referenced: &mut ReferencedSchemas) {
        let mut pending: Vec<Schema> = referenced.values().copied().collect();
        while let Some(schema) = pending.pop() {
            let mut types = Vec::new();
            match schema {
                Schema::Type(id) => {
                    if let Some(structure) = self.registry.structure(id) {
                        types.extend(
                            structure.fields.iter().map(|field| (field.ty, structure.package.clone())),
                        );
                    }
                }
                // The schema of a custom kind refers only to its metadata.
                Schema::Custom(_) => {
                    let meta =
                        ["ObjectMeta", "ListMeta"].into_iter().filter_map(|name| self.registry.meta(name));
                    types.extend(meta.map(|id| (id, "".into())));
                }
                Schema::Patch | Schema::Version => {}
            }
            for (id, package) in types {
                let id = self.innermost(id);
                if let Some(name) = names::of_type(self.registry, id, &package)
                    && !referenced.contains_key(&name)
                {
                    referenced.insert(name, Schema::Type(id));
                    pending.push(Schema::Type(id));
                }
            }
        }
    }

    /// The innermost element type of lists and maps.
    fn innermost(&self, id: TypeId) -> TypeId {
        match self.registry.get(id) {
            Type::List(list) => self.innermost(list.item),
            Type::Map(map) => self.innermost(map.value),
            _ => id,
        }
    }

    fn schema(&self, out: &mut JsonWriter, dialect: Dialect, name: &str, schema: Schema) {
        match schema {
            Schema::Type(id) => match self.registry.get(id) {
                Type::Struct(structure) => self.structure(out, dialect, name, id, structure),
                Type::Scalar(scalar) => out.object(|out| {
                    write_description(out, name);
                    write_named_scalar(out, dialect, *scalar, name);
                }),
                _ => out.object(|out| write_description(out, name)),
            },
            Schema::Custom(index) => match self.custom.get(index) {
                Some(custom) if dialect == Dialect::V2 => out.raw(&custom.schema_v2),
                Some(custom) => out.raw(&custom.schema),
                None => out.object(|_| {}),
            },
            Schema::Patch => out.object(|out| {
                write_description(out, name);
                out.field("type", "object");
            }),
            Schema::Version => write_version(out, dialect, name),
        }
    }

    fn structure(&self, out: &mut JsonWriter, dialect: Dialect, name: &str, id: TypeId, structure: &Struct) {
        out.object(|out| {
            write_description(out, name);
            out.field("type", "object");
            let mut fields: Vec<&Field> = structure.fields.iter().collect();
            let required: Vec<&str> =
                fields.iter().filter(|field| field.required).map(|field| &*field.name).collect();
            fields.sort_by(|a, b| a.name.cmp(&b.name));
            if !required.is_empty() {
                out.texts("required", required);
            }
            if !fields.is_empty() {
                out.key("properties").object(|out| {
                    for field in fields {
                        out.key(&field.name);
                        self.property(out, dialect, name, structure, field);
                    }
                });
            }
            self.kinds(out, dialect, id, structure);
            if structure.atomic {
                out.field("x-kubernetes-map-type", "atomic");
            }
            if let Some(union) = &structure.union {
                write_unions(out, union);
            }
        });
    }

    /// The kinds of a type.
    fn kinds(&self, out: &mut JsonWriter, dialect: Dialect, id: TypeId, structure: &Struct) {
        let kind = &*structure.name;
        // A watch event is a kind, but has no `kind` field.
        let Some((group, version)) =
            self.registry.home(id).filter(|_| structure.object || kind == "WatchEvent")
        else {
            return;
        };
        out.key("x-kubernetes-group-version-kind").list(|out| match (group, kind) {
            ("meta.k8s.io", "DeleteOptions" | "WatchEvent") => {
                let is_listed =
                    |group: &str| dialect != Dialect::V3Custom || !OMITTED_GROUPS.contains(&group);
                for (group, versions) in
                    COMMON_KIND_VERSIONS.into_iter().filter(|(group, _)| is_listed(group))
                {
                    versions.iter().for_each(|version| group_version_kind(out, group, version, kind));
                }
            }
            ("meta.k8s.io", _) => group_version_kind(out, "", version, kind),
            _ => group_version_kind(out, group, version, kind),
        });
    }

    fn property(
        &self,
        out: &mut JsonWriter,
        dialect: Dialect,
        owner: &str,
        structure: &Struct,
        field: &Field,
    ) {
        let mut text = descriptions::for_field(owner, &field.name).unwrap_or_default().to_owned();
        if !self.allowed_values(field).is_empty() {
            text = with_values(&text, structure, field);
        }
        let value = Property {
            description: &text,
            default: dialect.has_defaults().then(|| self.default(field)).flatten(),
            package: &structure.package,
            field: Some(field),
        };
        self.write_type(out, dialect, field.ty, &value);
    }

    /// The published default of a field, or the zero value of its type.
    fn default(&self, field: &Field) -> Option<Vec<u8>> {
        if let Some(default) = &field.default {
            return Some(pilothouse_apimachinery::json::to_json(default));
        }
        match self.registry.get(field.ty) {
            _ if field.pointer => None,
            Type::Struct(_) => Some(b"{}".to_vec()),
            Type::Scalar(scalar) if field.emit => zero_value(*scalar).map(<[u8]>::to_vec),
            _ => None,
        }
    }

    /// Writes a type where a field, list or map uses it.
    fn write_type(&self, out: &mut JsonWriter, dialect: Dialect, id: TypeId, value: &Property<'_>) {
        out.object(|out| {
            if let Some(name) = names::of_type(self.registry, id, value.package) {
                // In v3 a reference must stand alone.
                let alone = value.description.is_empty() && value.default.is_none() && !value.is_extended();
                let refer = |out: &mut JsonWriter| out.field("$ref", &dialect.reference(&name));
                if dialect == Dialect::V2 || alone {
                    refer(out);
                } else {
                    out.key("allOf").list(|out| out.object(refer));
                }
            }
            if !value.description.is_empty() {
                out.field("description", value.description);
            }
            if let Some(default) = &value.default {
                out.key("default").raw(default);
            }
            let inner = |item: TypeId| Property {
                description: "",
                default: dialect.has_defaults().then(|| self.item_default(item)).flatten(),
                package: value.package,
                field: None,
            };
            let values = value.field.map(|field| &*field.item_values).unwrap_or_default();
            let item = |out: &mut JsonWriter, ty: TypeId| {
                if values.is_empty() {
                    self.write_type(out, dialect, ty, &inner(ty));
                } else {
                    self.enumeration(out, dialect, values);
                }
            };
            match self.registry.get(id) {
                Type::List(list) => {
                    out.field("type", "array");
                    out.key("items");
                    item(out, list.item);
                    write_list_type(out, &list.merge);
                }
                Type::Map(map) => {
                    out.field("type", "object");
                    out.key("additionalProperties");
                    item(out, map.value);
                }
                Type::Scalar(scalar) => write_scalar(out, *scalar),
                Type::Struct(_) | Type::Either(_) => {}
            }
            if let Some(field) = value.field {
                write_enum(out, self.allowed_values(field));
                write_patch_extensions(out, field);
            }
        });
    }

    /// The allowed values of a field that are listed.
    fn allowed_values<'f>(&self, field: &'f Field) -> &'f [Arc<str>] {
        if self.contents.allowed_values { &field.values } else { &[] }
    }

    /// Writes the items of a list with allowed values.
    fn enumeration(&self, out: &mut JsonWriter, dialect: Dialect, values: &[Arc<str>]) {
        out.object(|out| {
            if dialect.has_defaults() {
                out.field("default", "");
            }
            out.field("type", "string");
            write_enum(out, if self.contents.allowed_values { values } else { &[] });
        });
    }

    fn item_default(&self, id: TypeId) -> Option<Vec<u8>> {
        match self.registry.get(id) {
            Type::Struct(_) => Some(b"{}".to_vec()),
            Type::Scalar(scalar) => zero_value(*scalar).map(<[u8]>::to_vec),
            _ => None,
        }
    }
}

/// The context in which a type is used.
struct Property<'a> {
    description: &'a str,
    default: Option<Vec<u8>>,
    /// The package of the enclosing struct.
    package: &'a str,
    /// The field, unless it is inside a list or map.
    field: Option<&'a Field>,
}

impl Property<'_> {
    fn is_extended(&self) -> bool {
        self.field
            .is_some_and(|field| field.patch.is_some() || field.map_atomic.is_some() || field.list_atomic)
    }
}

fn write_description(out: &mut JsonWriter, name: &str) {
    if let Some(text) = descriptions::for_type(name) {
        out.field("description", text);
    }
}

/// The description of a field, including its allowed values and their meanings.
fn with_values(text: &str, structure: &Struct, field: &Field) -> String {
    let kind = text_types::type_name(&structure.package, &structure.name, &field.name).unwrap_or_default();
    let mut lines: Vec<String> = field
        .values
        .iter()
        .map(|value| match enum_descriptions::description(kind, value) {
            Some(meaning) => format!("\n - `{value:?}` {meaning}"),
            None => format!("\n - `{value:?}`"),
        })
        .collect();
    lines.sort();
    format!("{text}\n\nPossible enum values:{}", lines.concat()).trim_start().to_owned()
}

fn write_enum(out: &mut JsonWriter, values: &[Arc<str>]) {
    if !values.is_empty() {
        let mut values: Vec<&str> = values.iter().map(|value| &**value).collect();
        values.sort_unstable();
        out.texts("enum", values);
    }
}

fn write_list_type(out: &mut JsonWriter, merge: &ListFact) {
    let (list_type, keys) = match merge {
        ListFact::Unspecified => return,
        ListFact::Atomic => ("atomic", &[][..]),
        ListFact::Set => ("set", &[][..]),
        ListFact::Map(keys) => ("map", &keys[..]),
    };
    if !keys.is_empty() {
        out.texts("x-kubernetes-list-map-keys", keys.iter().map(String::as_str));
    }
    out.field("x-kubernetes-list-type", list_type);
}

fn write_patch_extensions(out: &mut JsonWriter, field: &Field) {
    if field.list_atomic {
        out.field("x-kubernetes-list-type", "atomic");
    }
    if let Some(atomic) = field.map_atomic {
        out.field("x-kubernetes-map-type", if atomic { "atomic" } else { "granular" });
    }
    if let Some(patch) = &field.patch {
        if let Some(key) = &patch.key {
            out.field("x-kubernetes-patch-merge-key", key);
        }
        if !patch.strategies.is_empty() {
            out.field("x-kubernetes-patch-strategy", &patch.strategies.join(","));
        }
    }
}

fn zero_value(scalar: Scalar) -> Option<&'static [u8]> {
    match scalar {
        Scalar::String => Some(b"\"\""),
        Scalar::Int32 | Scalar::Int64 | Scalar::Double => Some(b"0"),
        Scalar::Bool => Some(b"false"),
        _ => None,
    }
}

fn write_scalar(out: &mut JsonWriter, scalar: Scalar) {
    let (name, format) = match scalar {
        Scalar::String => ("string", ""),
        Scalar::Int32 => ("integer", "int32"),
        Scalar::Int64 => ("integer", "int64"),
        Scalar::Bool => ("boolean", ""),
        Scalar::Double => ("number", "double"),
        Scalar::Bytes => ("string", "byte"),
        _ => return,
    };
    out.field("type", name);
    if !format.is_empty() {
        out.field("format", format);
    }
}

/// The schema of a named scalar.
fn write_named_scalar(out: &mut JsonWriter, dialect: Dialect, scalar: Scalar, name: &str) {
    let one_of = |out: &mut JsonWriter, names: [&str; 2]| match dialect {
        Dialect::V2 => out.field("type", "string"),
        Dialect::V3 | Dialect::V3Custom => out.key("oneOf").list(|out| {
            names.iter().for_each(|name| out.object(|out| out.field("type", name)));
        }),
    };
    match scalar {
        Scalar::Time | Scalar::MicroTime => {
            out.field("type", "string");
            out.field("format", "date-time");
        }
        Scalar::Quantity => one_of(out, ["string", "number"]),
        Scalar::IntOrString => {
            one_of(out, ["integer", "string"]);
            out.field("format", "int-or-string");
        }
        Scalar::Raw => out.field("type", "object"),
        Scalar::RawJson if name.starts_with(META) => out.field("type", "object"),
        _ => {}
    }
}

fn write_unions(out: &mut JsonWriter, union: &str) {
    let (discriminator, fields) = union.split_once(':').unwrap_or((union, ""));
    out.key("x-kubernetes-unions").list(|out| {
        out.object(|out| {
            out.field("discriminator", discriminator);
            out.key("fields-to-discriminateBy").object(|out| {
                fields.split(',').filter_map(|pair| pair.split_once('=')).for_each(|(field, value)| {
                    out.field(field, value);
                });
            });
        });
    });
}

fn write_version(out: &mut JsonWriter, dialect: Dialect, name: &str) {
    out.object(|out| {
        write_description(out, name);
        out.field("type", "object");
        out.texts(
            "required",
            VERSION.iter().filter(|(_, is_required)| *is_required).map(|(field, _)| *field),
        );
        out.key("properties").object(|out| {
            for (field, is_required) in VERSION {
                out.key(field).object(|out| {
                    if let Some(text) = descriptions::for_field(name, field) {
                        out.field("description", text);
                    }
                    out.field("type", "string");
                    if is_required && dialect.has_defaults() {
                        out.field("default", "");
                    }
                });
            }
        });
    });
}

/// A kind in the form of `x-kubernetes-group-version-kind`.
pub(super) fn group_version_kind(out: &mut JsonWriter, group: &str, version: &str, kind: &str) {
    out.object(|out| {
        out.field("group", group);
        out.field("version", version);
        out.field("kind", kind);
    });
}
