//! clusterrole-aggregation-controller: the rules of aggregated ClusterRoles follow the roles that they select.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::RBAC_GROUP;
use pilothouse_authorization::rbac::aggregate::{RoleAggregator, joined};
use pilothouse_authorization::rbac::rule::{Rule, rules_of};
use pilothouse_types::object::{Key, TypeName};

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in flags, and the field manager of the rules.
pub const NAME: &str = "clusterrole-aggregation-controller";

const STORE: &str = "clusterroles.rbac.authorization.k8s.io";

/// Aggregates ClusterRoles.
pub struct ClusterRoleAggregation {
    client: Client,
    /// Which roles select which.
    roles: RefCell<RoleAggregator>,
    /// Roles that cannot be read. Their labels are unknown, too: any aggregated role may get rules from them.
    unreadable: RefCell<BTreeSet<String>>,
}

impl ClusterRoleAggregation {
    /// A controller without any known roles.
    pub fn new(client: Client) -> ClusterRoleAggregation {
        ClusterRoleAggregation { client, roles: RefCell::default(), unreadable: RefCell::default() }
    }

    async fn sync(&self, name: &str) -> Result<()> {
        let sources =
            self.roles.borrow().sources(name).map(|all| all.into_iter().map(str::to_owned).collect());
        let Some(sources): Option<Vec<String>> = sources else { return Ok(()) };
        // If it counted as empty, its rules would be taken away from the roles that aggregate it.
        if let Some(unreadable) = self.unreadable.borrow().first() {
            return Err(Status::unavailable(format!(
                "the ClusterRole {} cannot be read",
                quoted(unreadable)
            )));
        }
        let resource = self.client.resource(STORE)?;
        // One snapshot, however many roles are selected.
        let all = self.client.snapshot(&TypeName::new(STORE)).await?;
        let read = |name: &str| {
            let object = all.get(Key::cluster(name).as_str()).filter(|object| object.is_readable());
            object.map(|object| self.client.load(&resource, object)).transpose()
        };
        let mut rules: Vec<Rule> = Vec::new();
        for source in &sources {
            rules.extend(read(source)?.iter().flat_map(rules_of));
        }
        let rules = joined(rules);
        let Some(role) = read(name)? else { return Ok(()) };
        if rules_of(&role) == rules {
            return Ok(());
        }
        let mut body = Value::object();
        body.set("apiVersion", format!("{RBAC_GROUP}/v1"));
        body.set("kind", "ClusterRole");
        body.entry("metadata").set("name", name);
        // With its uid, so that a role that was deleted meanwhile is not created again.
        body.entry("metadata").set("uid", meta::metadata(&role).str("uid"));
        body.set("rules", rules.iter().map(Rule::to_value).collect::<Vec<_>>());
        let target = ObjectRef { resource: &resource, namespace: "", name };
        // Deleted or recreated meanwhile: the event of that is still to come.
        self.client.apply(target, "", NAME, &body).await.ignore_not_found_or_conflict()?;
        Ok(())
    }
}

impl Controller for ClusterRoleAggregation {
    type Key = String;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[STORE])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        let (name, mut roles) = (change.object.key.name(), self.roles.borrow_mut());
        let role = if change.is_deleted { None } else { json::read(&change.object.bytes).ok() };
        let mut unreadable = self.unreadable.borrow_mut();
        let changes_readability = match role.is_none() && !change.is_deleted {
            true => unreadable.insert(name.to_owned()),
            false => unreadable.remove(name) || !change.object.is_readable(),
        };
        let affected = match role {
            Some(role) => roles.put(name, &role),
            None => roles.remove(name),
        };
        // While any role is unreadable, no aggregated role is updated: all of them wait for it.
        let blocked = if changes_readability { roles.aggregated() } else { Vec::new() };
        affected.into_iter().chain(blocked).for_each(|name| queue.add(name));
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<String>) {
        // Roles that were deleted unnoticed must not count any more. All aggregated roles are checked again.
        *self.roles.borrow_mut() = RoleAggregator::default();
        let unreadable = snapshot.iter().filter(|object| !object.is_readable());
        *self.unreadable.borrow_mut() = unreadable.map(|object| object.key.name().to_owned()).collect();
        self.on_each_object(type_name, snapshot, queue);
    }

    fn reconcile(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&name).await.map(|()| Outcome::Done) }.boxed_local()
    }
}
