//! Resources, and how messages name objects.

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

/// A resource in one version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    /// The group, empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The plural name.
    pub name: String,
    /// The kind of its objects.
    pub kind: String,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
    /// Whether the status of its objects is written on its own.
    pub has_status: bool,
    /// Whether another server behind this one has its objects.
    pub is_aggregated: bool,
}

impl Resource {
    /// The apiVersion of its objects.
    pub(crate) fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The name that is unique in a cluster: `pods`, `deployments.apps`.
    pub(crate) fn full_name(&self) -> String {
        match self.group.as_str() {
            "" => self.name.clone(),
            group => format!("{}.{group}", self.name),
        }
    }

    /// Whether this is the resource `name` of `group`, in any version.
    pub(crate) fn is(&self, group: &str, name: &str) -> bool {
        self.group == group && self.name == name
    }
}

/// Splits an apiVersion into group and version.
pub(crate) fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// The namespace of an object, empty if it has none.
pub(crate) fn namespace(object: &Value) -> &str {
    meta::metadata(object).str("namespace")
}

/// A label of an object, empty if it has none of this name.
pub(crate) fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    meta::metadata(object).get("labels").map(|labels| labels.str(name)).unwrap_or_default()
}

/// An annotation of an object, empty if it has none of this name.
pub(crate) fn annotation<'a>(object: &'a Value, name: &str) -> &'a str {
    meta::metadata(object).get("annotations").map(|all| all.str(name)).unwrap_or_default()
}

/// An object as messages name it: `Deployment.apps default/web`.
pub(crate) fn describe(group: &str, kind: &str, namespace: &str, name: &str) -> String {
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let namespace = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    format!("{kind}{group} {namespace}{name}")
}

/// The same from an object.
#[cfg(test)]
pub(crate) fn describe_object(object: &Value) -> String {
    let (group, _) = split_api_version(object.str("apiVersion"));
    describe(group, object.str("kind"), namespace(object), meta::name(object))
}

/// The resources of the versions that a CustomResourceDefinition serves.
pub(crate) fn defined_resources(definition: &Value) -> Vec<Resource> {
    let Some(spec) = definition.get("spec") else { return Vec::new() };
    let names = spec.get("names").unwrap_or(&Value::Null);
    let versions = spec.get("versions").map(Value::items).unwrap_or_default();
    let served =
        versions.iter().filter(|version| version.get("served").and_then(Value::as_bool) == Some(true));
    served
        .map(|version| Resource {
            group: spec.str("group").to_owned(),
            version: version.str("name").to_owned(),
            name: names.str("plural").to_owned(),
            kind: names.str("kind").to_owned(),
            is_namespaced: spec.str("scope") == "Namespaced",
            has_status: version.get_path(&["subresources", "status"]).is_some(),
            is_aggregated: false,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    #[test]
    fn objects_are_described_with_group_and_namespace() {
        let object =
            yaml::read(b"{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: a, name: b}}");
        assert_eq!(describe_object(&object.unwrap()), "Deployment.apps a/b");
        assert_eq!(describe("", "Node", "", "n"), "Node n");
    }

    #[test]
    fn definition_serves_its_resources() {
        let definition = yaml::read(
            b"spec:
  group: example.com
  scope: Namespaced
  names: {plural: ships, kind: Ship}
  versions:
  - {name: v1, served: true, subresources: {status: {}}}
  - {name: v1beta1, served: false}
  - {name: v1alpha1, served: true}
",
        )
        .unwrap();
        let resources = defined_resources(&definition);
        let facts: Vec<_> = resources.iter().map(|found| (found.api_version(), found.has_status)).collect();
        assert_eq!(facts, [("example.com/v1".to_owned(), true), ("example.com/v1alpha1".to_owned(), false)]);
        assert_eq!(resources[0].full_name(), "ships.example.com");
        assert!(resources[0].is_namespaced && resources[0].is("example.com", "ships"));
    }
}
