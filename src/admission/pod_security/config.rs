//! The operator's configuration of PodSecurity: defaults and exemptions.

use pilothouse_apimachinery::document::{self, FieldReader, present};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::levels::{self, Level, Mode, Policy, Version};
use super::pod::Pod;

/// The settings of the plug-in.
#[derive(Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The standards of namespaces whose labels set none.
    pub(super) defaults: Policy,
    /// Whether pods in user namespaces are held to relaxed rules.
    pub(super) relaxed: bool,
    namespaces: Vec<String>,
    users: Vec<String>,
    runtime_classes: Vec<String>,
}

const VERSIONS: [&str; 3] = [
    "pod-security.admission.config.k8s.io/v1",
    "pod-security.admission.config.k8s.io/v1beta1",
    "pod-security.admission.config.k8s.io/v1alpha1",
];

impl Configuration {
    /// Reads the configuration; without one the defaults are privileged. `relaxed` is the feature gate for pods in user
    /// namespaces.
    pub fn read(document: Option<&Value>, relaxed: bool) -> Result<Configuration, String> {
        let mut configuration = Configuration {
            defaults: Policy::PRIVILEGED,
            relaxed,
            namespaces: Vec::new(),
            users: Vec::new(),
            runtime_classes: Vec::new(),
        };
        let Some(document) = document else { return Ok(configuration) };
        document::check_kind(document, "PodSecurityConfiguration", &VERSIONS)?;
        let mut reader = FieldReader::default();
        let known_fields = ["apiVersion", "kind", "defaults", "exemptions"];
        reader.check_fields(document, &FieldPath::root(), &known_fields);
        let empty = Value::object();
        configuration.read_defaults(present(document, "defaults").unwrap_or(&empty), &mut reader);
        let exemptions = present(document, "exemptions").unwrap_or(&empty);
        let path = FieldPath::new("exemptions");
        reader.check_fields(exemptions, &path, &["usernames", "namespaces", "runtimeClasses"]);
        let mut read_list = |field, check: &dyn Fn(&str) -> Vec<String>| {
            let list = reader.texts(exemptions, field, &path);
            check_list(&path.child(field), &list, check, &mut reader);
            list
        };
        configuration.namespaces = read_list("namespaces", &|name| names::label_name(name, false));
        configuration.runtime_classes =
            read_list("runtimeClasses", &|name| names::subdomain_name(name, false));
        let check_username = |name: &str| match name {
            "" => vec!["username must not be empty".to_owned()],
            _ => Vec::new(),
        };
        configuration.users = read_list("usernames", &check_username);
        reader.result()?;
        Ok(configuration)
    }

    fn read_defaults(&mut self, defaults: &Value, reader: &mut FieldReader) {
        let path = FieldPath::new("defaults");
        let known_fields = ["enforce", "enforce-version", "audit", "audit-version", "warn", "warn-version"];
        reader.check_fields(defaults, &path, &known_fields);
        for mode in [Mode::Enforce, Mode::Warn, Mode::Audit] {
            let (level, version) = (mode.name(), format!("{}-version", mode.name()));
            let standard = self.defaults.standard_mut(mode);
            let invalid = |field: &str, text: &str, reason: &str| {
                FieldError::invalid(&path.child(field), &quoted(text), reason)
            };
            match reader.text(defaults, level, &path) {
                "" => {}
                text => match Level::parse(text) {
                    Ok(level) => standard.level = level,
                    Err(reason) => reader.push_error(&invalid(level, text, reason)),
                },
            }
            match reader.text(defaults, &version, &path) {
                "" => {}
                text => match Version::parse(text) {
                    Ok(version) => standard.version = version,
                    Err(reason) => reader.push_error(&invalid(&version, text, reason)),
                },
            }
        }
    }

    /// The standards that the labels of a namespace ask for, and the errors in the labels.
    pub(super) fn policy_for<'a>(
        &self,
        label: impl Fn(&str) -> Option<&'a str>,
    ) -> (Policy, Vec<FieldError>) {
        levels::read(label, &self.defaults)
    }

    /// The reason why a namespace or user is exempt, if it is.
    pub(super) fn exemption(&self, namespace: &str, user: &str) -> Option<&'static str> {
        let contains = |list: &[String], name: &str| list.iter().any(|entry| entry == name);
        if contains(&self.namespaces, namespace) {
            return Some("namespace");
        }
        contains(&self.users, user).then_some("user")
    }

    /// Whether the runtime class of a pod is exempt.
    pub(super) fn is_runtime_exempt(&self, pod: &Pod<'_>) -> bool {
        let class = pod.spec().str("runtimeClassName");
        self.runtime_classes.iter().any(|entry| entry == class)
    }
}

fn check_list(
    path: &FieldPath,
    list: &[String],
    check: &dyn Fn(&str) -> Vec<String>,
    reader: &mut FieldReader,
) {
    for (index, item) in list.iter().enumerate() {
        let messages = check(item);
        if !messages.is_empty() {
            reader.push_error(&FieldError::invalid(&path.index(index), &quoted(item), &messages.join(", ")));
        } else if list.iter().take(index).any(|other| other == item) {
            reader.push_error(&FieldError::duplicate(&path.index(index), &quoted(item)));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    fn read(text: &str) -> Result<Configuration, String> {
        let text = format!(
            "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n{text}"
        );
        Configuration::read(Some(&yaml::read(text.as_bytes()).unwrap()), false)
    }

    #[test]
    fn pod_security_config_defaults_and_exemptions() {
        let read = read(
            "defaults: {enforce: baseline, enforce-version: v1.30, warn: restricted}\n\
             exemptions: {usernames: [jane], namespaces: [kube-system], runtimeClasses: [kata]}",
        )
        .unwrap();
        assert_eq!(read.defaults.enforce.to_string(), "baseline:v1.30");
        assert_eq!(read.defaults.warn.to_string(), "restricted:latest");
        assert_eq!(read.defaults.audit.to_string(), "privileged:latest");
        assert_eq!(read.exemption("kube-system", ""), Some("namespace"));
        assert_eq!((read.exemption("a", "jane"), read.exemption("a", "joe")), (Some("user"), None));
        let mut pod = Value::object();
        pod.entry("spec").set("runtimeClassName", "kata");
        assert!(read.is_runtime_exempt(&Pod::new(&pod, false)));
        assert!(!read.is_runtime_exempt(&Pod::new(&Value::object(), false)));
    }

    #[test]
    fn pod_security_config_errors() {
        for (text, expected) in [
            (
                "defaults: {enforce: strict}",
                "defaults.enforce: Invalid value: \"strict\": must be one of privileged, baseline, restricted",
            ),
            (
                "defaults: {warn-version: v2.1}",
                "defaults.warn-version: Invalid value: \"v2.1\": must be \"latest\" or \"v1.x\"",
            ),
            ("exemptions: {usernames: [a, a]}", "exemptions.usernames[1]: Duplicate value: \"a\""),
            (
                "exemptions: {usernames: [\"\"]}",
                "exemptions.usernames[0]: Invalid value: \"\": username must not be empty",
            ),
            ("default: {}", "unknown field \"default\""),
            ("defaults: {enforced: baseline}", "unknown field \"defaults.enforced\""),
            ("defaults: {enforce: [baseline]}", "defaults.enforce: must be a text"),
        ] {
            assert_eq!(read(text).unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn pod_security_config_of_other_kind_is_refused() {
        let mut other = Value::object();
        other.set("kind", "PodSecurityConfiguration");
        other.set("apiVersion", "v1");
        assert!(Configuration::read(Some(&other), false).unwrap_err().contains("v1"));
    }
}
