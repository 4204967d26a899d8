//! The APIServices of custom group versions: restored when changed or deleted, and removed with the last definition of their
//! version. Those of built-in versions are only created at the start, as in the reference. Runs in every server, whichever
//! controllers are enabled.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::aggregation::STORE;
use pilothouse_api::bootstrap::api_services::{MANAGED, MANAGED_CUSTOM, ON_START, custom_api_service};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::object::TypeName;

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

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
    Create,
    Restore,
    Remove,
}

/// Decides the action. `is_defined`: whether a CustomResourceDefinition has the version; `spec`: the expected spec in that case.
fn decide(current: Option<&Value>, is_defined: bool, spec: Option<&Value>) -> Action {
    let Some(current) = current else { return if is_defined { Action::Create } else { Action::Nothing } };
    let managed = meta::metadata(current).get("labels").map_or("", |labels| labels.str(MANAGED));
    match (managed, is_defined) {
        (MANAGED_CUSTOM, false) => Action::Remove,
        (MANAGED_CUSTOM | ON_START, true) if current.get("spec") != spec => Action::Restore,
        _ => Action::Nothing,
    }
}

impl Controller for ApiServiceRegistration {
    type Key = String;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[STORE])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        queue.add(change.object.key.name().to_owned());
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<String>) {
        // The deletion of the APIService of a defined version may have been missed.
        for GroupVersion { group, version } in self.client.resource_index().defined() {
            queue.add(format!("{version}.{group}"));
        }
        self.on_each_object(type_name, snapshot, queue);
    }

    fn reconcile(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.reconcile_api_service(&name).await.map(|()| Outcome::Done) }.boxed_local()
    }
}

impl ApiServiceRegistration {
    async fn reconcile_api_service(&self, name: &str) -> Result<()> {
        let Some((version, group)) = name.split_once('.') else { return Ok(()) };
        let resource = self.client.resource(STORE)?;
        let target = ObjectRef { resource: &resource, namespace: "", name };
        let current = self.client.read_cached(target).await?;
        let known = self.client.resource_index();
        let is_defined = known.defines(group, version);
        // A definition that cannot be read may define it.
        if !is_defined && known.has_unreadable(group) {
            return Ok(());
        }
        let expected = custom_api_service(&GroupVersion::new(group, version)).object;
        match decide(current.as_ref(), is_defined, expected.get("spec")) {
            Action::Nothing => Ok(()),
            Action::Create => match self.client.create(target, &expected).await {
                Err(status) if !status.is_already_exists() => Err(status),
                _ => Ok(()),
            },
            Action::Restore => {
                let spec = expected.get("spec").cloned().unwrap_or_default();
                let update = self.client.edit(target, "", |object| {
                    object.set("spec", spec.clone());
                    Ok(true)
                });
                update.await.ignore_not_found_or_conflict()?;
                Ok(())
            }
            Action::Remove => {
                let Some(object) = self.client.cached(target).await? else { return Ok(()) };
                let uid = current.as_ref().map(|current| meta::metadata(current).str("uid").to_owned());
                let options = DeleteOptions { uid, ..DeleteOptions::default() };
                self.client.delete(&resource, object, &options).await.ignore_not_found_or_conflict()?;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn api_services_of_defined_versions_are_created_restored_and_removed() {
        let expected = custom_api_service(&GroupVersion::new("x.io", "v1")).object;
        let spec = expected.get("spec");
        let api_service = |label: &str, priority: i64| {
            object(&format!(
                r#"{{"metadata":{{"name":"v1.x.io","labels":{{"{MANAGED}":"{label}"}}}},
                    "spec":{{"group":"x.io","version":"v1","groupPriorityMinimum":1000,"versionPriority":{priority}}}}}"#
            ))
        };
        let decide_for = |current: Option<&Value>, is_defined| decide(current, is_defined, spec);
        assert_eq!((decide_for(None, true), decide_for(None, false)), (Action::Create, Action::Nothing));
        assert_eq!(decide_for(Some(&api_service("true", 100)), true), Action::Nothing);
        assert_eq!(decide_for(Some(&api_service("true", 7)), true), Action::Restore);
        assert_eq!(decide_for(Some(&api_service("true", 100)), false), Action::Remove);
        assert_eq!(decide_for(Some(&api_service("onstart", 100)), false), Action::Nothing);
        assert_eq!(
            decide_for(Some(&api_service("false", 7)), true),
            Action::Nothing,
            "managed by somebody else"
        );
    }
}
