//! Users cannot read objects through a policy that they may not read themselves. Always on: an expression can reveal the contents
//! of its parameters.

use std::sync::Arc;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::{ADMISSION_REGISTRATION_GROUP, MASTERS};
use pilothouse_types::authorization::Target;
use pilothouse_types::identity::Identity;

use crate::registry::authorization;

use super::lookup::{MUTATING_POLICIES, VALIDATING_POLICIES};
use super::policies::table::PolicyKind;
use super::{Kinds, Operation, Outcome, Plugin, Write};

/// Checks writes of policies with parameters and of bindings.
pub struct ParamRights(pub Kinds);

impl Plugin for ParamRights {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete
            && written_type(write).is_some()
            && !write.call.user().is_in(MASTERS)
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(async move {
            match written_type(write) {
                Some(WrittenType::Policy) => self.check_policy(write, object).await,
                Some(WrittenType::Binding(policy_kind)) => {
                    self.check_binding(write, object, policy_kind).await
                }
                None => Ok(()),
            }
        })
    }
}

/// The type of the written object.
enum WrittenType {
    /// A policy.
    Policy,
    /// A binding of a policy of this kind.
    Binding(PolicyKind),
}

fn written_type(write: &Write<'_>) -> Option<WrittenType> {
    if !write.subresource().is_empty() || write.group_resource().group != ADMISSION_REGISTRATION_GROUP {
        return None;
    }
    Some(match write.group_resource().resource {
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => WrittenType::Policy,
        "validatingadmissionpolicybindings" => WrittenType::Binding(PolicyKind::Validating),
        "mutatingadmissionpolicybindings" => WrittenType::Binding(PolicyKind::Mutating),
        _ => return None,
    })
}

/// The resource of parameters; `*` for parts that are unknown.
struct Params {
    group: String,
    version: String,
    resource: String,
}

impl ParamRights {
    /// The resource of a kind. An unserved kind may be any resource of its version.
    fn resolve(&self, kind: &Value) -> (Params, bool) {
        let Some(gv) = GroupVersion::parse(kind.str("apiVersion")) else {
            return (
                Params { group: "*".to_owned(), version: "*".to_owned(), resource: "*".to_owned() },
                false,
            );
        };
        let served: Vec<Arc<Resource>> = (self.0)(&gv.group, &gv.version, kind.str("kind"));
        let resource = served.first().map(|resource| resource.plural.to_string());
        let is_known = resource.is_some();
        let resource = resource.unwrap_or_else(|| "*".to_owned());
        (Params { group: gv.group.to_string(), version: gv.version.to_string(), resource }, is_known)
    }

    async fn check_policy(&self, write: &Write<'_>, policy: &Value) -> Result<()> {
        let param_kind = |object: &Value| object.get_path(&["spec", "paramKind"]).cloned();
        let Some(kind) = param_kind(policy).filter(|kind| !kind.is_null()) else { return Ok(()) };
        if write.old.is_some_and(|old| same(param_kind(old).as_ref(), Some(&kind))) {
            return Ok(());
        }
        let (params, _) = self.resolve(&kind);
        if is_allowed(write, "get", params, "*", "*").await? {
            return Ok(());
        }
        let reason = format!(
            "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
            render_user(write.call.user()),
            kind.str("kind"),
            kind.str("apiVersion")
        );
        Err(forbidden_field(write, policy, "paramKind", &reason))
    }

    async fn check_binding(&self, write: &Write<'_>, binding: &Value, policy_kind: PolicyKind) -> Result<()> {
        let spec = binding.get("spec").unwrap_or(&Value::Null);
        let Some(reference) = spec.get("paramRef").filter(|reference| !reference.is_null()) else {
            return Ok(());
        };
        let is_unchanged = |old: &Value| {
            same(old.get_path(&["spec", "paramRef"]), Some(reference))
                && old.get_path(&["spec", "policyName"]) == spec.get("policyName")
        };
        if write.old.is_some_and(is_unchanged) {
            return Ok(());
        }
        let (name, verb) =
            (reference.str("name"), if reference.str("name").is_empty() { "list" } else { "get" });
        let policies = match policy_kind {
            PolicyKind::Validating => VALIDATING_POLICIES,
            PolicyKind::Mutating => MUTATING_POLICIES,
        };
        let policy = policies.get(write, spec.str("policyName")).await?;
        let kind = policy.as_ref().and_then(|policy| policy.get_path(&["spec", "paramKind"]));
        let any_resource =
            || Params { group: "*".to_owned(), version: "*".to_owned(), resource: "*".to_owned() };
        let (params, is_known) = kind.map_or_else(|| (any_resource(), true), |kind| self.resolve(kind));
        if is_allowed(write, verb, params, reference.str("namespace"), name).await? {
            return Ok(());
        }
        let user = render_user(write.call.user());
        let permission_text = format!(
            "to determine minimum required permissions and user {user} does not have \"{verb}\" permission for all groups, \
             versions and resources"
        );
        let reason = match (policy.is_some(), is_known) {
            (false, _) => format!("unable to get policy {} {permission_text}", spec.str("policyName")),
            (true, false) => {
                let kind = kind.unwrap_or(&Value::Null);
                let kind =
                    format!("&ParamKind{{APIVersion:{},Kind:{},}}", kind.str("apiVersion"), kind.str("kind"));
                format!("unable to resolve paramKind {kind} {permission_text}")
            }
            (true, true) => {
                // For bindings of mutating policies the reference swaps the two.
                let (first, second) = match policy_kind {
                    PolicyKind::Validating => (user.as_str(), verb),
                    PolicyKind::Mutating => (verb, user.as_str()),
                };
                format!(
                    "user {first} does not have \"{second}\" permission on the object referenced by paramRef"
                )
            }
        };
        Err(forbidden_field(write, binding, "paramRef", &reason))
    }
}

fn forbidden_field(write: &Write<'_>, object: &Value, field: &str, reason: &str) -> Box<Status> {
    let path = FieldPath::new("spec").child(field);
    write.call.invalid(meta::name(object), &[FieldError::forbidden(&path, reason)])
}

async fn is_allowed(
    write: &Write<'_>,
    verb: &str,
    params: Params,
    namespace: &str,
    name: &str,
) -> Result<bool> {
    let target = Target::Resource {
        group: params.group,
        version: params.version,
        resource: params.resource,
        subresource: String::new(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    authorization::is_allowed(&write.backend.access.authorizer, write.call.user(), verb, target).await
}

/// A user in the format in which the reference prints it here.
fn render_user(user: &Identity) -> String {
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{key}:[{}]", values.join(" "))).collect();
    format!("&{{{} {} [{}] map[{}]}}", user.name, user.uid, user.groups.join(" "), extra.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_user_matches_go_format() {
        let mut user = Identity {
            name: "a".to_owned(),
            groups: vec!["g".to_owned(), "h".to_owned()],
            ..Identity::default()
        };
        assert_eq!(render_user(&user), "&{a  [g h] map[]}");
        user.extra.insert("k".to_owned(), vec!["v".to_owned(), "w".to_owned()]);
        assert_eq!(render_user(&user), "&{a  [g h] map[k:[v w]]}");
    }
}
