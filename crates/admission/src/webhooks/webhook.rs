//! One webhook of a configuration, parsed once.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use crate::matching::Rule;
use crate::policies::expressions::{Compiler, EnvironmentType, ResultType};
use crate::policies::policy::Expression;

/// The default timeout of the API.
const DEFAULT_TIMEOUT_SECONDS: u64 = 10;
/// The default port of a service.
const DEFAULT_PORT: u16 = 443;

/// The versions of AdmissionReview and ConversionReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewVersion {
    /// `v1`
    V1,
    /// `v1beta1`
    V1beta1,
}

impl ReviewVersion {
    /// The version as text.
    pub fn word(self) -> &'static str {
        match self {
            ReviewVersion::V1 => "v1",
            ReviewVersion::V1beta1 => "v1beta1",
        }
    }
}

/// The address of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientConfig {
    /// A URL.
    Url(String),
    /// A service of the cluster.
    Service {
        /// The namespace of the service.
        namespace: String,
        /// The name of the service.
        name: String,
        /// The path of requests.
        path: String,
        /// The port of the service.
        port: u16,
    },
    /// Not configured.
    None,
}

/// The side effects of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideEffects {
    /// None, at least for dry runs.
    None,
    /// Some, or unknown.
    Some,
    /// Not stated.
    Unspecified,
}

/// One webhook.
#[derive(Debug)]
pub struct Webhook {
    /// The name of the webhook.
    pub name: String,
    /// The name of its configuration.
    pub configuration: String,
    /// A unique ID: a configuration may have a name twice.
    pub uid: String,
    /// The address.
    pub client_config: ClientConfig,
    /// The CA bundle as PEM; empty for the CAs of the system.
    pub authority_pem: Vec<u8>,
    /// The requests that it matches.
    pub rules: Vec<Rule>,
    /// Whether failures are ignored (failurePolicy).
    pub ignores_failures: bool,
    /// Whether rules match equivalent resources (matchPolicy).
    pub is_equivalent: bool,
    /// Its side effects.
    pub side_effects: SideEffects,
    /// The timeout of a call.
    pub timeout: Duration,
    /// The version of the review; `None` if it supports none of ours.
    pub version: Option<ReviewVersion>,
    /// Whether it is called again after others changed the object (reinvocationPolicy).
    pub reinvoke_if_needed: bool,
    /// The match conditions.
    pub conditions: Vec<Expression>,
    namespaces: Option<Value>,
    objects: Option<Value>,
}

impl Webhook {
    /// The webhooks of a stored configuration, in order.
    pub fn read_all(configuration: &Value) -> Vec<Webhook> {
        let mut names: HashMap<&str, usize> = HashMap::new();
        let hooks = configuration.get("webhooks").map(Value::items).unwrap_or_default().iter();
        let owner = meta::name(configuration);
        hooks
            .map(|hook| {
                let count = names.entry(hook.str("name")).or_default();
                let uid = format!("{owner}/{}/{count}", hook.str("name"));
                *count += 1;
                Webhook::read(hook, owner, uid)
            })
            .collect()
    }

    fn read(hook: &Value, configuration: &str, uid: String) -> Webhook {
        let items = |field| hook.get(field).map(Value::items).unwrap_or_default().iter();
        let versions = items("admissionReviewVersions").find_map(|version| match version.as_str() {
            Some("v1") => Some(ReviewVersion::V1),
            Some("v1beta1") => Some(ReviewVersion::V1beta1),
            _ => None,
        });
        // A selector that matches everything is dropped.
        let selector = |field| hook.get(field).filter(|value| !label_selector::is_empty(value)).cloned();
        let seconds = hook.get("timeoutSeconds").and_then(Value::as_int);
        let client = hook.get("clientConfig").unwrap_or(&Value::Null);
        Webhook {
            name: hook.str("name").to_owned(),
            configuration: configuration.to_owned(),
            uid,
            client_config: client_config(client),
            authority_pem: STANDARD.decode(client.str("caBundle")).unwrap_or_default(),
            rules: items("rules").map(Rule::read).collect(),
            ignores_failures: hook.str("failurePolicy") == "Ignore",
            is_equivalent: hook.str("matchPolicy") != "Exact",
            side_effects: match hook.str("sideEffects") {
                "" => SideEffects::Unspecified,
                "None" | "NoneOnDryRun" => SideEffects::None,
                _ => SideEffects::Some,
            },
            timeout: Duration::from_secs(
                seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(DEFAULT_TIMEOUT_SECONDS),
            ),
            version: versions,
            reinvoke_if_needed: hook.str("reinvocationPolicy") == "IfNeeded",
            conditions: conditions(hook),
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
        }
    }

    /// The first match condition that does not compile, and why. A later release may have stored it.
    pub fn first_compile_error(&self) -> Option<String> {
        self.conditions.iter().find_map(Expression::compile_error)
    }

    /// Whether the labels of the namespace are needed.
    pub fn selects_namespaces(&self) -> bool {
        self.namespaces.is_some()
    }

    /// Whether the namespaceSelector matches these labels.
    pub fn matches_namespace(&self, labels: Option<&Value>) -> bool {
        self.namespaces.as_ref().is_none_or(|selector| label_selector::matches(Some(selector), labels))
    }

    /// Whether the objectSelector matches one of these states. A state without metadata has no labels.
    pub fn matches_object<'a>(&self, states: impl IntoIterator<Item = &'a Value>) -> bool {
        let Some(selector) = &self.objects else { return true };
        let mut states = states.into_iter().map(meta::metadata).filter(|meta| !meta.is_null());
        states.any(|meta| label_selector::matches(Some(selector), meta.get("labels")))
    }
}

/// The match conditions of a webhook. They were checked when written; one that no longer compiles fails at evaluation.
fn conditions(hook: &Value) -> Vec<Expression> {
    let all = hook.get("matchConditions").map(Value::items).unwrap_or_default();
    if all.is_empty() {
        return Vec::new();
    }
    let mut compiler = Compiler::stored(false, false);
    let compile = |condition: &Value| {
        let text = condition.str("expression");
        let program = compiler.compile(text, ResultType::Bool, true, EnvironmentType::Stored);
        Expression { text: text.to_owned(), program }
    };
    all.iter().map(compile).collect()
}

/// The address in a `clientConfig`.
pub fn client_config(client: &Value) -> ClientConfig {
    if let Some(service) = client.get("service") {
        let port = service.get("port").and_then(Value::as_int).and_then(|port| u16::try_from(port).ok());
        return ClientConfig::Service {
            namespace: service.str("namespace").to_owned(),
            name: service.str("name").to_owned(),
            path: service.str("path").to_owned(),
            port: port.unwrap_or(DEFAULT_PORT),
        };
    }
    match client.str("url") {
        "" => ClientConfig::None,
        url => ClientConfig::Url(url.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    fn hooks(text: &str) -> Vec<Webhook> {
        Webhook::read_all(&value(text))
    }

    #[test]
    fn webhook_configuration_is_parsed() {
        let all = hooks(
            r#"{"metadata":{"name":"c"},"webhooks":[
            {"name":"a","clientConfig":{"service":{"namespace":"n","name":"s","path":"/p","port":8443},"caBundle":"YWJj"},
             "failurePolicy":"Ignore","matchPolicy":"Exact","sideEffects":"NoneOnDryRun","timeoutSeconds":3,
             "admissionReviewVersions":["v9","v1beta1","v1"],"reinvocationPolicy":"IfNeeded",
             "rules":[{"operations":["*"]}],"namespaceSelector":{},"objectSelector":{"matchLabels":{"a":"b"}}},
            {"name":"a","clientConfig":{"url":"https://h/x"},"sideEffects":"Unknown","failurePolicy":"Fail"}]}"#,
        );
        let [first, second] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.uid.as_str(), second.uid.as_str()), ("c/a/0", "c/a/1"));
        let (namespace, name, path) = ("n".into(), "s".into(), "/p".into());
        assert_eq!(first.client_config, ClientConfig::Service { namespace, name, path, port: 8443 });
        assert_eq!(first.authority_pem, b"abc");
        assert_eq!(
            first.version,
            Some(ReviewVersion::V1beta1),
            "the first version that this server supports"
        );
        assert!(first.ignores_failures && !first.is_equivalent && first.reinvoke_if_needed);
        assert!(!first.selects_namespaces() && first.matches_namespace(None));
        assert_eq!((first.side_effects, first.timeout), (SideEffects::None, Duration::from_secs(3)));
        assert_eq!(second.client_config, ClientConfig::Url("https://h/x".into()));
        assert_eq!((second.side_effects, second.timeout), (SideEffects::Some, Duration::from_secs(10)));
        assert!(!second.ignores_failures && second.is_equivalent && second.version.is_none());
    }

    #[test]
    fn object_selector_matches_any_given_state() {
        let hook = &hooks(
            r#"{"webhooks":[{"objectSelector":{"matchLabels":{"a":"b"}},
                "namespaceSelector":{"matchExpressions":[{"key":"k","operator":"DoesNotExist"}]}}]}"#,
        )[0];
        let labelled = value(r#"{"metadata":{"labels":{"a":"b"}}}"#);
        let plain = value(r#"{"metadata":{"name":"x"}}"#);
        assert!(hook.matches_object([&labelled, &plain]) && hook.matches_object([&plain, &labelled]));
        assert!(!hook.matches_object([&plain]) && !hook.matches_object([&Value::Null]));
        assert!(hook.matches_namespace(None) && !hook.matches_namespace(Some(&value(r#"{"k":"v"}"#))));
    }
}
