//! Conversion between the served versions of built-in kinds.
//!
//! Every kind has a hub version through which the others are converted. Most versions differ only in their name; versions of
//! another shape are in [`SHAPES`], each with functions to and from the hub.

mod annotation_json;
mod autoscaling;
mod devices;
mod events;

use super::value::Value;
use super::version::GroupVersion;

/// The reason why an object cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// These are not versions of one kind.
    #[error("{kind} cannot be converted from {from} to {to}")]
    NoWay {
        /// The kind of the object.
        kind: String,
        /// The version of the object.
        from: String,
        /// The requested version.
        to: String,
    },
}

/// A version whose shape differs from the hub version.
struct Shape {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// The group and version of the hub.
    hub: (&'static str, &'static str),
    to_hub: fn(&mut Value),
    from_hub: fn(&mut Value),
}

const SHAPES: [Shape; 6] = [
    Shape {
        group: "autoscaling",
        version: "v1",
        kind: "HorizontalPodAutoscaler",
        hub: ("autoscaling", "v2"),
        to_hub: autoscaling::v1_to_v2,
        from_hub: autoscaling::v2_to_v1,
    },
    Shape {
        group: "events.k8s.io",
        version: "v1",
        kind: "Event",
        hub: ("", "v1"),
        to_hub: events::to_core,
        from_hub: events::from_core,
    },
    Shape {
        group: "resource.k8s.io",
        version: "v1alpha3",
        kind: "ResourceSlice",
        hub: ("resource.k8s.io", "v1beta1"),
        to_hub: devices::slice_from_v1alpha3,
        from_hub: devices::slice_to_v1alpha3,
    },
    Shape {
        group: "resource.k8s.io",
        version: "v1beta2",
        kind: "ResourceSlice",
        hub: ("resource.k8s.io", "v1beta1"),
        to_hub: devices::slice_from_v1beta2,
        from_hub: devices::slice_to_v1beta2,
    },
    Shape {
        group: "resource.k8s.io",
        version: "v1beta2",
        kind: "ResourceClaim",
        hub: ("resource.k8s.io", "v1beta1"),
        to_hub: devices::claim_from_v1beta2,
        from_hub: devices::claim_to_v1beta2,
    },
    Shape {
        group: "resource.k8s.io",
        version: "v1beta2",
        kind: "ResourceClaimTemplate",
        hub: ("resource.k8s.io", "v1beta1"),
        to_hub: devices::template_from_v1beta2,
        from_hub: devices::template_to_v1beta2,
    },
];

fn shape(gv: &GroupVersion, kind: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.kind == kind && gv.is(shape.group, shape.version))
}

/// Converts an object of `kind` from version `from`, which it must be in, to version `to`.
pub fn convert(
    mut value: Value,
    from: &GroupVersion,
    to: &GroupVersion,
    kind: &str,
) -> Result<Value, ConvertError> {
    if from == to {
        return Ok(value);
    }
    let (source, target) = (shape(from, kind), shape(to, kind));
    let group = |gv: &GroupVersion, shape: Option<&Shape>| {
        shape.map_or_else(|| gv.group.to_string(), |shape| shape.hub.0.to_owned())
    };
    if group(from, source) != group(to, target) {
        return Err(ConvertError::NoWay {
            kind: kind.to_owned(),
            from: from.to_string(),
            to: to.to_string(),
        });
    }
    if let Some(source) = source {
        (source.to_hub)(&mut value);
    }
    if let Some(target) = target {
        (target.from_hub)(&mut value);
    }
    value.set("apiVersion", to.to_string());
    Ok(value)
}

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
    use super::*;
    use crate::schema::Registry;

    #[test]
    fn versions_of_the_same_shape_convert_by_name() {
        let mut object = Value::object();
        object.set("apiVersion", "networking.k8s.io/v1");
        object.entry("spec").set("x", 1);
        let v1 = GroupVersion::new("networking.k8s.io", "v1");
        let beta = GroupVersion::new("networking.k8s.io", "v1beta1");
        let converted = convert(object.clone(), &v1, &beta, "IPAddress").unwrap();
        assert_eq!(converted.str("apiVersion"), "networking.k8s.io/v1beta1");
        assert_eq!(convert(converted, &beta, &v1, "IPAddress").unwrap(), object);
        assert_eq!(convert(object.clone(), &v1, &v1, "IPAddress").unwrap(), object);
    }

    #[test]
    fn conversion_between_unrelated_groups_is_an_error() {
        let core = GroupVersion::new("", "v1");
        let events = GroupVersion::new("events.k8s.io", "v1");
        let apps = GroupVersion::new("apps", "v1");
        assert!(convert(Value::object(), &core, &events, "Event").is_ok());
        let error = convert(Value::object(), &core, &events, "Pod").unwrap_err();
        assert_eq!(error.to_string(), "Pod cannot be converted from v1 to events.k8s.io/v1");
        assert!(convert(Value::object(), &events, &apps, "Event").is_err());
    }

    #[test]
    fn conversion_shapes_name_existing_versions() {
        let registry = Registry::builtin().unwrap();
        for shape in &SHAPES {
            for (group, version) in [(shape.group, shape.version), shape.hub] {
                assert!(registry.kind(group, version, shape.kind).is_some(), "{group}/{version}");
            }
        }
    }
}
