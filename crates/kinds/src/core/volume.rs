//! The volumes of pods and templates.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::{meta, names};

use super::env::{field_ref, resource_field_ref};
use super::volume_claim;
use super::volume_source::{self, Owner, local_path};
use crate::allowed::core_v1;
use crate::certificates;

const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const LARGEST_MODE: i64 = 0o777;

/// The sources in the order of validation.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// The valid volumes of a pod: name to type of source.
#[derive(Default)]
pub struct Volumes<'a>(BTreeMap<&'a str, &'static str>);

impl Volumes<'_> {
    /// Whether there is a volume of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The type of source of a volume.
    pub fn source(&self, name: &str) -> Option<&'static str> {
        self.0.get(name).copied()
    }
}

impl<'a> Volumes<'a> {
    /// Checks volumes and returns the valid ones. `pod` is the name of the pod, empty in templates: the names of ephemeral claims
    /// begin with it.
    pub fn validate(list: &FieldValue<'a>, pod: &str, errors: &mut ErrorList) -> Volumes<'a> {
        let mut good = Volumes::default();
        let made: BTreeSet<&str> = list
            .value
            .items()
            .iter()
            .filter(|volume| !pod.is_empty() && volume.get("ephemeral").is_some())
            .map(|volume| volume.str("name"))
            .collect();
        let is_made = |claim: &str| {
            let name = claim.strip_prefix(pod).and_then(|rest| rest.strip_prefix('-'));
            name.is_some_and(|name| made.contains(name))
        };
        for volume in list.items() {
            // Claims are named after the pod, whose name is as long as the client likes.
            if errors.is_full() {
                break;
            }
            let before = errors.len();
            let source = source(&volume, pod, errors);
            let name = volume.child("name");
            name.need_syntax(errors, names::dns_label);
            if good.contains(name.text()) {
                name.duplicate(errors);
            }
            if errors.len() == before {
                good.0.insert(name.text(), source);
            }
            if let Some(claim) = volume.opt("persistentVolumeClaim")
                && is_made(claim.str("claimName"))
            {
                let wrong = "must not reference a PVC that gets created for an ephemeral volume";
                claim.child("claimName").invalid_text(errors, wrong);
            }
        }
        good
    }
}

/// Checks the source of a volume and returns its type.
fn source(volume: &FieldValue<'_>, pod: &str, errors: &mut ErrorList) -> &'static str {
    let mut found = "";
    for kind in SOURCES {
        let Some(source) = volume.opt(kind) else { continue };
        if found.is_empty() {
            found = kind;
            own_source(kind, &source, volume, pod, errors);
        } else {
            // The reference calls two of them by other names here, and clients compare paths.
            let name = match kind {
                "cephfs" => "cephFS",
                "downwardAPI" => "downwarAPI",
                kind => kind,
            };
            source
                .named(volume.path.child(name))
                .forbidden(errors, "may not specify more than 1 volume type");
        }
        if kind == "iscsi" {
            volume_source::portal_length(volume, &source, errors);
        }
    }
    if found.is_empty() {
        volume.required(errors, "must specify a volume type");
    }
    found
}

/// Checks a source that only pods have, or one that they share with persistent volumes.
fn own_source(
    kind: &str,
    source: &FieldValue<'_>,
    volume: &FieldValue<'_>,
    pod: &str,
    errors: &mut ErrorList,
) {
    match kind {
        "emptyDir" => {
            if let Some(limit) = source.opt("sizeLimit")
                && limit.amount().is_some_and(|amount| amount.is_negative())
            {
                limit.forbidden(errors, "SizeLimit field must be a valid resource quantity");
            }
        }
        "gitRepo" => {
            source.child("repository").need(errors);
            local_path(&source.child("directory"), errors);
        }
        "secret" => keyed(source, "secretName", errors),
        "configMap" => keyed(source, "name", errors),
        "downwardAPI" => {
            mode(source, "defaultMode", errors);
            for file in source.child("items").items() {
                shown_file(&file.named(source.path.clone()), errors);
            }
        }
        "projected" => projected(source, errors),
        "image" => {
            // Not checked in templates, where the name of the pod is unknown.
            if !pod.is_empty() {
                source.child("reference").need(errors);
            }
            source.text_among("pullPolicy", errors, core_v1::ImageVolumeSource::PULL_POLICY);
        }
        "ephemeral" => {
            ephemeral(source, errors);
            let name = volume.str("name");
            if !pod.is_empty() && !name.is_empty() {
                let claim = format!("{pod}-{name}");
                for wrong in names::dns_subdomain(&claim) {
                    let wrong = format!("PVC name {}: {wrong}", quoted(&claim));
                    volume.child("name").invalid_text(errors, &wrong);
                }
            }
        }
        _ => volume_source::validate(kind, source, Owner::Pod, errors),
    }
}

fn mode(source: &FieldValue<'_>, field: &str, errors: &mut ErrorList) {
    if let Some(node) = source.opt(field)
        && !(0..=LARGEST_MODE).contains(&node.number())
    {
        node.invalid(errors, FILE_MODE);
    }
}

fn ephemeral(source: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(template) = source.opt("volumeClaimTemplate") else {
        source.child("volumeClaimTemplate").required(errors, "");
        return;
    };
    let metadata = template.child("metadata");
    let (annotations, labels) = (metadata.child("annotations"), metadata.child("labels"));
    meta::validate_annotations(Some(annotations.value), &annotations.path, errors);
    meta::validate_labels(Some(labels.value), &labels.path, errors);
    for path in other_metadata(&metadata) {
        errors.push(FieldError::forbidden(&path, "cannot be set"));
    }
    volume_claim::validate_spec(&template.child("spec"), errors);
}

/// The metadata fields that an ephemeral claim template must not have, in the order of validation.
fn other_metadata(metadata: &FieldValue<'_>) -> Vec<FieldPath> {
    let order = [
        ("name", "name"),
        ("generateName", "generateName"),
        ("namespace", "namespace"),
        ("selfLink", "selfLink"),
        ("uid", "uID"),
        ("resourceVersion", "resourceVersion"),
        ("generation", "generation"),
        ("creationTimestamp", "creationTimestamp"),
        ("deletionTimestamp", "deletionTimestamp"),
        ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
        ("ownerReferences", "ownerReferences"),
        ("finalizers", "finalizers"),
        ("managedFields", "managedFields"),
    ];
    // An empty list counts as set.
    let set = order.iter().filter(|(field, _)| metadata.child(field).is_set());
    set.map(|(_, shown)| metadata.path.child(shown)).collect()
}

/// Checks a Secret or ConfigMap source.
fn keyed(source: &FieldValue<'_>, name: &str, errors: &mut ErrorList) {
    source.child(name).need(errors);
    mode(source, "defaultMode", errors);
    for item in source.child("items").items() {
        key_to_path(&item, errors);
    }
}

fn key_to_path(item: &FieldValue<'_>, errors: &mut ErrorList) {
    item.child("key").need(errors);
    item.child("path").need(errors);
    local_file(&item.child("path"), errors);
    mode(item, "mode", errors);
}

fn shown_file(file: &FieldValue<'_>, errors: &mut ErrorList) {
    file.child("path").need(errors);
    local_file(&file.child("path"), errors);
    let (field, resource) = (file.child("fieldRef"), file.child("resourceFieldRef"));
    if field.is_set() {
        field_ref(&field, &FILE_FIELDS, errors);
        if resource.is_set() {
            let wrong = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(&file.path, "\"resource\"", wrong));
        }
    } else if resource.is_set() {
        resource_field_ref(&resource, true, errors);
    } else {
        file.required(errors, "one of fieldRef and resourceFieldRef is required");
    }
    mode(file, "mode", errors);
}

fn projected(source: &FieldValue<'_>, errors: &mut ErrorList) {
    mode(source, "defaultMode", errors);
    let mut paths = BTreeSet::new();
    let mut claim = |path: &str, by: &str, errors: &mut ErrorList| {
        if !path.is_empty() && !paths.insert(path.to_owned()) {
            errors.add(|| FieldError::invalid(&source.path, &quoted(by), "conflicting duplicate paths"));
        }
    };
    for part in source.child("sources").items() {
        let mut kinds = 0;
        for kind in ["secret", "configMap"] {
            let keys = part.child(kind);
            if keys.is_set() {
                kinds += 1;
                keys.child("name").need(errors);
                for item in keys.child("items").items() {
                    key_to_path(&item, errors);
                    claim(item.child("path").text(), keys.child("name").text(), errors);
                }
            }
        }
        let shown = part.child("downwardAPI");
        if shown.is_set() {
            kinds += 1;
            for file in shown.child("items").items() {
                shown_file(&FieldValue { value: file.value, path: shown.path.clone() }, errors);
                claim(file.child("path").text(), file.child("path").text(), errors);
            }
        }
        let token = part.child("serviceAccountToken");
        if token.is_set() {
            kinds += 1;
            projected_token(source, &token, errors);
        }
        let bundle = part.child("clusterTrustBundle");
        if bundle.is_set() {
            kinds += 1;
            trust_bundle(&bundle, errors);
            let path = bundle.child("path");
            claim(path.text(), path.text(), errors);
        }
        if kinds > 1 {
            part.forbidden(errors, "may not specify more than 1 volume type per source");
        }
    }
}

fn trust_bundle(bundle: &FieldValue<'_>, errors: &mut ErrorList) {
    let (name, signer, labels) =
        (bundle.child("name"), bundle.child("signerName"), bundle.child("labelSelector"));
    match (name.is_set(), signer.is_set()) {
        (true, true) => {
            let (shown, wrong) =
                ("core.ClusterTrustBundleProjection{}", "only one of name and signerName may be used");
            errors.push(FieldError::invalid(&bundle.path, shown, wrong));
        }
        (true, false) => {
            if name.is_empty() {
                name.required(errors, "must be a valid object name");
            }
            // A name with colons contains the signer.
            let signer =
                name.text().rsplit_once(':').map_or(String::new(), |(signer, _)| signer.replace(':', "/"));
            for wrong in certificates::bundle_name(name.text(), &signer) {
                name.invalid_text(errors, &format!("not a valid clustertrustbundlename: {wrong}"));
            }
            if labels.is_set() {
                let wrong = "labelSelector must be unset if name is specified";
                errors.push(FieldError::invalid(&labels.path, "v1.LabelSelector{}", wrong));
            }
        }
        (false, true) => {
            if signer.is_empty() {
                signer.required(errors, "must be a valid signer name");
            }
            certificates::signer_name(&signer, errors);
            label_selector::validate(&labels, errors);
        }
        (false, false) => bundle.required(errors, "either name or signerName must be specified"),
    }
    let path = bundle.child("path");
    path.need(errors);
    local_file(&path, errors);
}

fn projected_token(volume: &FieldValue<'_>, token: &FieldValue<'_>, errors: &mut ErrorList) {
    const SHORTEST: i64 = 600;
    const LONGEST: i64 = 1 << 32;
    let seconds = token.child("expirationSeconds");
    if seconds.int().is_some_and(|seconds| seconds < SHORTEST) {
        seconds.invalid(errors, "may not specify a duration less than 10 minutes");
    }
    if seconds.number() > LONGEST {
        seconds.invalid(errors, "may not specify a duration larger than 2^32 seconds");
    }
    let path = FieldValue { value: token.child("path").value, path: volume.path.child("path") };
    if path.need(errors) {
        local_file(&path, errors);
    }
}

/// Checks the path of a file in a volume: names that start with two dots are reserved.
fn local_file(path: &FieldValue<'_>, errors: &mut ErrorList) {
    local_path(path, errors);
    if path.text().starts_with("..") && !path.text().starts_with("../") {
        path.invalid_text(errors, "must not start with '..'");
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn each_rule_of_a_volume_refuses() {
        let base = object(
            r#"{"v":[{"name":"a","emptyDir":{}},{"name":"b","secret":{"secretName":"s","items":[{"key":"k","path":"p"}]}},
                {"name":"c","hostPath":{"path":"/x","type":""}},{"name":"d","persistentVolumeClaim":{"claimName":"c"}},
                {"name":"e","projected":{"sources":[{"serviceAccountToken":{"path":"t","expirationSeconds":600}},
                    {"downwardAPI":{"items":[{"path":"l","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.labels"}}]}}]}},
                {"name":"f","nfs":{"server":"s","path":"/"}},
                {"name":"g","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":["ReadWriteOnce"],
                    "resources":{"requests":{"storage":"1Gi"}}}}}}]}"#,
        );
        each_refused(
            &base,
            |object, errors| {
                Volumes::validate(&FieldValue::of(object, "v"), "p", errors);
            },
            &[
                ("v.0.name", "null", "v[0].name: Required value"),
                ("v.0.name", r#""A""#, "v[0].name: Invalid value: \"A\": a lowercase RFC 1123 label"),
                ("v.1.name", r#""a""#, "v[1].name: Duplicate value: \"a\""),
                ("v.0.emptyDir", "null", "v[0]: Required value: must specify a volume type"),
                (
                    "v.0.secret",
                    r#"{"secretName":"x"}"#,
                    "v[0].secret: Forbidden: may not specify more than 1 volume type",
                ),
                ("v.0.emptyDir.sizeLimit", r#""-1""#, "SizeLimit field must be a valid resource quantity"),
                ("v.1.secret.secretName", "null", "v[1].secret.secretName: Required value"),
                ("v.1.secret.defaultMode", "512", "between 0 and 0777 (octal), both inclusive"),
                ("v.1.secret.items.0.key", "null", "v[1].secret.items[0].key: Required value"),
                ("v.1.secret.items.0.path", r#""/a""#, "must be a relative path"),
                ("v.1.secret.items.0.path", r#""..a""#, "must not start with '..'"),
                ("v.2.hostPath.path", "null", "v[2].hostPath.path: Required value"),
                ("v.2.hostPath.path", r#""/a/..""#, "must not contain '..'"),
                ("v.2.hostPath.type", r#""X""#, "v[2].hostPath.type: Unsupported value: \"X\""),
                ("v.3.persistentVolumeClaim.claimName", "null", "claimName: Required value"),
                (
                    "v.4.projected.sources.0.serviceAccountToken.expirationSeconds",
                    "5",
                    "less than 10 minutes",
                ),
                (
                    "v.4.projected.sources.0.secret",
                    r#"{"name":"s"}"#,
                    "may not specify more than 1 volume type per source",
                ),
                (
                    "v.4.projected.sources.1.downwardAPI.items.0.fieldRef",
                    "null",
                    "one of fieldRef and resourceFieldRef is required",
                ),
                (
                    "v.3.persistentVolumeClaim.claimName",
                    r#""p-g""#,
                    "must not reference a PVC that gets created for an ephemeral volume",
                ),
                ("v.0", r#"{"name":"a","gitRepo":{}}"#, "v[0].gitRepo.repository: Required value"),
                (
                    "v.6.ephemeral.volumeClaimTemplate.metadata",
                    r#"{"name":"x"}"#,
                    "volumeClaimTemplate.metadata.name: Forbidden: cannot be set",
                ),
                (
                    "v.6.ephemeral.volumeClaimTemplate.metadata",
                    r#"{"finalizers":[]}"#,
                    "volumeClaimTemplate.metadata.finalizers: Forbidden: cannot be set",
                ),
                ("v.6.ephemeral.volumeClaimTemplate", "null", "volumeClaimTemplate: Required value"),
                ("v.5.nfs.path", r#""x""#, "v[5].nfs.path: Invalid value: \"x\": must be an absolute path"),
            ],
        );
    }
}
