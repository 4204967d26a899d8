use std::collections::BTreeSet;

use pilothouse_api::catalog::build::Builtin;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry, Type, TypeId};

use super::*;

/// Adds the paths of fields that a type of another version does not have, or has in another form.
fn differences(
    registry: &Registry,
    (from, to): (TypeId, TypeId),
    path: &str,
    seen: &mut BTreeSet<(TypeId, TypeId)>,
    found: &mut Vec<String>,
) {
    if !seen.insert((from, to)) {
        return;
    }
    let pair = match (registry.get(from), registry.get(to)) {
        (Type::Struct(a), Type::Struct(b)) => {
            for field in &a.fields {
                let path = format!("{path}.{}", field.name);
                match b.field(&field.name) {
                    Some(other) if field.pointer == other.pointer => {
                        differences(registry, (field.ty, other.ty), &path, seen, found);
                    }
                    _ => found.push(path),
                }
            }
            return;
        }
        (Type::List(a), Type::List(b)) => (a.item, b.item),
        (Type::Map(a), Type::Map(b)) => (a.value, b.value),
        (Type::Either(a), Type::Either(b)) => (a.object, b.object),
        (Type::Scalar(a), Type::Scalar(b)) if a == b => return,
        _ => return found.push(path.to_owned()),
    };
    differences(registry, pair, path, seen, found);
}

fn differing_fields(registry: &Registry, from: TypeId, to: TypeId) -> Vec<String> {
    let mut found = Vec::new();
    differences(registry, (from, to), "", &mut BTreeSet::new(), &mut found);
    found
}

/// All kinds of versions that are not served, with the versions in which they are stored now.
fn earlier_kinds(registry: &Registry) -> Vec<(GroupVersionKind, GroupVersion)> {
    let builtin = Builtin::load().unwrap();
    let mut kinds = Vec::new();
    for (kind, _) in registry.kinds() {
        let resources = || builtin.resources().iter().filter(|resource| *resource.kind == kind.kind);
        if resources().any(|resource| resource.gv.is(&kind.group, &kind.version)) {
            continue;
        }
        let stored: BTreeSet<GroupVersion> =
            resources().filter_map(|resource| Some(resource.stored()?.version.clone())).collect();
        kinds.extend(stored.into_iter().map(|version| (kind.clone(), version)));
    }
    kinds.sort();
    kinds
}

#[test]
fn every_earlier_version_of_a_stored_kind_is_read_or_listed() {
    let registry = Registry::complete().unwrap();
    let kinds = earlier_kinds(&registry);
    assert!(kinds.len() > 50, "{}", kinds.len());
    for (kind, stored) in &kinds {
        let from = GroupVersion::new(&kind.group, &kind.version);
        let is_read = conversion(&from, &kind.kind, stored).is_some();
        let is_listed = UNREADABLE.contains(&(&kind.group, &kind.version, &kind.kind));
        let is_definition = kind.kind == "CustomResourceDefinition";
        assert_eq!(
            u8::from(is_read) + u8::from(is_listed) + u8::from(is_definition),
            1,
            "{kind} -> {stored}"
        );
    }
    for row in EARLIER {
        for kind in row.kinds {
            let is_known = |(earlier, stored): &(GroupVersionKind, GroupVersion)| {
                earlier.group == row.group
                    && earlier.version == row.version
                    && earlier.kind == *kind
                    && *stored.group == *row.target
            };
            assert!(kinds.iter().any(is_known), "{}/{} {kind}", row.group, row.version);
        }
    }
}

#[test]
fn unchanged_kinds_have_the_shape_of_the_version_that_is_stored_now() {
    let registry = Registry::complete().unwrap();
    for (kind, stored) in earlier_kinds(&registry) {
        let from = GroupVersion::new(&kind.group, &kind.version);
        let Some(convert) = conversion(&from, &kind.kind, &stored) else { continue };
        let to = registry.kind(&stored.group, &stored.version, &kind.kind).unwrap();
        let differing = differing_fields(&registry, registry.lookup(&kind).unwrap(), to);
        if std::ptr::fn_addr_eq(convert, unchanged as Convert) {
            assert_eq!(differing, Vec::<String>::new(), "{kind}");
        }
    }
}

#[test]
fn definitions_of_both_versions_differ_in_known_fields() {
    let registry = Registry::complete().unwrap();
    let ty = |version| registry.kind("apiextensions.k8s.io", version, "CustomResourceDefinition").unwrap();
    assert_eq!(
        differing_fields(&registry, ty("v1"), ty("v1beta1")),
        [
            ".spec.versions.additionalPrinterColumns.jsonPath",
            ".spec.conversion.webhook",
            ".spec.preserveUnknownFields"
        ]
    );
    assert_eq!(
        differing_fields(&registry, ty("v1beta1"), ty("v1")),
        [
            ".spec.version",
            ".spec.validation",
            ".spec.subresources",
            ".spec.versions.additionalPrinterColumns.JSONPath",
            ".spec.additionalPrinterColumns",
            ".spec.selectableFields",
            ".spec.conversion.webhookClientConfig",
            ".spec.conversion.conversionReviewVersions",
            ".spec.preserveUnknownFields"
        ]
    );
}
