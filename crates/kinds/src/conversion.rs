//! Conversion of the built-in kinds whose versions differ in shape.

mod annotation_json;
mod autoscaling;
mod devices;
mod events;

use pilothouse_apimachinery::convert::{ConversionTable, VersionShape};
use pilothouse_apimachinery::value::Value;

/// The conversions of all built-in kinds.
pub const CONVERSIONS: ConversionTable = ConversionTable::new(SHAPES);

const SHAPES: &[VersionShape] = &[
    VersionShape {
        group: "autoscaling",
        version: "v1",
        kind: "HorizontalPodAutoscaler",
        hub: ("autoscaling", "v2"),
        to_hub: autoscaling::v1_to_v2,
        from_hub: autoscaling::v2_to_v1,
    },
    VersionShape {
        group: "events.k8s.io",
        version: "v1",
        kind: "Event",
        hub: ("", "v1"),
        to_hub: events::to_core,
        from_hub: events::from_core,
    },
    VersionShape {
        group: "resource.k8s.io",
        version: "v1alpha3",
        kind: "ResourceSlice",
        hub: ("resource.k8s.io", "v1beta1"),
        to_hub: devices::slice_from_v1alpha3,
        from_hub: devices::slice_to_v1alpha3,
    },
    VersionShape {
        group: "resource.k8s.io",
        version: "v1beta2",
        kind: "ResourceSlice",
        hub: ("resource.k8s.io", "v1beta1"),
        to_hub: devices::slice_from_v1beta2,
        from_hub: devices::slice_to_v1beta2,
    },
    VersionShape {
        group: "resource.k8s.io",
        version: "v1beta2",
        kind: "ResourceClaim",
        hub: ("resource.k8s.io", "v1beta1"),
        to_hub: devices::claim_from_v1beta2,
        from_hub: devices::claim_to_v1beta2,
    },
    VersionShape {
        group: "resource.k8s.io",
        version: "v1beta2",
        kind: "ResourceClaimTemplate",
        hub: ("resource.k8s.io", "v1beta1"),
        to_hub: devices::template_from_v1beta2,
        from_hub: devices::template_to_v1beta2,
    },
];

/// Renames a field.
fn rename(value: &mut Value, from: &str, to: &str) {
    if let Some(field) = value.remove(from) {
        value.set(to, field);
    }
}

/// The items of a list, mutable; empty if it is no list.
fn items_mut(value: Option<&mut Value>) -> &mut [Value] {
    value.map_or(&mut [], |value| match value {
        Value::Array(items) => items,
        _ => &mut [],
    })
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::schema::Registry;
    use pilothouse_apimachinery::version::GroupVersion;

    use super::*;

    #[test]
    fn conversion_table_names_existing_versions() {
        let registry = Registry::builtin().unwrap();
        for shape in SHAPES {
            for (group, version) in [(shape.group, shape.version), shape.hub] {
                assert!(registry.kind(group, version, shape.kind).is_some(), "{group}/{version}");
            }
        }
    }

    #[test]
    fn only_events_convert_between_core_and_events_group() {
        let (core, events) = (GroupVersion::new("", "v1"), GroupVersion::new("events.k8s.io", "v1"));
        assert!(CONVERSIONS.convert(Value::object(), &core, &events, "Event").is_ok());
        assert!(CONVERSIONS.convert(Value::object(), &core, &events, "Pod").is_err());
        assert!(
            CONVERSIONS.convert(Value::object(), &events, &GroupVersion::new("apps", "v1"), "Event").is_err()
        );
    }
}
