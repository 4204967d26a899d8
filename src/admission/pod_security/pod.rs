//! The view of a pod that the checks work on, and the violations that they report.

use std::borrow::Cow;
use std::collections::BTreeSet;

use pilothouse_apimachinery::value::Value;

/// A pod or a pod template.
#[derive(Clone, Copy)]
pub struct Pod<'a> {
    meta: &'a Value,
    spec: &'a Value,
    /// Whether the pod runs in a user namespace and is held to relaxed rules.
    relaxed: bool,
}

impl<'a> Pod<'a> {
    /// The pod that an object with metadata and a spec describes. `relax` is the feature gate for user namespaces.
    pub fn new(object: &'a Value, relax: bool) -> Pod<'a> {
        let field = |name| object.get(name).unwrap_or(&Value::Null);
        let spec = field("spec");
        let has_user_namespace = spec.get("hostUsers").and_then(Value::as_bool) == Some(false);
        Pod { meta: field("metadata"), spec, relaxed: relax && has_user_namespace }
    }

    /// All containers: init, regular, ephemeral.
    pub fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(|list| spec.get(list).map(Value::items).unwrap_or_default())
    }

    /// The `spec` of the pod.
    pub fn spec(&self) -> &'a Value {
        self.spec
    }

    /// A field of its security context.
    pub fn security(&self, path: &[&str]) -> Option<&'a Value> {
        self.spec.get("securityContext").and_then(|security| security.get_path(path))
    }

    /// Whether a field is set to true.
    pub fn is_set(&self, field: &str) -> bool {
        is_true(self.spec.get(field))
    }

    /// Its annotations, sorted by key.
    pub fn annotations(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let all = self.meta.get("annotations").and_then(Value::fields).into_iter().flatten();
        all.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.meta.get("annotations")?.get(key)?.as_str()
    }

    /// Whether the pod runs on Windows, where many checks do not apply.
    pub fn is_windows(&self) -> bool {
        self.spec.get_path(&["os", "name"]).and_then(Value::as_str) == Some("windows")
    }

    /// Whether the pod may run as root, because its root has no privileges on the host.
    pub fn is_relaxed(&self) -> bool {
        self.relaxed
    }

    /// The names of the containers for which `is_bad` is true.
    pub fn offenders(&self, mut is_bad: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers()
            .filter(|container| is_bad(container))
            .map(|container| container.str("name"))
            .collect()
    }
}

/// A field of a container's security context.
pub fn security<'a>(container: &'a Value, path: &[&str]) -> Option<&'a Value> {
    container.get("securityContext").and_then(|security| security.get_path(path))
}

/// Whether a value is there and true.
pub fn is_true(value: Option<&Value>) -> bool {
    value.and_then(Value::as_bool) == Some(true)
}

/// A violation of a standard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// A short reason, the same for all pods that fail alike.
    pub reason: Cow<'static, str>,
    /// The offending fields or containers of this pod.
    pub detail: String,
}

/// Makes a violation.
pub fn violation(reason: &'static str, detail: String) -> Violation {
    Violation { reason: Cow::Borrowed(reason), detail }
}

/// The singular or the plural.
pub fn pluralize<'a>(one: &'a str, several: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { several }
}

/// Quoted names. They need no escaping, because container and volume names are restricted.
pub fn quote_list<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("\"{}\"", name.as_ref())).collect();
    quoted.join(", ")
}

/// `container "a"`, `containers "a", "b"`.
pub fn containers(names: &[&str]) -> String {
    format!("{} {}", pluralize("container", "containers", names.len()), quote_list(names))
}

/// What set a field: the pod, these containers, or both. `None` if neither did.
pub fn setters(pod: bool, names: &[&str]) -> Option<String> {
    match (pod, names.is_empty()) {
        (false, true) => None,
        (true, true) => Some("pod".to_owned()),
        (false, false) => Some(containers(names)),
        (true, false) => Some(format!("pod and {}", containers(names))),
    }
}

/// Distinct values, sorted.
pub type Values<'a> = BTreeSet<&'a str>;
