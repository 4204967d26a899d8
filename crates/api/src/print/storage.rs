//! Rows of volumes, claims, drivers and classes.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{DEFAULT_STORAGE_CLASS, STORAGE_CLASS};

use super::Printer;
use super::cells::{NONE, PrintedObject, UNSET, cells, joined, quantity, text_or, texts};

/// The annotation that makes a class of volume attributes the default.
const DEFAULT_ATTRIBUTES: &[&str] = &["volumeattributesclass.alpha.kubernetes.io/is-default-class"];

/// The short names of the access modes, in the order they are shown.
const ACCESS_MODES: [(&str, &str); 4] = [
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];

/// The printer of a kind of group `storage.k8s.io`.
pub fn printer(kind: &str) -> Option<Printer> {
    Some(match kind {
        "CSIDriver" => driver,
        "CSINode" => |object| cells![object.name(), object.count("spec.drivers"), object.age()],
        "StorageClass" => class,
        "VolumeAttachment" => attachment,
        "VolumeAttributesClass" => attributes_class,
        _ => return None,
    })
}

/// Cells of a persistent volume.
pub fn volume(object: &PrintedObject<'_>) -> Vec<Value> {
    let claim = object.field("spec.claimRef");
    let claim = claim.map(|claim| format!("{}/{}", claim.str("namespace"), claim.str("name")));
    cells![
        object.name(),
        quantity(object.field("spec.capacity.storage")),
        access_modes(object.items("spec.accessModes")),
        object.text("spec.persistentVolumeReclaimPolicy"),
        phase(object),
        claim.unwrap_or_default(),
        class_name(object),
        or_unset(object, "spec.volumeAttributesClassName"),
        object.text("status.reason"),
        object.age(),
        or_unset(object, "spec.volumeMode")
    ]
}

/// Cells of a claim of a volume. Size and modes are those of the volume it is bound to.
pub fn claim(object: &PrintedObject<'_>) -> Vec<Value> {
    let volume = object.text("spec.volumeName");
    let (capacity, modes) = match volume {
        "" => ("", String::new()),
        _ => (
            quantity(object.field("status.capacity.storage")),
            access_modes(object.items("status.accessModes")),
        ),
    };
    cells![
        object.name(),
        phase(object),
        volume,
        capacity,
        modes,
        class_name(object),
        or_unset(object, "spec.volumeAttributesClassName"),
        object.age(),
        or_unset(object, "spec.volumeMode")
    ]
}

fn phase<'a>(object: &PrintedObject<'a>) -> &'a str {
    if object.is_terminating() { "Terminating" } else { object.text("status.phase") }
}

fn class_name<'a>(object: &PrintedObject<'a>) -> &'a str {
    object
        .metadata_entry("annotations", STORAGE_CLASS)
        .unwrap_or_else(|| object.text("spec.storageClassName"))
}

fn or_unset<'a>(object: &PrintedObject<'a>, path: &str) -> &'a str {
    object.field(path).and_then(Value::as_str).unwrap_or(UNSET)
}

fn access_modes(modes: &[Value]) -> String {
    let short_names = ACCESS_MODES.iter().filter(|(mode, _)| texts(modes).any(|present| present == *mode));
    short_names.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn class(object: &PrintedObject<'_>) -> Vec<Value> {
    let text_or_default = |path: &str, default: &'static str| {
        object.field(path).and_then(Value::as_str).unwrap_or(default).to_owned()
    };
    cells![
        name_with_default_mark(object, &DEFAULT_STORAGE_CLASS),
        object.text("provisioner"),
        text_or_default("reclaimPolicy", "Delete"),
        text_or_default("volumeBindingMode", "Immediate"),
        object.flag("allowVolumeExpansion").unwrap_or(false),
        object.age()
    ]
}

fn attributes_class(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![name_with_default_mark(object, DEFAULT_ATTRIBUTES), object.text("driverName"), object.age()]
}

/// The name of a class, marked if it is the default class.
fn name_with_default_mark(object: &PrintedObject<'_>, annotations: &[&str]) -> String {
    let is_default =
        annotations.iter().any(|name| object.metadata_entry("annotations", name) == Some("true"));
    format!("{}{}", object.name(), if is_default { " (default)" } else { "" })
}

fn driver(object: &PrintedObject<'_>) -> Vec<Value> {
    let tokens = object.field("spec.tokenRequests").map_or_else(
        || UNSET.to_owned(),
        |tokens| tokens.items().iter().map(|token| token.str("audience")).collect::<Vec<_>>().join(","),
    );
    cells![
        object.name(),
        object.flag("spec.attachRequired").unwrap_or(true),
        object.flag("spec.podInfoOnMount").unwrap_or(false),
        object.flag("spec.storageCapacity").unwrap_or(false),
        tokens,
        object.flag("spec.requiresRepublish").unwrap_or(false),
        text_or(&joined(object.items("spec.volumeLifecycleModes")), NONE),
        object.age()
    ]
}

fn attachment(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        object.name(),
        object.text("spec.attacher"),
        object.text("spec.source.persistentVolumeName"),
        object.text("spec.nodeName"),
        object.flag("status.attached").unwrap_or(false),
        object.age()
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    const GROUP: &str = "storage.k8s.io";
    const TERMINATING: &str = r#","deletionTimestamp":"2024-05-01T12:09:00Z""#;

    #[test]
    fn volume_cells_show_claim_and_class() {
        let object = |meta: &str, spec: &str| {
            format!(
                r#"{{"metadata":{{"name":"v"{meta}}},"spec":{{{spec}}},"status":{{"phase":"Bound","reason":"why"}}}}"#
            )
        };
        let spec = r#""capacity":{"storage":"1Gi"},"accessModes":["ReadOnlyMany","ReadWriteOnce","ReadOnlyMany","ReadWriteOncePod"],
            "persistentVolumeReclaimPolicy":"Retain","claimRef":{"namespace":"n","name":"c"},"storageClassName":"s",
            "volumeAttributesClassName":"a","volumeMode":"Block""#;
        let row = r#"["v","1Gi","RWO,ROX,RWOP","Retain","Bound","n/c","s","a","why","<unknown>","Block"]"#;
        assert_cells("", "PersistentVolume", &object("", spec), row);
        let annotated = r#","annotations":{"volume.beta.kubernetes.io/storage-class":"old"}"#;
        assert_cells("", "PersistentVolume", &object(annotated, spec), &row.replace("\"s\"", "\"old\""));
        assert_cells(
            "",
            "PersistentVolume",
            &object(TERMINATING, ""),
            r#"["v","0","","","Terminating","","","<unset>","why","<unknown>","<unset>"]"#,
        );
    }

    #[test]
    fn claim_cells_show_size_and_modes_of_the_bound_volume() {
        let object = |meta: &str, spec: &str| {
            format!(
                r#"{{"metadata":{{"name":"c"{meta}}},"spec":{{"storageClassName":"s","volumeMode":"Filesystem"{spec}}},
                    "status":{{"phase":"Bound","accessModes":["ReadWriteMany"],"capacity":{{"storage":"2Gi"}}}}}}"#
            )
        };
        let bound = r#","volumeName":"v""#;
        for (meta, spec, row) in [
            ("", "", r#"["c","Bound","","","","s","<unset>","<unknown>","Filesystem"]"#),
            ("", bound, r#"["c","Bound","v","2Gi","RWX","s","<unset>","<unknown>","Filesystem"]"#),
            (
                TERMINATING,
                bound,
                r#"["c","Terminating","v","2Gi","RWX","s","<unset>","<unknown>","Filesystem"]"#,
            ),
        ] {
            assert_cells("", "PersistentVolumeClaim", &object(meta, spec), row);
        }
        let without_status = r#"{"spec":{"volumeName":"v"}}"#;
        let row = r#"["","","v","0","","","<unset>","<unknown>","<unset>"]"#;
        assert_cells("", "PersistentVolumeClaim", without_status, row);
    }

    #[test]
    fn class_cells_mark_the_default() {
        let object = |annotations: &str, rest: &str| {
            format!(r#"{{"metadata":{{"name":"s","annotations":{{{annotations}}}}}{rest}}}"#)
        };
        let default = r#""storageclass.kubernetes.io/is-default-class":"true""#;
        assert_cells(
            GROUP,
            "StorageClass",
            &object(default, r#","provisioner":"p""#),
            r#"["s (default)","p","Delete","Immediate",false,"<unknown>"]"#,
        );
        assert_cells(
            GROUP,
            "StorageClass",
            &object(
                r#""storageclass.beta.kubernetes.io/is-default-class":"false""#,
                r#","provisioner":"p","reclaimPolicy":"Retain","volumeBindingMode":"WaitForFirstConsumer","allowVolumeExpansion":true"#,
            ),
            r#"["s","p","Retain","WaitForFirstConsumer",true,"<unknown>"]"#,
        );
        assert_cells(
            GROUP,
            "VolumeAttributesClass",
            &object(
                r#""volumeattributesclass.alpha.kubernetes.io/is-default-class":"true""#,
                r#","driverName":"d""#,
            ),
            r#"["s (default)","d","<unknown>"]"#,
        );
        assert_cells(GROUP, "VolumeAttributesClass", &object(default, ""), r#"["s","","<unknown>"]"#);
    }

    #[test]
    fn driver_node_and_attachment_cells() {
        let object = |rest: &str| format!(r#"{{"metadata":{{"name":"d"}},{rest}}}"#);
        for (kind, rest, row) in [
            ("CSIDriver", r#""spec":{}"#, r#"["d",true,false,false,"<unset>",false,"<none>","<unknown>"]"#),
            (
                "CSIDriver",
                r#""spec":{"attachRequired":false,"podInfoOnMount":true,"storageCapacity":true,"requiresRepublish":true,
                    "tokenRequests":[{"audience":"a"},{"audience":"b"}],"volumeLifecycleModes":["Persistent","Ephemeral"]}"#,
                r#"["d",false,true,true,"a,b",true,"Persistent,Ephemeral","<unknown>"]"#,
            ),
            ("CSINode", r#""spec":{"drivers":[{},{}]}"#, r#"["d",2,"<unknown>"]"#),
            ("CSIStorageCapacity", r#""capacity":"1Gi""#, r#"["d","0001-01-01T00:00:00Z"]"#),
            (
                "VolumeAttachment",
                r#""spec":{"attacher":"a","nodeName":"n","source":{"persistentVolumeName":"v"}},"status":{"attached":true}"#,
                r#"["d","a","v","n",true,"<unknown>"]"#,
            ),
            ("VolumeAttachment", r#""spec":{"attacher":"a"}"#, r#"["d","a","","",false,"<unknown>"]"#),
        ] {
            assert_cells(GROUP, kind, &object(rest), row);
        }
    }
}
