//! validatingadmissionpolicy-status-controller: reports expressions of policies that do not fit the types of the matched objects.

use std::fmt::Display;
use std::sync::Arc;

use pilothouse_admission::policies::type_checking::{Mismatch, check, matched_resources, type_of};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Key;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::client::{Client, ObjectRef};
use super::per_object::PerObject;
use super::queue::Outcome;

const STORE: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";

/// Type-checks policies.
pub struct PolicyTypeCheck {
    /// Reads and writes objects.
    pub client: Client,
}

impl PerObject for PolicyTypeCheck {
    const WATCHED_TYPES: &'static [&'static str] = &[STORE];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(STORE)?;
        let target = ObjectRef::new(&resource, key);
        let Some(policy) = self.client.read_cached(target).await? else { return Ok(Outcome::Done) };
        if is_observed(&policy) {
            return Ok(Outcome::Done);
        }
        let mismatches = type_check(policy.clone(), self.kinds(&policy), self.client.registry()).await?;
        let generation = meta::generation(&policy);
        let update = self.client.edit(ObjectRef::new(&resource, key), "status", |policy| {
            if meta::generation(policy) != generation || is_observed(policy) {
                return Ok(false);
            }
            write_warnings(policy, generation, &mismatches);
            Ok(true)
        });
        update.await.ignore_not_found()?;
        Ok(Outcome::Done)
    }
}

fn is_observed(policy: &Value) -> bool {
    let observed = policy.get_path(&["status", "observedGeneration"]).and_then(Value::as_int).unwrap_or(0);
    meta::generation(policy) <= observed
}

/// Writes the warnings into the status.
fn write_warnings(policy: &mut Value, generation: i64, mismatches: &[Mismatch]) {
    let warning = |mismatch: &Mismatch| {
        let mut warning = Value::object();
        warning.set("fieldRef", mismatch.field.as_str());
        warning.set("warning", mismatch.warning.as_str());
        warning
    };
    let status = policy.entry("status");
    status.set("observedGeneration", Value::Int(generation));
    let mut types = Value::object();
    if !mismatches.is_empty() {
        types.set("expressionWarnings", mismatches.iter().map(warning).collect::<Vec<_>>());
    }
    status.set("typeChecking", types);
}

impl PolicyTypeCheck {
    /// The kinds that a policy is about.
    fn kinds(&self, policy: &Value) -> Vec<GroupVersionKind> {
        let resources = self.client.resource_index();
        let mut kinds: Vec<GroupVersionKind> = matched_resources(policy)
            .into_iter()
            .filter_map(|(group, version, plural)| {
                let resource = resources.plural(&group, &version, &plural)?;
                Some(GroupVersionKind::new(&group, &version, &resource.kind))
            })
            .collect();
        kinds.sort_by(|left, right| {
            (&left.group, &left.version, &left.kind).cmp(&(&right.group, &right.version, &right.kind))
        });
        kinds.dedup();
        kinds
    }
}

/// One policy is checked at a time: nobody waits for the result, and the CPU is needed for requests.
static CHECK_PERMIT: Semaphore = Semaphore::const_new(1);

/// Type-checks a policy against kinds, on a blocking thread: it may take seconds, and all controllers share one thread.
async fn type_check(
    policy: Value,
    kinds: Vec<GroupVersionKind>,
    registry: Arc<Registry>,
) -> Result<Vec<Mismatch>> {
    let check_error = |error: &dyn Display| Status::internal(format!("a policy cannot be checked: {error}"));
    let _permit = CHECK_PERMIT.acquire().await.map_err(|error| check_error(&error))?;
    let checking = spawn_blocking(move || {
        let typed = kinds.into_iter().filter_map(|kind| {
            let object = type_of(&registry, &kind)?;
            Some((kind, object))
        });
        let typed: Vec<_> = typed.collect();
        let params = policy.get_path(&["spec", "paramKind"]).and_then(|kind| {
            let (group, version) =
                kind.str("apiVersion").split_once('/').unwrap_or(("", kind.str("apiVersion")));
            type_of(&registry, &GroupVersionKind::new(group, version, kind.str("kind")))
        });
        check(&policy, &typed, params.as_ref())
    });
    checking.await.map_err(|error| check_error(&error))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[actix_rt::test]
    async fn policy_type_check_does_not_block_the_thread() {
        let registry = Arc::new(Registry::builtin().unwrap());
        let policy = object(r#"{"spec":{"validations":[{"expression":"object.no"}]}}"#);
        let kinds = vec![GroupVersionKind::new("apps", "v1", "Deployment")];
        let mut checking = Box::pin(type_check(policy, kinds, registry));
        assert!((&mut checking).now_or_never().is_none(), "the controllers' thread is free meanwhile");
        assert_eq!(checking.await.unwrap()[0].field, "spec.validations[0].expression");
    }

    #[test]
    fn policy_is_type_checked_once_per_generation() {
        let mut policy = object(r#"{"metadata":{"generation":2},"status":{"observedGeneration":1}}"#);
        assert!(!is_observed(&policy));
        let mismatches = [Mismatch { field: "f".to_owned(), warning: "w".to_owned() }];
        write_warnings(&mut policy, 2, &mismatches);
        assert!(is_observed(&policy));
        let warnings = policy.get_path(&["status", "typeChecking", "expressionWarnings"]).unwrap();
        assert_eq!((warnings.items()[0].str("fieldRef"), warnings.items()[0].str("warning")), ("f", "w"));
        write_warnings(&mut policy, 2, &[]);
        assert_eq!(policy.get_path(&["status", "typeChecking"]), Some(&Value::object()), "no mismatches");
    }
}
