//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook. `table.rs` has the configured webhooks, `subject.rs` matches them and
//! converts the object, `call.rs` makes the call. `reinvocation.rs` tracks which webhooks have to be called again.

mod call;
mod subject;
mod table;

use std::pin::pin;
use std::sync::Arc;

use futures::future::join_all;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::throttle::Throttle;
use pilothouse_admission::webhooks::{self, Webhook};
use pilothouse_api::admission_plugins::PluginName;
use pilothouse_api::audit;
use pilothouse_apimachinery::document::{self, FieldReader};
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::json::write_string;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_client::kubeconfig::users::Users;
use pilothouse_client::upstream::pool::{Pool, Purpose};
use pilothouse_client::webhook::cluster_webhooks::WebhookClients;
use pilothouse_types::clock::Clock;

use crate::limits::HOOK_CALLS;
use crate::metrics::Metrics;
use crate::metrics::admission_webhooks::{Fault, WebhookLabels};

use self::call::CallError;
use self::subject::Subject;
pub use self::table::{Hooks, open};

use super::{Equivalents, Outcome, Plugin, Write};
use crate::registry::Origin;
use crate::registry::admission::Reinvocation;
use crate::registry::webhook_call::WebhookCaller;

/// Settings that all workers share.
#[derive(Clone)]
pub struct Settings {
    /// The configured webhooks.
    pub hooks: Arc<Hooks>,
    /// Finds resources that serve the same objects.
    pub equivalents: Equivalents,
    /// Whether a service is called at one of its endpoints instead of its cluster IP.
    pub to_endpoints: bool,
    /// Counts and times the calls.
    pub metrics: Arc<Metrics>,
    /// Measures how long calls take.
    pub clock: Clock,
    /// Idle connections for reuse.
    pub pool: Arc<Pool>,
}

/// The credentials for calling webhooks, by plug-in.
#[derive(Clone, Default)]
pub struct WebhookCredentials {
    mutating: Arc<Users>,
    validating: Arc<Users>,
}

impl WebhookCredentials {
    /// Reads the kubeconfig files that the configurations of both plug-ins name.
    pub fn read(
        mutating: Option<&Value>,
        validating: Option<&Value>,
    ) -> std::result::Result<WebhookCredentials, String> {
        let credentials = |plugin: PluginName, document| {
            users(document).map_err(|reason| format!("{}: {reason}", plugin.as_str()))
        };
        Ok(WebhookCredentials {
            mutating: Arc::new(credentials(PluginName::MutatingAdmissionWebhook, mutating)?),
            validating: Arc::new(credentials(PluginName::ValidatingAdmissionWebhook, validating)?),
        })
    }
}

fn users(document: Option<&Value>) -> std::result::Result<Users, String> {
    let Some(document) = document else { return Ok(Users::default()) };
    let (kind, version) = match document.str("kind") {
        "WebhookAdmission" => ("WebhookAdmission", "apiserver.config.k8s.io/v1alpha1"),
        _ => ("WebhookAdmissionConfiguration", "apiserver.config.k8s.io/v1"),
    };
    document::check_kind(document, kind, &[version])?;
    let (mut reader, root) = (FieldReader::default(), FieldPath::root());
    reader.check_fields(document, &root, &["apiVersion", "kind", "kubeConfigFile"]);
    let path = reader.text(document, "kubeConfigFile", &root);
    reader.result()?;
    if !path.starts_with('/') {
        let path = pilothouse_apimachinery::field::quoted(path);
        return Err(format!("kubeConfigFile: Invalid value: {path}: must be an absolute file path"));
    }
    Users::read(path.as_ref())
}

/// The phase of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Webhooks may change the object.
    Mutating,
    /// Webhooks only accept or refuse.
    Validating,
}

impl Phase {
    /// The prefix of audit annotations.
    fn prefix(self) -> &'static str {
        match self {
            Phase::Mutating => "mutation.webhook.admission.k8s.io/",
            Phase::Validating => "validating.webhook.admission.k8s.io/",
        }
    }

    /// The name of calls in traces.
    fn span_name(self) -> &'static str {
        match self {
            Phase::Mutating => "Call mutating webhook",
            Phase::Validating => "Call validating webhook",
        }
    }

    /// The label value in metrics.
    fn word(self) -> &'static str {
        match self {
            Phase::Mutating => "admit",
            Phase::Validating => "validating",
        }
    }
}

/// Identifies a call within a request, as audit annotations number it.
#[derive(Clone, Copy)]
struct CallIndex {
    round: usize,
    index: usize,
}

impl CallIndex {
    /// Adds an audit annotation about the call.
    fn annotate(self, subject: &Subject<'_>, prefix: &str, text: String) {
        let key = format!("{prefix}round_{}_index_{}", self.round, self.index);
        subject.write.call.warnings.annotate(&key, text);
    }

    /// Annotates whether the webhook changed the object.
    fn annotate_change(self, subject: &Subject<'_>, mutated: bool) {
        if subject.write.call.warnings.audit_body.level() >= audit::Level::Metadata {
            let text = format!(r#"{{{},"mutated":{mutated}}}"#, hook_fields(subject.hook));
            self.annotate(subject, Phase::Mutating.prefix(), text);
        }
    }

    /// Annotates the patch, at levels that include bodies.
    fn annotate_patch(self, subject: &Subject<'_>, patch: Option<&[u8]>) {
        if subject.write.call.warnings.audit_body.level() < audit::Level::Request {
            return;
        }
        if let Some(patch) = patch.and_then(audit::bodies::compact) {
            let (hook_fields, patch) =
                (hook_fields(subject.hook), String::from_utf8_lossy(&patch).into_owned());
            let text = format!(r#"{{{hook_fields},"patch":{patch},"patchType":"JSONPatch"}}"#);
            self.annotate(subject, "patch.webhook.admission.k8s.io/", text);
        }
    }
}

/// The JSON fields of annotations that name the configuration and the webhook.
fn hook_fields(hook: &Webhook) -> String {
    let mut out = b"\"configuration\":".to_vec();
    write_string(&mut out, &hook.configuration);
    out.extend_from_slice(b",\"webhook\":");
    write_string(&mut out, &hook.name);
    String::from_utf8_lossy(&out).into_owned()
}

/// The plug-in of one phase.
pub struct Webhooks {
    phase: Phase,
    settings: Settings,
    caller: WebhookCaller,
    /// Limits log lines about calls that fail.
    failures: Throttle,
}

impl Webhooks {
    /// Makes the plug-in for one worker.
    pub fn new(phase: Phase, settings: &Settings, credentials: &WebhookCredentials) -> Webhooks {
        let users = match phase {
            Phase::Mutating => &credentials.mutating,
            Phase::Validating => &credentials.validating,
        };
        let clients = WebhookClients::new(settings.pool.clone(), Purpose::Admission);
        let caller = WebhookCaller::new(clients, users.clone(), HOOK_CALLS, settings.to_endpoints);
        Webhooks { phase, settings: settings.clone(), caller, failures: Throttle::default() }
    }

    /// All webhooks of the phase, in order.
    async fn hooks(&self, write: &Write<'_>) -> Result<Arc<[Arc<Webhook>]>> {
        let phase = self.phase;
        let hooks = match self.settings.hooks.query(move |table| table.all(phase)) {
            Answer::Now(hooks) => hooks,
            Answer::Later(hooks) => hooks.await,
        };
        hooks.map_err(|_| write.forbidden(&Value::Null, "not yet ready to handle request"))?
    }

    /// Calls one webhook and counts the call. `None`: the call failed, and the webhook's failurePolicy ignores that.
    /// `call_index`: its position in the order of calls.
    async fn call_counted(
        &self,
        subject: &Subject<'_>,
        object: &Value,
        call_index: CallIndex,
    ) -> Result<Option<call::Outcome>> {
        let hook = subject.hook;
        let began = self.settings.clock.moment();
        let mut span = subject.write.call.permit().trace().open_at(self.phase.span_name(), began);
        span.describe(|| subject.attributes());
        let outcome = span.run(pin!(self.call(subject, object))).await;
        let ended = self.settings.clock.moment();
        if outcome.is_err() {
            span.fail();
        }
        span.end_at(ended);
        let elapsed = ended.since(began);
        if self.phase == Phase::Mutating {
            subject.write.call.warnings.add_webhook_time(elapsed);
        }
        let seconds = elapsed.as_secs_f64();
        let operation = subject.operation;
        let labels = WebhookLabels { name: &hook.name, sort: self.phase.word(), operation };
        let metrics = &self.settings.metrics.hooks;
        match outcome {
            Ok(outcome) => {
                metrics.count_call(labels, seconds, 200, None);
                Ok(Some(outcome))
            }
            Err(CallError::Calling { reason, code }) => {
                let rejected = (!hook.ignores_failures).then_some(Fault::Calling);
                metrics.count_call(labels, seconds, code, rejected);
                let text = format!(
                    "failed calling webhook {}: {reason}",
                    pilothouse_apimachinery::field::quoted(&hook.name)
                );
                if self.failures.allows(self.settings.clock.moment()) {
                    let ignored = hook.ignores_failures;
                    tracing::warn!(webhook = hook.name, %reason, ignored, "admission webhook call failed");
                }
                if hook.ignores_failures {
                    metrics.count_fail_open(labels);
                    call_index.annotate(
                        subject,
                        &format!("failed-open.{}", self.phase.prefix()),
                        hook.name.clone(),
                    );
                    return Ok(None);
                }
                Err(Status::internal(text))
            }
            Err(CallError::Denied(status)) => {
                metrics.count_call(labels, seconds, status.code, Some(Fault::None));
                Err(status)
            }
            Err(CallError::Server(status)) => {
                metrics.count_call(labels, seconds, 0, Some(Fault::Server));
                Err(status)
            }
        }
    }

    /// Calls mutating webhooks one after the other: each sees the changes of those before it.
    async fn mutate_all(
        &self,
        write: &Write<'_>,
        object: &mut Value,
        reinvocation: &Reinvocation,
    ) -> Result<()> {
        let hooks = self.hooks(write).await?;
        let state = &reinvocation.webhooks;
        let mut is_cost_checked = reinvocation.is_second_round();
        reinvocation.start_turn(state, object);
        for (index, hook) in hooks.iter().enumerate() {
            let Some(subject) = Subject::new(self, write, hook, object).await? else { continue };
            if reinvocation.skips(state, &hook.uid) {
                continue;
            }
            if !std::mem::replace(&mut is_cost_checked, true) {
                check_rule_cost(write, object)?;
            }
            let call_index = CallIndex { round: usize::from(reinvocation.is_second_round()), index };
            let outcome = self.call_counted(&subject, object, call_index).await;
            let is_changed = match &outcome {
                Ok(Some(outcome)) => outcome.patched.as_ref().is_some_and(|(_, is_changed)| *is_changed),
                _ => false,
            };
            call_index.annotate_change(&subject, is_changed);
            if let Some(call::Outcome { patched: Some((new, _)), patch }) = outcome? {
                call_index.annotate_patch(&subject, patch.as_deref());
                *object = new;
                reinvocation.mark_patched();
            }
            if is_changed {
                reinvocation.mark_changed(state);
            }
            reinvocation.mark_invoked(state, &hook.uid, hook.reinvoke_if_needed);
        }
        reinvocation.end_turn(state, object);
        Ok(())
    }

    /// Calls validating webhooks concurrently. Returns the first refusal in the order of the webhooks.
    async fn validate_all(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let hooks = self.hooks(write).await?;
        let mut subjects = Vec::new();
        for hook in hooks.iter() {
            subjects.extend(Subject::new(self, write, hook, object).await?);
        }
        let call_index = |index| CallIndex { round: 0, index };
        let calls = subjects.iter().enumerate();
        let began = self.settings.clock.moment();
        let outcomes =
            join_all(calls.map(|(index, subject)| self.call_counted(subject, object, call_index(index))))
                .await;
        // They are called at the same time, so the slowest one counts.
        write.call.warnings.add_webhook_time(self.settings.clock.elapsed(began));
        outcomes.into_iter().try_for_each(|outcome| outcome.map(drop))
    }
}

/// Fails before the first webhook is called if the validation rules of a custom resource will exceed the work limit of this
/// thread: the call is repeated on another one, and a webhook should be called once. Changes by webhooks may still add to the
/// cost.
fn check_rule_cost(write: &Write<'_>, object: &Value) -> Result<()> {
    let custom = write.call.resource().custom.as_ref();
    match custom.filter(|custom| custom.rules.is_some() && !object.is_null()) {
        Some(custom) => write.call.work().check_cel(|| custom.evaluate_rules(object, write.old)),
        None => Ok(()),
    }
}

impl Plugin for Webhooks {
    fn handles(&self, write: &Write<'_>) -> bool {
        let (gv, kind) = write.call.body_kind();
        // If the table is being updated, the call waits for it.
        let has_hooks = || self.settings.hooks.fresh().is_none_or(|table| !table.is_empty(self.phase));
        // The server's own bootstrap objects are exempt: without them it would not start.
        write.call.requester.origin != Origin::Server && !webhooks::is_exempt(&gv.group, kind) && has_hooks()
    }

    fn connects(&self) -> bool {
        true
    }

    fn admit<'a>(
        &'a self,
        write: &'a Write<'a>,
        object: &'a mut Value,
        reinvocation: &'a Reinvocation,
    ) -> Outcome<'a> {
        match self.phase {
            Phase::Mutating => Box::pin(self.mutate_all(write, object, reinvocation)),
            Phase::Validating => super::done(Ok(())),
        }
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        match self.phase {
            Phase::Mutating => super::done(Ok(())),
            Phase::Validating => Box::pin(self.validate_all(write, object)),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    #[test]
    fn webhook_config_requires_absolute_kubeconfig_path() {
        let parse = |text: &str| users(Some(&json::read(text.as_bytes()).unwrap())).map(drop);
        let head = r#""apiVersion":"apiserver.config.k8s.io/v1","kind":"WebhookAdmissionConfiguration""#;
        assert_eq!(
            parse(&format!(r#"{{{head},"kubeConfigFile":"x"}}"#)),
            Err("kubeConfigFile: Invalid value: \"x\": must be an absolute file path".to_owned())
        );
        assert!(parse(&format!(r#"{{{head},"kubeConfig":"/x"}}"#)).unwrap_err().contains("unknown field"));
        assert!(parse(r#"{"apiVersion":"v1","kind":"Pod"}"#).is_err());
        assert!(users(None).is_ok());
    }
}
