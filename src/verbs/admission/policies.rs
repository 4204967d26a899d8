//! ValidatingAdmissionPolicy: asks the policies of the cluster about what would be stored.
//!
//! What policies say is compiled once and shared ([`table`]). Of the policies whose rules mean a request, each binding that
//! means it too is looked at: its parameters are read ([`params`]), the object is shown in the version that the rule names
//! (`shown.rs`), and the policy is asked, which is pure (`api/policies/`). A policy that asks who may do what is asked again once
//! the authorizer has answered.

mod params;
pub mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::api::catalog::resource::Resource;
use crate::api::codec::json;
use crate::api::matching::{Asked, Match, Matching};
use crate::api::policies::evaluate::Inputs;
use crate::api::policies::judge::{Case, Judgement, Note, judge};
use crate::api::policies::policy::{Binding, Policy, Reaction};
use crate::api::policies::request;
use crate::api::policies::rights::Rights;
use crate::api::status::{GroupResource, Result, Status};
use crate::api::value::Value;
use crate::api::version::GroupVersion;
use crate::api::words;
use crate::api::words::ADMISSION_REGISTRATION_GROUP;
use crate::limits::POLICY_NOTE_BYTES;
use crate::metrics::Metrics;
use crate::metrics::conditions::Conditions;

use self::table::{Hook, Policies};
use super::asked::{Options, asked, options, rights, told, triple, until_answered};
use super::lookup::NAMESPACES;
use super::{Equivalents, Kinds, Operation, Outcome, Plugin, Write, shown};

/// What no policy is asked about: policies, which somebody must be able to put right, and questions, without which the
/// cluster would not work.
const EXEMPT: [(&str, &str); 10] = [
    (ADMISSION_REGISTRATION_GROUP, "validatingadmissionpolicies"),
    (ADMISSION_REGISTRATION_GROUP, "validatingadmissionpolicybindings"),
    (ADMISSION_REGISTRATION_GROUP, "mutatingadmissionpolicies"),
    (ADMISSION_REGISTRATION_GROUP, "mutatingadmissionpolicybindings"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Asks the policies.
pub struct ValidatingAdmissionPolicy {
    /// The policies.
    pub policies: Arc<Policies>,
    /// What is served, by kind.
    pub kinds: Kinds,
    /// What shows the same objects.
    pub equivalents: Equivalents,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Plugin for ValidatingAdmissionPolicy {
    fn handles(&self, write: &Write<'_>) -> bool {
        let GroupResource { group, resource } = write.call.of();
        // A table that is behind may have something to say.
        let is_used = || self.policies.fresh().is_none_or(|table| !table.hooks().is_empty());
        !EXEMPT.contains(&(group, resource)) && is_used()
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(self.ask_all(write, object))
    }

    fn connects(&self) -> bool {
        true
    }
}

/// Why a request is refused: the first reason that was found.
struct Denial {
    message: String,
    reason: &'static str,
}

/// One request, on its way from policy to policy.
struct Round<'a> {
    write: &'a Write<'a>,
    object: &'a Value,
    asked: Asked<'a>,
    others: &'a [Arc<Resource>],
    equivalents: Vec<Asked<'a>>,
    options: Options,
    rights: Rights,
    /// The namespace of the request, once somebody wanted to know.
    namespace: Option<Value>,
    denial: Option<Denial>,
    metrics: &'a Metrics,
    kinds: &'a Kinds,
}

/// What a request is in the eyes of the policy that it matched.
struct Matched<'a> {
    resource: &'a Resource,
    asked: Asked<'a>,
}

impl ValidatingAdmissionPolicy {
    async fn ask_all(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let unknown = |_| Status::unavailable("the policies of the cluster cannot be read");
        let hooks = match self.policies.look(|table| table.hooks()) {
            pilothouse_actors::answer::Answer::Now(hooks) => hooks.map_err(unknown)?,
            pilothouse_actors::answer::Answer::Later(hooks) => hooks.await.map_err(unknown)?,
        };
        if hooks.is_empty() {
            return Ok(());
        }
        let others = (self.equivalents)(write.call.resource, write.call.subresource);
        let asked = asked(write, object);
        let equivalents =
            others.iter().map(|one| asked.as_of(&one.gv.group, &one.gv.version, &one.plural)).collect();
        let mut round = Round {
            write,
            object,
            rights: rights(&asked),
            asked,
            others: &others,
            equivalents,
            options: options(write),
            namespace: None,
            denial: None,
            metrics: &self.metrics,
            kinds: &self.kinds,
        };
        for hook in hooks.iter() {
            round.ask(hook).await?;
        }
        match round.denial {
            None => Ok(()),
            Some(Denial { message, reason }) => {
                Err(Status::denied_by_policy(write.call.of(), write.name(object), &message, reason))
            }
        }
    }
}

impl<'a> Round<'a> {
    /// Asks one policy, for each of its bindings.
    async fn ask(&mut self, hook: &Hook) -> Result<()> {
        let policy = &*hook.policy;
        let matched = match &policy.matching {
            None => Err("policy contained no match constraints, a required field".to_owned()),
            Some(matching) => self.matches(matching).await,
        };
        let matched = match matched {
            Ok(None) => return Ok(()),
            Ok(Some(matched)) => matched,
            Err(why) => {
                self.misconfigured(policy, None, &why);
                return Ok(());
            }
        };
        let of_params = match params::resource(policy, self.kinds) {
            Ok(resource) => resource,
            Err(why) => {
                self.misconfigured(policy, None, &why);
                return Ok(());
            }
        };
        let mut notes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut states = None;
        for binding in &hook.bindings {
            match self.prepare(binding, of_params.as_ref()).await {
                Ok(params) => {
                    for params in params {
                        self.judge(policy, binding, &matched, &mut states, &params, &mut notes).await?;
                    }
                }
                Err(why) => self.misconfigured(policy, Some(binding), &why),
            }
        }
        for (key, values) in notes {
            self.write.call.warnings.note(&format!("{}/{key}", policy.name), values.join(", "));
        }
        Ok(())
    }

    /// The parameters of a binding that means the request; none if it does not.
    async fn prepare(
        &mut self,
        binding: &Binding,
        of_params: Option<&Arc<Resource>>,
    ) -> std::result::Result<Vec<Value>, String> {
        if let Some(matching) = &binding.matching
            && self.matches(matching).await?.is_none()
        {
            return Ok(Vec::new());
        }
        params::collect(self.write, of_params, binding, self.asked.namespace).await
    }

    /// Whether a request is meant, and as what.
    async fn matches(&mut self, matching: &Matching) -> std::result::Result<Option<Matched<'a>>, String> {
        if !matching.selects_object(self.object, self.write.old) {
            return Ok(None);
        }
        let Some(found) = matching.rules_match(&self.asked, &self.equivalents) else { return Ok(None) };
        if matching.selects_namespaces() && !self.selects_namespace(matching).await? {
            return Ok(None);
        }
        let own = Matched { resource: self.write.call.resource, asked: self.asked };
        Ok(Some(match found {
            Match::AsAsked => own,
            Match::As(place) => match (self.others.get(place), self.equivalents.get(place)) {
                (Some(resource), Some(asked)) => Matched { resource, asked: *asked },
                _ => own,
            },
        }))
    }

    async fn selects_namespace(&mut self, matching: &Matching) -> std::result::Result<bool, String> {
        let is_namespace = self.asked.resource == words::NAMESPACES;
        if self.asked.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let is_written =
            is_namespace && self.asked.subresource.is_empty() && self.write.operation != Operation::Delete;
        if is_written {
            return Ok(matching.selects_namespace(self.object.at(&["metadata", "labels"])));
        }
        let namespace = self.namespace().await.map_err(|status| status.message)?;
        Ok(matching.selects_namespace(namespace.at(&["metadata", "labels"])))
    }

    /// The namespace of the request, as a client would be shown it.
    async fn namespace(&mut self) -> Result<&Value> {
        if self.namespace.is_none() {
            let name = self.asked.namespace;
            let found = NAMESPACES.get(self.write, name).await?;
            let of = GroupResource { group: "", resource: words::NAMESPACES };
            let found = found.ok_or_else(|| Status::not_found(of, name))?;
            let shown = shown::whole(self.write, &found, &GroupVersion::new("", "v1"), "Namespace")?;
            self.namespace = Some(shown);
        }
        Ok(self.namespace.as_ref().unwrap_or(&Value::Null))
    }

    /// A policy that cannot be asked refuses, unless it says otherwise.
    fn misconfigured(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str) {
        if policy.fails {
            let what = if binding.is_some() { "binding" } else { "policy" };
            self.deny(policy, binding, &format!("failed to configure {what}: {why}"), "Invalid");
        }
    }

    fn deny(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str, reason: &'static str) {
        let with = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        let message = format!("ValidatingAdmissionPolicy '{}'{with} denied request: {why}", policy.name);
        self.denial.get_or_insert(Denial { message, reason });
    }

    /// Asks a policy once, and does what the binding says about what it finds.
    async fn judge(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        matched: &Matched<'_>,
        states: &mut Option<(Value, Value)>,
        params: &Value,
        notes: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<()> {
        if states.is_none() {
            match shown::states(self.write, self.object, matched.resource).await {
                Ok(both) => *states = Some(both),
                Err(status) => {
                    let why = format!("failed to convert object version: {}", status.message);
                    self.misconfigured(policy, Some(binding), &why);
                    return Ok(());
                }
            }
        }
        let Some((new, old)) = states else { return Ok(()) };
        let kind = triple(shown::kind(matched.resource, self.asked.subresource));
        let is_namespace = kind == ("", "v1", "Namespace");
        let whole = match self.asked.namespace {
            name if name.is_empty() || is_namespace => Value::Null,
            _ => self.namespace().await?.clone(),
        };
        let told = told(self.write, self.asked, &self.options);
        let request = request::request(&told, &matched.asked, kind);
        let original = request::request(&told, &self.asked, kind);
        let namespace = request::namespace(&whole);
        let inputs = Inputs {
            object: new,
            old,
            params,
            request: &request,
            namespace: &namespace,
            rights: Some(&self.rights),
        };
        let began = self.write.backend.clock.now();
        let case = Case { inputs, asked: &original, namespace: &whole };
        let who = format!("policy {:?}", policy.name);
        let judgement = until_answered(self.write, &self.rights, &who, || judge(policy, case).ok()).await?;
        let ended = self.write.backend.clock.now();
        let seconds = Duration::from_micros(ended.0.saturating_sub(began.0)).as_secs_f64();
        self.count_conditions(policy, &judgement, seconds);
        self.react(policy, binding, judgement, seconds, notes);
        Ok(())
    }

    /// Counts that the conditions of a policy were evaluated.
    fn count_conditions(&self, policy: &Policy, judgement: &Judgement, seconds: f64) {
        if !policy.conditions.is_empty() {
            let of = Conditions {
                name: &policy.name,
                kind: "policy",
                sort: "validate",
                operation: self.asked.operation,
            };
            self.metrics.hooks.conditions.evaluated(&of, judgement.condition_errors, seconds);
        }
    }

    fn react(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        judgement: Judgement,
        seconds: f64,
        notes: &mut BTreeMap<String, Vec<String>>,
    ) {
        let count = |action: &str, is_admitted: bool, message: &str| {
            let error = error_type(is_admitted, message);
            self.metrics.policies.count(&policy.name, &binding.name, error, action, seconds);
        };
        let mut refused = Vec::new();
        for (place, decision) in judgement.decisions.into_iter().enumerate() {
            let message = &decision.message;
            if !decision.denies {
                if !decision.is_admitted {
                    count("allow", false, message);
                }
                continue;
            }
            for reaction in &binding.reactions {
                match reaction {
                    Reaction::Deny => {
                        refused.push((message.clone(), decision.reason));
                        count("deny", false, message);
                    }
                    Reaction::Warn => {
                        self.write.call.warnings.add(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                            policy.name, binding.name
                        ));
                        count("warn", false, message);
                    }
                    Reaction::Audit => {
                        self.write.call.warnings.note(FAILURE, failure(binding, place, message));
                        count("audit", false, message);
                    }
                }
            }
        }
        for note in judgement.notes {
            match note {
                Note::Says(key, mut text) => {
                    text.truncate(boundary(&text, POLICY_NOTE_BYTES));
                    let said = notes.entry(key).or_default();
                    if !said.contains(&text) {
                        said.push(text);
                    }
                }
                Note::Fails(why) => {
                    count("deny", false, &why);
                    refused.push((why, "Invalid"));
                }
            }
        }
        for (message, reason) in refused {
            self.deny(policy, Some(binding), &message, reason);
        }
    }
}

/// The key of the note about what a policy found wrong.
const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

/// What such a note says.
fn failure(binding: &Binding, place: usize, message: &str) -> String {
    let word = |reaction: &Reaction| match reaction {
        Reaction::Deny => "Deny",
        Reaction::Warn => "Warn",
        Reaction::Audit => "Audit",
    };
    let actions: Vec<Value> = binding.reactions.iter().map(|reaction| Value::from(word(reaction))).collect();
    let text = |value: &Value| String::from_utf8_lossy(&json::to_json(value)).into_owned();
    // In this order, which readers of records know.
    format!(
        r#"[{{"message":{},"policy":{},"binding":{},"expressionIndex":{place},"validationActions":{}}}]"#,
        text(&Value::from(message)),
        text(&Value::from(binding.policy.as_str())),
        text(&Value::from(binding.name.as_str())),
        text(&Value::Array(actions)),
    )
}

/// The end of the last character that fits into so many bytes.
fn boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// How metrics name what went wrong.
fn error_type(is_admitted: bool, message: &str) -> &'static str {
    if is_admitted {
        "no_error"
    } else if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with("validation failed due to running out of cost budget") {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_cut_between_characters_and_failures_are_told_in_order() {
        assert_eq!([0, 1, 2, 3, 9].map(|most| boundary("aüb", most)), [0, 1, 1, 3, 4]);
        let binding = json::read(
            br#"{"metadata":{"name":"b"},"spec":{"policyName":"p","validationActions":["Warn","Audit"]}}"#,
        );
        let binding = Binding::read(&binding.unwrap());
        assert_eq!(
            failure(&binding, 1, "a \"b\""),
            r#"[{"message":"a \"b\"","policy":"p","binding":"b","expressionIndex":1,"validationActions":["Warn","Audit"]}]"#
        );
        for (is_admitted, message, word) in [
            (true, "", "no_error"),
            (false, "compilation error: x", "compile_error"),
            (false, "no", "invalid_error"),
            (false, crate::api::policies::evaluate::USED_UP, "out_of_budget"),
        ] {
            assert_eq!(error_type(is_admitted, message), word);
        }
    }
}
