//! Webhooks: others are asked whether a write may happen, and may change it first. `table.rs` knows whom to ask, `subject.rs`
//! what is asked about, `call.rs` how; `reinvocation.rs` beside remembers who has to be asked again.

mod call;
mod subject;
mod table;

use std::rc::Rc;
use std::sync::Arc;

use futures::future::join_all;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::throttle::Throttle;
use pilothouse_admission::webhooks::{self, Webhook};
use pilothouse_api::admission_plugins::PluginName;
use pilothouse_api::audit;
use pilothouse_apimachinery::json::write_string;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::clock::Clock;
use tokio::sync::Semaphore;

use crate::kubeconfig::users::Users;
use crate::limits::HOOK_QUESTIONS;
use crate::metrics::Metrics;
use crate::metrics::admission_webhooks::{Fault, WebhookLabels};
use crate::upstream::pool::{Pool, Purpose};
use crate::webhook::cluster_webhooks::WebhookClients;

use self::call::CallError;
use self::subject::Subject;
pub use self::table::{Hooks, open};

use super::super::Origin;
use super::plugin_document::Document;
use super::reinvocation::Reinvocation;
use super::{Equivalents, Outcome, Plugin, Write};

/// Settings that all workers share.
#[derive(Clone)]
pub struct Settings {
    /// The configured webhooks.
    pub hooks: Arc<Hooks>,
    /// Finds resources that show the same objects.
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
        let read = |plugin: PluginName, document| {
            users(document).map_err(|why| format!("{}: {why}", plugin.as_str()))
        };
        Ok(WebhookCredentials {
            mutating: Arc::new(read(PluginName::MutatingAdmissionWebhook, mutating)?),
            validating: Arc::new(read(PluginName::ValidatingAdmissionWebhook, validating)?),
        })
    }
}

fn users(document: Option<&Value>) -> std::result::Result<Users, String> {
    let Some(document) = document else { return Ok(Users::default()) };
    let read = match document.str("kind") {
        "WebhookAdmission" => {
            Document::of(document, &["apiserver.config.k8s.io/v1alpha1"], "WebhookAdmission")?
        }
        _ => Document::of(document, &["apiserver.config.k8s.io/v1"], "WebhookAdmissionConfiguration")?,
    };
    read.has_only("", &["apiVersion", "kind", "kubeConfigFile"])?;
    let path = read.text(&["kubeConfigFile"])?;
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
struct Index {
    round: usize,
    place: usize,
}

impl Index {
    /// Adds an audit annotation about the call.
    fn note(self, subject: &Subject<'_>, prefix: &str, text: String) {
        let key = format!("{prefix}round_{}_index_{}", self.round, self.place);
        subject.write.call.warnings.note(&key, text);
    }

    /// Annotates whether the webhook changed the object.
    fn note_change(self, subject: &Subject<'_>, mutated: bool) {
        if subject.write.call.warnings.received.level() >= audit::Level::Metadata {
            let said = format!(r#"{{{},"mutated":{mutated}}}"#, names(subject.hook));
            self.note(subject, Phase::Mutating.prefix(), said);
        }
    }

    /// Annotates the patch, at levels that include bodies.
    fn note_patch(self, subject: &Subject<'_>, patch: Option<&[u8]>) {
        if subject.write.call.warnings.received.level() < audit::Level::Request {
            return;
        }
        if let Some(patch) = patch.and_then(audit::bodies::compact) {
            let (names, patch) = (names(subject.hook), String::from_utf8_lossy(&patch).into_owned());
            let said = format!(r#"{{{names},"patch":{patch},"patchType":"JSONPatch"}}"#);
            self.note(subject, "patch.webhook.admission.k8s.io/", said);
        }
    }
}

/// The configuration and the webhook, as annotations name them.
fn names(hook: &Webhook) -> String {
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
    users: Arc<Users>,
    peers: Rc<WebhookClients>,
    places: Rc<Semaphore>,
    /// Limits log lines about calls that fail.
    failures: Throttle,
}

impl Webhooks {
    /// Makes the plug-in for one worker.
    pub fn new(phase: Phase, settings: &Settings, shown: &WebhookCredentials) -> Webhooks {
        let users = match phase {
            Phase::Mutating => &shown.mutating,
            Phase::Validating => &shown.validating,
        };
        Webhooks {
            phase,
            settings: settings.clone(),
            users: users.clone(),
            peers: Rc::new(WebhookClients::new(settings.pool.clone(), Purpose::Admission)),
            places: Rc::new(Semaphore::new(HOOK_QUESTIONS)),
            failures: Throttle::default(),
        }
    }

    /// All webhooks of the phase, in order.
    async fn hooks(&self, write: &Write<'_>) -> Result<Arc<[Arc<Webhook>]>> {
        let phase = self.phase;
        let found = match self.settings.hooks.look(move |table| table.all(phase)) {
            Answer::Now(found) => found,
            Answer::Later(found) => found.await,
        };
        found.map_err(|_| write.forbidden(&Value::Null, "not yet ready to handle request"))?
    }

    /// Calls one webhook and counts the call. `None`: the call failed, and the webhook's failurePolicy ignores that. `index`: its
    /// place in the order of calls.
    async fn ask(
        &self,
        subject: &Subject<'_>,
        object: &Value,
        index: Index,
    ) -> Result<Option<call::Outcome>> {
        let hook = subject.hook;
        let began = self.settings.clock.moment();
        let outcome = self.call(subject, object).await;
        let seconds = self.settings.clock.elapsed(began).as_secs_f64();
        let operation = subject.operation;
        let asked = WebhookLabels { name: &hook.name, sort: self.phase.word(), operation };
        let metrics = &self.settings.metrics.hooks;
        match outcome {
            Ok(outcome) => {
                metrics.asked(asked, seconds, 200, None);
                Ok(Some(outcome))
            }
            Err(CallError::Calling { why, code }) => {
                let rejected = (!hook.ignores_failures).then_some(Fault::Calling);
                metrics.asked(asked, seconds, code, rejected);
                let text = format!(
                    "failed calling webhook {}: {why}",
                    pilothouse_apimachinery::field::quoted(&hook.name)
                );
                if self.failures.allows(self.settings.clock.moment()) {
                    let ignored = hook.ignores_failures;
                    tracing::warn!(webhook = hook.name, %why, ignored, "admission webhook call failed");
                }
                if hook.ignores_failures {
                    metrics.left_open(asked);
                    index.note(subject, &format!("failed-open.{}", self.phase.prefix()), hook.name.clone());
                    return Ok(None);
                }
                Err(Status::internal(text))
            }
            Err(CallError::Denied(status)) => {
                metrics.asked(asked, seconds, status.code, Some(Fault::None));
                Err(status)
            }
            Err(CallError::Server(status)) => {
                metrics.asked(asked, seconds, 0, Some(Fault::Server));
                Err(status)
            }
        }
    }

    /// Calls mutating webhooks one after the other: each sees the changes of those before it.
    async fn mutate_all(&self, write: &Write<'_>, object: &mut Value, round: &Reinvocation) -> Result<()> {
        let hooks = self.hooks(write).await?;
        let turn = &round.webhooks;
        let mut is_foreseen = round.is_second();
        round.begin(turn, object);
        for (place, hook) in hooks.iter().enumerate() {
            let Some(subject) = Subject::of(self, write, hook, object).await? else { continue };
            if round.passes_over(turn, &hook.uid) {
                continue;
            }
            if !std::mem::replace(&mut is_foreseen, true) {
                foresee_rules(write, object)?;
            }
            let index = Index { round: usize::from(round.is_second()), place };
            let asked = self.ask(&subject, object, index).await;
            let changed = match &asked {
                Ok(Some(outcome)) => outcome.patched.as_ref().is_some_and(|(_, changed)| *changed),
                _ => false,
            };
            index.note_change(&subject, changed);
            if let Some(call::Outcome { patched: Some((new, _)), patch }) = asked? {
                index.note_patch(&subject, patch.as_deref());
                *object = new;
                round.patched();
            }
            if changed {
                round.changed(turn);
            }
            round.asked(turn, &hook.uid, hook.reinvoke_if_needed);
        }
        round.end(turn, object);
        Ok(())
    }

    /// Calls validating webhooks concurrently. The first refusal in the order of the webhooks is answered.
    async fn validate_all(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let hooks = self.hooks(write).await?;
        let mut subjects = Vec::new();
        for hook in hooks.iter() {
            subjects.extend(Subject::of(self, write, hook, object).await?);
        }
        let index = |place| Index { round: 0, place };
        let asked = subjects.iter().enumerate();
        let answers = join_all(asked.map(|(place, subject)| self.ask(subject, object, index(place)))).await;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }
}

/// Gives up on a worker, before the first webhook is called, if the validation rules of a custom resource will cost too much there:
/// the call begins again elsewhere, and a webhook should be called once for it. What webhooks change may still add to the cost.
fn foresee_rules(write: &Write<'_>, object: &Value) -> Result<()> {
    let custom = write.call.resource.custom.as_ref();
    match custom.filter(|custom| custom.rules.is_some() && !object.is_null()) {
        Some(custom) => write.call.work.foresee(|| custom.evaluate_rules(object, write.old)),
        None => Ok(()),
    }
}

impl Plugin for Webhooks {
    fn handles(&self, write: &Write<'_>) -> bool {
        let (gv, kind) = write.call.shown_kind();
        // If the table is being updated, the call waits for it.
        let somebody = || self.settings.hooks.fresh().is_none_or(|table| !table.is_empty(self.phase));
        // The server's own bootstrap objects are exempt: without them it would not start.
        write.call.origin != Origin::Server && !webhooks::is_exempt(&gv.group, kind) && somebody()
    }

    fn connects(&self) -> bool {
        true
    }

    fn admit<'a>(
        &'a self,
        write: &'a Write<'a>,
        object: &'a mut Value,
        round: &'a Reinvocation,
    ) -> Outcome<'a> {
        match self.phase {
            Phase::Mutating => Box::pin(self.mutate_all(write, object, round)),
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
    fn documents_name_absolute_files() {
        let read = |text: &str| users(Some(&json::read(text.as_bytes()).unwrap())).map(drop);
        let head = r#""apiVersion":"apiserver.config.k8s.io/v1","kind":"WebhookAdmissionConfiguration""#;
        assert_eq!(
            read(&format!(r#"{{{head},"kubeConfigFile":"x"}}"#)),
            Err("kubeConfigFile: Invalid value: \"x\": must be an absolute file path".to_owned())
        );
        assert!(read(&format!(r#"{{{head},"kubeConfig":"/x"}}"#)).unwrap_err().contains("unknown field"));
        assert!(read(r#"{"apiVersion":"v1","kind":"Pod"}"#).is_err());
        assert!(users(None).is_ok());
    }
}
