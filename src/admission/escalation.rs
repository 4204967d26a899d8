//! RBAC escalation check: users cannot grant more rights than they have. Always on, and after all mutating plug-ins, because the
//! stored object counts.

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{MASTERS, RBAC_GROUP};
use pilothouse_authorization::rbac::escalation::{find_missing_permissions, render_error, wildcard_rules};
use pilothouse_authorization::rbac::index::{MissingRole, RoleRef};
use pilothouse_authorization::rbac::role::Role;
use pilothouse_authorization::rbac::rule::{Rule, rules_of};
use pilothouse_types::authorization::Target;

use crate::registry::authorization;

use super::{Operation, Outcome, Plugin, Write};

/// Checks writes of roles and bindings.
pub struct Escalation;

impl Plugin for Escalation {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete
            && write.group_resource().group == RBAC_GROUP
            && !write.call.user().is_in(MASTERS)
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        Box::pin(check(write, object))
    }
}

async fn check(write: &Write<'_>, object: &Value) -> Result<()> {
    if write.old.is_some_and(|old| only_gc_fields_changed(object, old)) {
        return Ok(());
    }
    match write.group_resource().resource {
        "roles" | "clusterroles" => check_role(write, object).await,
        _ => check_binding(write, object).await,
    }
}

/// Whether only fields changed that the garbage collector writes.
fn only_gc_fields_changed(new: &Value, old: &Value) -> bool {
    const GC_FIELDS: [&str; 4] = ["ownerReferences", "finalizers", "selfLink", "managedFields"];
    let without_gc_fields = |object: &Value| {
        let mut rest = object.clone();
        GC_FIELDS.iter().for_each(|field| {
            rest.entry("metadata").remove(field);
        });
        rest
    };
    same(Some(&without_gc_fields(new)), Some(&without_gc_fields(old)))
}

async fn is_allowed(write: &Write<'_>, verb: &str, group: &str, resource: &str, name: &str) -> Result<bool> {
    let target = Target::Resource {
        group: group.to_owned(),
        version: "*".to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
        namespace: write.call.namespace().to_owned(),
        name: name.to_owned(),
    };
    authorization::is_allowed(&write.backend.access.authorizer, write.call.user(), verb, target).await
}

async fn check_role(write: &Write<'_>, role: &Value) -> Result<()> {
    let call = write.call;
    if is_allowed(write, "escalate", RBAC_GROUP, call.group_resource().resource, call.name()).await? {
        return Ok(());
    }
    let rights = user_rights(write).await?;
    rights.check_covers(write, role, &rules_of(role))?;
    let is_aggregated = |role: &Value| {
        role.get_path(&["aggregationRule", "clusterRoleSelectors"]).is_some_and(|all| !all.items().is_empty())
    };
    // An aggregation rule can collect any rights.
    if (is_aggregated(role) || write.old.is_some_and(is_aggregated)) && !rights.covers(&wildcard_rules()) {
        return Err(forbidden(write, role, "must have cluster-admin privileges to use the aggregationRule"));
    }
    Ok(())
}

async fn check_binding(write: &Write<'_>, binding: &Value) -> Result<()> {
    let role_ref = binding.get("roleRef").unwrap_or(&Value::Null);
    let resource = match role_ref.str("kind") {
        "ClusterRole" => Some("clusterroles"),
        "Role" => Some("roles"),
        _ => None,
    };
    if let Some(resource) = resource
        && is_allowed(write, "bind", role_ref.str("apiGroup"), resource, role_ref.str("name")).await?
    {
        return Ok(());
    }
    let reference = RoleRef { kind: role_ref.str("kind").into(), name: role_ref.str("name").into() };
    let namespace = write.call.namespace().to_owned();
    let result = read_roles(
        write.backend.access.roles.query(move |index| index.role(&namespace, &reference).cloned()),
    )
    .await?;
    let role = result.map_err(|MissingRole(role)| match &*role.kind {
        // The error names the resource that is written, as the reference's does.
        "Role" | "ClusterRole" => Status::not_found(write.group_resource(), &role.name),
        _ => Status::internal(MissingRole(role).to_string()),
    })?;
    user_rights(write).await?.check_covers(write, binding, role.rules())
}

/// 403 with the name that the object has so far: a generated one is not set yet.
fn forbidden(write: &Write<'_>, object: &Value, reason: &str) -> Box<Status> {
    let names = [write.call.name(), meta::name(object)];
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    Status::forbidden(reason, Some((write.group_resource(), name)))
}

/// The RBAC rights of the user.
struct UserRights {
    roles: Vec<Arc<Role>>,
    /// Roles that bindings of the user name and that do not exist.
    missing: Vec<MissingRole>,
}

async fn user_rights(write: &Write<'_>) -> Result<UserRights> {
    let (user, namespace) = (write.call.user().clone(), write.call.namespace().to_owned());
    let (roles, missing) =
        read_roles(write.backend.access.roles.query(move |index| index.roles_of(&user, &namespace))).await?;
    Ok(UserRights { roles, missing })
}

async fn read_roles<T, E: std::fmt::Display>(answer: Answer<std::result::Result<T, E>>) -> Result<T> {
    let result = match answer {
        Answer::Now(result) => result,
        Answer::Later(result) => result.await,
    };
    result.map_err(|error| Status::unavailable(format!("roles and bindings cannot be read: {error}")))
}

impl UserRights {
    fn roles(&self) -> Vec<&Role> {
        self.roles.iter().map(|role| &**role).collect()
    }

    fn covers(&self, rules: &[Rule]) -> bool {
        find_missing_permissions(&self.roles(), rules).is_none()
    }

    fn check_covers(&self, write: &Write<'_>, object: &Value, rules: &[Rule]) -> Result<()> {
        let Some(missing) = find_missing_permissions(&self.roles(), rules) else { return Ok(()) };
        let resource = write.group_resource();
        let errors =
            self.missing.iter().map(|MissingRole(role)| Status::not_found(resource, &role.name).message);
        let errors: Vec<String> = errors.collect();
        let user = write.call.user();
        Err(forbidden(write, object, &render_error(&user.name, &user.groups, &missing, &errors)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escalation_check_skips_garbage_collector_updates() {
        let mut old = Value::object();
        old.entry("metadata").set("name", "a");
        let mut new = old.clone();
        new.entry("metadata").set("finalizers", vec![Value::from("x")]);
        assert!(only_gc_fields_changed(&new, &old));
        new.entry("metadata").entry("labels").set("a", "b");
        assert!(!only_gc_fields_changed(&new, &old));
    }
}
