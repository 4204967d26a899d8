//! Warnings about accepted pods and pod templates.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldPath, quoted};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::nano_quantity::NanoQuantity;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{APPARMOR, SECCOMP_CONTAINER, SECCOMP_POD};

use super::{node_label, volume_claim};
use crate::address;
use crate::limits::WARNING_PAIRS;

const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";
const USE_SECCOMP_FIELD: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";

/// Annotations that have no effect any more.
const IGNORED_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

/// Deprecated volume sources: the field, its name in the message, and the release.
const DEPRECATED_SOURCES: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

fn items_of<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get(field).map(Value::items).unwrap_or_default()
}

/// Warns about the status of a pod.
pub fn warn_status(object: &Value, warnings: &mut WarningList) {
    for field in ["podIPs", "hostIPs"] {
        let path = FieldPath::new("status").child(field);
        let addresses = object.get_path(&["status", field]).map(Value::items).unwrap_or_default();
        for (index, address) in addresses.iter().enumerate() {
            address::warn_ip(&path.index(index).child("ip"), address.str("ip"), warnings);
        }
    }
}

/// Warns about a new pod. Updates of pods warn about nothing.
pub fn warn_pod(pod: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    if old.is_some() {
        return;
    }
    let details = names::dns_label(meta::name(pod));
    if !details.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; \
             a DNS label is recommended: [{}]",
            details.join(" ")
        ));
    }
    warn_spec_and_meta(&FieldPath::root(), pod, false, warnings);
}

/// Warns about a pod or pod template: `object` has metadata and spec, and is at `path`.
pub fn warn_spec_and_meta(path: &FieldPath, object: &Value, is_template: bool, warnings: &mut WarningList) {
    let Some(spec) = object.get("spec") else { return };
    let annotations = meta::metadata(object).get("annotations");
    let spec_path = path.child("spec");
    warn_placement(&spec_path, spec, warnings);
    for (key, warning) in IGNORED_ANNOTATIONS {
        if annotations.is_some_and(|annotations| annotations.get(key).is_some()) {
            warnings.push(format!("{}: {warning}", path.child("metadata").child("annotations").key(key)));
        }
    }
    warn_volumes(&spec_path, spec, warnings);
    warn_duplicates(&spec_path, spec, warnings);
    if let Some(overhead) = spec.get("overhead") {
        warn_fractions(&spec_path.child("overhead"), overhead, &["memory", "ephemeral-storage"], warnings);
    }
    if annotations.is_some_and(|annotations| annotations.get(SECCOMP_POD).is_some())
        && spec.get_path(&["securityContext", "seccompProfile"]).is_none()
    {
        let key = path.child("metadata").child("annotations").key(SECCOMP_POD);
        warnings.push(format!("{key}: {USE_SECCOMP_FIELD}"));
    }
    warn_containers(path, spec, annotations, is_template, warnings);
    warn_ports(&spec_path, spec, warnings);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_int).is_some_and(|seconds| seconds < 0) {
        let field = spec_path.child("terminationGracePeriodSeconds");
        warnings.push(format!("{field}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    warn_pod_affinity(&spec_path, spec, warnings);
    if let Some(config) = spec.get("dnsConfig") {
        for (index, server) in items_of(config, "nameservers").iter().enumerate() {
            let field = spec_path.child("dnsConfig").child("nameservers").index(index);
            address::warn_ip(&field, server.as_str().unwrap_or_default(), warnings);
        }
    }
    for (index, alias) in items_of(spec, "hostAliases").iter().enumerate() {
        address::warn_ip(&spec_path.child("hostAliases").index(index).child("ip"), alias.str("ip"), warnings);
    }
}

fn warn_placement(path: &FieldPath, spec: &Value, warnings: &mut WarningList) {
    for (label, _) in spec.get("nodeSelector").and_then(Value::fields).into_iter().flatten() {
        if let Some(warning) = node_label::deprecated(label) {
            warnings.push(format!("{}: {warning}", path.child("nodeSelector").key(label)));
        }
    }
    if let Some(nodes) = spec.get_path(&["affinity", "nodeAffinity"]) {
        let path = path.child("affinity").child("nodeAffinity");
        if let Some(required) = nodes.get("requiredDuringSchedulingIgnoredDuringExecution") {
            let path =
                path.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
            for (index, term) in items_of(required, "nodeSelectorTerms").iter().enumerate() {
                node_label::warn_term(&path.index(index), term, false, warnings);
            }
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items_of(nodes, preferred).iter().enumerate() {
            if let Some(term) = term.get("preference") {
                let path = path.child(preferred).index(index).child("preference");
                node_label::warn_term(&path, term, true, warnings);
            }
        }
    }
    for (index, constraint) in items_of(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = || path.child("topologySpreadConstraints").index(index);
        let key = constraint.str("topologyKey");
        if let Some(warning) = node_label::deprecated(key) {
            warnings.push(format!("{}: {key} is {warning}", path().child("topologyKey")));
        }
        if constraint.get("labelSelector").is_none() {
            warnings.push(format!("{}: {NULL_SELECTOR}", path().child("labelSelector")));
        }
    }
}

fn warn_volumes(path: &FieldPath, spec: &Value, warnings: &mut WarningList) {
    let volumes = items_of(spec, "volumes");
    for (index, volume) in volumes.iter().enumerate() {
        for (field, rendered, warning) in DEPRECATED_SOURCES {
            if field == "cephfs"
                && let Some(claim) = volume.get_path(&["ephemeral", "volumeClaimTemplate", "spec"])
            {
                let path = path.child("volumes").index(index).child("ephemeral").child("volumeClaimTemplate");
                volume_claim::warn_spec(&path.child("spec"), claim, warnings);
            }
            if volume.get(field).is_some() {
                let still_works = field == "gitRepo" && warnings.features().has(Feature::GitRepoVolumeDriver);
                let warning = if still_works { "deprecated in v1.11" } else { warning };
                warnings.push(format!("{}: {warning}", path.child("volumes").index(index).child(rendered)));
            }
        }
    }
    for volume in volumes {
        warn_volume_overlaps(volume, warnings);
    }
}

/// A path in a projected volume, and its source if the message names it.
struct ProjectedPath<'a> {
    path: &'a str,
    source: Rc<str>,
}

impl<'a> ProjectedPath<'a> {
    fn new(path: &'a str, source: &Rc<str>) -> ProjectedPath<'a> {
        ProjectedPath { path: path.trim_end_matches('/'), source: source.clone() }
    }

    fn render(&self) -> String {
        if self.source.is_empty() {
            quoted(self.path)
        } else {
            format!("{} ({})", quoted(self.path), self.source)
        }
    }

    /// Whether the paths are equal or one contains the other.
    fn overlaps(&self, other: &ProjectedPath<'_>) -> bool {
        let is_below = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        !self.path.is_empty()
            && !other.path.is_empty()
            && (is_below(self.path, other.path) || is_below(other.path, self.path))
    }
}

/// Warns about new paths that overlap with earlier ones, and adds them to those.
fn warn_path_overlaps<'a>(
    volume: &str,
    volume_kind: &str,
    new_paths: Vec<ProjectedPath<'a>>,
    paths: &mut Vec<ProjectedPath<'a>>,
    warnings: &mut WarningList,
) {
    for path in new_paths {
        if paths.len() >= WARNING_PAIRS || warnings.is_full() {
            return;
        }
        for other in paths.iter().filter(|other| path.overlaps(other)) {
            let pair = format!("{} with {}", path.render(), other.render());
            warnings.push(format!("volume {volume} ({volume_kind}): overlapping paths: {pair}"));
        }
        paths.push(path);
    }
}

fn item_paths<'a>(source: &'a Value, source_name: &str) -> Vec<ProjectedPath<'a>> {
    let source_name = Rc::from(source_name);
    items_of(source, "items").iter().map(|item| ProjectedPath::new(item.str("path"), &source_name)).collect()
}

fn warn_volume_overlaps(volume: &Value, warnings: &mut WarningList) {
    let sources =
        [("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"), ("downwardAPI", "", "")];
    for (field, kind, name) in sources {
        let Some(source) = volume.get(field).filter(|source| items_of(source, "items").len() > 1) else {
            continue;
        };
        let volume_kind = if kind.is_empty() {
            "DownwardAPI".to_owned()
        } else {
            format!("{kind} {}", quoted(source.str(name)))
        };
        warn_path_overlaps(
            &quoted(volume.str("name")),
            &volume_kind,
            item_paths(source, ""),
            &mut Vec::new(),
            warnings,
        );
    }
    let Some(projected) = volume.get("projected") else { return };
    let (name, mut paths) = (quoted(volume.str("name")), Vec::new());
    for source in items_of(projected, "sources") {
        let Some(new_paths) = projected_paths(source) else {
            warnings.push(format!("volume {name} (Projected) has no sources provided"));
            continue;
        };
        warn_path_overlaps(&name, "Projected", new_paths, &mut paths, warnings);
    }
}

/// The paths of one source of a projected volume; `None` if it is no source.
fn projected_paths(source: &Value) -> Option<Vec<ProjectedPath<'_>>> {
    if let Some(map) = source.get("configMap") {
        return Some(item_paths(map, &format!("ConfigMap {}", quoted(map.str("name")))));
    }
    if let Some(secret) = source.get("secret") {
        return Some(item_paths(secret, &format!("Secret {}", quoted(secret.str("name")))));
    }
    if let Some(downward) = source.get("downwardAPI") {
        return Some(item_paths(downward, "DownwardAPI"));
    }
    if let Some(token) = source.get("serviceAccountToken") {
        return Some(vec![ProjectedPath::new(token.str("path"), &Rc::from("ServiceAccountToken"))]);
    }
    let bundle = source.get("clusterTrustBundle")?;
    let name = bundle.get("name").or_else(|| bundle.get("signerName")).and_then(Value::as_str);
    let source_name = format!("ClusterTrustBundle {}", quoted(name.unwrap_or_default()));
    Some(vec![ProjectedPath::new(bundle.str("path"), &Rc::from(source_name))])
}

fn warn_duplicates(path: &FieldPath, spec: &Value, warnings: &mut WarningList) {
    for (field, key, label) in [("hostAliases", "ip", "ip"), ("imagePullSecrets", "name", "name")] {
        let mut seen = BTreeSet::new();
        for (index, item) in items_of(spec, field).iter().enumerate() {
            if !seen.insert(item.str(key)) {
                let item_path = path.child(field).index(index).child(key);
                warnings.push(format!("{item_path}: duplicate {label} {}", quoted(item.str(key))));
            }
        }
    }
    for (index, secret) in items_of(spec, "imagePullSecrets").iter().enumerate() {
        if secret.str("name").is_empty() {
            let item_path = path.child("imagePullSecrets").index(index).child("name");
            warnings.push(format!("{item_path}: invalid empty name \"\""));
        }
    }
}

/// Warns about fractional bytes.
pub fn warn_fractions(path: &FieldPath, amounts: &Value, names: &[&str], warnings: &mut WarningList) {
    for name in names {
        let Some(text) = amounts.get(name).and_then(Value::as_str) else { continue };
        if NanoQuantity::parse(text).is_some_and(|amount| !amount.is_whole()) {
            let item_path = path.key(name);
            warnings.push(format!(
                "{item_path}: fractional byte value {} is invalid, must be an integer",
                quoted(text)
            ));
        }
    }
}

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

fn warn_containers(
    path: &FieldPath,
    spec: &Value,
    annotations: Option<&Value>,
    is_template: bool,
    warnings: &mut WarningList,
) {
    let pod_profile = spec.get_path(&["securityContext", "appArmorProfile"]).is_some();
    let has_annotation = |prefix: &str, name: &str| {
        annotations
            .filter(|annotations| annotations.fields().is_some_and(|fields| !fields.is_empty()))
            .is_some_and(|annotations| annotations.get(&format!("{prefix}{name}")).is_some())
    };
    for kind in CONTAINER_LISTS {
        for (index, container) in items_of(spec, kind).iter().enumerate() {
            let name = container.str("name");
            let container_path = || path.child("spec").child(kind).index(index);
            let annotation =
                |prefix: &str| path.child("metadata").child("annotations").key(&format!("{prefix}{name}"));
            if has_annotation(SECCOMP_CONTAINER, name)
                && container.get_path(&["securityContext", "seccompProfile"]).is_none()
            {
                warnings.push(format!("{}: {USE_SECCOMP_FIELD}", annotation(SECCOMP_CONTAINER)));
            }
            let has_profile =
                pod_profile || container.get_path(&["securityContext", "appArmorProfile"]).is_some();
            if is_template && !has_profile && has_annotation(APPARMOR, name) {
                let warning = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
                warnings.push(format!("{}: {warning}", annotation(APPARMOR)));
            }
            if let Some(resources) = container.get("resources") {
                for resource in ["memory", "ephemeral-storage"] {
                    for part in ["limits", "requests"] {
                        if let Some(amounts) = resources.get(part) {
                            warn_fractions(
                                &container_path().child("resources").child(part),
                                amounts,
                                &[resource],
                                warnings,
                            );
                        }
                    }
                }
            }
            warn_hidden_variables(&container_path, items_of(container, "env"), warnings);
        }
    }
}

/// Warns about a variable that is set twice, unless the second value refers to the first.
fn warn_hidden_variables(
    container_path: &dyn Fn() -> FieldPath,
    variables: &[Value],
    warnings: &mut WarningList,
) {
    let mut seen = BTreeSet::new();
    for (index, variable) in variables.iter().enumerate() {
        let (name, value) = (variable.str("name"), variable.str("value"));
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        if variable.get("valueFrom").is_some() || value == reference || !value.contains(&reference) {
            warnings.push(format!(
                "{}: hides previous definition of {}, which may be dropped when using apply",
                container_path().child("env").index(index),
                quoted(name)
            ));
        }
    }
}

/// A port and its position in the spec.
struct PortPosition<'a> {
    kind: &'static str,
    container: usize,
    index: usize,
    port: &'a Value,
}

impl PortPosition<'_> {
    fn path(&self, spec_path: &FieldPath) -> FieldPath {
        spec_path.child(self.kind).index(self.container).child("ports").index(self.index)
    }

    fn number(&self, field: &str) -> i64 {
        self.port.get(field).and_then(Value::as_int).unwrap_or_default()
    }
}

fn warn_ports(spec_path: &FieldPath, spec: &Value, warnings: &mut WarningList) {
    let mut ports: Vec<PortPosition<'_>> = Vec::new();
    for kind in CONTAINER_LISTS {
        for (container, object) in items_of(spec, kind).iter().enumerate() {
            for (index, port) in items_of(object, "ports").iter().enumerate() {
                if ports.len() >= WARNING_PAIRS || warnings.is_full() {
                    break;
                }
                let new = PortPosition { kind, container, index, port };
                warn_port(spec_path, &new, &ports, warnings);
                ports.push(new);
            }
        }
    }
    let mut firsts: BTreeMap<&str, &PortPosition<'_>> = BTreeMap::new();
    for new in ports.iter().filter(|new| !new.port.str("name").is_empty()) {
        let name = new.port.str("name");
        if let Some(first) = firsts.get(name) {
            let (path, first_path) = (new.path(spec_path), first.path(spec_path));
            warnings.push(format!(
                "{path}: duplicate port name {} with {first_path}, services and probes that select ports by name will use {first_path}",
                quoted(name)
            ));
        } else {
            firsts.insert(name, new);
        }
    }
}

fn warn_port(
    spec_path: &FieldPath,
    new: &PortPosition<'_>,
    earlier: &[PortPosition<'_>],
    warnings: &mut WarningList,
) {
    let (ip, host) = (new.port.str("hostIP"), new.number("hostPort"));
    let protocol = new.port.str("protocol");
    if !ip.is_empty() && host == 0 {
        warnings.push(format!(
            "{}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{protocol} HostIP:{ip}}}",
            new.path(spec_path),
            new.port.str("name"),
            new.number("containerPort"),
        ));
    }
    for other in earlier {
        let is_same_port = other.number("containerPort") == new.number("containerPort")
            && other.port.str("protocol") == protocol;
        if !is_same_port {
            continue;
        }
        let (other_ip, other_host) = (other.port.str("hostIP"), other.number("hostPort"));
        let relation = if ip == other_ip && host == other_host {
            "duplicate port definition"
        } else if host == 0 || other_host == 0 {
            "overlapping port definition"
        } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
            "dangerously ambiguous port definition"
        } else {
            continue;
        };
        warnings.push(format!("{}: {relation} with {}", new.path(spec_path), other.path(spec_path)));
    }
}

fn warn_pod_affinity(path: &FieldPath, spec: &Value, warnings: &mut WarningList) {
    let Some(affinity) = spec.get("affinity") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = affinity.get(kind) else { continue };
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let path = path.child("affinity").child(kind);
        for (index, term) in items_of(pods, required).iter().enumerate() {
            if term.get("labelSelector").is_none() {
                warnings.push(format!(
                    "{}: {NULL_SELECTOR}",
                    path.child(required).index(index).child("labelSelector")
                ));
            }
        }
        for (index, term) in items_of(pods, preferred).iter().enumerate() {
            if term.get_path(&["podAffinityTerm", "labelSelector"]).is_none() {
                let item_path =
                    path.child(preferred).index(index).child("podAffinityTerm").child("labelSelector");
                warnings.push(format!("{item_path}: {NULL_SELECTOR}"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
