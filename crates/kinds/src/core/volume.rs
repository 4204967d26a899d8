//! The volumes of pods and templates.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::{meta, names};

use super::env::{validate_field_ref, validate_resource_field_ref};
use super::volume_claim;
use super::volume_source::{self, Owner, validate_relative_path};
use crate::allowed::core_v1;
use crate::certificates;

const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const MAX_MODE: i64 = 0o777;

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
    /// Checks volumes and returns the valid ones. `pod` is the name of the pod, empty in templates: the names of ephemeral
    /// claims begin with it.
    pub fn validate(list: &FieldValue<'a>, pod: &str, errors: &mut ErrorList) -> Volumes<'a> {
        let mut valid = Volumes::default();
        let ephemeral_names: BTreeSet<&str> = list
            .value
            .items()
            .iter()
            .filter(|volume| !pod.is_empty() && volume.get("ephemeral").is_some())
            .map(|volume| volume.str("name"))
            .collect();
        let is_ephemeral_claim = |claim: &str| {
            let name = claim.strip_prefix(pod).and_then(|rest| rest.strip_prefix('-'));
            name.is_some_and(|name| ephemeral_names.contains(name))
        };
        for volume in list.items() {
            // Messages contain the name of the pod, which can be long, so stop when the list is full.
            if errors.is_full() {
                break;
            }
            let error_count = errors.len();
            let source = validate_source(&volume, pod, errors);
            let name = volume.child("name");
            name.need_syntax(errors, names::dns_label);
            if valid.contains(name.text()) {
                name.duplicate(errors);
            }
            if errors.len() == error_count {
                valid.0.insert(name.text(), source);
            }
            if let Some(claim) = volume.opt("persistentVolumeClaim")
                && is_ephemeral_claim(claim.str("claimName"))
            {
                let detail = "must not reference a PVC that gets created for an ephemeral volume";
                claim.child("claimName").invalid_text(errors, detail);
            }
        }
        valid
    }
}

/// Checks the source of a volume and returns its type.
fn validate_source(volume: &FieldValue<'_>, pod: &str, errors: &mut ErrorList) -> &'static str {
    let mut source_kind = "";
    for kind in SOURCES {
        let Some(source) = volume.opt(kind) else { continue };
        if source_kind.is_empty() {
            source_kind = kind;
            validate_source_fields(kind, &source, volume, pod, errors);
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
            volume_source::validate_portal_length(volume, &source, errors);
        }
    }
    if source_kind.is_empty() {
        volume.required(errors, "must specify a volume type");
    }
    source_kind
}

/// Checks a source that only pods have, or one that they share with persistent volumes.
fn validate_source_fields(
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
            validate_relative_path(&source.child("directory"), errors);
        }
        "secret" => validate_keyed_source(source, "secretName", errors),
        "configMap" => validate_keyed_source(source, "name", errors),
        "downwardAPI" => {
            validate_mode(source, "defaultMode", errors);
            for file in source.child("items").items() {
                validate_downward_file(&file.named(source.path.clone()), errors);
            }
        }
        "projected" => validate_projected(source, errors),
        "image" => {
            // Not checked in templates, where the name of the pod is unknown.
            if !pod.is_empty() {
                source.child("reference").need(errors);
            }
            source.text_among("pullPolicy", errors, core_v1::ImageVolumeSource::PULL_POLICY);
        }
        "ephemeral" => {
            validate_ephemeral(source, errors);
            let name = volume.str("name");
            if !pod.is_empty() && !name.is_empty() {
                let claim = format!("{pod}-{name}");
                for detail in names::dns_subdomain(&claim) {
                    let detail = format!("PVC name {}: {detail}", quoted(&claim));
                    volume.child("name").invalid_text(errors, &detail);
                }
            }
        }
        _ => volume_source::validate(kind, source, Owner::Pod, errors),
    }
}

fn validate_mode(source: &FieldValue<'_>, field: &str, errors: &mut ErrorList) {
    if let Some(node) = source.opt(field)
        && !(0..=MAX_MODE).contains(&node.number())
    {
        node.invalid(errors, FILE_MODE);
    }
}

fn validate_ephemeral(source: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(template) = source.opt("volumeClaimTemplate") else {
        source.child("volumeClaimTemplate").required(errors, "");
        return;
    };
    let metadata = template.child("metadata");
    let (annotations, labels) = (metadata.child("annotations"), metadata.child("labels"));
    meta::validate_annotations(Some(annotations.value), &annotations.path, errors);
    meta::validate_labels(Some(labels.value), &labels.path, errors);
    for path in forbidden_metadata(&metadata) {
        errors.push(FieldError::forbidden(&path, "cannot be set"));
    }
    volume_claim::validate_spec(&template.child("spec"), errors);
}

/// The metadata fields that an ephemeral claim template must not have, in the order of validation.
fn forbidden_metadata(metadata: &FieldValue<'_>) -> Vec<FieldPath> {
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
    let set_fields = order.iter().filter(|(field, _)| metadata.child(field).is_set());
    set_fields.map(|(_, rendered)| metadata.path.child(rendered)).collect()
}

/// Checks a Secret or ConfigMap source.
fn validate_keyed_source(source: &FieldValue<'_>, name: &str, errors: &mut ErrorList) {
    source.child(name).need(errors);
    validate_mode(source, "defaultMode", errors);
    for item in source.child("items").items() {
        validate_key_to_path(&item, errors);
    }
}

fn validate_key_to_path(item: &FieldValue<'_>, errors: &mut ErrorList) {
    item.child("key").need(errors);
    item.child("path").need(errors);
    validate_file_path(&item.child("path"), errors);
    validate_mode(item, "mode", errors);
}

fn validate_downward_file(file: &FieldValue<'_>, errors: &mut ErrorList) {
    file.child("path").need(errors);
    validate_file_path(&file.child("path"), errors);
    let (field, resource) = (file.child("fieldRef"), file.child("resourceFieldRef"));
    if field.is_set() {
        validate_field_ref(&field, &FILE_FIELDS, errors);
        if resource.is_set() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(&file.path, "\"resource\"", detail));
        }
    } else if resource.is_set() {
        validate_resource_field_ref(&resource, true, errors);
    } else {
        file.required(errors, "one of fieldRef and resourceFieldRef is required");
    }
    validate_mode(file, "mode", errors);
}

fn validate_projected(source: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_mode(source, "defaultMode", errors);
    let mut paths = BTreeSet::new();
    let mut claim_path = |path: &str, owner: &str, errors: &mut ErrorList| {
        if !path.is_empty() && !paths.insert(path.to_owned()) {
            errors.add(|| FieldError::invalid(&source.path, &quoted(owner), "conflicting duplicate paths"));
        }
    };
    for projection in source.child("sources").items() {
        let mut kind_count = 0;
        for kind in ["secret", "configMap"] {
            let keyed = projection.child(kind);
            if keyed.is_set() {
                kind_count += 1;
                keyed.child("name").need(errors);
                for item in keyed.child("items").items() {
                    validate_key_to_path(&item, errors);
                    claim_path(item.child("path").text(), keyed.child("name").text(), errors);
                }
            }
        }
        let downward = projection.child("downwardAPI");
        if downward.is_set() {
            kind_count += 1;
            for file in downward.child("items").items() {
                validate_downward_file(
                    &FieldValue { value: file.value, path: downward.path.clone() },
                    errors,
                );
                claim_path(file.child("path").text(), file.child("path").text(), errors);
            }
        }
        let token = projection.child("serviceAccountToken");
        if token.is_set() {
            kind_count += 1;
            validate_token(source, &token, errors);
        }
        let bundle = projection.child("clusterTrustBundle");
        if bundle.is_set() {
            kind_count += 1;
            validate_trust_bundle(&bundle, errors);
            let path = bundle.child("path");
            claim_path(path.text(), path.text(), errors);
        }
        if kind_count > 1 {
            projection.forbidden(errors, "may not specify more than 1 volume type per source");
        }
    }
}

fn validate_trust_bundle(bundle: &FieldValue<'_>, errors: &mut ErrorList) {
    let (name, signer, labels) =
        (bundle.child("name"), bundle.child("signerName"), bundle.child("labelSelector"));
    match (name.is_set(), signer.is_set()) {
        (true, true) => {
            let (rendered, detail) =
                ("core.ClusterTrustBundleProjection{}", "only one of name and signerName may be used");
            errors.push(FieldError::invalid(&bundle.path, rendered, detail));
        }
        (true, false) => {
            if name.is_empty() {
                name.required(errors, "must be a valid object name");
            }
            // A name with colons contains the signer.
            let signer =
                name.text().rsplit_once(':').map_or(String::new(), |(signer, _)| signer.replace(':', "/"));
            for detail in certificates::bundle_name_errors(name.text(), &signer) {
                name.invalid_text(errors, &format!("not a valid clustertrustbundlename: {detail}"));
            }
            if labels.is_set() {
                let detail = "labelSelector must be unset if name is specified";
                errors.push(FieldError::invalid(&labels.path, "v1.LabelSelector{}", detail));
            }
        }
        (false, true) => {
            if signer.is_empty() {
                signer.required(errors, "must be a valid signer name");
            }
            certificates::validate_signer_name(&signer, errors);
            label_selector::validate(&labels, errors);
        }
        (false, false) => bundle.required(errors, "either name or signerName must be specified"),
    }
    let path = bundle.child("path");
    path.need(errors);
    validate_file_path(&path, errors);
}

fn validate_token(volume: &FieldValue<'_>, token: &FieldValue<'_>, errors: &mut ErrorList) {
    const MIN_SECONDS: i64 = 600;
    const MAX_SECONDS: i64 = 1 << 32;
    let seconds = token.child("expirationSeconds");
    if seconds.int().is_some_and(|seconds| seconds < MIN_SECONDS) {
        seconds.invalid(errors, "may not specify a duration less than 10 minutes");
    }
    if seconds.number() > MAX_SECONDS {
        seconds.invalid(errors, "may not specify a duration larger than 2^32 seconds");
    }
    let path = FieldValue { value: token.child("path").value, path: volume.path.child("path") };
    if path.need(errors) {
        validate_file_path(&path, errors);
    }
}

/// Checks the path of a file in a volume: names that start with two dots are reserved.
fn validate_file_path(path: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_relative_path(path, errors);
    if path.text().starts_with("..") && !path.text().starts_with("../") {
        path.invalid_text(errors, "must not start with '..'");
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn pod_volume_validation_refuses_each_violation() {
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
                Volumes::validate(&FieldValue::top_level(object, "v"), "p", errors);
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
