//! Descriptions of the enum values in the schema table, for the published OpenAPI documents.

/// Lines of `type <name>`, each followed by lines of `<value> <meaning>`. Types with the same name in several packages
/// share their descriptions.
const TABLE: &str = include_str!("../../schema/meanings.txt");

/// The description of a value of an enum type, if it has one. The type is named as in [`super::text_types`]. A linear search: only
/// documents need it.
pub fn description(kind: &str, value: &str) -> Option<&'static str> {
    let name = kind.rsplit_once('.').map_or(kind, |(_, name)| name);
    let lines = TABLE.lines().skip_while(|line| line.strip_prefix("type ") != Some(name)).skip(1);
    // An empty value is written in quotes, which no other has.
    let description_in = |line: &'static str| {
        line.split_once(' ')
            .filter(|(name, _)| name.trim_matches('"') == value)
            .map(|(_, description)| description)
    };
    lines.take_while(|line| !line.starts_with("type ")).find_map(description_in)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::schema::{Registry, Type, TypeId, text_types};

    /// Types whose values need no description.
    const PLAIN: [&str; 9] = [
        "AzureDataDiskCachingMode",
        "AzureDataDiskKind",
        "DeviceTolerationOperator",
        "NodeSelectorOperator",
        "PodFailurePolicyOnExitCodesOperator",
        "RestartPolicy",
        "ScopeSelectorOperator",
        "Signal",
        "TolerationOperator",
    ];

    #[test]
    fn descriptions_are_looked_up_by_type_and_value() {
        assert_eq!(description("v1.URIScheme", "HTTPS"), Some("the URL begins with https://"));
        assert_eq!(description("v1.HostPathType", ""), Some("nothing is checked before the path is mounted"));
        assert_eq!(description("v1.URIScheme", "GOPHER"), None);
        assert_eq!(description("v1.URIScheme", "Retain"), None, "a value of another type");
        assert_eq!(description("v1.Signal", "SIGINT"), None);
        assert_eq!(description("", ""), None);
    }

    #[test]
    fn exactly_the_published_values_have_descriptions() {
        let registry = Registry::builtin().unwrap();
        let mut published: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for id in (0..u32::try_from(registry.len()).unwrap()).map(TypeId) {
            let Type::Struct(owner) = registry.get(id) else { continue };
            for field in owner.fields.iter().filter(|field| !field.values.is_empty()) {
                let kind = text_types::type_name(&owner.package, &owner.name, &field.name)
                    .unwrap_or_else(|| panic!("the type of {} {} has no name", owner.name, field.name));
                let name = kind.rsplit('.').next().unwrap();
                let values = field.values.iter().map(|value| (**value).to_owned());
                published.entry(name).or_default().extend(values);
            }
        }
        for plain in PLAIN {
            assert!(published.remove(plain).is_some(), "{plain}");
        }
        let mut described: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut name = "";
        for line in TABLE.lines() {
            let (first, rest) = line.split_once(' ').unwrap();
            if first == "type" {
                name = rest;
                continue;
            }
            assert!(
                described.entry(name).or_default().insert(first.trim_matches('"').to_owned()),
                "{name}: {line}"
            );
        }
        assert_eq!(described, published);
    }
}
