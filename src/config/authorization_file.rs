//! `--authorization-config`: the authorizers in order, with the settings of webhooks. The flags are a short form of it, so both
//! give the same list.

use std::collections::BTreeSet;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::match_conditions::Compiler;
use pilothouse_apimachinery::document::FieldReader;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;
use pilothouse_client::limits::WEBHOOK_TIMEOUT;

use super::document;
use super::flag_groups::{Authorization, AuthorizationMode};
use super::values::go_duration;
use crate::limits::{AUTHORIZATION_FILE_BYTES, MATCH_CONDITIONS};

const KIND: &str = "AuthorizationConfiguration";
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
/// The names of modes in the file, in the order in which messages list them.
const MODES: [(&str, AuthorizationMode); 6] = [
    ("ABAC", AuthorizationMode::Abac),
    ("AlwaysAllow", AuthorizationMode::AlwaysAllow),
    ("AlwaysDeny", AuthorizationMode::AlwaysDeny),
    ("Node", AuthorizationMode::Node),
    ("RBAC", AuthorizationMode::Rbac),
    ("Webhook", AuthorizationMode::Webhook),
];
const DEFAULT_AUTHORIZED_TTL: Duration = Duration::from_secs(300);
const DEFAULT_UNAUTHORIZED_TTL: Duration = Duration::from_secs(30);
/// The name of the flags' webhook in metrics.
const DEFAULT_WEBHOOK: &str = "default";

/// One authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizerConfig {
    /// The mode.
    pub mode: AuthorizationMode,
    /// Its name in metrics.
    pub name: String,
    /// The settings of a webhook.
    pub webhook: Option<Webhook>,
}

/// An authorization webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The kubeconfig of its server.
    pub kubeconfig: PathBuf,
    /// The version of SubjectAccessReview.
    pub version: String,
    /// How long allowing responses are cached.
    pub authorized_ttl: Duration,
    /// How long other responses are cached.
    pub unauthorized_ttl: Duration,
    /// The timeout of one call.
    pub timeout: Duration,
    /// Whether a failed call denies the request. Otherwise the other authorizers decide.
    pub denies_on_failure: bool,
    /// The webhook is called only if all these conditions hold.
    pub conditions: Vec<Expression>,
}

impl AuthorizerConfig {
    fn without_webhook(mode: AuthorizationMode) -> AuthorizerConfig {
        AuthorizerConfig { mode, name: mode.to_string().to_lowercase(), webhook: None }
    }

    /// The authorizers of the flags.
    pub fn from_flags(flags: &Authorization) -> Result<Vec<AuthorizerConfig>, String> {
        let authorizer = |mode: &AuthorizationMode| {
            if *mode != AuthorizationMode::Webhook {
                return Ok(AuthorizerConfig::without_webhook(*mode));
            }
            let kubeconfig = flags.authorization_webhook_config_file.clone();
            let kubeconfig =
                kubeconfig.ok_or("--authorization-mode=Webhook needs --authorization-webhook-config-file")?;
            let webhook = Webhook {
                kubeconfig,
                version: flags.authorization_webhook_version.clone(),
                authorized_ttl: flags.authorization_webhook_cache_authorized_ttl,
                unauthorized_ttl: flags.authorization_webhook_cache_unauthorized_ttl,
                timeout: WEBHOOK_TIMEOUT,
                denies_on_failure: false,
                conditions: Vec::new(),
            };
            Ok(AuthorizerConfig { mode: *mode, name: DEFAULT_WEBHOOK.to_owned(), webhook: Some(webhook) })
        };
        flags.authorization_mode.iter().map(authorizer).collect()
    }

    /// Parses a file and reports all errors.
    pub fn parse(text: &[u8]) -> Result<Vec<AuthorizerConfig>, String> {
        let file = document::read(text, AUTHORIZATION_FILE_BYTES, KIND, &VERSIONS)?;
        let mut parser = FileParser::default();
        parser.reader.check_fields(&file, &FieldPath::root(), &["apiVersion", "kind", "authorizers"]);
        let entries = file.get("authorizers").map(Value::items).unwrap_or_default();
        let path = FieldPath::new("authorizers");
        if entries.is_empty() {
            parser
                .reader
                .push_error(&FieldError::required(&path, "at least one authorization mode must be defined"));
        }
        let authorizers: Vec<AuthorizerConfig> = entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| parser.authorizer(entry, &path.index(index)))
            .collect();
        parser.reader.result()?;
        Ok(authorizers)
    }

    /// Whether a list may replace the one from the start: authorizers that depend on stored objects must be the same.
    pub fn check_reload(first: &[AuthorizerConfig], next: &[AuthorizerConfig]) -> Result<(), String> {
        let builtin_modes = |authorizers: &[AuthorizerConfig]| -> BTreeSet<String> {
            let builtin =
                authorizers.iter().filter(|authorizer| authorizer.mode != AuthorizationMode::Webhook);
            builtin.map(|authorizer| authorizer.mode.to_string()).collect()
        };
        let (first, next) = (builtin_modes(first), builtin_modes(next));
        let missing: Vec<String> = first.difference(&next).cloned().collect();
        if !missing.is_empty() {
            return Err(format!("missing required types: [{}]", missing.join(" ")));
        }
        let reloadable = ["AlwaysAllow", "AlwaysDeny"];
        match next.difference(&first).find(|mode| !reloadable.contains(&mode.as_str())) {
            None => Ok(()),
            Some(mode) => Err(format!(
                "authorizer type {mode} is not allowed if it was not enabled at initial server startup"
            )),
        }
    }
}

/// The state of parsing a file.
#[derive(Default)]
struct FileParser {
    modes: BTreeSet<String>,
    names: BTreeSet<String>,
    compiler: Compiler,
    reader: FieldReader,
}

impl FileParser {
    fn authorizer(&mut self, entry: &Value, path: &FieldPath) -> Option<AuthorizerConfig> {
        self.reader.check_fields(entry, path, &["type", "name", "webhook"]);
        let (kind, type_path) = (entry.str("type"), path.child("type"));
        if kind.is_empty() {
            self.reader.push_error(&FieldError::required(&type_path, ""));
            return None;
        }
        let Some((_, mode)) = MODES.iter().find(|(name, _)| *name == kind) else {
            self.reader.push_error(&FieldError::not_supported(
                &type_path,
                &quoted(kind),
                &MODES.map(|(name, _)| name),
            ));
            return None;
        };
        if !self.modes.insert(kind.to_owned()) && *mode != AuthorizationMode::Webhook {
            self.reader.push_error(&FieldError::duplicate(&type_path, &quoted(kind)));
            return None;
        }
        let name = entry.str("name");
        self.name(name, *mode, &path.child("name"));
        let webhook = match (mode, entry.get("webhook")) {
            (AuthorizationMode::Webhook, Some(webhook)) => Some(self.webhook(webhook, path)),
            (AuthorizationMode::Webhook, None) => {
                self.reader
                    .push_error(&FieldError::required(&path.child("webhook"), "required when type=Webhook"));
                None
            }
            (_, Some(_)) => {
                let reason = "may only be specified when type=Webhook";
                self.reader.push_error(&FieldError::invalid(&path.child("webhook"), "\"non-null\"", reason));
                None
            }
            (_, None) => None,
        };
        Some(AuthorizerConfig { mode: *mode, name: name.to_owned(), webhook })
    }

    fn name(&mut self, name: &str, mode: AuthorizationMode, path: &FieldPath) {
        let name_errors = names::dns_subdomain(name);
        if name.is_empty() {
            self.reader.push_error(&FieldError::required(path, ""));
        } else if !self.names.insert(name.to_owned()) {
            self.reader.push_error(&FieldError::duplicate(path, &quoted(name)));
        } else if !name_errors.is_empty() {
            let reason = format!("authorizer name is invalid: {}", name_errors.join(", "));
            self.reader.push_error(&FieldError::invalid(path, &quoted(name), &reason));
        } else if mode != AuthorizationMode::Webhook && name != mode.to_string().to_lowercase() {
            let expected = mode.to_string().to_lowercase();
            self.reader
                .push_message(format!("expected name {expected} for authorizer {mode} instead of {name}"));
        }
    }

    /// Parses `webhook`. Errors name its fields as if they were beside it, as in kube-apiserver.
    fn webhook(&mut self, webhook: &Value, path: &FieldPath) -> Webhook {
        const FIELDS: [&str; 8] = [
            "authorizedTTL",
            "unauthorizedTTL",
            "timeout",
            "subjectAccessReviewVersion",
            "matchConditionSubjectAccessReviewVersion",
            "failurePolicy",
            "connectionInfo",
            "matchConditions",
        ];
        self.reader.check_fields(webhook, &path.child("webhook"), &FIELDS);
        let timeout = self.duration(webhook, path, "timeout", None, Some(WEBHOOK_TIMEOUT));
        let authorized_ttl =
            self.duration(webhook, path, "authorizedTTL", Some(DEFAULT_AUTHORIZED_TTL), None);
        let unauthorized_ttl =
            self.duration(webhook, path, "unauthorizedTTL", Some(DEFAULT_UNAUTHORIZED_TTL), None);
        let version = self.enum_field(webhook, path, "subjectAccessReviewVersion", &["v1", "v1beta1"]);
        // If it is no list that is an error, because without its conditions the webhook would be called for requests that it must
        // not see.
        let conditions = self.reader.list(webhook, "matchConditions", path);
        let field = "matchConditionSubjectAccessReviewVersion";
        if !webhook.str(field).is_empty() {
            self.enum_field(webhook, path, field, &["v1"]);
        } else if !conditions.is_empty() {
            let reason = "required if match conditions are specified";
            self.reader.push_error(&FieldError::required(&path.child(field), reason));
        }
        let policy = self.enum_field(webhook, path, "failurePolicy", &["NoOpinion", "Deny"]);
        let kubeconfig = self.connection(webhook.get("connectionInfo").unwrap_or(&Value::Null), path);
        let conditions = self.conditions(conditions, &path.child("matchConditions"));
        Webhook {
            kubeconfig,
            version: version.to_owned(),
            authorized_ttl,
            unauthorized_ttl,
            timeout,
            denies_on_failure: policy == "Deny",
            conditions,
        }
    }

    fn conditions(&mut self, list: &[Value], path: &FieldPath) -> Vec<Expression> {
        if list.len() > MATCH_CONDITIONS {
            self.reader.push_error(&FieldError::too_many(path, list.len(), MATCH_CONDITIONS));
            return Vec::new();
        }
        let (mut seen, mut expressions) = (BTreeSet::new(), Vec::new());
        for (index, condition) in list.iter().enumerate() {
            self.reader.check_fields(condition, &path.index(index), &["expression"]);
            let (text, path) = (condition.str("expression"), path.index(index).child("expression"));
            if text.trim().is_empty() {
                self.reader.push_error(&FieldError::required(&path, ""));
            } else if !seen.insert(text) {
                self.reader.push_error(&FieldError::duplicate(&path, &quoted(text)));
            } else {
                match self.compiler.compile(text) {
                    Ok(condition) => expressions.push(condition),
                    Err(error) => self.reader.push_error(&FieldError::invalid(&path, &quoted(text), &error)),
                }
            }
        }
        expressions
    }

    fn enum_field<'a>(
        &mut self,
        value: &'a Value,
        path: &FieldPath,
        field: &str,
        allowed: &[&str],
    ) -> &'a str {
        let (text, path) = (value.str(field), path.child(field));
        if text.is_empty() {
            self.reader.push_error(&FieldError::required(&path, ""));
        } else if !allowed.contains(&text) {
            self.reader.push_error(&FieldError::not_supported(&path, &quoted(text), allowed));
        }
        text
    }

    fn duration(
        &mut self,
        value: &Value,
        path: &FieldPath,
        field: &str,
        default: Option<Duration>,
        max: Option<Duration>,
    ) -> Duration {
        let (text, path) = (value.str(field), path.child(field));
        let parsed = match value.get(field) {
            None | Some(Value::Null) => Ok(Duration::ZERO),
            Some(Value::String(text)) => go_duration(text),
            Some(_) => Err("must be a string such as 30s".to_owned()),
        };
        match (parsed, default) {
            (Err(error), _) => self.reader.push_error(&FieldError::invalid(&path, &quoted(text), &error)),
            (Ok(Duration::ZERO), Some(default)) => return default,
            (Ok(Duration::ZERO), None) => self.reader.push_error(&FieldError::required(&path, "")),
            (Ok(duration), _) if max.is_some_and(|max| duration > max) => {
                self.reader.push_error(&FieldError::invalid(&path, &quoted(text), "must be > 0s and <= 30s"));
            }
            (Ok(duration), _) => return duration,
        }
        Duration::ZERO
    }

    fn connection(&mut self, info: &Value, path: &FieldPath) -> PathBuf {
        let path = path.child("connectionInfo");
        if !info.is_null() {
            self.reader.check_fields(info, &path, &["type", "kubeConfigFile"]);
        }
        let (kind, file) = (info.str("type"), info.str("kubeConfigFile"));
        let (type_path, file_path) = (path.child("type"), path.child("kubeConfigFile"));
        match kind {
            "" => self.reader.push_error(&FieldError::required(&type_path, "")),
            "KubeConfigFile" if file.is_empty() => {
                self.reader.push_error(&FieldError::required(&file_path, ""));
            }
            "KubeConfigFile" if !FilePath::new(file).is_absolute() => {
                self.reader.push_error(&FieldError::invalid(
                    &file_path,
                    &quoted(file),
                    "must be an absolute path",
                ));
            }
            "KubeConfigFile" => {}
            "InClusterConfig" => {
                let reason = "the API server cannot call itself";
                self.reader.push_error(&FieldError::invalid(&type_path, &quoted(kind), reason));
            }
            _ => {
                let allowed = ["InClusterConfig", "KubeConfigFile"];
                self.reader.push_error(&FieldError::not_supported(&type_path, &quoted(kind), &allowed));
            }
        }
        PathBuf::from(file)
    }
}

#[cfg(test)]
mod tests;
