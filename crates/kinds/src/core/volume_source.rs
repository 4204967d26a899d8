//! The volume sources that pods and persistent volumes share.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;

use crate::allowed::core_v1::{AzureDiskVolumeSource, HostPathVolumeSource};

const PARTITIONS: (i64, i64) = (0, 255);
const MAX_PORTAL_LENGTH: usize = 64;
const PORTAL_TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
    iscsi.initiatorName is specified.";
const HOST_PORT_PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
const MANAGED_DISK: &str =
    "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
const BLOB_DISK: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";

/// The owner of a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    /// A pod or a template.
    Pod,
    /// A persistent volume of this name. Its secret references have a namespace.
    Volume(&'a str),
}

impl Owner<'_> {
    fn is_volume(self) -> bool {
        self != Owner::Pod
    }
}

/// Sources that only have required fields to check.
const REQUIRED_FIELDS: [(&str, &[&str]); 9] = [
    ("persistentVolumeClaim", &["claimName"]),
    ("glusterfs", &["endpoints", "path"]),
    ("rbd", &["monitors", "image"]),
    ("cephfs", &["monitors"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
];

/// Checks a source that pods and persistent volumes share.
pub fn validate(kind: &str, source: &FieldValue<'_>, owner: Owner<'_>, errors: &mut ErrorList) {
    for (_, fields) in REQUIRED_FIELDS.iter().filter(|(needed, _)| *needed == kind) {
        for field in *fields {
            source.child(field).need(errors);
        }
    }
    match kind {
        "hostPath" => validate_host_path(source, errors),
        "gcePersistentDisk" => validate_disk(source, "pdName", errors),
        "awsElasticBlockStore" => validate_disk(source, "volumeID", errors),
        "nfs" => validate_nfs(source, errors),
        "iscsi" => validate_iscsi(source, owner, errors),
        "glusterfs" if owner.is_volume() => validate_gluster_namespace(source, errors),
        "flocker" => validate_flocker(source, errors),
        "cinder" => {
            source.child("volumeID").need(errors);
            validate_secret(source, owner, errors);
        }
        "quobyte" => validate_quobyte(source, errors),
        "fc" => validate_fibre_channel(source, errors),
        "flexVolume" => validate_flex_volume(source, errors),
        "azureFile" if owner.is_volume() => {
            if let Some(namespace) = source.opt("secretNamespace") {
                namespace.need(errors);
            }
        }
        "azureDisk" => validate_azure_disk(source, errors),
        "storageos" => validate_storage_os(source, owner, errors),
        "csi" => validate_csi(source, owner, errors),
        _ => {}
    }
}

fn validate_host_path(source: &FieldValue<'_>, errors: &mut ErrorList) {
    if !source.child("path").need(errors) {
        return;
    }
    validate_no_backsteps(&source.child("path"), errors);
    source.child("type").one_of_if_set(errors, HostPathVolumeSource::TYPE);
}

/// Checks a cloud disk.
fn validate_disk(source: &FieldValue<'_>, name: &str, errors: &mut ErrorList) {
    // Errors of this source have the path of an older version.
    let path = if name == "pdName" {
        let text = source.path.to_string();
        let parent = text.rsplit_once('.').map_or("", |(parent, _)| parent);
        pilothouse_apimachinery::field::FieldPath::new(parent).child("persistentDisk")
    } else {
        source.path.clone()
    };
    let source = source.named(path);
    source.child(name).need(errors);
    let partition = source.child("partition");
    if !(PARTITIONS.0..=PARTITIONS.1).contains(&partition.number()) {
        partition.invalid(errors, &names::outside(1, PARTITIONS.1));
    }
}

fn validate_nfs(source: &FieldValue<'_>, errors: &mut ErrorList) {
    source.child("server").need(errors);
    let path = source.child("path");
    path.need(errors);
    if !path.text().starts_with('/') {
        path.invalid_text(errors, "must be an absolute path");
    }
}

/// Whether a string is an iSCSI name: iqn, eui or naa.
fn is_iscsi_name(text: &str) -> bool {
    let is_hex_name = |scheme: &str, length: usize| {
        text.strip_prefix(scheme).is_some_and(|rest| {
            let mut characters = rest.chars();
            characters.next().is_some_and(|first| first != '\n')
                && characters.as_str().len() == length
                && characters.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
    };
    let is_iqn = |rest: &str| -> bool {
        let bytes = rest.as_bytes();
        let has_date = bytes.get(..8).is_some_and(|date| {
            date.iter().enumerate().all(|(index, byte)| match index {
                4 => *byte == b'-',
                7 => *byte == b'.',
                _ => byte.is_ascii_digit(),
            })
        });
        let Some((authority, name)) = rest.get(8..).and_then(|rest| rest.split_once(':')) else {
            return false;
        };
        let forbidden =
            |c: char| matches!(c, ',' | ';' | '*' | '&' | '$' | '|' | ' ' | '\t' | '\n' | '\r' | '\x0c');
        has_date
            && !authority.is_empty()
            && authority.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
            && !name.is_empty()
            && !name.contains(forbidden)
    };
    match text.get(..3) {
        Some("iqn") => text
            .match_indices("iqn.")
            .any(|(index, prefix)| text.get(index + prefix.len()..).is_some_and(is_iqn)),
        Some("eui") => is_hex_name("eui", 16),
        Some("naa") => is_hex_name("naa", 32),
        _ => false,
    }
}

fn validate_iscsi_name(node: &FieldValue<'_>, owner: Owner<'_>, errors: &mut ErrorList) {
    if is_iscsi_name(node.text()) {
        return;
    }
    let has_scheme = ["iqn", "eui", "naa"].iter().any(|scheme| node.text().starts_with(scheme));
    let detail = if has_scheme || owner.is_volume() {
        "must be valid format"
    } else {
        "must be valid format starting with iqn, eui, or naa"
    };
    node.invalid_text(errors, detail);
}

fn validate_iscsi(source: &FieldValue<'_>, owner: Owner<'_>, errors: &mut ErrorList) {
    let portal = source.child("targetPortal");
    portal.need(errors);
    if let Owner::Volume(name) = owner
        && source.has("initiatorName")
        && portal_is_too_long(name, source)
    {
        portal.named(source.path.child("targetportal")).invalid_text(errors, PORTAL_TOO_LONG);
    }
    if source.child("iqn").need(errors) {
        validate_iscsi_name(&source.child("iqn"), owner, errors);
    }
    if !(0..=255).contains(&source.child("lun").number()) {
        source.child("lun").invalid(errors, &names::outside(0, 255));
    }
    let chap = source.child("chapAuthDiscovery").is_true() || source.child("chapAuthSession").is_true();
    match source.opt("secretRef") {
        None if chap => source.child("secretRef").required(errors, ""),
        Some(secret) if owner.is_volume() => {
            secret.child("name").need(errors);
        }
        _ => {}
    }
    if let Some(initiator) = source.opt("initiatorName") {
        validate_iscsi_name(&initiator.named(source.path.child("initiatorname")), owner, errors);
    }
}

fn portal_is_too_long(volume: &str, source: &FieldValue<'_>) -> bool {
    volume.len() + 1 + source.str("targetPortal").len() > MAX_PORTAL_LENGTH
}

/// Checks the total length of the volume name and the target portal.
pub fn validate_portal_length(volume: &FieldValue<'_>, source: &FieldValue<'_>, errors: &mut ErrorList) {
    if source.has("initiatorName") && portal_is_too_long(volume.str("name"), source) {
        volume.child("name").invalid_text(errors, PORTAL_TOO_LONG);
    }
}

fn validate_gluster_namespace(source: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(namespace) = source.opt("endpointsNamespace") else { return };
    if namespace.is_empty() {
        let detail = "if the endpointnamespace is set, it must be a valid namespace name";
        namespace.invalid_text(errors, detail);
    } else {
        namespace.syntax(errors, names::dns_label);
    }
}

fn validate_flocker(source: &FieldValue<'_>, errors: &mut ErrorList) {
    let (name, uid) = (source.child("datasetName"), source.child("datasetUUID"));
    if name.is_empty() && uid.is_empty() {
        source.required(errors, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !uid.is_empty() {
        let detail = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(FieldError::invalid(&source.path, &quoted("resource"), detail));
    }
    if name.text().contains('/') {
        name.invalid_text(errors, "must not contain '/'");
    }
}

/// Checks a secret reference: the name is required, and for persistent volumes the namespace.
fn validate_secret(source: &FieldValue<'_>, owner: Owner<'_>, errors: &mut ErrorList) {
    let Some(secret) = source.opt("secretRef") else { return };
    secret.child("name").need(errors);
    if owner.is_volume() {
        secret.child("namespace").need(errors);
    }
}

/// Whether a string is `host:port`.
fn is_host_port(text: &str) -> bool {
    match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').is_some_and(|(host, port)| {
            !host.contains('[') && port.strip_prefix(':').is_some_and(|port| !port.contains([':', '[', ']']))
        }),
        None => text
            .split_once(':')
            .is_some_and(|(host, port)| !host.contains(['[', ']']) && !port.contains([':', '[', ']'])),
    }
}

fn validate_quobyte(source: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_TENANT_LENGTH: usize = 64;
    let registry = source.child("registry");
    if registry.is_empty() {
        registry.required(errors, HOST_PORT_PAIRS);
    } else if source.str("tenant").len() > MAX_TENANT_LENGTH {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        source.child("tenant").required(errors, detail);
    } else {
        for _ in registry.text().split(',').filter(|pair| !is_host_port(pair)) {
            registry.invalid_text(errors, HOST_PORT_PAIRS);
        }
    }
    source.child("volume").need(errors);
}

fn validate_fibre_channel(source: &FieldValue<'_>, errors: &mut ErrorList) {
    let (targets, ids) = (source.child("targetWWNs"), source.child("wwids"));
    if targets.is_empty() && ids.is_empty() {
        targets.required(errors, "must specify either targetWWNs or wwids, but not both");
    }
    if !targets.is_empty() && !ids.is_empty() {
        targets.invalid(errors, "targetWWNs and wwids can not be specified simultaneously");
    }
    if targets.is_empty() {
        return;
    }
    let lun = source.child("lun");
    if !lun.is_set() {
        lun.required(errors, "lun is required if targetWWNs is specified");
    } else if !(0..=255).contains(&lun.number()) {
        lun.invalid(errors, &names::outside(0, 255));
    }
}

fn validate_flex_volume(source: &FieldValue<'_>, errors: &mut ErrorList) {
    source.child("driver").need(errors);
    for (key, option) in source.child("options").entries() {
        let namespace = key.split_once('/').map_or(key, |(namespace, _)| namespace).to_lowercase();
        let is_reserved = ["kubernetes.io", "k8s.io"]
            .iter()
            .any(|domain| namespace == *domain || namespace.ends_with(&format!(".{domain}")));
        if is_reserved {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(FieldError::invalid(&option.path, &quoted(key), detail));
        }
    }
}

fn validate_azure_disk(source: &FieldValue<'_>, errors: &mut ErrorList) {
    source.child("diskName").need(errors);
    source.child("diskURI").need(errors);
    source.child("cachingMode").one_of_if_set(errors, AzureDiskVolumeSource::CACHING_MODE);
    let (kind, uri) = (source.child("kind"), source.child("diskURI"));
    kind.one_of_if_set(errors, AzureDiskVolumeSource::KIND);
    let (prefix, form) =
        if kind.text() == "Managed" { ("/subscriptions/", MANAGED_DISK) } else { ("https://", BLOB_DISK) };
    if kind.is_set() && !uri.text().starts_with(prefix) {
        errors.push(FieldError::not_supported(&uri.path, &quoted(uri.text()), &[form]));
    }
}

fn validate_storage_os(source: &FieldValue<'_>, owner: Owner<'_>, errors: &mut ErrorList) {
    source.child("volumeName").need_syntax(errors, names::dns_label);
    source.child("volumeNamespace").syntax_if_set(errors, names::dns_label);
    validate_secret(source, owner, errors);
}

/// Checks the name of a CSI driver.
pub fn validate_driver_name(driver: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_LENGTH: usize = 63;
    driver.need(errors);
    if driver.text().len() > MAX_LENGTH {
        errors.push(FieldError::too_long(&driver.path, MAX_LENGTH));
    }
    let details = names::dns_subdomain(&driver.text().to_lowercase());
    pilothouse_apimachinery::meta::add_invalid(errors, &driver.path, driver.text(), details);
}

fn validate_csi(source: &FieldValue<'_>, owner: Owner<'_>, errors: &mut ErrorList) {
    validate_driver_name(&source.child("driver"), errors);
    if !owner.is_volume() {
        if let Some(secret) = source.opt("nodePublishSecretRef")
            && secret.child("name").need(errors)
        {
            secret.child("name").named(source.path.child("name")).syntax(errors, names::dns_subdomain);
        }
        return;
    }
    source.child("volumeHandle").need(errors);
    let secrets = [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ];
    for secret in secrets.iter().filter_map(|field| source.opt(field)) {
        secret.child("name").need_syntax(errors, names::dns_subdomain);
        secret.child("namespace").need_syntax(errors, names::dns_label);
    }
}

/// Checks that a path contains no `..`.
pub fn validate_no_backsteps(path: &FieldValue<'_>, errors: &mut ErrorList) {
    if path.text().split('/').any(|part| part == "..") {
        path.invalid_text(errors, "must not contain '..'");
    }
}

/// Checks a relative path without `..`.
pub fn validate_relative_path(path: &FieldValue<'_>, errors: &mut ErrorList) {
    if path.text().starts_with('/') {
        path.invalid_text(errors, "must be a relative path");
    }
    validate_no_backsteps(path, errors);
}

#[cfg(test)]
mod tests;
