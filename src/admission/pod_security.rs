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
use crate::metrics::pod_security::{PolicyLabels, WriteLabels};

use self::checks::Findings;
pub use self::config::Configuration;
use self::levels::{Level, Mode, Policy, Standard};
use self::pod::Pod;
use super::{Operation, Outcome, Plugin, Write, done};

/// Subresources of pods that cannot change a pod's privileges.
const EXEMPT_SUBRESOURCES: [&str; 8] =
    ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// Workload resources by group and name, and the path of their pod template.
const WORKLOADS: [(&str, &str, &[&str]); 8] = [
    ("", "replicationcontrollers", &["spec", "template"]),
    ("", "podtemplates", &["template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("batch", "jobs", &["spec", "template"]),
    ("batch", "cronjobs", &["spec", "jobTemplate", "spec", "template"]),
];

/// Enforces the standards of a namespace on its pods.
pub struct PodSecurity {
    /// The operator's configuration.
    pub config: Arc<Configuration>,
    /// Counts evaluations.
    pub metrics: Arc<Metrics>,
}

/// The kind of object that a write is about.
enum Subject {
    Namespace,
    Pod,
    /// A workload resource, with the path of its pod template.
    Controller(&'static [&'static str]),
}

fn subject_of(write: &Write<'_>) -> Option<Subject> {
    if write.operation == Operation::Delete {
        return None;
    }
    let resource = write.group_resource();
    match (resource.group, resource.resource, write.subresource()) {
        ("", NAMESPACES, "") => Some(Subject::Namespace),
        ("", "pods", subresource) => (!EXEMPT_SUBRESOURCES.contains(&subresource)).then_some(Subject::Pod),
        (group, resource, "") => {
            let workload = WORKLOADS.iter().find(|workload| (workload.0, workload.1) == (group, resource));
            workload.map(|(_, _, template)| Subject::Controller(template))
        }
        _ => None,
    }
}

impl Plugin for PodSecurity {
    fn handles(&self, write: &Write<'_>) -> bool {
        subject_of(write).is_some()
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        match subject_of(write) {
            Some(Subject::Namespace) => Box::pin(self.check_namespace(write, object)),
            Some(Subject::Pod) => Box::pin(self.check_pod(write, object)),
            Some(Subject::Controller(template)) => Box::pin(self.check_workload(write, object, template)),
            None => done(Ok(())),
        }
    }
}

impl PodSecurity {
    async fn check_pod(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        if self.is_exempt(write) {
            return Ok(());
        }
        let is_minor = write.old.is_some_and(|old| !is_significant(object, old));
        let name = write.call.namespace();
        let namespace_object = get_namespace(write).await;
        let namespace_object = namespace_object.ok_or_else(|| {
            let reason = format!("failed to lookup namespace {name:?}");
            annotate(write, "error", &reason);
            self.metrics.pod_security.count_error(labels(write), true);
            Status::internal(reason)
        });
        let (policy, errors) = match (namespace_object, is_minor) {
            (Ok(namespace_object), _) => self.read_policy(&namespace_object),
            (Err(_), true) => return Ok(()),
            (Err(error), false) => return Err(error),
        };
        let pod = Pod::new(object, self.config.relaxed);
        if errors.is_empty() && policy.allows_all() {
            annotate(write, "enforce-policy", &policy.enforce);
            self.count(write, Mode::Enforce, policy.enforce, true);
            return Ok(());
        }
        if is_minor || self.is_exempt_runtime(write, &pod) {
            return Ok(());
        }
        self.annotate_errors(write, &errors);
        annotate(write, "enforce-policy", &policy.enforce);
        let findings = Findings::evaluate(&pod, policy.enforce);
        self.count(write, Mode::Enforce, policy.enforce, findings.is_empty());
        self.annotate_violations(write, &policy, &pod);
        if !findings.is_empty() {
            let reason = format!("violates PodSecurity \"{}\": {}", policy.enforce, findings.details());
            return Err(write.forbidden(object, &reason));
        }
        self.warn(write, &policy, &pod);
        Ok(())
    }

    async fn check_workload(&self, write: &Write<'_>, object: &Value, template: &[&str]) -> Result<()> {
        if self.is_exempt(write) {
            return Ok(());
        }
        // The standard is enforced on the pods themselves, so a failed lookup refuses nothing here.
        let Some(namespace_object) = get_namespace(write).await else {
            self.metrics.pod_security.count_error(labels(write), true);
            return Ok(());
        };
        let (policy, errors) = self.read_policy(&namespace_object);
        if errors.is_empty()
            && [policy.warn, policy.audit].iter().all(|standard| standard.level == Level::Privileged)
        {
            return Ok(());
        }
        let Some(template) = object.get_path(template) else { return Ok(()) };
        let pod = Pod::new(template, self.config.relaxed);
        if !self.is_exempt_runtime(write, &pod) {
            self.annotate_errors(write, &errors);
            self.annotate_violations(write, &policy, &pod);
            self.warn(write, &policy, &pod);
        }
        Ok(())
    }

    async fn check_namespace(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let labels_of = |value: &'_ Value| meta::metadata(value).get("labels").cloned().unwrap_or_default();
        let (new, old) = (labels_of(object), write.old.map(labels_of).unwrap_or_default());
        let (policy, errors) = self.config.policy_for(|label| new.get(label)?.as_str());
        let (before, old_errors) = self.config.policy_for(|label| old.get(label)?.as_str());
        let is_new = write.operation == Operation::Create;
        // Invalid labels from before may stay: they must not block other changes.
        if !errors.is_empty() && (is_new || errors != old_errors) {
            return Err(write.call.invalid(write.name(object), &errors));
        }
        if !is_new && !is_raised(&policy, &before) {
            return Ok(());
        }
        let name = write.name(object);
        if self.config.exemption(name, "").is_some() {
            let ignored_warning = levels::ignored_warning(
                name,
                |label| new.get(label)?.as_str(),
                &policy,
                &self.config.defaults,
            );
            ignored_warning.into_iter().for_each(|warning| write.call.warnings.add(warning));
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
    fn read_policy(&self, namespace_object: &Object) -> (Policy, Vec<FieldError>) {
        self.config.policy_for(|label| namespace_object.labels.get(label))
    }

    /// Whether the namespace or user is exempt; recorded as an audit annotation.
    fn is_exempt(&self, write: &Write<'_>) -> bool {
        let reason = self.config.exemption(write.call.namespace(), &write.call.user().name);
        reason.into_iter().for_each(|reason| self.annotate_exempt(write, &reason));
        reason.is_some()
    }

    fn annotate_exempt(&self, write: &Write<'_>, reason: &dyn std::fmt::Display) {
        annotate(write, "exempt", reason);
        self.metrics.pod_security.count_exemption(labels(write));
    }

    /// Whether the runtime class is exempt; recorded as an audit annotation.
    fn is_exempt_runtime(&self, write: &Write<'_>, pod: &Pod<'_>) -> bool {
        let is_exempt = self.config.is_runtime_exempt(pod);
        if is_exempt {
            self.annotate_exempt(write, &"runtimeClass");
        }
        is_exempt
    }

    /// Counts an evaluation.
    fn count(&self, write: &Write<'_>, mode: Mode, standard: Standard, passes: bool) {
        let version = standard.metric_version();
        let policy = PolicyLabels { level: standard.level.name(), version: &version, mode: mode.name() };
        self.metrics.pod_security.count_evaluation(labels(write), passes, policy);
    }

    /// Annotates the errors in the labels of the namespace.
    fn annotate_errors(&self, write: &Write<'_>, errors: &[FieldError]) {
        let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
        match messages.as_slice() {
            [] => return,
            [error] => annotate(write, "error", &format!("Failed to parse policy: {error}")),
            errors => annotate(write, "error", &format!("Failed to parse policy: [{}]", errors.join(", "))),
        }
        self.metrics.pod_security.count_error(labels(write), false);
    }

    /// Annotates violations of the audit standard.
    fn annotate_violations(&self, write: &Write<'_>, policy: &Policy, pod: &Pod<'_>) {
        let findings = Findings::evaluate(pod, policy.audit);
        if findings.is_empty() {
            return;
        }
        self.count(write, Mode::Audit, policy.audit, false);
        // The text is only needed for the audit log.
        if is_audited(write) {
            let text = format!("would violate PodSecurity \"{}\": {}", policy.audit, findings.details());
            annotate(write, "audit-violations", &text);
        }
    }

    /// Warns about violations of the warn standard.
    fn warn(&self, write: &Write<'_>, policy: &Policy, pod: &Pod<'_>) {
        let findings = Findings::evaluate(pod, policy.warn);
        if !findings.is_empty() {
            let text = format!("would violate PodSecurity \"{}\": {}", policy.warn, findings.details());
            write.call.warnings.add(text);
            self.count(write, Mode::Warn, policy.warn, false);
        }
    }
}

/// The labels of metrics about a write.
fn labels<'a>(write: &'a Write<'_>) -> WriteLabels<'a> {
    let resource = write.group_resource();
    let operation = if write.operation == Operation::Create { "create" } else { "update" };
    let resource = if (resource.group, resource.resource) == ("", "pods") { "pod" } else { "controller" };
    WriteLabels { operation, resource, subresource: write.subresource() }
}

/// Adds an audit annotation if the request is audited.
fn annotate(write: &Write<'_>, key: &str, text: &dyn std::fmt::Display) {
    if is_audited(write) {
        write.call.warnings.annotate(&format!("pod-security.kubernetes.io/{key}"), text.to_string());
    }
}

fn is_audited(write: &Write<'_>) -> bool {
    write.call.warnings.audit_body.level() > audit::Level::None
}

/// Whether pods that met the previous standard may violate the new one.
fn is_raised(policy: &Policy, before: &Policy) -> bool {
    let (new, old) = (policy.enforce, before.enforce);
    new != old && new.level != Level::Privileged && (new.version != old.version || new.level > old.level)
}

async fn get_namespace(write: &Write<'_>) -> Option<Arc<Object>> {
    let key = Key::cluster(write.call.namespace());
    write.backend.stores.get_seen(&TypeName::new(NAMESPACES), key, write.call.permit()).await.ok()
}

/// Whether an update can change the privileges of a pod: containers are added or removed, or get another image.
fn is_significant(pod: &Value, old: &Value) -> bool {
    fn list<'a>(pod: &'a Value, name: &str) -> &'a [Value] {
        pod.get_path(&["spec", name]).map(Value::items).unwrap_or_default()
    }
    let changes = |name| {
        let (new, old) = (list(pod, name), list(old, name));
        let same = |(new, old): (&Value, &Value)| new.str("image") == old.str("image");
        new.len() != old.len() || !new.iter().zip(old).all(same)
    };
    let old_images = list(old, "ephemeralContainers").iter().rev();
    let old_images: std::collections::HashMap<&str, &str> =
        old_images.map(|container| (container.str("name"), container.str("image"))).collect();
    let added = |container: &Value| old_images.get(container.str("name")) != Some(&container.str("image"));
    changes("containers") || changes("initContainers") || list(pod, "ephemeralContainers").iter().any(added)
}
