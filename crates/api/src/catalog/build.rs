//! Builds the catalog from the schema table: all built-in resources, and those that this server serves.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::sha::sha256;
use pilothouse_apimachinery::schema::OBJECT_META;
use pilothouse_apimachinery::schema::builtin;
use pilothouse_apimachinery::schema::table::{self, ColumnFact, Facts, ResourceFact, SubFact, TableError};
use pilothouse_apimachinery::verb::{Verb, Verbs};
use pilothouse_apimachinery::version::{self, GroupVersion, Level, RELEASE};
use pilothouse_apimachinery::well_known::{DISCOVERY_GROUP, META_GROUP};
use pilothouse_types::object::TypeName;

use super::Catalog;
use super::backing::{Backing, Stored};
use super::lifecycle;
use super::resource::{Column, ColumnDescription, Resource, Subresource};
use super::runtime_config::{RuntimeConfig, RuntimeConfigError, Switches};
use crate::emulation::Emulation;
use crate::gates::STORAGE_VERSION_HASH;

/// Beta versions from before this release are enabled by default, later ones are not.
const BETAS_OFF_SINCE: (u32, u32) = (1, 22);

/// Groups that contain only shared types, and nothing to enable.
const SHARED_TYPE_GROUPS: [&str; 2] = [DISCOVERY_GROUP, META_GROUP];

/// All built-in resources, served or not.
#[derive(Clone, Debug)]
pub struct Builtin {
    resources: Vec<Arc<Resource>>,
    /// All known versions, including removed ones: naming one in a flag is no error.
    known: Vec<GroupVersion>,
    gated: Vec<GatedResource>,
}

/// A resource that depends on a feature gate.
#[derive(Clone, Debug)]
struct GatedResource {
    /// The ordinal of the resource.
    ordinal: u32,
    /// The subresource; empty for the whole resource.
    subresource: String,
    gate: String,
}

impl Builtin {
    /// Reads the embedded table.
    pub fn load() -> Result<Builtin, TableError> {
        let facts: Result<Vec<Facts>, TableError> =
            builtin::FILES.iter().map(|(_, text)| table::parse(text)).collect();
        let mut builtin = Builtin::from_facts(&facts?);
        // Only the versions of earlier releases' files matter.
        let earlier = builtin::REMOVED_FILES.iter().filter_map(|(_, text)| table::group_version(text));
        builtin.known.extend(
            earlier
                .filter(|(group, _)| has_resources(group))
                .map(|(group, version)| GroupVersion::new(group, version)),
        );
        Ok(builtin)
    }

    /// Takes the resources from parsed facts.
    pub fn from_facts(facts: &[Facts]) -> Builtin {
        let served: Vec<&Facts> = facts.iter().filter(|facts| facts.served).collect();
        let storage = storage_versions(&served);
        let resource_facts =
            served.iter().flat_map(|facts| facts.resources.iter().map(move |fact| (*facts, fact)));
        let gated = (0..).zip(resource_facts.clone()).flat_map(|(ordinal, (_, fact))| {
            let resource_gates = fact.gate.iter().map(|gate| (String::new(), gate));
            let subresource_gates =
                fact.subs.iter().filter_map(|sub| Some((sub.name.clone(), sub.gate.as_ref()?)));
            let gated = resource_gates.chain(subresource_gates);
            gated.map(move |(subresource, gate)| GatedResource { ordinal, subresource, gate: gate.clone() })
        });
        let gated = gated.collect();
        let resources = (0..)
            .zip(resource_facts)
            .map(|(ordinal, (facts, fact))| Arc::new(resource(ordinal, facts, fact, &storage)))
            .collect();
        let known = facts.iter().filter(|facts| has_resources(&facts.group));
        let known = known.map(|facts| GroupVersion::new(&facts.group, &facts.version)).collect();
        Builtin { resources, known, gated }
    }

    /// All resources.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// The catalog of default resources, changed by the flag, with every feature gate on.
    pub fn serve(&self, config: &RuntimeConfig) -> Result<Catalog, RuntimeConfigError> {
        self.serve_where(config, &Emulation::default(), |_| true)
    }

    /// The catalog of a release, for the feature gates that `is_enabled` accepts.
    pub fn serve_where(
        &self,
        config: &RuntimeConfig,
        emulation: &Emulation,
        is_enabled: impl Fn(&str) -> bool,
    ) -> Result<Catalog, RuntimeConfigError> {
        let switches = config.resolve(&self.known)?;
        let enabled: Vec<Arc<Resource>> = self
            .resources
            .iter()
            .filter(|resource| self.is_enabled(resource, &switches, emulation))
            .filter_map(|resource| self.apply_gates(resource, &is_enabled))
            .collect();
        Ok(Catalog::new(lifecycle::available(&enabled, &switches, emulation)?))
    }

    /// Whether a resource is enabled by default or by flags, whichever release introduced it.
    fn is_enabled(&self, resource: &Resource, switches: &Switches, emulation: &Emulation) -> bool {
        let is_enabled = |resource: &Resource| {
            switches
                .setting_for(resource)
                .unwrap_or_else(|| is_enabled_by_default(&resource.gv.version, resource.introduced))
        };
        // A version that is enabled brings those that are preferred to it, unless they are disabled by name.
        let brings = |other: &Resource| {
            other.gv.group == resource.gv.group
                && version::level(&other.gv.version) != Some(Level::Alpha)
                && version::preferred_first(&resource.gv.version, &other.gv.version).is_lt()
                && is_enabled(other)
        };
        is_enabled(resource)
            || (emulation.forward_compatible
                && !switches.disables(resource)
                && self.resources.iter().any(|other| brings(other)))
    }

    /// A resource without the parts whose feature gate is off; `None` if the whole resource is.
    fn apply_gates(
        &self,
        resource: &Arc<Resource>,
        is_enabled: impl Fn(&str) -> bool,
    ) -> Option<Arc<Resource>> {
        let resource = match (is_enabled(STORAGE_VERSION_HASH), &resource.backing) {
            (false, Backing::Store(stored)) => {
                let backing = Backing::Store(Stored { hash: "".into(), ..stored.clone() });
                &Arc::new(Resource { backing, ..Resource::clone(resource) })
            }
            _ => resource,
        };
        let disabled = |gated: &&GatedResource| gated.ordinal == resource.ordinal && !is_enabled(&gated.gate);
        let disabled: Vec<&str> =
            self.gated.iter().filter(disabled).map(|gated| gated.subresource.as_str()).collect();
        match disabled[..] {
            [] => Some(resource.clone()),
            _ if disabled.contains(&"") => None,
            _ => {
                let mut resource = (**resource).clone();
                resource.subresources.retain(|sub| !disabled.contains(&&*sub.name));
                Some(Arc::new(resource))
            }
        }
    }
}

fn has_resources(group: &str) -> bool {
    !SHARED_TYPE_GROUPS.contains(&group)
}

fn is_enabled_by_default(version: &str, introduced: Option<(u32, u32)>) -> bool {
    match version::level(version) {
        Some(Level::Stable) => true,
        Some(Level::Beta) => introduced.is_some_and(|release| release < BETAS_OFF_SINCE),
        Some(Level::Alpha) | None => false,
    }
}

/// The store of a resource: its plural and storage group. Versions of one kind share it, and so do the events of two groups.
pub fn store_name(plural: &str, storage_group: &str) -> String {
    if storage_group.is_empty() { plural.to_owned() } else { format!("{plural}.{storage_group}") }
}

/// The storage version of each store.
///
/// The version that discovery names, if it is enabled by default. Otherwise one that is enabled, because bytes in the requested
/// version need no conversion. Only the table decides, never a flag, so that a store can be read under another configuration.
fn storage_versions(served: &[&Facts]) -> HashMap<String, GroupVersion> {
    let mut versions: HashMap<String, Vec<(bool, bool, GroupVersion)>> = HashMap::new();
    for facts in served {
        for fact in &facts.resources {
            if let Some((group, version)) = &fact.storage {
                let is_named = *group == facts.group && *version == facts.version;
                let is_enabled = is_enabled_by_default(&facts.version, fact.introduced);
                let gv = GroupVersion::new(&facts.group, &facts.version);
                versions.entry(store_name(&fact.plural, group)).or_default().push((is_enabled, is_named, gv));
            }
        }
    }
    let best = |mut candidates: Vec<(bool, bool, GroupVersion)>| {
        candidates.sort_by(|(on_a, named_a, a), (on_b, named_b, b)| {
            (on_b, named_b)
                .cmp(&(on_a, named_a))
                .then_with(|| version::preferred_first(&a.version, &b.version))
        });
        candidates.into_iter().next().map(|(_, _, gv)| gv)
    };
    versions.into_iter().filter_map(|(store, candidates)| Some((store, best(candidates)?))).collect()
}

fn resource(
    ordinal: u32,
    facts: &Facts,
    fact: &ResourceFact,
    storage: &HashMap<String, GroupVersion>,
) -> Resource {
    let gv = GroupVersion::new(&facts.group, &facts.version);
    let stored = fact.storage.as_ref().and_then(|(group, version)| {
        let store = store_name(&fact.plural, group);
        let storage_version = storage.get(&store)?.clone();
        let hash = storage_hash(group, version, &fact.kind).into();
        let reference_version = GroupVersion::new(group, version);
        Some(Stored { store: TypeName::new(&store), version: storage_version, reference_version, hash })
    });
    let backing = stored.map_or_else(|| Backing::unstored(&gv, &fact.plural), Backing::Store);
    let mut subresources: Vec<Subresource> = fact.subs.iter().map(subresource).collect();
    subresources.sort_by(|a, b| a.name.cmp(&b.name));
    Resource {
        ordinal,
        api_version: gv.to_string().into(),
        gv,
        plural: fact.plural.as_str().into(),
        singular: fact.singular.as_str().into(),
        kind: fact.kind.as_str().into(),
        list_kind: format!("{}List", fact.kind).into(),
        namespaced: fact.namespaced,
        verbs: verbs(&fact.verbs),
        short_names: fact.short.iter().map(|name| name.as_str().into()).collect(),
        categories: fact.categories.iter().map(|name| name.as_str().into()).collect(),
        subresources,
        columns: fact.columns.iter().map(column).collect(),
        backing,
        introduced: fact.introduced,
        // Later deprecations are not announced yet.
        deprecated: fact.deprecated.filter(|release| *release <= RELEASE),
        removed: fact.removed,
        replacement: fact.replacement.as_deref().map(Into::into),
        custom: None,
    }
}

fn column(fact: &ColumnFact) -> Column {
    let description = match (&fact.field, fact.name.as_str()) {
        (Some((type_name, field)), _) => {
            ColumnDescription::Field(type_name.as_str().into(), field.as_str().into())
        }
        (None, "Name") => ColumnDescription::Field(OBJECT_META.into(), "name".into()),
        (None, "Age") => ColumnDescription::Field(OBJECT_META.into(), "creationTimestamp".into()),
        (None, _) => ColumnDescription::Text(fact.text.as_str().into()),
    };
    Column {
        name: fact.name.as_str().into(),
        kind: fact.kind.as_str().into(),
        format: fact.format.as_str().into(),
        priority: fact.priority,
        description,
    }
}

fn subresource(fact: &SubFact) -> Subresource {
    Subresource {
        name: fact.name.as_str().into(),
        gv: GroupVersion::new(&fact.group, &fact.version),
        kind: fact.kind.as_str().into(),
        verbs: verbs(&fact.verbs),
    }
}

fn verbs(names: &[String]) -> Verbs {
    names.iter().filter_map(|name| Verb::parse_resource_verb(name)).collect()
}

/// The storage version hash of discovery.
pub fn storage_hash(group: &str, version: &str, kind: &str) -> String {
    let digest = sha256(format!("{group}/{version}/{kind}").as_bytes());
    STANDARD.encode(&digest[..8])
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::value::Value;
    use pilothouse_kinds::CONVERSIONS;

    use super::*;

    fn served(config: &str) -> Catalog {
        Builtin::load().unwrap().serve(&RuntimeConfig::parse(config).unwrap()).unwrap()
    }

    #[test]
    fn ordinals_of_builtin_resources_are_unique() {
        let builtin = Builtin::load().unwrap();
        let ordinals: std::collections::BTreeSet<u32> =
            builtin.resources().iter().map(|resource| resource.ordinal).collect();
        assert_eq!(ordinals.len(), builtin.resources().len());
    }

    #[test]
    fn every_pair_of_versions_of_a_store_converts() {
        let builtin = Builtin::load().unwrap();
        let all = builtin.resources();
        let mut pairs = 0;
        for a in all {
            for b in all {
                let store = |r: &Resource| r.stored().map(|stored| stored.store.clone());
                if store(a).is_some() && store(a) == store(b) && a.gv != b.gv {
                    pairs += 1;
                    let converted = CONVERSIONS.convert(Value::object(), &a.gv, &b.gv, &a.kind);
                    assert_eq!(converted.unwrap().str("apiVersion"), &*b.api_version);
                }
            }
        }
        assert!(pairs > 30, "{pairs}");
    }

    #[test]
    fn schema_table_has_only_known_verbs() {
        for (file, text) in builtin::FILES {
            for fact in table::parse(text).unwrap().resources {
                let all = fact.verbs.iter().chain(fact.subs.iter().flat_map(|sub| &sub.verbs));
                for verb in all {
                    assert!(Verb::parse_resource_verb(verb).is_some(), "{file} {}: {verb}", fact.plural);
                }
            }
        }
    }

    #[test]
    fn only_stable_versions_are_enabled_by_default() {
        let catalog = served("");
        for resource in catalog.resources() {
            assert_eq!(version::level(&resource.gv.version), Some(Level::Stable), "{}", resource.api_version);
        }
        assert_eq!(catalog.groups().count(), 20);
        assert!(
            is_enabled_by_default("v1beta1", Some((1, 21)))
                && !is_enabled_by_default("v1beta1", Some((1, 22)))
        );
        assert!(!is_enabled_by_default("v1alpha1", Some((1, 1))));
    }

    #[test]
    fn gated_resources_and_subresources_need_their_feature_gate() {
        let config = RuntimeConfig::parse("api/all=true").unwrap();
        let builtin = Builtin::load().unwrap();
        let served = |disabled: &'static str| {
            builtin.serve_where(&config, &Emulation::default(), move |gate| gate != disabled).unwrap()
        };
        let has_trust_bundles = |catalog: &Catalog| {
            catalog.find("certificates.k8s.io", "v1beta1", "clustertrustbundles").is_some()
        };
        assert!(has_trust_bundles(&served("")) && !has_trust_bundles(&served("ClusterTrustBundle")));
        let has_resize = |catalog: &Catalog| {
            let pods = catalog.find("", "v1", "pods").unwrap();
            assert!(pods.subresources.iter().any(|sub| *sub.name == *"status"));
            pods.subresources.iter().any(|sub| *sub.name == *"resize")
        };
        assert!(has_resize(&served("")) && !has_resize(&served("InPlacePodVerticalScaling")));
    }

    #[test]
    fn versions_of_one_kind_share_a_store() {
        let catalog = served("api/all=true");
        let store = |group: &str, version: &str, plural: &str| {
            let stored = catalog.find(group, version, plural).unwrap().stored().cloned().unwrap();
            (stored.store.to_string(), stored.version.to_string())
        };
        let pair = |store: &str, version: &str| (store.to_owned(), version.to_owned());
        for (group, version) in [("", "v1"), ("events.k8s.io", "v1")] {
            assert_eq!(store(group, version, "events"), pair("events", "v1"));
        }
        for version in ["v1", "v2"] {
            assert_eq!(
                store("autoscaling", version, "horizontalpodautoscalers"),
                pair("horizontalpodautoscalers.autoscaling", "autoscaling/v2")
            );
        }
        for version in ["v1alpha3", "v1beta1", "v1beta2"] {
            assert_eq!(
                store("resource.k8s.io", version, "resourceclaims"),
                pair("resourceclaims.resource.k8s.io", "resource.k8s.io/v1beta1")
            );
        }
        // Discovery names v1beta1 for both, but that is disabled here or does not exist: the storage version is v1.
        for version in ["v1", "v1beta1"] {
            assert_eq!(
                store("networking.k8s.io", version, "ipaddresses"),
                pair("ipaddresses.networking.k8s.io", "networking.k8s.io/v1")
            );
        }
        assert_eq!(
            store("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
            pair("customresourcedefinitions.apiextensions.k8s.io", "apiextensions.k8s.io/v1")
        );
    }

    #[test]
    fn storage_version_is_independent_of_runtime_config() {
        let all = served("api/all=true");
        for resource in served("").resources() {
            let gv = &resource.gv;
            let same = all.find(&gv.group, &gv.version, &resource.plural).unwrap();
            assert_eq!(same.backing, resource.backing, "{}", resource.plural);
        }
    }

    #[test]
    fn storage_version_hashes_equal_the_reference() {
        assert_eq!(storage_hash("", "v1", "ConfigMap"), "qFsyl6wFWjQ=");
        assert_eq!(storage_hash("autoscaling", "v2", "HorizontalPodAutoscaler"), "qwQve8ut294=");
    }
}
