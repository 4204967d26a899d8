//! validatingadmissionpolicy-status-controller: reports expressions of policies that do not fit the types of the matched objects.

use std::fmt::Display;
use std::sync::Arc;

use pilothouse_admission::policies::type_checking::{Mismatch, check, named, type_of};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Key;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::client::{At, Client};
use super::per_object::PerObject;
use super::queue::Outcome;

const STORE: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";

/// Type-checks policies.
pub struct PolicyTypeCheck {
    /// Reads and writes objects.
    pub client: Client,
}

impl PerObject for PolicyTypeCheck {
    const STORES: &'static [&'static str] = &[STORE];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(STORE)?;
        let at = At::of(&resource, key);
        let Some(policy) = self.client.read_cached(at).await? else { return Ok(Outcome::Done) };
        if is_observed(&policy) {
            return Ok(Outcome::Done);
        }
        let found = mismatches(policy.clone(), self.kinds(&policy), self.client.registry()).await?;
        let generation = meta::generation(&policy);
        let written = self.client.edit(At::of(&resource, key), "status", |policy| {
            if meta::generation(policy) != generation || is_observed(policy) {
                return Ok(false);
            }
            tell(policy, generation, &found);
            Ok(true)
        });
        written.await.ignore_not_found()?;
        Ok(Outcome::Done)
    }
}

fn is_observed(policy: &Value) -> bool {
    let observed = policy.at(&["status", "observedGeneration"]).and_then(Value::as_int).unwrap_or(0);
    meta::generation(policy) <= observed
}

/// Writes the warnings into the status.
fn tell(policy: &mut Value, generation: i64, found: &[Mismatch]) {
    let warning = |mismatch: &Mismatch| {
        let mut warning = Value::object();
        warning.set("fieldRef", mismatch.field.as_str());
        warning.set("warning", mismatch.warning.as_str());
        warning
    };
    let status = policy.entry("status");
    status.set("observedGeneration", Value::Int(generation));
    let mut types = Value::object();
    if !found.is_empty() {
        types.set("expressionWarnings", found.iter().map(warning).collect::<Vec<_>>());
    }
    status.set("typeChecking", types);
}

impl PolicyTypeCheck {
    /// The kinds that a policy is about.
    fn kinds(&self, policy: &Value) -> Vec<GroupVersionKind> {
        let known = self.client.known();
        let mut kinds: Vec<GroupVersionKind> = named(policy)
            .into_iter()
            .filter_map(|(group, version, plural)| {
                let resource = known.plural(&group, &version, &plural)?;
                Some(GroupVersionKind::new(&group, &version, &resource.kind))
            })
            .collect();
        kinds.sort_by(|one, other| {
            (&one.group, &one.version, &one.kind).cmp(&(&other.group, &other.version, &other.kind))
        });
        kinds.dedup();
        kinds
    }
}

/// One policy at a time: nobody waits for what is found, and others have work for the processors.
static CHECKS: Semaphore = Semaphore::const_new(1);

/// Holds a policy against kinds. That may take seconds, and all loops share one thread: so it happens on one that may block.
async fn mismatches(
    policy: Value,
    kinds: Vec<GroupVersionKind>,
    registry: Arc<Registry>,
) -> Result<Vec<Mismatch>> {
    let failed = |error: &dyn Display| Status::internal(format!("a policy cannot be checked: {error}"));
    let _turn = CHECKS.acquire().await.map_err(|error| failed(&error))?;
    let checking = spawn_blocking(move || {
        let typed = kinds.into_iter().filter_map(|kind| {
            let object = type_of(&registry, &kind)?;
            Some((kind, object))
        });
        let typed: Vec<_> = typed.collect();
        let params = policy.at(&["spec", "paramKind"]).and_then(|kind| {
            let (group, version) =
                kind.str("apiVersion").split_once('/').unwrap_or(("", kind.str("apiVersion")));
            type_of(&registry, &GroupVersionKind::new(group, version, kind.str("kind")))
        });
        check(&policy, &typed, params.as_ref())
    });
    checking.await.map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::super::testing::object;
    use super::*;

    #[actix_rt::test]
    async fn nobody_waits_while_a_policy_is_looked_at() {
        let registry = Arc::new(Registry::builtin().unwrap());
        let policy = object(r#"{"spec":{"validations":[{"expression":"object.no"}]}}"#);
        let kinds = vec![GroupVersionKind::new("apps", "v1", "Deployment")];
        let mut looking = Box::pin(mismatches(policy, kinds, registry));
        assert!((&mut looking).now_or_never().is_none(), "the thread of all loops goes on meanwhile");
        assert_eq!(looking.await.unwrap()[0].field, "spec.validations[0].expression");
    }

    #[test]
    fn what_was_looked_at_is_not_looked_at_again() {
        let mut policy = object(r#"{"metadata":{"generation":2},"status":{"observedGeneration":1}}"#);
        assert!(!is_observed(&policy));
        let found = [Mismatch { field: "f".to_owned(), warning: "w".to_owned() }];
        tell(&mut policy, 2, &found);
        assert!(is_observed(&policy));
        let told = policy.at(&["status", "typeChecking", "expressionWarnings"]).unwrap();
        assert_eq!((told.items()[0].str("fieldRef"), told.items()[0].str("warning")), ("f", "w"));
        tell(&mut policy, 2, &[]);
        assert_eq!(policy.at(&["status", "typeChecking"]), Some(&Value::object()), "nothing is wrong");
    }
}
