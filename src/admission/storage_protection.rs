//! StorageObjectInUseProtection: volumes, claims and VolumeAttributesClasses stay while they are in use.

use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{CLAIM_PROTECTION, VOLUME_PROTECTION};

use super::{Operation, Outcome, Plugin, Write, done};

/// Adds the finalizer that the protection controllers remove once the object is unused.
pub struct StorageObjectInUseProtection;

/// The finalizer of each protected resource.
const FINALIZERS: [(&str, &str, &str); 3] = [
    ("", "persistentvolumes", VOLUME_PROTECTION),
    ("", "persistentvolumeclaims", CLAIM_PROTECTION),
    ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
];

fn finalizer(write: &Write<'_>) -> Option<&'static str> {
    let (group, _, finalizer) = FINALIZERS.iter().find(|row| write.is_of(row.0, row.1))?;
    (group.is_empty() || write.backend.objects.features.has(Feature::VolumeAttributesClass))
        .then_some(*finalizer)
}

impl Plugin for StorageObjectInUseProtection {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && finalizer(write).is_some()
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        if let Some(finalizer) = finalizer(write) {
            protect(object, finalizer);
        }
        done(Ok(()))
    }
}

fn protect(object: &mut Value, finalizer: &str) {
    let mut finalizers =
        meta::metadata(object).get("finalizers").map(Value::items).unwrap_or_default().to_vec();
    if !finalizers.iter().any(|existing| existing.as_str() == Some(finalizer)) {
        finalizers.push(Value::from(finalizer));
        object.entry("metadata").set("finalizers", finalizers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_finalizer_is_added_once_and_last() {
        let mut object = Value::object();
        object.entry("metadata").set("finalizers", vec!["a.b/c"]);
        protect(&mut object, "x.y/z");
        protect(&mut object, "x.y/z");
        assert_eq!(meta::metadata(&object).get("finalizers"), Some(&Value::from(vec!["a.b/c", "x.y/z"])));
    }
}
