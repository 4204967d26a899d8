//! PodSecurity: the Pod Security Standards that the labels of a namespace ask for.
//!
//! A pod that violates the enforced standard is refused. Pods and workloads that violate the warn standard cause warnings. A
//! change that raises the enforced standard of a namespace warns about existing pods that violate it; they keep running.

mod baseline;
mod checks;
mod config;
mod existing;
mod levels;
mod pod;
mod restricted;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pilothouse_api::audit;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::NAMESPACES;
use pilothouse_types::object::{Key, Object, TypeName};

use crate::metrics::Metrics;
use crate::metrics::pod_security::Judged;

use self::checks::Findings;
pub use self::config::Configuration;
use self::levels::{Level, Mode, Policy, Standard};
use self::pod::Pod;
use super::{Operation, Outcome, Plugin, Write, done};

/// Subresources of pods that cannot change a pod's privileges.
const OTHER_PARTS: [&str; 8] =
    ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// Workload resources by group and name, and the path of their pod template.
const CONTROLLERS: [(&str, &str, &[&str]); 8] = [
    ("", "replicationcontrollers", &["spec", "template"]),
    ("", "podtemplates", &["template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("batch", "jobs", &["spec", "template"]),
    ("batch", "cronjobs", &["spec", "jobTemplate", "spec", "template"]),
];

/// Holds pods to the standards of their namespace.
pub struct PodSecurity {
    /// What the operator has decided.
    pub config: Arc<Configuration>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// The kind of object that a write is about.
enum About {
    Namespace,
    Pod,
    /// A workload resource, with the path of its pod template.
    Controller(&'static [&'static str]),
}

fn about(write: &Write<'_>) -> Option<About> {
    if write.operation == Operation::Delete {
        return None;
    }
    let of = write.call.of();
    match (of.group, of.resource, write.call.subresource) {
        ("", NAMESPACES, "") => Some(About::Namespace),
        ("", "pods", part) => (!OTHER_PARTS.contains(&part)).then_some(About::Pod),
        (group, resource, "") => {
            let found = CONTROLLERS.iter().find(|known| (known.0, known.1) == (group, resource));
            found.map(|(_, _, template)| About::Controller(template))
        }
        _ => None,
    }
}

impl Plugin for PodSecurity {
    fn handles(&self, write: &Write<'_>) -> bool {
        about(write).is_some()
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        match about(write) {
            Some(About::Namespace) => Box::pin(self.namespace(write, object)),
            Some(About::Pod) => Box::pin(self.pod(write, object)),
            Some(About::Controller(template)) => Box::pin(self.controller(write, object, template)),
            None => done(Ok(())),
        }
    }
}

impl PodSecurity {
    async fn pod(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        if self.is_exempt(write) {
            return Ok(());
        }
        let is_minor = write.old.is_some_and(|old| !is_significant(object, old));
        let name = write.call.namespace;
        let namespace = namespace(write).await;
        let namespace = namespace.ok_or_else(|| {
            let why = format!("failed to lookup namespace {name:?}");
            note(write, "error", &why);
            self.metrics.pod_security.failed(judged(write), true);
            Status::internal(why)
        });
        let (policy, errors) = match (namespace, is_minor) {
            (Ok(namespace), _) => self.asked_of(&namespace),
            (Err(_), true) => return Ok(()),
            (Err(error), false) => return Err(error),
        };
        let pod = Pod::of(object, self.config.relaxed);
        if errors.is_empty() && policy.allows_all() {
            note(write, "enforce-policy", &policy.enforce);
            self.count(write, Mode::Enforce, policy.enforce, true);
            return Ok(());
        }
        if is_minor || self.is_exempt_runtime(write, &pod) {
            return Ok(());
        }
        self.note_errors(write, &errors);
        note(write, "enforce-policy", &policy.enforce);
        let findings = Findings::of(&pod, policy.enforce);
        self.count(write, Mode::Enforce, policy.enforce, findings.is_empty());
        self.note_violations(write, &policy, &pod);
        if !findings.is_empty() {
            let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, findings.details());
            return Err(write.forbidden(object, &why));
        }
        self.warn(write, &policy, &pod);
        Ok(())
    }

    async fn controller(&self, write: &Write<'_>, object: &Value, template: &[&str]) -> Result<()> {
        if self.is_exempt(write) {
            return Ok(());
        }
        // The pods themselves will be held to it: what cannot be looked up now refuses nobody.
        let Some(namespace) = namespace(write).await else {
            self.metrics.pod_security.failed(judged(write), true);
            return Ok(());
        };
        let (policy, errors) = self.asked_of(&namespace);
        if errors.is_empty() && [policy.warn, policy.audit].iter().all(|one| one.level == Level::Privileged) {
            return Ok(());
        }
        let Some(template) = object.at(template) else { return Ok(()) };
        let pod = Pod::of(template, self.config.relaxed);
        if !self.is_exempt_runtime(write, &pod) {
            self.note_errors(write, &errors);
            self.note_violations(write, &policy, &pod);
            self.warn(write, &policy, &pod);
        }
        Ok(())
    }

    async fn namespace(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let labels = |value: &'_ Value| meta::of(value).get("labels").cloned().unwrap_or_default();
        let (new, old) = (labels(object), write.old.map(labels).unwrap_or_default());
        let (policy, errors) = self.config.asked(|label| new.get(label)?.as_str());
        let (before, known) = self.config.asked(|label| old.get(label)?.as_str());
        let is_new = write.operation == Operation::Create;
        // Invalid labels from before may stay: they must not block other changes.
        if !errors.is_empty() && (is_new || errors != known) {
            return Err(write.call.invalid(write.name(object), &errors));
        }
        if !is_new && !is_raised(&policy, &before) {
            return Ok(());
        }
        let name = write.name(object);
        if self.config.exempts(name, "").is_some() {
            let ignored =
                levels::ignored(name, |label| new.get(label)?.as_str(), &policy, &self.config.defaults);
            ignored.into_iter().for_each(|warning| write.call.warnings.add(warning));
            return Ok(());
        }
        if is_new {
            return Ok(());
        }
        for warning in existing::warnings(&self.config, write, name, policy.enforce).await {
            write.call.warnings.add(warning);
        }
        Ok(())
    }

    /// The standards that the labels ask for, and the errors in the labels.
    fn asked_of(&self, namespace: &Object) -> (Policy, Vec<FieldError>) {
        self.config.asked(|label| namespace.labels.get(label))
    }

    /// Whether the namespace or user is exempt; recorded as an audit annotation.
    fn is_exempt(&self, write: &Write<'_>) -> bool {
        let why = self.config.exempts(write.call.namespace, &write.call.user.name);
        why.into_iter().for_each(|why| self.note_exempt(write, &why));
        why.is_some()
    }

    fn note_exempt(&self, write: &Write<'_>, why: &dyn std::fmt::Display) {
        note(write, "exempt", why);
        self.metrics.pod_security.exempted(judged(write));
    }

    /// The same for what runs the pod.
    fn is_exempt_runtime(&self, write: &Write<'_>, pod: &Pod<'_>) -> bool {
        let is_exempt = self.config.exempts_runtime(pod);
        if is_exempt {
            self.note_exempt(write, &"runtimeClass");
        }
        is_exempt
    }

    /// Counts how a write was judged.
    fn count(&self, write: &Write<'_>, mode: Mode, standard: Standard, is_met: bool) {
        let version = standard.told_version();
        let held_to = [standard.level.name(), &version, mode.name()];
        self.metrics.pod_security.evaluated(judged(write), is_met, held_to);
    }

    /// Notes what is wrong with the labels of the namespace.
    fn note_errors(&self, write: &Write<'_>, errors: &[FieldError]) {
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        match all.as_slice() {
            [] => return,
            [one] => note(write, "error", &format!("Failed to parse policy: {one}")),
            several => note(write, "error", &format!("Failed to parse policy: [{}]", several.join(", "))),
        }
        self.metrics.pod_security.failed(judged(write), false);
    }

    /// Notes what does not meet the standard of notes.
    fn note_violations(&self, write: &Write<'_>, policy: &Policy, pod: &Pod<'_>) {
        let findings = Findings::of(pod, policy.audit);
        if findings.is_empty() {
            return;
        }
        self.count(write, Mode::Audit, policy.audit, false);
        // Only a record wants to know which.
        if is_recorded(write) {
            let text = format!("would violate PodSecurity \"{}\": {}", policy.audit, findings.details());
            note(write, "audit-violations", &text);
        }
    }

    /// Warns of what does not meet the standard of warnings.
    fn warn(&self, write: &Write<'_>, policy: &Policy, pod: &Pod<'_>) {
        let findings = Findings::of(pod, policy.warn);
        if !findings.is_empty() {
            let text = format!("would violate PodSecurity \"{}\": {}", policy.warn, findings.details());
            write.call.warnings.add(text);
            self.count(write, Mode::Warn, policy.warn, false);
        }
    }
}

/// What metrics say of a write.
fn judged<'a>(write: &'a Write<'_>) -> Judged<'a> {
    let of = write.call.of();
    let operation = if write.operation == Operation::Create { "create" } else { "update" };
    let resource = if (of.group, of.resource) == ("", "pods") { "pod" } else { "controller" };
    [operation, resource, write.call.subresource]
}

/// Adds an audit annotation if the request is audited.
fn note(write: &Write<'_>, key: &str, text: &dyn std::fmt::Display) {
    if is_recorded(write) {
        write.call.warnings.note(&format!("pod-security.kubernetes.io/{key}"), text.to_string());
    }
}

fn is_recorded(write: &Write<'_>) -> bool {
    write.call.warnings.received.level() > audit::Level::None
}

/// Whether pods that were good enough before may no longer be.
fn is_raised(policy: &Policy, before: &Policy) -> bool {
    let (new, old) = (policy.enforce, before.enforce);
    new != old && new.level != Level::Privileged && (new.version != old.version || new.level > old.level)
}

async fn namespace(write: &Write<'_>) -> Option<Arc<Object>> {
    let key = Key::cluster(write.call.namespace);
    write.backend.stores.get(&TypeName::new(NAMESPACES), key, &write.call.permit).await.ok()
}

/// Whether an update of a pod can change what it may do: containers come, go, or run something else.
fn is_significant(pod: &Value, old: &Value) -> bool {
    fn list<'a>(pod: &'a Value, name: &str) -> &'a [Value] {
        pod.at(&["spec", name]).map(Value::items).unwrap_or_default()
    }
    let changes = |name| {
        let (new, old) = (list(pod, name), list(old, name));
        let same = |(new, old): (&Value, &Value)| new.str("image") == old.str("image");
        new.len() != old.len() || !new.iter().zip(old).all(same)
    };
    let images = list(old, "ephemeralContainers").iter().rev();
    let images: std::collections::HashMap<&str, &str> =
        images.map(|container| (container.str("name"), container.str("image"))).collect();
    let added = |container: &Value| images.get(container.str("name")) != Some(&container.str("image"));
    changes("containers") || changes("initContainers") || list(pod, "ephemeralContainers").iter().any(added)
}
