//! The Go types of string fields. The schema table treats all as strings; error messages name the Go type, and clients compare
//! messages.

/// Lines of `package <name>`, each followed by lines of `<struct>.<field> <type>`.
const TABLE: &str = include_str!("../../schema/text-types.txt");

/// The Go type of a field, if it is a named string type, or a list or map of those. A linear search: only error messages need it.
pub fn type_name(package: &str, owner: &str, field: &str) -> Option<&'static str> {
    let lines = TABLE.lines().skip_while(|line| line.strip_prefix("package ") != Some(package)).skip(1);
    lines.take_while(|line| !line.starts_with("package ")).find_map(|line| {
        let (path, kind) = line.split_once(' ')?;
        let (struct_name, name) = path.split_once('.')?;
        (struct_name == owner && name == field).then_some(kind)
    })
}

/// The element type of a list or map type; other types are returned unchanged.
pub fn element_type(kind: &str) -> &str {
    let map = kind.strip_prefix("map[").and_then(|rest| rest.split_once(']')).map(|(_, value)| value);
    map.or_else(|| kind.strip_prefix("[]")).unwrap_or(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Registry, Type, TypeId};

    #[test]
    fn text_types_are_looked_up_by_package() {
        let core = "k8s.io.api.core.v1";
        assert_eq!(type_name(core, "ServiceSpec", "type"), Some("v1.ServiceType"));
        assert_eq!(type_name(core, "ServiceSpec", "ipFamilies"), Some("[]v1.IPFamily"));
        assert_eq!(type_name(core, "ServiceSpec", "clusterIP"), None);
        assert_eq!(type_name("k8s.io.api.apps.v1", "ServiceSpec", "type"), None);
        let definitions = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1";
        assert_eq!(
            type_name(definitions, "CustomResourceConversion", "strategy"),
            Some("v1.ConversionStrategyType")
        );
        for (kind, expected) in
            [("[]v1.IPFamily", "v1.IPFamily"), ("map[v1.A]v1.B", "v1.B"), ("v1.A", "v1.A")]
        {
            assert_eq!(element_type(kind), expected);
        }
    }

    #[test]
    fn each_text_type_belongs_to_an_existing_field() {
        let registry = Registry::builtin().unwrap();
        let mut package = "";
        for line in TABLE.lines() {
            if let Some(name) = line.strip_prefix("package ") {
                package = name;
                continue;
            }
            let (owner, field) = line.split_once(' ').and_then(|(path, _)| path.split_once('.')).unwrap();
            let mut ids = (0..u32::try_from(registry.len()).unwrap()).map(TypeId);
            let is_known = ids.any(|id| match registry.get(id) {
                Type::Struct(structure) => {
                    *structure.package == *package
                        && *structure.name == *owner
                        && structure.field(field).is_some()
                }
                _ => false,
            });
            assert!(is_known, "{package}: {line}");
        }
    }
}
