//! One served resource, with all its properties.

use std::sync::Arc;

use pilothouse_apimachinery::status::GroupResource;
use pilothouse_apimachinery::verb::Verbs;
use pilothouse_apimachinery::version::{GroupVersion, MinorVersion};

use super::backing::{Backing, Stored};
use crate::custom_resource::CustomResource;

/// One resource in one served version.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// A unique number: identifies cached forms of stored objects.
    pub ordinal: u32,
    /// The group and version it is served in.
    pub gv: GroupVersion,
    /// The apiVersion of its objects: `v1`, `apps/v1`.
    pub api_version: Arc<str>,
    /// The name in paths.
    pub plural: Arc<str>,
    /// The singular name.
    pub singular: Arc<str>,
    /// The kind of its objects.
    pub kind: Arc<str>,
    /// The kind of its lists.
    pub list_kind: Arc<str>,
    /// Whether it is namespaced.
    pub namespaced: bool,
    /// The supported verbs.
    pub verbs: Verbs,
    /// Abbreviations for command lines.
    pub short_names: Vec<Arc<str>>,
    /// The categories it belongs to, such as `all`.
    pub categories: Vec<Arc<str>>,
    /// Its subresources, sorted by name.
    pub subresources: Vec<Subresource>,
    /// The columns of its tables; empty means name and age.
    pub columns: Vec<Column>,
    /// What serves it.
    pub backing: Backing,
    /// The release that introduced it.
    pub introduced: Option<MinorVersion>,
    /// The release that deprecated it.
    pub deprecated: Option<MinorVersion>,
    /// The release that removes it.
    pub removed: Option<MinorVersion>,
    /// Its replacement, as `group/version.Kind`.
    pub replacement: Option<Arc<str>>,
    /// Its definition, if it is a custom resource.
    pub custom: Option<Arc<CustomResource>>,
}

/// A subresource.
#[derive(Clone, Debug, PartialEq)]
pub struct Subresource {
    /// The name in paths.
    pub name: Arc<str>,
    /// The group version of its kind.
    pub gv: GroupVersion,
    /// The kind of its bodies.
    pub kind: Arc<str>,
    /// The supported verbs.
    pub verbs: Verbs,
}

/// One column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The heading.
    pub name: Arc<str>,
    /// The type of the cells.
    pub kind: Arc<str>,
    /// The format of the cells, such as `name`.
    pub format: Arc<str>,
    /// Zero for columns that are always shown.
    pub priority: u32,
    /// The source of its description.
    pub description: ColumnDescription,
}

/// The source of a column's description.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnDescription {
    /// The description of a field: its type as `package/version.Name`, and its JSON name.
    Field(Arc<str>, Arc<str>),
    /// A text of its own.
    Text(Arc<str>),
}

impl Resource {
    /// The deprecation warning for clients.
    pub fn deprecation(&self) -> Option<String> {
        if let Some(custom) = &self.custom {
            return custom.deprecation.as_deref().map(str::to_owned);
        }
        let release = |(major, minor): MinorVersion| format!("v{major}.{minor}+");
        let mut text =
            format!("{} {} is deprecated in {}", self.api_version, self.kind, release(self.deprecated?));
        if let Some(removed) = self.removed {
            text.push_str(&format!(", unavailable in {}", release(removed)));
        }
        if let Some((version, kind)) = self.replacement.as_deref().and_then(|name| name.rsplit_once('.')) {
            text.push_str(&format!("; use {version} {kind}"));
        }
        Some(text)
    }

    /// The resource as errors name it.
    pub fn name(&self) -> GroupResource<'_> {
        GroupResource { group: &self.gv.group, resource: &self.plural }
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| *sub.name == *name)
    }

    /// Where its objects are stored; `None` for unstored ones, such as reviews and bindings.
    pub fn stored(&self) -> Option<&Stored> {
        match &self.backing {
            Backing::Store(stored) => Some(stored),
            Backing::Computed(_) | Backing::Subresource { .. } | Backing::Unserved => None,
        }
    }

    /// Whether its objects exist only as responses to requests and are never stored.
    pub fn is_virtual(&self) -> bool {
        self.stored().is_none()
    }

    /// Whether it is served in its storage version: then stored bytes can be sent unchanged.
    pub fn is_storage_version(&self) -> bool {
        // Stored custom objects may be of any version and any schema that the definition ever had.
        self.custom.is_none() && self.stored().is_some_and(|stored| stored.version == self.gv)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::verb::Verb;

    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;

    #[test]
    fn resource_has_the_properties_of_its_facts() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let deployments = catalog.find("apps", "v1", "deployments").unwrap();
        assert_eq!(deployments.name().to_string(), "deployments.apps");
        assert_eq!(
            (&*deployments.api_version, &*deployments.kind, &*deployments.list_kind),
            ("apps/v1", "Deployment", "DeploymentList")
        );
        assert!(deployments.namespaced && deployments.is_storage_version() && !deployments.is_virtual());
        let scale = deployments.subresource("scale").unwrap();
        assert_eq!((scale.gv.to_string().as_str(), &*scale.kind), ("autoscaling/v1", "Scale"));
        assert!(scale.verbs.contains(Verb::Patch) && !scale.verbs.contains(Verb::Create));
        assert!(deployments.subresource("log").is_none());
        assert!(catalog.find("", "v1", "bindings").unwrap().is_virtual());
        let endpoints = catalog.find("", "v1", "endpoints").unwrap();
        assert_eq!(endpoints.deprecated, Some((1, 33)));
        assert_eq!(endpoints.replacement.as_deref(), Some("discovery.k8s.io/v1.EndpointSlice"));
    }
}
