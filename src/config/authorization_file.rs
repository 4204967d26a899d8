//! `--authorization-config`: the authorizers in order, with the settings of webhooks. The flags are a short form of it, so both
//! give the same list.

use std::collections::BTreeSet;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::match_conditions::Compiler;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::document;
use super::flag_groups::{Authorization, AuthorizationMode};
use super::values::go_duration;
use crate::limits::{AUTHORIZATION_FILE_BYTES, MATCH_CONDITIONS, WEBHOOK_TIMEOUT};

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
const ALLOWED_FOR: Duration = Duration::from_secs(300);
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// The name of the flags' webhook in metrics.
const DEFAULT_WEBHOOK: &str = "default";

/// One authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizerConfig {
    /// Its mode.
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
    /// How long an allowing answer is cached.
    pub allowed_for: Duration,
    /// How long other answers are cached.
    pub refused_for: Duration,
    /// The timeout of one call.
    pub timeout: Duration,
    /// Whether a failed call denies the request. Otherwise the other authorizers decide.
    pub denies_on_failure: bool,
    /// The webhook is called only if all these conditions hold.
    pub conditions: Vec<Expression>,
}

impl AuthorizerConfig {
    fn plain(mode: AuthorizationMode) -> AuthorizerConfig {
        AuthorizerConfig { mode, name: mode.to_string().to_lowercase(), webhook: None }
    }

    /// The authorizers of the flags.
    pub fn of_flags(flags: &Authorization) -> Result<Vec<AuthorizerConfig>, String> {
        let one = |mode: &AuthorizationMode| {
            if *mode != AuthorizationMode::Webhook {
                return Ok(AuthorizerConfig::plain(*mode));
            }
            let kubeconfig = flags.authorization_webhook_config_file.clone();
            let kubeconfig =
                kubeconfig.ok_or("--authorization-mode=Webhook needs --authorization-webhook-config-file")?;
            let webhook = Webhook {
                kubeconfig,
                version: flags.authorization_webhook_version.clone(),
                allowed_for: flags.authorization_webhook_cache_authorized_ttl,
                refused_for: flags.authorization_webhook_cache_unauthorized_ttl,
                timeout: WEBHOOK_TIMEOUT,
                denies_on_failure: false,
                conditions: Vec::new(),
            };
            Ok(AuthorizerConfig { mode: *mode, name: DEFAULT_WEBHOOK.to_owned(), webhook: Some(webhook) })
        };
        flags.authorization_mode.iter().map(one).collect()
    }

    /// Parses a file and reports all errors.
    pub fn parse(text: &[u8]) -> Result<Vec<AuthorizerConfig>, String> {
        let file = document::read(text, AUTHORIZATION_FILE_BYTES, KIND, &VERSIONS)?;
        let mut found = Found::default();
        found.only(&file, &FieldPath::root(), &["apiVersion", "kind", "authorizers"]);
        let all = file.get("authorizers").map(Value::items).unwrap_or_default();
        let path = FieldPath::new("authorizers");
        if all.is_empty() {
            found.wrong(&FieldError::required(&path, "at least one authorization mode must be defined"));
        }
        let deciders: Vec<AuthorizerConfig> =
            all.iter().enumerate().filter_map(|(at, one)| found.decider(one, &path.index(at))).collect();
        match found.wrong.as_slice() {
            [] => Ok(deciders),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }

    /// Whether a list may replace the one from the start: authorizers that follow stored objects must be the same.
    pub fn may_follow(first: &[AuthorizerConfig], next: &[AuthorizerConfig]) -> Result<(), String> {
        let own = |all: &[AuthorizerConfig]| -> BTreeSet<String> {
            let own = all.iter().filter(|one| one.mode != AuthorizationMode::Webhook);
            own.map(|one| one.mode.to_string()).collect()
        };
        let (first, next) = (own(first), own(next));
        let lost: Vec<String> = first.difference(&next).cloned().collect();
        if !lost.is_empty() {
            return Err(format!("missing required types: [{}]", lost.join(" ")));
        }
        let free = ["AlwaysAllow", "AlwaysDeny"];
        match next.difference(&first).find(|mode| !free.contains(&mode.as_str())) {
            None => Ok(()),
            Some(mode) => Err(format!(
                "authorizer type {mode} is not allowed if it was not enabled at initial server startup"
            )),
        }
    }
}

/// The state of parsing a file.
#[derive(Default)]
struct Found {
    modes: BTreeSet<String>,
    names: BTreeSet<String>,
    compiler: Compiler,
    wrong: Vec<String>,
}

impl Found {
    fn wrong(&mut self, error: &FieldError) {
        self.wrong.push(error.to_string());
    }

    fn only(&mut self, value: &Value, path: &FieldPath, known: &[&str]) {
        let Some(fields) = value.fields() else {
            return self.wrong.push(format!("{path}: must be an object"));
        };
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            self.wrong.push(format!("unknown field {}", quoted(&path.child(name).to_string())));
        }
    }

    fn decider(&mut self, one: &Value, path: &FieldPath) -> Option<AuthorizerConfig> {
        self.only(one, path, &["type", "name", "webhook"]);
        let (kind, at) = (one.str("type"), path.child("type"));
        if kind.is_empty() {
            self.wrong(&FieldError::required(&at, ""));
            return None;
        }
        let Some((_, mode)) = MODES.iter().find(|(name, _)| *name == kind) else {
            self.wrong(&FieldError::not_supported(&at, &quoted(kind), &MODES.map(|(name, _)| name)));
            return None;
        };
        if !self.modes.insert(kind.to_owned()) && *mode != AuthorizationMode::Webhook {
            self.wrong(&FieldError::duplicate(&at, &quoted(kind)));
            return None;
        }
        let name = one.str("name");
        self.name(name, *mode, &path.child("name"));
        let webhook = match (mode, one.get("webhook")) {
            (AuthorizationMode::Webhook, Some(webhook)) => Some(self.webhook(webhook, path)),
            (AuthorizationMode::Webhook, None) => {
                self.wrong(&FieldError::required(&path.child("webhook"), "required when type=Webhook"));
                None
            }
            (_, Some(_)) => {
                let why = "may only be specified when type=Webhook";
                self.wrong(&FieldError::invalid(&path.child("webhook"), "\"non-null\"", why));
                None
            }
            (_, None) => None,
        };
        Some(AuthorizerConfig { mode: *mode, name: name.to_owned(), webhook })
    }

    fn name(&mut self, name: &str, mode: AuthorizationMode, path: &FieldPath) {
        let wrong = names::dns_subdomain(name);
        if name.is_empty() {
            self.wrong(&FieldError::required(path, ""));
        } else if !self.names.insert(name.to_owned()) {
            self.wrong(&FieldError::duplicate(path, &quoted(name)));
        } else if !wrong.is_empty() {
            let why = format!("authorizer name is invalid: {}", wrong.join(", "));
            self.wrong(&FieldError::invalid(path, &quoted(name), &why));
        } else if mode != AuthorizationMode::Webhook && name != mode.to_string().to_lowercase() {
            let expected = mode.to_string().to_lowercase();
            self.wrong.push(format!("expected name {expected} for authorizer {mode} instead of {name}"));
        }
    }

    /// Parses `webhook`. Errors name its fields as if they were beside it, as in the reference.
    fn webhook(&mut self, webhook: &Value, path: &FieldPath) -> Webhook {
        const KNOWN: [&str; 8] = [
            "authorizedTTL",
            "unauthorizedTTL",
            "timeout",
            "subjectAccessReviewVersion",
            "matchConditionSubjectAccessReviewVersion",
            "failurePolicy",
            "connectionInfo",
            "matchConditions",
        ];
        self.only(webhook, &path.child("webhook"), &KNOWN);
        let timeout = self.duration(webhook, path, "timeout", None, Some(WEBHOOK_TIMEOUT));
        let allowed_for = self.duration(webhook, path, "authorizedTTL", Some(ALLOWED_FOR), None);
        let refused_for = self.duration(webhook, path, "unauthorizedTTL", Some(REFUSED_FOR), None);
        let version = self.one_of(webhook, path, "subjectAccessReviewVersion", &["v1", "v1beta1"]);
        let conditions = webhook.get("matchConditions").filter(|all| !all.is_null());
        let field = "matchConditionSubjectAccessReviewVersion";
        if !webhook.str(field).is_empty() {
            self.one_of(webhook, path, field, &["v1"]);
        } else if conditions.is_some_and(|all| !all.items().is_empty()) {
            let why = "required if match conditions are specified";
            self.wrong(&FieldError::required(&path.child(field), why));
        }
        let policy = self.one_of(webhook, path, "failurePolicy", &["NoOpinion", "Deny"]);
        let kubeconfig = self.connection(webhook.get("connectionInfo").unwrap_or(&Value::Null), path);
        let conditions = conditions.map(|all| self.conditions(all, &path.child("matchConditions")));
        Webhook {
            kubeconfig,
            version: version.to_owned(),
            allowed_for,
            refused_for,
            timeout,
            denies_on_failure: policy == "Deny",
            conditions: conditions.unwrap_or_default(),
        }
    }

    fn conditions(&mut self, all: &Value, path: &FieldPath) -> Vec<Expression> {
        // An error, because without its conditions the webhook would be called for requests that it must not see.
        let Value::Array(all) = all else {
            self.wrong.push(format!("{path}: must be a list"));
            return Vec::new();
        };
        if all.len() > MATCH_CONDITIONS {
            self.wrong(&FieldError::too_many(path, all.len(), MATCH_CONDITIONS));
            return Vec::new();
        }
        let (mut seen, mut made) = (BTreeSet::new(), Vec::new());
        for (at, condition) in all.iter().enumerate() {
            self.only(condition, &path.index(at), &["expression"]);
            let (text, at) = (condition.str("expression"), path.index(at).child("expression"));
            if text.trim().is_empty() {
                self.wrong(&FieldError::required(&at, ""));
            } else if !seen.insert(text) {
                self.wrong(&FieldError::duplicate(&at, &quoted(text)));
            } else {
                match self.compiler.compile(text) {
                    Ok(condition) => made.push(condition),
                    Err(why) => self.wrong(&FieldError::invalid(&at, &quoted(text), &why)),
                }
            }
        }
        made
    }

    fn one_of<'a>(&mut self, value: &'a Value, path: &FieldPath, field: &str, known: &[&str]) -> &'a str {
        let (text, at) = (value.str(field), path.child(field));
        if text.is_empty() {
            self.wrong(&FieldError::required(&at, ""));
        } else if !known.contains(&text) {
            self.wrong(&FieldError::not_supported(&at, &quoted(text), known));
        }
        text
    }

    fn duration(
        &mut self,
        value: &Value,
        path: &FieldPath,
        field: &str,
        default: Option<Duration>,
        most: Option<Duration>,
    ) -> Duration {
        let (text, at) = (value.str(field), path.child(field));
        let parsed = match value.get(field) {
            None | Some(Value::Null) => Ok(Duration::ZERO),
            Some(Value::String(text)) => go_duration(text),
            Some(_) => Err("must be a text such as 30s".to_owned()),
        };
        match (parsed, default) {
            (Err(why), _) => self.wrong(&FieldError::invalid(&at, &quoted(text), &why)),
            (Ok(Duration::ZERO), Some(default)) => return default,
            (Ok(Duration::ZERO), None) => self.wrong(&FieldError::required(&at, "")),
            (Ok(found), _) if most.is_some_and(|most| found > most) => {
                self.wrong(&FieldError::invalid(&at, &quoted(text), "must be > 0s and <= 30s"));
            }
            (Ok(found), _) => return found,
        }
        Duration::ZERO
    }

    fn connection(&mut self, info: &Value, path: &FieldPath) -> PathBuf {
        let path = path.child("connectionInfo");
        if !info.is_null() {
            self.only(info, &path, &["type", "kubeConfigFile"]);
        }
        let (kind, file) = (info.str("type"), info.str("kubeConfigFile"));
        let (of_kind, of_file) = (path.child("type"), path.child("kubeConfigFile"));
        match kind {
            "" => self.wrong(&FieldError::required(&of_kind, "")),
            "KubeConfigFile" if file.is_empty() => self.wrong(&FieldError::required(&of_file, "")),
            "KubeConfigFile" if !FilePath::new(file).is_absolute() => {
                self.wrong(&FieldError::invalid(&of_file, &quoted(file), "must be an absolute path"));
            }
            "KubeConfigFile" => {}
            "InClusterConfig" => {
                let why = "the API server cannot ask itself";
                self.wrong(&FieldError::invalid(&of_kind, &quoted(kind), why));
            }
            _ => {
                let known = ["InClusterConfig", "KubeConfigFile"];
                self.wrong(&FieldError::not_supported(&of_kind, &quoted(kind), &known));
            }
        }
        PathBuf::from(file)
    }
}

#[cfg(test)]
mod tests;
