//! RBAC escalation: nobody grants more rights than they have. Always on, and after all mutating plug-ins, because the stored
//! object counts.

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{MASTERS, RBAC_GROUP};
use pilothouse_authorization::rbac::escalation::{everything, missing, refusal};
use pilothouse_authorization::rbac::index::{MissingRole, RoleRef};
use pilothouse_authorization::rbac::role::Role;
use pilothouse_authorization::rbac::rule::{Rule, rules_of};
use pilothouse_types::authorization::Target;

use crate::backend::authorization;

use super::{Operation, Outcome, Plugin, Write};

/// Checks writes of roles and bindings.
pub struct Escalation;

impl Plugin for Escalation {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete
            && write.call.of().group == RBAC_GROUP
            && !write.call.user.is_in(MASTERS)
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        Box::pin(check(write, object))
    }
}

async fn check(write: &Write<'_>, object: &Value) -> Result<()> {
    if write.old.is_some_and(|old| only_collected(object, old)) {
        return Ok(());
    }
    match write.call.of().resource {
        "roles" | "clusterroles" => check_role(write, object).await,
        _ => check_binding(write, object).await,
    }
}

/// Whether only fields changed that the garbage collector writes.
fn only_collected(new: &Value, old: &Value) -> bool {
    const COLLECTED: [&str; 4] = ["ownerReferences", "finalizers", "selfLink", "managedFields"];
    let rest = |object: &Value| {
        let mut rest = object.clone();
        COLLECTED.iter().for_each(|field| {
            rest.entry("metadata").remove(field);
        });
        rest
    };
    same(Some(&rest(new)), Some(&rest(old)))
}

async fn may(write: &Write<'_>, verb: &str, group: &str, resource: &str, name: &str) -> Result<bool> {
    let target = Target::Resource {
        group: group.to_owned(),
        version: "*".to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
        namespace: write.call.namespace.to_owned(),
        name: name.to_owned(),
    };
    authorization::may(&write.backend.access.authorizer, write.call.user, verb, target).await
}

async fn check_role(write: &Write<'_>, role: &Value) -> Result<()> {
    let call = write.call;
    if may(write, "escalate", RBAC_GROUP, call.of().resource, call.name).await? {
        return Ok(());
    }
    let held = held(write).await?;
    held.must_cover(write, role, &rules_of(role))?;
    let gathers = |role: &Value| {
        role.at(&["aggregationRule", "clusterRoleSelectors"]).is_some_and(|all| !all.items().is_empty())
    };
    // An aggregation rule can gather any rights.
    if (gathers(role) || write.old.is_some_and(gathers)) && !held.covers(&everything()) {
        return Err(forbidden(write, role, "must have cluster-admin privileges to use the aggregationRule"));
    }
    Ok(())
}

async fn check_binding(write: &Write<'_>, binding: &Value) -> Result<()> {
    let given = binding.get("roleRef").unwrap_or(&Value::Null);
    let resource = match given.str("kind") {
        "ClusterRole" => Some("clusterroles"),
        "Role" => Some("roles"),
        _ => None,
    };
    if let Some(resource) = resource
        && may(write, "bind", given.str("apiGroup"), resource, given.str("name")).await?
    {
        return Ok(());
    }
    let role = RoleRef { kind: given.str("kind").into(), name: given.str("name").into() };
    let namespace = write.call.namespace.to_owned();
    let found =
        settle(write.backend.access.roles.look(move |index| index.role(&namespace, &role).cloned())).await?;
    let role = found.map_err(|MissingRole(role)| match &*role.kind {
        // The error names the resource that is written, as the reference's does.
        "Role" | "ClusterRole" => Status::not_found(write.call.of(), &role.name),
        _ => Status::internal(MissingRole(role).to_string()),
    })?;
    held(write).await?.must_cover(write, binding, role.rules())
}

/// 403 with the name that the object has so far: a generated one is not set yet.
fn forbidden(write: &Write<'_>, object: &Value, why: &str) -> Box<Status> {
    let names = [write.call.name, meta::name(object)];
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    Status::forbidden(why, Some((write.call.of(), name)))
}

/// The rights of the writer.
struct Held {
    roles: Vec<Arc<Role>>,
    /// Roles that bindings of the user name and that do not exist.
    missing: Vec<MissingRole>,
}

async fn held(write: &Write<'_>) -> Result<Held> {
    let (user, namespace) = (write.call.user.clone(), write.call.namespace.to_owned());
    let (roles, missing) =
        settle(write.backend.access.roles.look(move |index| index.roles_of(&user, &namespace))).await?;
    Ok(Held { roles, missing })
}

async fn settle<T, E: std::fmt::Display>(answer: Answer<std::result::Result<T, E>>) -> Result<T> {
    let known = match answer {
        Answer::Now(known) => known,
        Answer::Later(known) => known.await,
    };
    known.map_err(|error| Status::unavailable(format!("roles and bindings cannot be read: {error}")))
}

impl Held {
    fn roles(&self) -> Vec<&Role> {
        self.roles.iter().map(|role| &**role).collect()
    }

    fn covers(&self, wanted: &[Rule]) -> bool {
        missing(&self.roles(), wanted).is_none()
    }

    fn must_cover(&self, write: &Write<'_>, object: &Value, wanted: &[Rule]) -> Result<()> {
        let Some(lacking) = missing(&self.roles(), wanted) else { return Ok(()) };
        let of = write.call.of();
        let trouble = self.missing.iter().map(|MissingRole(role)| Status::not_found(of, &role.name).message);
        let trouble: Vec<String> = trouble.collect();
        let user = write.call.user;
        Err(forbidden(write, object, &refusal(&user.name, &user.groups, &lacking, &trouble)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_garbage_collector_writes_grants_nothing() {
        let mut old = Value::object();
        old.entry("metadata").set("name", "a");
        let mut new = old.clone();
        new.entry("metadata").set("finalizers", vec![Value::from("x")]);
        assert!(only_collected(&new, &old));
        new.entry("metadata").entry("labels").set("a", "b");
        assert!(!only_collected(&new, &old));
    }
}
