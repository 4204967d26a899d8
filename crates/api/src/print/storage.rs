//! Rows of volumes, claims, drivers and classes.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{DEFAULT_STORAGE_CLASS, STORAGE_CLASS};

use super::Printer;
use super::cells::{NONE, PrintedObject, UNSET, cells, joined, or, quantity, texts};

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
        "CSINode" => |it| cells![it.name(), it.count("spec.drivers"), it.age()],
        "StorageClass" => class,
        "VolumeAttachment" => attachment,
        "VolumeAttributesClass" => attributes_class,
        _ => return None,
    })
}

/// Cells of a persistent volume.
pub fn volume(it: &PrintedObject<'_>) -> Vec<Value> {
    let claim = it.at("spec.claimRef");
    let claim = claim.map(|claim| format!("{}/{}", claim.str("namespace"), claim.str("name")));
    cells![
        it.name(),
        quantity(it.at("spec.capacity.storage")),
        access_modes(it.items("spec.accessModes")),
        it.text("spec.persistentVolumeReclaimPolicy"),
        phase(it),
        claim.unwrap_or_default(),
        class_name(it),
        or_unset(it, "spec.volumeAttributesClassName"),
        it.text("status.reason"),
        it.age(),
        or_unset(it, "spec.volumeMode")
    ]
}

/// Cells of a claim of a volume. Size and modes are those of the volume it is bound to.
pub fn claim(it: &PrintedObject<'_>) -> Vec<Value> {
    let volume = it.text("spec.volumeName");
    let (capacity, modes) = match volume {
        "" => ("", String::new()),
        _ => (quantity(it.at("status.capacity.storage")), access_modes(it.items("status.accessModes"))),
    };
    cells![
        it.name(),
        phase(it),
        volume,
        capacity,
        modes,
        class_name(it),
        or_unset(it, "spec.volumeAttributesClassName"),
        it.age(),
        or_unset(it, "spec.volumeMode")
    ]
}

fn phase<'a>(it: &PrintedObject<'a>) -> &'a str {
    if it.is_terminating() { "Terminating" } else { it.text("status.phase") }
}

fn class_name<'a>(it: &PrintedObject<'a>) -> &'a str {
    it.note("annotations", STORAGE_CLASS).unwrap_or_else(|| it.text("spec.storageClassName"))
}

fn or_unset<'a>(it: &PrintedObject<'a>, path: &str) -> &'a str {
    it.at(path).and_then(Value::as_str).unwrap_or(UNSET)
}

fn access_modes(modes: &[Value]) -> String {
    let shown = ACCESS_MODES.iter().filter(|(mode, _)| texts(modes).any(|one| one == *mode));
    shown.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn class(it: &PrintedObject<'_>) -> Vec<Value> {
    let or_else = |path: &str, otherwise: &'static str| {
        it.at(path).and_then(Value::as_str).unwrap_or(otherwise).to_owned()
    };
    cells![
        name_or_default(it, &DEFAULT_STORAGE_CLASS),
        it.text("provisioner"),
        or_else("reclaimPolicy", "Delete"),
        or_else("volumeBindingMode", "Immediate"),
        it.flag("allowVolumeExpansion").unwrap_or(false),
        it.age()
    ]
}

fn attributes_class(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![name_or_default(it, DEFAULT_ATTRIBUTES), it.text("driverName"), it.age()]
}

/// The name of a class, marked if it is the one that counts where none is named.
fn name_or_default(it: &PrintedObject<'_>, annotations: &[&str]) -> String {
    let is_default = annotations.iter().any(|name| it.note("annotations", name) == Some("true"));
    format!("{}{}", it.name(), if is_default { " (default)" } else { "" })
}

fn driver(it: &PrintedObject<'_>) -> Vec<Value> {
    let tokens = it.at("spec.tokenRequests").map_or_else(
        || UNSET.to_owned(),
        |tokens| tokens.items().iter().map(|token| token.str("audience")).collect::<Vec<_>>().join(","),
    );
    cells![
        it.name(),
        it.flag("spec.attachRequired").unwrap_or(true),
        it.flag("spec.podInfoOnMount").unwrap_or(false),
        it.flag("spec.storageCapacity").unwrap_or(false),
        tokens,
        it.flag("spec.requiresRepublish").unwrap_or(false),
        or(&joined(it.items("spec.volumeLifecycleModes")), NONE),
        it.age()
    ]
}

fn attachment(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        it.name(),
        it.text("spec.attacher"),
        it.text("spec.source.persistentVolumeName"),
        it.text("spec.nodeName"),
        it.flag("status.attached").unwrap_or(false),
        it.age()
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::shows;

    const GROUP: &str = "storage.k8s.io";
    const GOING: &str = r#","deletionTimestamp":"2024-05-01T12:09:00Z""#;

    #[test]
    fn volumes_show_their_claims() {
        let object = |meta: &str, spec: &str| {
            format!(
                r#"{{"metadata":{{"name":"v"{meta}}},"spec":{{{spec}}},"status":{{"phase":"Bound","reason":"why"}}}}"#
            )
        };
        let spec = r#""capacity":{"storage":"1Gi"},"accessModes":["ReadOnlyMany","ReadWriteOnce","ReadOnlyMany","ReadWriteOncePod"],
            "persistentVolumeReclaimPolicy":"Retain","claimRef":{"namespace":"n","name":"c"},"storageClassName":"s",
            "volumeAttributesClassName":"a","volumeMode":"Block""#;
        let row = r#"["v","1Gi","RWO,ROX,RWOP","Retain","Bound","n/c","s","a","why","<unknown>","Block"]"#;
        shows("", "PersistentVolume", &object("", spec), row);
        let annotated = r#","annotations":{"volume.beta.kubernetes.io/storage-class":"old"}"#;
        shows("", "PersistentVolume", &object(annotated, spec), &row.replace("\"s\"", "\"old\""));
        shows(
            "",
            "PersistentVolume",
            &object(GOING, ""),
            r#"["v","0","","","Terminating","","","<unset>","why","<unknown>","<unset>"]"#,
        );
    }

    #[test]
    fn claims_show_size_and_modes_once_they_are_bound() {
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
            (GOING, bound, r#"["c","Terminating","v","2Gi","RWX","s","<unset>","<unknown>","Filesystem"]"#),
        ] {
            shows("", "PersistentVolumeClaim", &object(meta, spec), row);
        }
        let nothing_measured = r#"{"spec":{"volumeName":"v"}}"#;
        let row = r#"["","","v","0","","","<unset>","<unknown>","<unset>"]"#;
        shows("", "PersistentVolumeClaim", nothing_measured, row);
    }

    #[test]
    fn classes_tell_which_is_the_default() {
        let object = |annotations: &str, rest: &str| {
            format!(r#"{{"metadata":{{"name":"s","annotations":{{{annotations}}}}}{rest}}}"#)
        };
        let default = r#""storageclass.kubernetes.io/is-default-class":"true""#;
        shows(
            GROUP,
            "StorageClass",
            &object(default, r#","provisioner":"p""#),
            r#"["s (default)","p","Delete","Immediate",false,"<unknown>"]"#,
        );
        shows(
            GROUP,
            "StorageClass",
            &object(
                r#""storageclass.beta.kubernetes.io/is-default-class":"false""#,
                r#","provisioner":"p","reclaimPolicy":"Retain","volumeBindingMode":"WaitForFirstConsumer","allowVolumeExpansion":true"#,
            ),
            r#"["s","p","Retain","WaitForFirstConsumer",true,"<unknown>"]"#,
        );
        shows(
            GROUP,
            "VolumeAttributesClass",
            &object(
                r#""volumeattributesclass.alpha.kubernetes.io/is-default-class":"true""#,
                r#","driverName":"d""#,
            ),
            r#"["s (default)","d","<unknown>"]"#,
        );
        shows(GROUP, "VolumeAttributesClass", &object(default, ""), r#"["s","","<unknown>"]"#);
    }

    #[test]
    fn drivers_and_what_they_do() {
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
            shows(GROUP, kind, &object(rest), row);
        }
    }
}
