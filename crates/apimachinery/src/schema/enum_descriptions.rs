//! What each of the values means that the table of facts allows in a field: documents tell it beside the values.

/// Lines of `type <name>`, each followed by lines of `<value> <meaning>`. Types that have the same name in several packages
/// mean the same.
const TABLE: &str = include_str!("../../schema/meanings.txt");

/// What a value of a type means, if the value does not say so itself. The type is named as [`super::text_types`] does.
/// Looked for from the start: only documents ask.
pub fn description(kind: &str, value: &str) -> Option<&'static str> {
    let name = kind.rsplit_once('.').map_or(kind, |(_, name)| name);
    let lines = TABLE.lines().skip_while(|line| line.strip_prefix("type ") != Some(name)).skip(1);
    // An empty value is written in quotes, which no other has.
    let told = |line: &'static str| {
        line.split_once(' ').filter(|(known, _)| known.trim_matches('"') == value).map(|(_, meaning)| meaning)
    };
    lines.take_while(|line| !line.starts_with("type ")).find_map(told)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::schema::{Registry, Type, TypeId, text_types};

    /// Types whose values say what they mean.
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
    fn meanings_are_found_by_type_and_value() {
        assert_eq!(description("v1.URIScheme", "HTTPS"), Some("the URL begins with https://"));
        assert_eq!(description("v1.HostPathType", ""), Some("nothing is checked before the path is mounted"));
        assert_eq!(description("v1.URIScheme", "GOPHER"), None);
        assert_eq!(description("v1.URIScheme", "Retain"), None, "that is one of another type");
        assert_eq!(description("v1.Signal", "SIGINT"), None);
        assert_eq!(description("", ""), None);
    }

    #[test]
    fn every_value_that_is_published_has_a_meaning_and_no_other_has() {
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
        let mut told: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut name = "";
        for line in TABLE.lines() {
            let (first, rest) = line.split_once(' ').unwrap();
            if first == "type" {
                name = rest;
                continue;
            }
            assert!(
                told.entry(name).or_default().insert(first.trim_matches('"').to_owned()),
                "{name}: {line}"
            );
        }
        assert_eq!(told, published);
    }
}
