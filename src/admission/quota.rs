//! ResourceQuota: bounds on the usage of all objects of a namespace.
//!
//! The worker first checks the current quotas. Most namespaces have none, and a write that exceeds one needs no further check. A
//! write that adds usage goes to [`charging`], which charges quotas for the whole server, and is stored only after its charge.
//! If the write then fails, the charge stays until the quota controller recalculates the usage.

mod charging;

pub use charging::{Charge, QuotaCharger};

use std::ops::Bound;
use std::time::Duration;

use actix::Addr;
use pilothouse_actors::batcher::{Batcher, Enqueue};
use pilothouse_api::quota::usage::{Change, UsageEvaluator};
use pilothouse_api::quota::{self, Features, Limited, Quota, Refusal, Request};
use pilothouse_apimachinery::document::{self, FieldReader};
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::lookup::{CachedSnapshot, QUOTAS};
use super::{Operation, Outcome, Plugin, Write};

/// How long a write waits for its charge; the reference's value.
const CHARGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The versions of the configuration; the older ones have another kind.
const VERSIONS: [&str; 1] = ["apiserver.config.k8s.io/v1"];
const OLD_VERSIONS: [&str; 2] =
    ["resourcequota.admission.k8s.io/v1beta1", "resourcequota.admission.k8s.io/v1alpha1"];

/// Settings of the plug-in.
#[derive(Clone)]
pub struct Settings {
    /// Resources that may be used only if a quota covers them.
    pub limited: Vec<Limited>,
    /// Feature gates that change how usage is counted.
    pub features: Features,
    /// The actor that charges quotas.
    pub charger: Addr<Batcher<Charge>>,
}

/// Reads the configuration: resources that may be used only if a quota covers them.
pub fn read(document: Option<&Value>) -> std::result::Result<Vec<Limited>, String> {
    let Some(value) = document else { return Ok(Vec::new()) };
    document::check_kind(value, "ResourceQuotaConfiguration", &VERSIONS)
        .or_else(|reason| document::check_kind(value, "Configuration", &OLD_VERSIONS).map_err(|_| reason))?;
    let (mut reader, root) = (FieldReader::default(), FieldPath::root());
    reader.check_fields(value, &root, &["apiVersion", "kind", "limitedResources"]);
    for (index, entry) in reader.list(value, "limitedResources", &root).iter().enumerate() {
        let path = FieldPath::new("limitedResources").index(index);
        let known_fields = ["apiGroup", "resource", "matchContains", "matchScopes"];
        reader.check_fields(entry, &path, &known_fields);
        if entry.str("resource").is_empty() {
            reader.push_error(&FieldError::required(&path.child("resource"), ""));
        }
    }
    reader.result()?;
    Ok(Limited::read_all(value))
}

/// Refuses writes that exceed the ResourceQuotas of a namespace, and charges the others.
pub struct ResourceQuota {
    settings: Settings,
    quotas: CachedSnapshot,
}

impl ResourceQuota {
    /// The plug-in for one worker.
    pub fn new(settings: Settings) -> ResourceQuota {
        ResourceQuota { settings, quotas: CachedSnapshot::default() }
    }

    async fn admit(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let snapshot = self.quotas.get(&QUOTAS, write).await?;
        let mut objects = snapshot.scan(Some(write.call.namespace()), Bound::Unbounded).peekable();
        let Settings { limited, features, charger } = &self.settings;
        if objects.peek().is_none() && limited.is_empty() {
            return Ok(());
        }
        let Some(change) = change(write) else { return Ok(()) };
        let request = Request {
            resource: write.group_resource(),
            subresource: write.subresource(),
            change,
            new: object,
            old: write.old.unwrap_or(&Value::Null),
            now: write.backend.clock.now().unix_seconds(),
        };
        if !request.charges(*features) {
            return Ok(());
        }
        let quotas = objects.map(|quota| Ok(Quota::read(&QUOTAS.read(write, quota)?)));
        let quotas = quotas.collect::<Result<Vec<Quota>>>()?;
        let to_status = |refusal| refusal_status(write, object, refusal);
        let charges = quota::check(&quotas, &request, limited, *features).map_err(to_status)?;
        if charges.is_empty() || write.call.query.all("dryRun").any(|stage| stage == "All") {
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        let item = Charge::new(&request, write.call.permit().clone(), sender);
        let enqueue = Enqueue { key: write.call.namespace().to_owned(), item };
        let outcome = async {
            charger.send(enqueue).await.ok()?;
            receiver.await.ok()
        };
        match timeout(CHARGE_TIMEOUT, outcome).await {
            Ok(Some(Ok(()))) => Ok(()),
            Ok(Some(Err(charging::Failure::Refused(refusal)))) => Err(to_status(refusal)),
            Ok(Some(Err(charging::Failure::Status(status)))) => Err(status),
            Ok(None) => Err(Status::unavailable("the server is stopping")),
            Err(_) => Err(Status::internal("resource quota evaluation timed out")),
        }
    }
}

impl Plugin for ResourceQuota {
    fn handles(&self, write: &Write<'_>) -> bool {
        let Some(change) = change(write).filter(|_| !write.call.namespace().is_empty()) else { return false };
        let evaluator = UsageEvaluator::for_resource(write.group_resource(), self.settings.features);
        evaluator.is_some_and(|evaluator| evaluator.may_charge(change, write.subresource()))
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(self.admit(write, object))
    }
}

fn change(write: &Write<'_>) -> Option<Change> {
    match write.operation {
        Operation::Create => Some(Change::Create),
        Operation::Update => Some(Change::Update),
        Operation::Delete | Operation::Connect => None,
    }
}

fn refusal_status(write: &Write<'_>, object: &Value, refusal: Refusal) -> Box<Status> {
    match refusal {
        Refusal::Forbidden(reason) => write.forbidden(object, &reason),
        Refusal::Uncovered(reason) => Status::unexplained(reason),
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn quota_config_is_strict() {
        let document = |rest: &str| {
            object(&format!(
                r#"{{"apiVersion":"apiserver.config.k8s.io/v1","kind":"ResourceQuotaConfiguration",{rest}}}"#
            ))
        };
        let good = document(r#""limitedResources":[{"resource":"pods","matchContains":["cpu"]}]"#);
        assert_eq!(read(Some(&good)).map(|limited| limited.len()), Ok(1));
        assert_eq!(read(None), Ok(Vec::new()));
        for (rest, expected) in [
            (r#""limited":[]"#, "unknown field \"limited\""),
            (
                r#""limitedResources":[{"resource":"pods","contains":[]}]"#,
                "unknown field \"limitedResources[0].contains\"",
            ),
            (
                r#""limitedResources":[{"matchContains":["cpu"]}]"#,
                "limitedResources[0].resource: Required value",
            ),
        ] {
            assert_eq!(read(Some(&document(rest))), Err(expected.to_owned()));
        }
    }
}
