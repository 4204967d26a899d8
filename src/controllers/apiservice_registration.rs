//! The APIServices of custom group versions: restored when changed or deleted, and removed with the last definition of their
//! version. Those of built-in versions are only created at the start, as in the reference. Runs in every server, whichever loops
//! are enabled.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::aggregation::STORE;
use pilothouse_api::bootstrap::api_services::{DEFINED, MANAGED, ON_START, defined};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::object::TypeName;

use super::client::{At, Client};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

/// The name in health checks and metrics.
pub const NAME: &str = "apiservice-registrations";

/// Maintains the APIServices of custom group versions.
pub struct ApiServiceRegistration {
    /// Reads and writes objects.
    pub client: Client,
}

/// The action for one APIService.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    Make,
    Restore,
    Remove,
}

/// Decides the action. `is_defined`: whether a CustomResourceDefinition has the version; `spec`: the wanted spec in that case.
fn decide(found: Option<&Value>, is_defined: bool, spec: Option<&Value>) -> Action {
    let Some(found) = found else { return if is_defined { Action::Make } else { Action::Nothing } };
    let managed = meta::of(found).get("labels").map_or("", |labels| labels.str(MANAGED));
    match (managed, is_defined) {
        (DEFINED, false) => Action::Remove,
        (DEFINED | ON_START, true) if found.get("spec") != spec => Action::Restore,
        _ => Action::Nothing,
    }
}

impl Controller for ApiServiceRegistration {
    type Key = String;

    fn follows(&self) -> Follows {
        Follows::These(&[STORE])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        queue.add(change.object.key.name().to_owned());
    }

    fn on_list(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<String>) {
        // What says of a defined version that it is there may have gone unheard.
        for GroupVersion { group, version } in self.client.known().defined() {
            queue.add(format!("{version}.{group}"));
        }
        self.on_each(of, snapshot, queue);
    }

    fn work(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Outcome> {
        async move {
            match self.settle(&name).await {
                Ok(()) => Outcome::Done,
                Err(status) => Outcome::Again(status.to_string()),
            }
        }
        .boxed_local()
    }
}

impl ApiServiceRegistration {
    async fn settle(&self, name: &str) -> Result<()> {
        let Some((version, group)) = name.split_once('.') else { return Ok(()) };
        let resource = self.client.resource(STORE)?;
        let at = At { resource: &resource, namespace: "", name };
        let found = self.client.read_cached(at).await?;
        let known = self.client.known();
        let is_defined = known.defines(group, version);
        // A definition that cannot be read may define it.
        if !is_defined && known.has_unreadable(group) {
            return Ok(());
        }
        let wanted = defined(&GroupVersion::new(group, version)).object;
        match decide(found.as_ref(), is_defined, wanted.get("spec")) {
            Action::Nothing => Ok(()),
            Action::Make => match self.client.create(at, &wanted).await {
                Err(status) if !status.is_taken() => Err(status),
                _ => Ok(()),
            },
            Action::Restore => {
                let spec = wanted.get("spec").cloned().unwrap_or_default();
                let written = self.client.edit(at, "", |object| {
                    object.set("spec", spec.clone());
                    Ok(true)
                });
                written.await.ignore_not_found_or_conflict()?;
                Ok(())
            }
            Action::Remove => {
                let Some(object) = self.client.cached(at).await? else { return Ok(()) };
                let uid = found.as_ref().map(|found| meta::of(found).str("uid").to_owned());
                let options = DeleteOptions { uid, ..DeleteOptions::default() };
                self.client.delete(&resource, object, &options).await.ignore_not_found_or_conflict()?;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::object;
    use super::*;

    #[test]
    fn what_is_defined_is_registered_and_nothing_else_is_touched() {
        let wanted = defined(&GroupVersion::new("x.io", "v1")).object;
        let spec = wanted.get("spec");
        let with = |label: &str, priority: i64| {
            object(&format!(
                r#"{{"metadata":{{"name":"v1.x.io","labels":{{"{MANAGED}":"{label}"}}}},
                    "spec":{{"group":"x.io","version":"v1","groupPriorityMinimum":1000,"versionPriority":{priority}}}}}"#
            ))
        };
        let of = |found: Option<&Value>, is_defined| decide(found, is_defined, spec);
        assert_eq!((of(None, true), of(None, false)), (Action::Make, Action::Nothing));
        assert_eq!(of(Some(&with("true", 100)), true), Action::Nothing);
        assert_eq!(of(Some(&with("true", 7)), true), Action::Restore);
        assert_eq!(of(Some(&with("true", 100)), false), Action::Remove);
        assert_eq!(of(Some(&with("onstart", 100)), false), Action::Nothing);
        assert_eq!(of(Some(&with("false", 7)), true), Action::Nothing, "somebody else looks after it");
    }
}
