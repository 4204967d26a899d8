//! Builds the resources of a CustomResourceDefinition.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use openssl::sha::sha256;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::schema::OBJECT_META;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};
use pilothouse_apimachinery::status::GroupResource;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::verb::{Verb, Verbs};
use pilothouse_apimachinery::version::{self, GroupVersion};
use pilothouse_kinds::definition::status;
use pilothouse_structural::json_path::JsonPath;
use pilothouse_structural::pruned_defaults;
use pilothouse_structural::rules::Rules;
use pilothouse_structural::schema::Schema;
use pilothouse_structural::types::Types;
use pilothouse_types::object::TypeName;

use crate::catalog::backing::{Backing, Stored};
use crate::catalog::build::storage_hash;
use crate::catalog::resource::{Column, ColumnDescription, Resource, Subresource};
use crate::custom_resource::conversion::Conversion;
use crate::custom_resource::{Cell, CustomResource, Schemas};
use crate::subresources::{ReplicaPaths, SubresourceStrategy};

/// The path of the default age column.
const AGE_PATH: &str = ".metadata.creationTimestamp";

/// Identifies a part of a definition, so that schemas need not be kept for comparison.
pub fn digest(part: &Value) -> [u8; 32] {
    sha256(&json::to_json(part))
}

/// The resources of a definition.
#[derive(Default)]
pub struct DefinedResources {
    /// One resource per served version.
    pub served: Vec<Arc<Resource>>,
    /// The resource of the storage version, served or not, because it has the objects.
    pub stored: Option<Arc<Resource>>,
}

/// Builds the resources of a definition. `ordinals` is called once for a range of unique numbers.
pub fn resources(
    definition: &Value,
    base: &Arc<Registry>,
    ordinals: impl FnOnce(u32) -> RangeInclusive<u32>,
) -> DefinedResources {
    let parts = DefinitionParts::new(definition);
    let versions = parts.versions();
    let Some(storage) = versions.iter().find(|version| version.is("storage")) else {
        return DefinedResources::default();
    };
    let mut types = Types::new(base);
    let type_ids: Vec<_> = versions.iter().map(|version| types.object(&version.schema)).collect();
    let mut added = types.added();
    for (version, type_id) in versions.iter().zip(type_ids) {
        added.kind(&GroupVersionKind::new(parts.group, version.name(), parts.kind), type_id);
    }
    let ordinals = ordinals(u32::try_from(versions.len()).unwrap_or(u32::MAX));
    let version_schema = |version: &Version<'_>| {
        (GroupVersion::new(parts.group, version.name()).to_string(), version.schema.clone())
    };
    let schemas: Schemas = versions.iter().map(version_schema).collect::<BTreeMap<_, _>>().into();
    let digest = digest(parts.spec("versions").unwrap_or(&Value::Null));
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let common = Common {
        digest,
        registry: Arc::new(added.build()),
        ordinals: ordinals.clone(),
        schemas,
        conversion: Conversion::read(definition).map(Arc::new),
        versions: &versions,
        storage,
    };
    let built: Vec<_> = versions
        .iter()
        .zip(ordinals)
        .map(|(version, ordinal)| {
            let resource = parts.resource(version, &common, ordinal);
            (version.is("served"), Arc::new(resource))
        })
        .collect();
    let stored = versions.iter().zip(&built).find(|(version, _)| version.is("storage"));
    DefinedResources {
        stored: stored.map(|(_, (_, resource))| resource.clone()),
        served: built
            .iter()
            .filter(|(is_served, _)| *is_served)
            .map(|(_, resource)| resource.clone())
            .collect(),
    }
}

/// The prefix of custom stores. A definition may have the group and plural of a built-in resource, and must not touch its
/// objects.
const STORE_PREFIX: &str = "custom/";

/// The resource of a store, `pods` or `kites.toys.example`.
pub fn resource_of_store(store: &TypeName) -> &str {
    store.as_str().strip_prefix(STORE_PREFIX).unwrap_or(store.as_str())
}

/// The same with its group, as configurations name it.
pub fn group_resource_of_store(store: &TypeName) -> GroupResource<'_> {
    let name = resource_of_store(store);
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    GroupResource { group, resource }
}

/// Parts that all versions of a kind share.
struct Common<'a> {
    versions: &'a [Version<'a>],
    /// The version in which objects are stored.
    storage: &'a Version<'a>,
    registry: Arc<Registry>,
    ordinals: RangeInclusive<u32>,
    schemas: Schemas,
    /// A digest of the definition's relevant parts: tells cached fields of another definition apart, also across restarts.
    digest: String,
    conversion: Option<Arc<Conversion>>,
}

/// Whether a store has custom objects.
pub fn is_custom(store: &TypeName) -> bool {
    store.as_str().starts_with(STORE_PREFIX)
}

/// The store of a definition, named by plural and group.
pub fn store_named(definition: &str) -> TypeName {
    TypeName::new(&format!("{STORE_PREFIX}{definition}"))
}

/// The parts of a definition.
struct DefinitionParts<'a> {
    definition: &'a Value,
    group: &'a str,
    plural: &'a str,
    kind: &'a str,
}

/// The parts of one version.
struct Version<'a> {
    spec: &'a Value,
    schema: Arc<Schema>,
    rules: Option<Arc<Rules>>,
}

impl Version<'_> {
    fn is(&self, flag: &str) -> bool {
        self.spec.get(flag).and_then(Value::as_bool) == Some(true)
    }

    fn name(&self) -> &str {
        self.spec.str("name")
    }
}

impl<'a> DefinitionParts<'a> {
    fn new(definition: &'a Value) -> DefinitionParts<'a> {
        let names = definition.get_path(&["status", "acceptedNames"]).unwrap_or(&Value::Null);
        DefinitionParts {
            definition,
            group: definition.get("spec").map_or("", |spec| spec.str("group")),
            plural: names.str("plural"),
            kind: names.str("kind"),
        }
    }

    fn spec(&self, field: &str) -> Option<&'a Value> {
        self.definition.get_path(&["spec", field])
    }

    fn names(&self, field: &str) -> Option<&'a Value> {
        self.definition.get_path(&["status", "acceptedNames", field])
    }

    fn text(&self, field: &str) -> Arc<str> {
        self.names(field).and_then(Value::as_str).unwrap_or_default().into()
    }

    fn list(&self, field: &str) -> Vec<Arc<str>> {
        let items = self.names(field).map(Value::items).unwrap_or_default();
        items.iter().filter_map(Value::as_str).map(Into::into).collect()
    }

    fn versions(&self) -> Vec<Version<'a>> {
        let all = self.spec("versions").map(Value::items).unwrap_or_default();
        let mut patterns = Patterns::default();
        let read = |spec: &'a Value| {
            let raw_schema = spec.get_path(&["schema", "openAPIV3Schema"]);
            let mut schema = raw_schema.map(|raw| Schema::read_with(raw, &mut patterns)).unwrap_or_default();
            pruned_defaults::prune(&mut schema);
            let rules = raw_schema.and_then(|raw| Rules::compile(raw, &mut patterns)).map(Arc::new);
            Version { spec, schema: Arc::new(schema), rules }
        };
        all.iter().map(read).collect()
    }

    fn resource(&self, version: &Version<'_>, common: &Common<'_>, ordinal: u32) -> Resource {
        let storage = common.storage;
        let gv = GroupVersion::new(self.group, version.name());
        let api_version: Arc<str> = gv.to_string().into();
        let is_terminating = status::is_true(self.definition, status::TERMINATING);
        let (columns, cells) = columns(version.spec);
        let hash = if storage.is("served") {
            storage_hash(self.group, storage.name(), self.kind)
        } else {
            String::new()
        };
        let selectable = version.spec.get("selectableFields").map(Value::items).unwrap_or_default();
        let custom = CustomResource {
            kind: self.kind.into(),
            api_version: api_version.clone(),
            storage_api_version: GroupVersion::new(self.group, storage.name()).to_string().into(),
            schema: version.schema.clone(),
            rules: version.rules.clone(),
            preserves_unknown_fields: self.spec("preserveUnknownFields").and_then(Value::as_bool)
                == Some(true),
            schemas: common.schemas.clone(),
            registry: common.registry.clone(),
            ordinals: common.ordinals.clone(),
            cells,
            selectable: selectable.iter().filter_map(selectable_field).collect(),
            mark: format!("{}/{}", common.digest, version.name()).into(),
            scale: version
                .spec
                .get_path(&["subresources", "scale"])
                .map(|scale| SubresourceStrategy::scale(ReplicaPaths::read(scale))),
            deprecation: self.deprecation(version, common.versions).map(Into::into),
            is_terminating,
            conversion: common.conversion.clone(),
        };
        let subresources = self.subresources(version, &gv);
        let verbs = [Verb::Delete, Verb::DeleteCollection, Verb::Get, Verb::List, Verb::Watch];
        let verbs = verbs.into_iter().chain([Verb::Patch, Verb::Create, Verb::Update]);
        Resource {
            ordinal,
            api_version,
            plural: self.plural.into(),
            singular: self.text("singular"),
            kind: self.kind.into(),
            list_kind: self.text("listKind"),
            namespaced: self.spec("scope").and_then(Value::as_str) == Some("Namespaced"),
            verbs: verbs.collect(),
            short_names: self.list("shortNames"),
            categories: self.list("categories"),
            subresources,
            columns,
            // Each version works in its own form: stored objects are converted when they are read.
            backing: Backing::Store(Stored {
                store: self.store(),
                version: gv.clone(),
                reference_version: GroupVersion::new(self.group, storage.name()),
                hash: hash.into(),
            }),
            gv,
            introduced: None,
            deprecated: None,
            removed: None,
            replacement: None,
            custom: Some(Arc::new(custom)),
        }
    }

    fn subresources(&self, version: &Version<'_>, gv: &GroupVersion) -> Vec<Subresource> {
        let subresource = |name: &str, gv: GroupVersion, kind: &str| Subresource {
            name: name.into(),
            gv,
            kind: kind.into(),
            verbs: [Verb::Get, Verb::Patch, Verb::Update].into_iter().collect::<Verbs>(),
        };
        let has = |name: &str| version.spec.get_path(&["subresources", name]).is_some();
        let mut subresources = Vec::new();
        if has("status") {
            subresources.push(subresource("status", gv.clone(), self.kind));
        }
        if has("scale") {
            subresources.push(subresource("scale", GroupVersion::new("autoscaling", "v1"), "Scale"));
        }
        subresources
    }

    fn store(&self) -> TypeName {
        TypeName::new(&format!("{STORE_PREFIX}{}.{}", self.plural, self.group))
    }

    fn deprecation(&self, version: &Version<'_>, versions: &[Version<'_>]) -> Option<String> {
        if !version.is("deprecated") {
            return None;
        }
        if let Some(warning) = version.spec.get("deprecationWarning").and_then(Value::as_str) {
            return Some(warning.to_owned());
        }
        let (group, kind, name) = (self.group, self.kind, version.name());
        let mut text = format!("{group}/{name} {kind} is deprecated");
        let better = versions.iter().filter(|other| {
            other.is("served")
                && !other.is("deprecated")
                && version::preferred_first(other.name(), name) == std::cmp::Ordering::Less
        });
        let best = better.map(Version::name).min_by(|a, b| version::preferred_first(a, b));
        if let Some(best) = best {
            text.push_str(&format!("; use {group}/{best} {kind}"));
        }
        Some(text)
    }
}

fn selectable_field(field: &Value) -> Option<(String, JsonPath)> {
    let path = field.str("jsonPath");
    Some((path.strip_prefix('.').unwrap_or(path).to_owned(), JsonPath::parse(path).ok()?))
}

/// The table columns of a version, and the paths of their cells. Columns after an invalid one are dropped.
fn columns(version: &Value) -> (Vec<Column>, Vec<Cell>) {
    let text = |text: &str| -> Arc<str> { text.into() };
    let name = ColumnDescription::Field(OBJECT_META.into(), "name".into());
    let mut columns = vec![Column {
        name: text("Name"),
        kind: text("string"),
        format: text("name"),
        priority: 0,
        description: name,
    }];
    let mut cells = Vec::new();
    let defined = version.get("additionalPrinterColumns").map(Value::items).unwrap_or_default();
    if defined.is_empty() {
        let description = ColumnDescription::Field(OBJECT_META.into(), "creationTimestamp".into());
        columns.push(Column {
            name: text("Age"),
            kind: text("date"),
            format: text(""),
            priority: 0,
            description,
        });
        cells.extend(JsonPath::parse(AGE_PATH).ok().map(|path| Cell { path, kind: text("date") }));
    }
    for column in defined {
        let Ok(path) = JsonPath::parse(column.str("jsonPath")) else { break };
        let description = match column.str("description") {
            "" => {
                format!("Custom resource definition column (in JSONPath format): {}", column.str("jsonPath"))
            }
            text => text.to_owned(),
        };
        let priority = column.get("priority").and_then(Value::as_int).unwrap_or(0);
        columns.push(Column {
            name: text(column.str("name")),
            kind: text(column.str("type")),
            format: text(column.str("format")),
            priority: u32::try_from(priority).unwrap_or(0),
            description: ColumnDescription::Text(description.into()),
        });
        cells.push(Cell { path, kind: text(column.str("type")) });
    }
    (columns, cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::age::Ages;

    fn definition(versions: &str) -> Value {
        let text = format!(
            r#"{{"spec":{{"group":"g.example","scope":"Namespaced","versions":{versions}}},
            "status":{{"acceptedNames":{{"plural":"kites","singular":"kite","kind":"Kite","listKind":"KiteList",
            "shortNames":["k"]}}}}}}"#
        );
        json::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn served_versions_become_resources_of_one_store() {
        let base = Arc::new(Registry::builtin().unwrap());
        let definition = definition(
            r#"[{"name":"v1alpha1","served":true,"deprecated":true,"schema":{"openAPIV3Schema":{"type":"object"}}},
                {"name":"v1beta1","schema":{"openAPIV3Schema":{"type":"object"}}},
                {"name":"v1","served":true,"storage":true,"subresources":{"status":{},
                 "scale":{"specReplicasPath":".spec.n","statusReplicasPath":".status.n"}},
                 "additionalPrinterColumns":[{"name":"N","type":"integer","jsonPath":".spec.n"}],
                 "schema":{"openAPIV3Schema":{"type":"object"}}}]"#,
        );
        let DefinedResources { served, stored } = resources(&definition, &base, |count| 101..=100 + count);
        assert_eq!(&*stored.unwrap().api_version, "g.example/v1");
        assert_eq!(
            store_named("kites.g.example").as_str(),
            "custom/kites.g.example",
            "no built-in store has such a name"
        );
        let versions: Vec<(&str, u32)> =
            served.iter().map(|resource| (&*resource.api_version, resource.ordinal)).collect();
        assert_eq!(versions, [("g.example/v1alpha1", 101), ("g.example/v1", 103)]);
        let deprecation = served[0].deprecation();
        assert_eq!(
            deprecation.as_deref(),
            Some("g.example/v1alpha1 Kite is deprecated; use g.example/v1 Kite")
        );
        let subs: Vec<&str> = served[1].subresources.iter().map(|sub| &*sub.name).collect();
        assert_eq!(subs, ["status", "scale"]);
        assert!(
            served.iter().all(|resource| resource.stored().unwrap().store == store_named("kites.g.example"))
        );
        let custom = served[0].custom.as_ref().unwrap();
        assert_eq!((&*custom.storage_api_version, custom.ordinals.clone()), ("g.example/v1", 101..=103));
        assert!(custom.registry.kind("g.example", "v1beta1", "Kite").is_some());
        assert!(
            custom.registry.kind("", "v1", "Pod").is_some() && base.kind("g.example", "v1", "Kite").is_none()
        );
        let custom = served[1].custom.as_ref().unwrap();
        let object = json::read(br#"{"metadata":{"name":"a"},"spec":{"n":3}}"#).unwrap();
        assert_eq!(custom.row(&object, Ages::At(0)), [Value::from("a"), Value::Int(3)]);
    }
}
