//! Resources that may be used only if a quota covers them: the configuration of the plug-in.

use pilothouse_apimachinery::status::GroupResource;
use pilothouse_apimachinery::value::Value;

use super::Scope;

/// One entry of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// The group of the type, empty for the core group.
    pub group: String,
    /// The plural name of the type.
    pub resource: String,
    /// Substrings of quota resource names that need a quota.
    pub contains: Vec<String>,
    /// Objects of these scopes need a quota of the same scope.
    pub scopes: Vec<Scope>,
}

impl Limited {
    /// Parses the `limitedResources` of a configuration.
    pub fn read_all(configuration: &Value) -> Vec<Limited> {
        let list =
            |entry: &Value, field: &str| entry.get(field).map(Value::items).unwrap_or_default().to_vec();
        let read = |entry: &Value| Limited {
            group: entry.str("apiGroup").to_owned(),
            resource: entry.str("resource").to_owned(),
            contains: list(entry, "matchContains")
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            scopes: list(entry, "matchScopes").iter().map(Scope::read).collect(),
        };
        list(configuration, "limitedResources").iter().map(read).collect()
    }

    /// Whether it concerns a type.
    pub fn applies_to(&self, resource: GroupResource<'_>) -> bool {
        self.group == resource.group && self.resource == resource.resource
    }

    /// Whether this quota resource needs a quota.
    pub fn covers(&self, name: &str) -> bool {
        self.contains.iter().any(|part| name.contains(part.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn limited_resources_are_read_from_configuration() {
        let configuration = object(
            r#"{"limitedResources":[{"apiGroup":"apps","resource":"deployments","matchContains":["count/"]},
                {"resource":"pods","matchScopes":[{"scopeName":"PriorityClass","operator":"In","values":["high"]}]}]}"#,
        );
        let limited = Limited::read_all(&configuration);
        assert!(limited[0].applies_to(GroupResource { group: "apps", resource: "deployments" }));
        assert!(limited[0].covers("count/deployments.apps") && !limited[0].covers("pods"));
        assert_eq!(limited[1].scopes[0].render(), "{PriorityClass In [high]}");
        assert_eq!(Limited::read_all(&Value::Null), []);
    }
}
