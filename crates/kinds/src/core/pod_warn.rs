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

use super::{address, node_label, volume_claim};
use crate::limits::WARNING_PAIRS;

const NO_POD: &str = "a null labelSelector results in matching no pod";
const USE_SECCOMP_FIELD: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";

/// Annotations that have no effect any more.
const DEAD_ANNOTATIONS: [(&str, &str); 3] = [
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
const DEAD_VOLUMES: [(&str, &str, &str); 9] = [
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

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get(field).map(Value::items).unwrap_or_default()
}

/// Warns about the status of a pod.
pub fn status(object: &Value, warned: &mut WarningList) {
    for list in ["podIPs", "hostIPs"] {
        let path = FieldPath::new("status").child(list);
        let addresses = object.at(&["status", list]).map(Value::items).unwrap_or_default();
        for (index, address) in addresses.iter().enumerate() {
            address::warn_ip(&path.index(index).child("ip"), address.str("ip"), warned);
        }
    }
}

/// Warns about a new pod. Updates of pods warn about nothing.
pub fn pod(pod: &Value, old: Option<&Value>, warned: &mut WarningList) {
    if old.is_some() {
        return;
    }
    let wrong = names::dns_label(meta::name(pod));
    if !wrong.is_empty() {
        warned.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; \
             a DNS label is recommended: [{}]",
            wrong.join(" ")
        ));
    }
    spec_and_meta(&FieldPath::root(), pod, false, warned);
}

/// Warns about a pod or pod template. `holder` has metadata and spec, and is at `path`.
pub fn spec_and_meta(path: &FieldPath, holder: &Value, is_template: bool, warned: &mut WarningList) {
    let Some(spec) = holder.get("spec") else { return };
    let annotations = meta::of(holder).get("annotations");
    let at = path.child("spec");
    placement(&at, spec, warned);
    for (key, words) in DEAD_ANNOTATIONS {
        if annotations.is_some_and(|all| all.get(key).is_some()) {
            warned.push(format!("{}: {words}", path.child("metadata").child("annotations").key(key)));
        }
    }
    volumes(&at, spec, warned);
    names_that_repeat(&at, spec, warned);
    if let Some(overhead) = spec.get("overhead") {
        fractions(&at.child("overhead"), overhead, &["memory", "ephemeral-storage"], warned);
    }
    if annotations.is_some_and(|all| all.get(SECCOMP_POD).is_some())
        && spec.at(&["securityContext", "seccompProfile"]).is_none()
    {
        let key = path.child("metadata").child("annotations").key(SECCOMP_POD);
        warned.push(format!("{key}: {USE_SECCOMP_FIELD}"));
    }
    containers(path, spec, annotations, is_template, warned);
    ports(&at, spec, warned);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_int).is_some_and(|seconds| seconds < 0) {
        let field = at.child("terminationGracePeriodSeconds");
        warned.push(format!("{field}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    pod_affinity(&at, spec, warned);
    if let Some(config) = spec.get("dnsConfig") {
        for (index, server) in list(config, "nameservers").iter().enumerate() {
            let field = at.child("dnsConfig").child("nameservers").index(index);
            address::warn_ip(&field, server.as_str().unwrap_or_default(), warned);
        }
    }
    for (index, alias) in list(spec, "hostAliases").iter().enumerate() {
        address::warn_ip(&at.child("hostAliases").index(index).child("ip"), alias.str("ip"), warned);
    }
}

fn placement(at: &FieldPath, spec: &Value, warned: &mut WarningList) {
    for (label, _) in spec.get("nodeSelector").and_then(Value::fields).into_iter().flatten() {
        if let Some(words) = node_label::deprecated(label) {
            warned.push(format!("{}: {words}", at.child("nodeSelector").key(label)));
        }
    }
    if let Some(nodes) = spec.at(&["affinity", "nodeAffinity"]) {
        let at = at.child("affinity").child("nodeAffinity");
        if let Some(required) = nodes.get("requiredDuringSchedulingIgnoredDuringExecution") {
            let at = at.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
            for (index, term) in list(required, "nodeSelectorTerms").iter().enumerate() {
                node_label::warn_term(&at.index(index), term, false, warned);
            }
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in list(nodes, preferred).iter().enumerate() {
            if let Some(term) = term.get("preference") {
                let at = at.child(preferred).index(index).child("preference");
                node_label::warn_term(&at, term, true, warned);
            }
        }
    }
    for (index, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let at = || at.child("topologySpreadConstraints").index(index);
        let key = constraint.str("topologyKey");
        if let Some(words) = node_label::deprecated(key) {
            warned.push(format!("{}: {key} is {words}", at().child("topologyKey")));
        }
        if constraint.get("labelSelector").is_none() {
            warned.push(format!("{}: {NO_POD}", at().child("labelSelector")));
        }
    }
}

fn volumes(at: &FieldPath, spec: &Value, warned: &mut WarningList) {
    let all = list(spec, "volumes");
    for (index, volume) in all.iter().enumerate() {
        for (field, shown, words) in DEAD_VOLUMES {
            if field == "cephfs"
                && let Some(claim) = volume.at(&["ephemeral", "volumeClaimTemplate", "spec"])
            {
                let at = at.child("volumes").index(index).child("ephemeral").child("volumeClaimTemplate");
                volume_claim::warn_spec(&at.child("spec"), claim, warned);
            }
            if volume.get(field).is_some() {
                let still_works = field == "gitRepo" && warned.features().has(Feature::GitRepoVolumeDriver);
                let words = if still_works { "deprecated in v1.11" } else { words };
                warned.push(format!("{}: {words}", at.child("volumes").index(index).child(shown)));
            }
        }
    }
    for volume in all {
        overlaps(volume, warned);
    }
}

/// A path in a projected volume, and its source if the message names it.
struct Placed<'a> {
    path: &'a str,
    by: Rc<str>,
}

impl<'a> Placed<'a> {
    fn new(path: &'a str, by: &Rc<str>) -> Placed<'a> {
        Placed { path: path.trim_end_matches('/'), by: by.clone() }
    }

    fn shown(&self) -> String {
        if self.by.is_empty() { quoted(self.path) } else { format!("{} ({})", quoted(self.path), self.by) }
    }

    /// Whether the paths are equal or one contains the other.
    fn meets(&self, other: &Placed<'_>) -> bool {
        let below = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        !self.path.is_empty()
            && !other.path.is_empty()
            && (below(self.path, other.path) || below(other.path, self.path))
    }
}

/// Warns about new paths that overlap with earlier ones, and adds them.
fn meet<'a>(
    volume: &str,
    what: &str,
    paths: Vec<Placed<'a>>,
    placed: &mut Vec<Placed<'a>>,
    warned: &mut WarningList,
) {
    for path in paths {
        if placed.len() >= WARNING_PAIRS || warned.is_full() {
            return;
        }
        for other in placed.iter().filter(|other| path.meets(other)) {
            let pair = format!("{} with {}", path.shown(), other.shown());
            warned.push(format!("volume {volume} ({what}): overlapping paths: {pair}"));
        }
        placed.push(path);
    }
}

fn files<'a>(source: &'a Value, by: &str) -> Vec<Placed<'a>> {
    let by = Rc::from(by);
    list(source, "items").iter().map(|item| Placed::new(item.str("path"), &by)).collect()
}

fn overlaps(volume: &Value, warned: &mut WarningList) {
    let sources =
        [("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"), ("downwardAPI", "", "")];
    for (field, word, name) in sources {
        let Some(source) = volume.get(field).filter(|source| list(source, "items").len() > 1) else {
            continue;
        };
        let what = if word.is_empty() {
            "DownwardAPI".to_owned()
        } else {
            format!("{word} {}", quoted(source.str(name)))
        };
        meet(&quoted(volume.str("name")), &what, files(source, ""), &mut Vec::new(), warned);
    }
    let Some(projected) = volume.get("projected") else { return };
    let (name, mut placed) = (quoted(volume.str("name")), Vec::new());
    for source in list(projected, "sources") {
        let Some(paths) = projected_paths(source) else {
            warned.push(format!("volume {name} (Projected) has no sources provided"));
            continue;
        };
        meet(&name, "Projected", paths, &mut placed, warned);
    }
}

/// The paths of one source of a projected volume; `None` if it is no source.
fn projected_paths(source: &Value) -> Option<Vec<Placed<'_>>> {
    if let Some(map) = source.get("configMap") {
        return Some(files(map, &format!("ConfigMap {}", quoted(map.str("name")))));
    }
    if let Some(secret) = source.get("secret") {
        return Some(files(secret, &format!("Secret {}", quoted(secret.str("name")))));
    }
    if let Some(shown) = source.get("downwardAPI") {
        return Some(files(shown, "DownwardAPI"));
    }
    if let Some(token) = source.get("serviceAccountToken") {
        return Some(vec![Placed::new(token.str("path"), &Rc::from("ServiceAccountToken"))]);
    }
    let bundle = source.get("clusterTrustBundle")?;
    let name = bundle.get("name").or_else(|| bundle.get("signerName")).and_then(Value::as_str);
    let by = format!("ClusterTrustBundle {}", quoted(name.unwrap_or_default()));
    Some(vec![Placed::new(bundle.str("path"), &Rc::from(by))])
}

fn names_that_repeat(at: &FieldPath, spec: &Value, warned: &mut WarningList) {
    for (field, key, what) in [("hostAliases", "ip", "ip"), ("imagePullSecrets", "name", "name")] {
        let mut seen = BTreeSet::new();
        for (index, item) in list(spec, field).iter().enumerate() {
            if !seen.insert(item.str(key)) {
                let place = at.child(field).index(index).child(key);
                warned.push(format!("{place}: duplicate {what} {}", quoted(item.str(key))));
            }
        }
    }
    for (index, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
        if secret.str("name").is_empty() {
            let place = at.child("imagePullSecrets").index(index).child("name");
            warned.push(format!("{place}: invalid empty name \"\""));
        }
    }
}

/// Warns about fractional bytes.
pub fn fractions(at: &FieldPath, amounts: &Value, names: &[&str], warned: &mut WarningList) {
    for name in names {
        let Some(text) = amounts.get(name).and_then(Value::as_str) else { continue };
        if NanoQuantity::parse(text).is_some_and(|amount| !amount.is_whole()) {
            let place = at.key(name);
            warned.push(format!(
                "{place}: fractional byte value {} is invalid, must be an integer",
                quoted(text)
            ));
        }
    }
}

const KINDS_OF_CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

fn containers(
    path: &FieldPath,
    spec: &Value,
    annotations: Option<&Value>,
    is_template: bool,
    warned: &mut WarningList,
) {
    let pod_profile = spec.at(&["securityContext", "appArmorProfile"]).is_some();
    let noted = |prefix: &str, name: &str| {
        annotations
            .filter(|all| all.fields().is_some_and(|fields| !fields.is_empty()))
            .is_some_and(|all| all.get(&format!("{prefix}{name}")).is_some())
    };
    for kind in KINDS_OF_CONTAINERS {
        for (index, container) in list(spec, kind).iter().enumerate() {
            let name = container.str("name");
            let at = || path.child("spec").child(kind).index(index);
            let annotation =
                |prefix: &str| path.child("metadata").child("annotations").key(&format!("{prefix}{name}"));
            if noted(SECCOMP_CONTAINER, name)
                && container.at(&["securityContext", "seccompProfile"]).is_none()
            {
                warned.push(format!("{}: {USE_SECCOMP_FIELD}", annotation(SECCOMP_CONTAINER)));
            }
            let has_profile = pod_profile || container.at(&["securityContext", "appArmorProfile"]).is_some();
            if is_template && !has_profile && noted(APPARMOR, name) {
                let words = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
                warned.push(format!("{}: {words}", annotation(APPARMOR)));
            }
            if let Some(resources) = container.get("resources") {
                for resource in ["memory", "ephemeral-storage"] {
                    for part in ["limits", "requests"] {
                        if let Some(amounts) = resources.get(part) {
                            fractions(&at().child("resources").child(part), amounts, &[resource], warned);
                        }
                    }
                }
            }
            hidden_variables(&at, list(container, "env"), warned);
        }
    }
}

/// Warns about a variable that is set twice, unless the second value refers to the first.
fn hidden_variables(at: &dyn Fn() -> FieldPath, variables: &[Value], warned: &mut WarningList) {
    let mut seen = BTreeSet::new();
    for (index, variable) in variables.iter().enumerate() {
        let (name, value) = (variable.str("name"), variable.str("value"));
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        if variable.get("valueFrom").is_some() || value == reference || !value.contains(&reference) {
            warned.push(format!(
                "{}: hides previous definition of {}, which may be dropped when using apply",
                at().child("env").index(index),
                quoted(name)
            ));
        }
    }
}

/// A port and its position.
struct Placement<'a> {
    kind: &'static str,
    container: usize,
    index: usize,
    port: &'a Value,
}

impl Placement<'_> {
    fn path(&self, at: &FieldPath) -> FieldPath {
        at.child(self.kind).index(self.container).child("ports").index(self.index)
    }

    fn number(&self, field: &str) -> i64 {
        self.port.get(field).and_then(Value::as_int).unwrap_or_default()
    }
}

fn ports(at: &FieldPath, spec: &Value, warned: &mut WarningList) {
    let mut all: Vec<Placement<'_>> = Vec::new();
    for kind in KINDS_OF_CONTAINERS {
        for (container, holder) in list(spec, kind).iter().enumerate() {
            for (index, port) in list(holder, "ports").iter().enumerate() {
                if all.len() >= WARNING_PAIRS || warned.is_full() {
                    break;
                }
                let new = Placement { kind, container, index, port };
                one_port(at, &new, &all, warned);
                all.push(new);
            }
        }
    }
    let mut firsts: BTreeMap<&str, &Placement<'_>> = BTreeMap::new();
    for new in all.iter().filter(|new| !new.port.str("name").is_empty()) {
        let name = new.port.str("name");
        if let Some(first) = firsts.get(name) {
            let (here, there) = (new.path(at), first.path(at));
            warned.push(format!(
                "{here}: duplicate port name {} with {there}, services and probes that select ports by name will use {there}",
                quoted(name)
            ));
        } else {
            firsts.insert(name, new);
        }
    }
}

fn one_port(at: &FieldPath, new: &Placement<'_>, all: &[Placement<'_>], warned: &mut WarningList) {
    let (ip, host) = (new.port.str("hostIP"), new.number("hostPort"));
    let protocol = new.port.str("protocol");
    if !ip.is_empty() && host == 0 {
        warned.push(format!(
            "{}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{protocol} HostIP:{ip}}}",
            new.path(at),
            new.port.str("name"),
            new.number("containerPort"),
        ));
    }
    for other in all {
        let same = other.number("containerPort") == new.number("containerPort")
            && other.port.str("protocol") == protocol;
        if !same {
            continue;
        }
        let (other_ip, other_host) = (other.port.str("hostIP"), other.number("hostPort"));
        let words = if ip == other_ip && host == other_host {
            "duplicate port definition"
        } else if host == 0 || other_host == 0 {
            "overlapping port definition"
        } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
            "dangerously ambiguous port definition"
        } else {
            continue;
        };
        warned.push(format!("{}: {words} with {}", new.path(at), other.path(at)));
    }
}

fn pod_affinity(at: &FieldPath, spec: &Value, warned: &mut WarningList) {
    let Some(affinity) = spec.get("affinity") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = affinity.get(kind) else { continue };
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let at = at.child("affinity").child(kind);
        for (index, term) in list(pods, required).iter().enumerate() {
            if term.get("labelSelector").is_none() {
                warned.push(format!("{}: {NO_POD}", at.child(required).index(index).child("labelSelector")));
            }
        }
        for (index, term) in list(pods, preferred).iter().enumerate() {
            if term.at(&["podAffinityTerm", "labelSelector"]).is_none() {
                let place = at.child(preferred).index(index).child("podAffinityTerm").child("labelSelector");
                warned.push(format!("{place}: {NO_POD}"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
