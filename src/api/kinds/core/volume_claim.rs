//! Persistent volumes and the claims to them.

use super::{affinity, pod_warn};
use crate::api::field::{FieldError, Path};
use crate::api::kinds::check::{Node, fill, fill_text, same};
use crate::api::kinds::{Errors, Occasion, Warned, selector};
use crate::api::value::Value;
use crate::api::{meta, names};

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// The class of a volume before there was a field for it.
pub const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const FIXED: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
/// The kinds of volumes in the order in which they are looked at.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// The defaults of a claim.
pub fn default_claim(claim: &mut Value) {
    fill_text(claim.entry("status"), "phase", "Pending");
    fill(claim.entry("spec"), "volumeMode", "Filesystem");
}

/// A new claim waits for its volume, and both ways of naming a source say the same.
pub fn prepare_claim(claim: &mut Value, _: &Occasion<'_>) {
    claim.entry("status").set("phase", "Pending");
    normalize_sources(claim);
}

/// Both ways of naming a source say the same in an update, too.
pub fn prepare_claim_update(claim: &mut Value, _: &Value, _: &Occasion<'_>) {
    normalize_sources(claim);
}

fn normalize_sources(claim: &mut Value) {
    let spec = claim.entry("spec");
    match (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned()) {
        (Some(source), None) => spec.set("dataSourceRef", source),
        (None, Some(source)) if source.str("namespace").is_empty() => spec.set("dataSource", source),
        _ => {}
    }
}

/// Checks the spec of a claim.
pub fn validate_spec(spec: &Node<'_>, errors: &mut Errors) {
    let modes = spec.child("accessModes");
    if modes.is_empty() {
        modes.required(errors, "at least 1 access mode is required");
    }
    selector::validate(&spec.child("selector"), errors);
    access_modes(&modes, errors);
    let size = Node {
        value: spec.child("resources").child("requests").child("storage").value,
        path: spec.child("resources").path.key("storage"),
    };
    match size.amount() {
        None => size.required(errors, ""),
        Some(amount) if amount.is_negative() || amount.is_zero() => {
            size.invalid(errors, "must be greater than zero");
        }
        Some(_) => {}
    }
    spec.child("storageClassName").syntax_if_set(errors, names::dns_subdomain);
    spec.child("volumeMode").one_of_if_set(errors, &["Block", "Filesystem"]);
    for field in ["dataSource", "dataSourceRef"] {
        data_source(&spec.child(field), errors);
    }
}

fn access_modes(modes: &Node<'_>, errors: &mut Errors) {
    let (mut alone, mut shared) = (false, false);
    for mode in modes.items() {
        let known = MODES.contains(&mode.text());
        if !known {
            errors.push(FieldError::not_supported(&modes.path, &mode.shown(), &MODES));
        }
        alone |= mode.text() == "ReadWriteOncePod";
        shared |= known && mode.text() != "ReadWriteOncePod";
    }
    if alone && shared {
        modes.forbidden(errors, "may not use ReadWriteOncePod with other access modes");
    }
}

fn data_source(source: &Node<'_>, errors: &mut Errors) {
    if !source.is_set() {
        return;
    }
    source.child("name").need(errors);
    source.child("kind").need(errors);
    if source.child("apiGroup").is_empty() && source.child("kind").text() != "PersistentVolumeClaim" {
        let wrong = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.push(FieldError::invalid(
            &source.path,
            &crate::api::field::quoted(source.child("kind").text()),
            wrong,
        ));
    }
    source.child("apiGroup").syntax_if_set(errors, names::dns_subdomain);
}

/// Warns about a claim.
pub fn warn_claim(claim: &Value, _old: Option<&Value>, warned: &mut Warned) {
    if meta::of(claim).at(&["annotations", BETA_CLASS]).is_some() {
        let path = Path::new("metadata").child("annotations").key(BETA_CLASS);
        warned.push(format!("{path}: deprecated since v1.8; use \"storageClassName\" attribute instead"));
    }
    if let Some(spec) = claim.get("spec") {
        warn_spec(&Path::new("spec"), spec, warned);
    }
}

/// Warns about parts of a byte in what a claim asks for.
pub fn warn_spec(path: &Path, spec: &Value, warned: &mut Warned) {
    for part in ["requests", "limits"] {
        if let Some(amounts) = spec.at(&["resources", part]) {
            pod_warn::fractions(&path.child("resources").child(part), amounts, &["storage"], warned);
        }
    }
}

/// Checks a claim.
pub fn validate_claim(claim: &Value, errors: &mut Errors) {
    validate_spec(&Node::of(claim, "spec"), errors);
}

/// Checks a changed claim: once bound it may only grow.
pub fn validate_claim_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_claim(new, errors);
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    let mut rest = spec.value.clone();
    let mut base = was.value.clone();
    normalize_pair(&mut base);
    if was.child("volumeName").is_empty() {
        meta::copy(&mut base, &rest, "volumeName");
    }
    if !was.child("storageClassName").is_set() && spec.child("storageClassName").is_set() {
        rest.remove("storageClassName");
    }
    if new.at(&["status", "phase"]).and_then(Value::as_str) == Some("Bound") {
        let size = was.value.at(&["resources", "requests", "storage"]).cloned().unwrap_or_default();
        rest.entry("resources").entry("requests").set("storage", size);
        meta::copy(&mut rest, &base, "volumeAttributesClassName");
    }
    if !same(Some(&rest), Some(&base)) {
        spec.forbidden(errors, FIXED);
    }
    let size = |spec: &Node<'_>| spec.child("resources").child("requests").child("storage").amount();
    let capacity = Node::of(old, "status").child("capacity").child("storage").amount().unwrap_or_default();
    if let (Some(new), Some(old)) = (size(&spec), size(&was))
        && new < old
        && new <= capacity
    {
        let path = spec.child("resources").child("requests").child("storage").path;
        errors.push(FieldError::forbidden(&path, "field can not be less than status.capacity"));
    }
    let mode = Node { value: spec.child("volumeMode").value, path: Path::new("volumeMode") };
    mode.unchanged(&was.child("volumeMode"), errors);
}

fn normalize_pair(spec: &mut Value) {
    let mut holder = Value::object();
    holder.set("spec", std::mem::take(spec));
    normalize_sources(&mut holder);
    *spec = holder.remove("spec").unwrap_or_default();
}

/// The defaults of a volume.
pub fn default_volume(volume: &mut Value) {
    fill_text(volume.entry("status"), "phase", "Pending");
    let spec = volume.entry("spec");
    fill_text(spec, "persistentVolumeReclaimPolicy", "Retain");
    fill(spec, "volumeMode", "Filesystem");
    if let Some(path) = crate::api::kinds::check::present_mut(spec, "hostPath") {
        fill(path, "type", "");
    }
}

/// A new volume waits for its claim.
pub fn prepare_volume(volume: &mut Value, occasion: &Occasion<'_>) {
    let status = volume.entry("status");
    status.set("phase", "Pending");
    status.set("lastPhaseTransitionTime", occasion.now);
}

/// A change of the phase is dated.
pub fn prepare_volume_status(new: &mut Value, old: &Value, occasion: &Occasion<'_>) {
    let was = old.get("status").cloned().unwrap_or_default();
    let status = new.entry("status");
    let time = "lastPhaseTransitionTime";
    if status.str("phase") == was.str("phase") {
        if status.get(time).is_none() {
            meta::copy(status, &was, time);
        }
    } else if status.get(time).is_none() || status.get(time) == was.get(time) {
        status.set(time, occasion.now);
    }
}

/// Checks a volume.
pub fn validate_volume(volume: &Value, errors: &mut Errors) {
    let spec = Node::of(volume, "spec");
    let modes = spec.child("accessModes");
    modes.need(errors);
    access_modes(&modes, errors);
    let capacity = spec.child("capacity");
    let shown = if capacity.need(errors) { capacity.shown() } else { "core.ResourceList(nil)".to_owned() };
    if !capacity.child("storage").is_set() || capacity.len() > 1 {
        errors.push(FieldError::not_supported(&capacity.path, &shown, &["storage"]));
    }
    for (_, amount) in capacity.entries() {
        if amount.amount().is_some_and(|amount| amount.is_negative() || amount.is_zero()) {
            amount.invalid(errors, "must be greater than zero");
        }
    }
    let policies = ["Delete", "Recycle", "Retain"];
    spec.child("persistentVolumeReclaimPolicy").one_of_if_set(errors, &policies);
    let required = spec.child("nodeAffinity").child("required");
    if spec.child("nodeAffinity").is_set() {
        if required.is_set() {
            affinity::node_selector(&required, errors);
        } else {
            required.required(errors, "must specify required node constraints");
        }
    }
    volume_source(&spec, errors);
    spec.child("storageClassName").syntax_if_set(errors, names::dns_subdomain);
    spec.child("volumeMode").one_of_if_set(errors, &["Block", "Filesystem"]);
}

fn volume_source(spec: &Node<'_>, errors: &mut Errors) {
    let mut found = false;
    for kind in SOURCES {
        let source = spec.child(kind);
        if !source.is_set() {
            continue;
        }
        if found {
            source.forbidden(errors, "may not specify more than 1 volume type");
            continue;
        }
        found = true;
        match kind {
            "hostPath" | "local" if source.child("path").is_empty() => {
                source.child("path").required(errors, "");
            }
            "nfs" => {
                source.child("server").need(errors);
                source.child("path").need(errors);
            }
            "csi" => {
                source.child("driver").need(errors);
                source.child("volumeHandle").need(errors);
            }
            _ => {}
        }
        if kind == "local" && !spec.child("nodeAffinity").is_set() {
            spec.child("nodeAffinity").required(errors, "Local volume requires node affinity");
        }
    }
    if !found {
        spec.required(errors, "must specify a volume type");
    }
}

/// Checks a changed volume: what it is made of stays.
pub fn validate_volume_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_volume(new, errors);
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    let changed = SOURCES.iter().any(|kind| {
        let unsized_csi = |source: Option<&Value>| {
            let mut source = source.cloned().unwrap_or_default();
            if *kind == "csi" {
                source.remove("controllerExpandSecretRef");
            }
            source
        };
        !same(Some(&unsized_csi(spec.value.get(kind))), Some(&unsized_csi(was.value.get(kind))))
    });
    if changed {
        let path = Path::new("spec").child("persistentvolumesource");
        errors.push(FieldError::forbidden(&path, "spec.persistentvolumesource is immutable after creation"));
    }
    let mode = Node { value: spec.child("volumeMode").value, path: Path::new("volumeMode") };
    mode.unchanged(&was.child("volumeMode"), errors);
    if was.child("nodeAffinity").is_set() {
        Node { value: spec.child("nodeAffinity").value, path: Path::new("nodeAffinity") }
            .unchanged(&was.child("nodeAffinity"), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    fn claim() -> Value {
        object(
            r#"{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},
                "volumeMode":"Filesystem","storageClassName":"a"}}"#,
        )
    }

    #[test]
    fn each_rule_of_a_claim_refuses() {
        each_refused(
            &claim(),
            validate_claim,
            &[
                (
                    "spec.accessModes",
                    "[]",
                    "spec.accessModes: Required value: at least 1 access mode is required",
                ),
                ("spec.accessModes", r#"["X"]"#, "spec.accessModes: Unsupported value: \"X\""),
                (
                    "spec.accessModes",
                    r#"["ReadWriteOnce","ReadWriteOncePod"]"#,
                    "may not use ReadWriteOncePod with other",
                ),
                ("spec.resources", "null", "spec.resources[storage]: Required value"),
                (
                    "spec.resources.requests.storage",
                    r#""0""#,
                    "spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
                ),
                ("spec.storageClassName", r#""A""#, "spec.storageClassName: Invalid value"),
                ("spec.volumeMode", r#""X""#, "\"Block\", \"Filesystem\""),
                (
                    "spec.dataSource",
                    r#"{"kind":"X","name":"x"}"#,
                    "must be 'PersistentVolumeClaim' when referencing",
                ),
            ],
        );
        each_change_refused(
            &claim(),
            validate_claim_update,
            &[
                (
                    "spec.storageClassName",
                    r#""b""#,
                    "spec: Forbidden: spec is immutable after creation except",
                ),
                ("spec.resources.requests.storage", r#""2Gi""#, FIXED),
            ],
        );
    }

    #[test]
    fn a_bound_claim_may_grow() {
        let mut old = claim();
        old.entry("status").set("phase", "Bound");
        old.entry("status").entry("capacity").set("storage", "1Gi");
        let mut new = old.clone();
        new.entry("spec").entry("resources").entry("requests").set("storage", "2Gi");
        let mut errors = Errors::new();
        validate_claim_update(&new, &old, &mut errors);
        assert_eq!(errors, []);
        new.entry("spec").entry("resources").entry("requests").set("storage", "1Mi");
        validate_claim_update(&new, &old, &mut errors);
        assert_eq!(errors[0].message, "Forbidden: field can not be less than status.capacity");
    }

    #[test]
    fn each_rule_of_a_volume_refuses() {
        let base = object(
            r#"{"spec":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"1Gi"},"hostPath":{"path":"/x"},
                "persistentVolumeReclaimPolicy":"Retain","volumeMode":"Filesystem"}}"#,
        );
        each_refused(
            &base,
            validate_volume,
            &[
                ("spec.accessModes", "[]", "spec.accessModes: Required value"),
                ("spec.capacity", r#"{"cpu":"1"}"#, "supported values: \"storage\""),
                ("spec.capacity.storage", r#""-1""#, "must be greater than zero"),
                ("spec.hostPath", "null", "spec: Required value: must specify a volume type"),
                ("spec.hostPath.path", "null", "spec.hostPath.path: Required value"),
                ("spec.nfs", r#"{"server":"s","path":"/"}"#, "may not specify more than 1 volume type"),
                ("spec.persistentVolumeReclaimPolicy", r#""X""#, "\"Delete\", \"Recycle\", \"Retain\""),
                ("spec.nodeAffinity", r#"{"x":1}"#, "must specify required node constraints"),
            ],
        );
        each_change_refused(
            &base,
            validate_volume_update,
            &[
                ("spec.hostPath.path", r#""/y""#, "spec.persistentvolumesource is immutable after creation"),
                ("spec.volumeMode", r#""Block""#, "volumeMode: Invalid value: \"Block\": field is immutable"),
            ],
        );
    }
}
