//! The group `apiextensions.k8s.io`.

use super::set_if_absent;
use crate::api::value::Value;

pub(super) fn definition(definition: &mut Value) {
    let spec = definition.entry("spec");
    let kind = spec.get("names").map_or("", |names| names.str("kind")).to_owned();
    if !kind.is_empty() {
        let names = spec.entry("names");
        set_if_absent(names, "singular", kind.to_lowercase());
        set_if_absent(names, "listKind", format!("{kind}List"));
    }
    if spec.get("conversion").is_none() {
        spec.entry("conversion").set("strategy", "None");
    }
    let stored =
        definition.at(&["status", "storedVersions"]).is_some_and(|stored| !stored.items().is_empty());
    let versions = definition.at(&["spec", "versions"]).map_or(&[][..], Value::items);
    let storage = versions.iter().find(|version| version.get("storage") == Some(&Value::Bool(true)));
    if let Some(name) = storage.map(|version| version.str("name").to_owned()).filter(|_| !stored) {
        definition.entry("status").set("storedVersions", vec![name]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    #[test]
    fn names_follow_from_the_kind() {
        let body = r#"{"spec":{"names":{"kind":"Thing","plural":"things"},
            "versions":[{"name":"v1"},{"name":"v2","storage":true}]}}"#;
        let value = defaulted("apiextensions.k8s.io", "v1", "CustomResourceDefinition", body);
        let names = value.at(&["spec", "names"]).unwrap();
        assert_eq!((names.str("singular"), names.str("listKind")), ("thing", "ThingList"));
        assert_eq!(value.at(&["spec", "conversion", "strategy"]), Some(&Value::from("None")));
        assert_eq!(value.at(&["status", "storedVersions"]), Some(&vec!["v2"].into()));
    }
}
