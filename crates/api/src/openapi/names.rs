//! The names of types and operations.

use pilothouse_apimachinery::schema::{Either, Other, Registry, Scalar, Struct, Type, TypeId};

/// The package of the meta group's types.
pub const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// The published name of a struct: its package with the domain reversed, and its name.
pub(super) fn of_struct(structure: &Struct) -> String {
    format!("{}.{}", published_package(&structure.package), structure.name)
}

fn published_package(package: &str) -> String {
    format!("io.k8s.{}", package.strip_prefix("k8s.io.").unwrap_or(package).replace('_', "-"))
}

/// The published name of a type; `None` for types that are written inline. `package` is that of the struct with the
/// field: free-form JSON has two names.
pub(super) fn of_type(registry: &Registry, id: TypeId, package: &str) -> Option<String> {
    let name = match registry.get(id) {
        Type::Struct(structure) => return Some(of_struct(structure)),
        Type::Either(either) => return Some(format!("{EXTENSIONS}.{}", either_name(registry, *either))),
        Type::List(_) | Type::Map(_) => return None,
        Type::Scalar(scalar) => match scalar {
            Scalar::Time => "apis.meta.v1.Time",
            Scalar::MicroTime => "apis.meta.v1.MicroTime",
            Scalar::Quantity => "api.resource.Quantity",
            Scalar::IntOrString => "util.intstr.IntOrString",
            Scalar::Raw => "runtime.RawExtension",
            Scalar::RawJson if published_package(package) == META => "apis.meta.v1.FieldsV1",
            Scalar::RawJson => return Some(format!("{EXTENSIONS}.JSON")),
            _ => return None,
        },
    };
    Some(format!("io.k8s.apimachinery.pkg.{name}"))
}

fn either_name(registry: &Registry, either: Either) -> &'static str {
    match either.other {
        Other::Bool => "JSONSchemaPropsOrBool",
        Other::List(list) => match registry.get(list) {
            Type::List(list) if list.item == either.object => "JSONSchemaPropsOrArray",
            _ => "JSONSchemaPropsOrStringArray",
        },
    }
}

/// A text in an operation id: letters and digits only, with a capital after each removed character.
pub(super) fn identifier(text: &str, capital: bool) -> String {
    let mut identifier = String::with_capacity(text.len());
    let mut capital = capital;
    for c in text.chars() {
        if c.is_alphabetic() || c == '_' || (!identifier.is_empty() && c.is_numeric()) {
            if capital {
                identifier.extend(c.to_uppercase());
            } else {
                identifier.push(c);
            }
            capital = false;
        } else {
            capital = true;
        }
    }
    identifier
}

/// The group in ids and tags.
pub(super) fn short_group(group: &str) -> &str {
    if group.is_empty() { "core" } else { group.strip_suffix(".k8s.io").unwrap_or(group) }
}

/// The tag of a group version, `apps_v1`, or of a group.
pub(super) fn tag(group: &str, version: &str) -> String {
    let group = identifier(short_group(group), false);
    if version.is_empty() { group } else { format!("{group}_{}", identifier(version, false)) }
}

/// The article before a kind, with spaces around it. Plurals have none.
pub(super) fn article(kind: &str) -> &'static str {
    if kind.ends_with('s') && !kind.ends_with("ss") {
        " "
    } else if kind.starts_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U']) {
        " an "
    } else {
        " a "
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_their_published_names() {
        let registry = Registry::builtin().unwrap();
        let published_name = |group: &str, kind: &str, field: &str| {
            let id = registry.kind(group, "v1", kind).unwrap();
            let structure = registry.structure(id).unwrap();
            match structure.field(field) {
                Some(field) => of_type(&registry, field.ty, &structure.package),
                None => of_type(&registry, id, ""),
            }
        };
        assert_eq!(published_name("", "Pod", "").as_deref(), Some("io.k8s.api.core.v1.Pod"));
        assert_eq!(published_name("", "Pod", "kind"), None);
        assert_eq!(
            published_name("apiregistration.k8s.io", "APIService", "").as_deref(),
            Some("io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService")
        );
        assert_eq!(
            published_name("meta.k8s.io", "ManagedFieldsEntry", "fieldsV1").as_deref(),
            Some("io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1")
        );
    }

    #[test]
    fn identifiers_are_camel_case_and_kinds_have_articles() {
        assert_eq!(identifier("flowcontrol.apiserver", true), "FlowcontrolApiserver");
        assert_eq!(tag("rbac.authorization.k8s.io", "v1"), "rbacAuthorization_v1");
        assert_eq!((tag("", "v1").as_str(), tag("apps", "").as_str()), ("core_v1", "apps"));
        let phrases = ["Pod", "Ingress", "Endpoints", "APIService", "RuntimeClass"]
            .map(|kind| format!("create{}{kind}", article(kind)));
        assert_eq!(
            phrases,
            [
                "create a Pod",
                "create an Ingress",
                "create Endpoints",
                "create an APIService",
                "create a RuntimeClass"
            ]
        );
    }
}
