//! One served resource: everything a handler needs to know of it.

use std::sync::Arc;

use pilothouse_actors::object::TypeName;

use crate::api::custom::Custom;
use crate::api::status::GroupResource;
use crate::api::verb::Verbs;
use crate::api::version::GroupVersion;

/// A release, as (major, minor).
pub type Release = (u32, u32);

/// The release that this server is one of.
pub const RELEASE: Release = (1, 33);

/// One resource in one served version.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// A number that no other resource has: tells apart what is made from one stored object.
    pub ordinal: u32,
    /// The group and version it is served in.
    pub gv: GroupVersion,
    /// The same as objects say it: `v1`, `apps/v1`.
    pub api_version: Arc<str>,
    /// The name in paths.
    pub plural: Arc<str>,
    /// The name of one.
    pub singular: Arc<str>,
    /// The kind of its objects.
    pub kind: Arc<str>,
    /// The kind of its lists.
    pub list_kind: Arc<str>,
    /// Whether its objects stand in namespaces.
    pub namespaced: bool,
    /// What can be done with it.
    pub verbs: Verbs,
    /// Names that are quicker to type.
    pub short_names: Vec<Arc<str>>,
    /// The sets it belongs to, such as `all`.
    pub categories: Vec<Arc<str>>,
    /// What stands below its objects, by name.
    pub subresources: Vec<Subresource>,
    /// The columns of its tables; none means name and age.
    pub columns: Vec<Column>,
    /// Where its objects are; `None` for those that nothing stores, such as reviews and bindings.
    pub stored: Option<Stored>,
    /// The release that brought it.
    pub introduced: Option<Release>,
    /// The release that advises against it.
    pub deprecated: Option<Release>,
    /// The release that no longer has it.
    pub removed: Option<Release>,
    /// What to use instead, as `group/version.Kind`.
    pub replacement: Option<Arc<str>>,
    /// What is known of it besides, if it is not built in.
    pub custom: Option<Arc<Custom>>,
}

/// Where the objects of a resource are.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The store. Served versions of one kind share it.
    pub store: TypeName,
    /// The version that the stored bytes are in.
    pub version: GroupVersion,
    /// What discovery says of the storage version: clients only compare it.
    pub hash: Arc<str>,
}

/// Something below the objects of a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Subresource {
    /// The name in paths.
    pub name: Arc<str>,
    /// The group and version of its kind.
    pub gv: GroupVersion,
    /// The kind of its bodies.
    pub kind: Arc<str>,
    /// What can be done with it.
    pub verbs: Verbs,
}

/// One column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The heading.
    pub name: Arc<str>,
    /// The type of the cells.
    pub kind: Arc<str>,
    /// What the cells mean, such as `name`.
    pub format: Arc<str>,
    /// Zero for what is always shown.
    pub priority: u32,
    /// Where it is said what the cells mean.
    pub about: About,
}

/// Where it is said what the cells of a column mean.
#[derive(Clone, Debug, PartialEq)]
pub enum About {
    /// In the documentation of a field: its type as `package/version.Name`, and its JSON name.
    Field(Arc<str>, Arc<str>),
    /// Here.
    Text(Arc<str>),
}

impl Resource {
    /// What clients of a resource that is on its way out are told.
    pub fn deprecation(&self) -> Option<String> {
        if let Some(custom) = &self.custom {
            return custom.deprecation.as_deref().map(str::to_owned);
        }
        let release = |(major, minor): Release| format!("v{major}.{minor}+");
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

    /// How errors name it.
    pub fn name(&self) -> GroupResource<'_> {
        GroupResource { group: &self.gv.group, resource: &self.plural }
    }

    /// The sub-resource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| *sub.name == *name)
    }

    /// Whether nothing stores its objects: they are answers to questions.
    pub fn is_virtual(&self) -> bool {
        self.stored.is_none()
    }

    /// Whether the version it is served in is the one its objects are stored in: then stored bytes can be answered as
    /// they are.
    pub fn is_storage_version(&self) -> bool {
        // What is stored of custom kinds may have come from any version and any schema that they had once.
        self.custom.is_none() && self.stored.as_ref().is_some_and(|stored| stored.version == self.gv)
    }
}

#[cfg(test)]
mod tests {
    use crate::api::catalog::build::Builtin;
    use crate::api::catalog::runtime_config::RuntimeConfig;
    use crate::api::verb::Verb;

    #[test]
    fn a_resource_tells_a_handler_all_it_needs() {
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
