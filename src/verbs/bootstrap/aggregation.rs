//! The control loop of roles that gather others: whenever a cluster role changes, the rules of those that gather it follow.

use pilothouse_actors::object::{Revision, TypeName};
use pilothouse_actors::permit::Permit;

use crate::api::catalog::Catalog;
use crate::api::rbac::GROUP;
use crate::api::rbac::aggregate::gathered;
use crate::api::rbac::rule::{Rule, rules_of};
use crate::api::status::{GroupResource, Result, Status};
use crate::api::value::Value;
use crate::api::version::GroupVersion;
use crate::api::{codec, meta};
use crate::verbs::Backend;

use super::{Own, Place, Verb};

const OF: GroupResource<'_> = GroupResource { group: GROUP, resource: "clusterroles" };
/// Who owns the rules that were gathered; the reference's name.
const MANAGER: &str = "fieldManager=clusterrole-aggregation-controller&force=true";

/// The loop between two turns.
#[derive(Default)]
pub struct Gathering {
    /// The state that was looked at last.
    seen: Option<Revision>,
}

impl Gathering {
    /// Looks once. Roles that gather roles that gather take a turn each.
    pub async fn turn(&mut self, backend: &Backend, catalog: &Catalog) -> Result<()> {
        let snapshot = backend.stores.snapshot(&TypeName::new(&OF.to_string()), &Permit::none()).await;
        let snapshot = snapshot.map_err(|error| Status::from_store(&error, OF, ""))?;
        if self.seen == Some(snapshot.revision) {
            return Ok(());
        }
        let version = GroupVersion::new(GROUP, "v1");
        let mut all: Vec<(String, Value)> = Vec::new();
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            all.push((object.key.name().to_owned(), backend.load_kind(&version, "ClusterRole", object)?));
        }
        let own = Own::new(backend, catalog);
        for (name, role) in &all {
            if let Some(rules) = gathered(role, &all).filter(|rules| *rules != rules_of(role)) {
                own.give_rules(name, meta::of(role).str("uid"), &rules).await?;
            }
        }
        self.seen = Some(snapshot.revision);
        Ok(())
    }
}

impl Own<'_> {
    async fn give_rules(&self, name: &str, uid: &str, rules: &[Rule]) -> Result<()> {
        let mut body = Value::object();
        body.set("apiVersion", format!("{GROUP}/v1"));
        body.set("kind", "ClusterRole");
        body.entry("metadata").set("name", name);
        // One that has gone meanwhile shall not come back.
        body.entry("metadata").set("uid", uid);
        body.set("rules", rules.iter().map(Rule::to_value).collect::<Vec<_>>());
        let place = Place { group: GROUP, resource: OF.resource, namespace: "", name };
        match self.ask(place, Verb::Apply, MANAGER, codec::to_json(&body).into()).await {
            Ok(_) => Ok(()),
            // Gone meanwhile, or written by somebody else: the next turn sees it.
            Err(status) if matches!(status.code, 404 | 409) => Ok(()),
            Err(status) => Err(status),
        }
    }
}
