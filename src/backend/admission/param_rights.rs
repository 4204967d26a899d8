//! Nobody reads objects through a policy that they may not read themselves. Always on: an expression can reveal the contents of
//! its parameters.

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

use crate::backend::authorization;

use super::lookup::{MUTATING_POLICIES, VALIDATING_POLICIES};
use super::policies::table::PolicyKind;
use super::{Kinds, Operation, Outcome, Plugin, Write};

/// Checks writes of policies with parameters and of bindings.
pub struct ParamRights(pub Kinds);

impl Plugin for ParamRights {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && of(write).is_some() && !write.call.user.is_in(MASTERS)
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(async move {
            match of(write) {
                Some(Of::Policy) => self.check_policy(write, object).await,
                Some(Of::Binding(sort)) => self.check_binding(write, object, sort).await,
                None => Ok(()),
            }
        })
    }
}

/// What is written.
enum Of {
    /// A policy.
    Policy,
    /// What puts a policy of this sort to use.
    Binding(PolicyKind),
}

fn of(write: &Write<'_>) -> Option<Of> {
    if !write.call.subresource.is_empty() || write.call.of().group != ADMISSION_REGISTRATION_GROUP {
        return None;
    }
    Some(match write.call.of().resource {
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => Of::Policy,
        "validatingadmissionpolicybindings" => Of::Binding(PolicyKind::Validating),
        "mutatingadmissionpolicybindings" => Of::Binding(PolicyKind::Mutating),
        _ => return None,
    })
}

/// What may have to be read: a resource, and `*` for what is not known of it.
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
        let of = |object: &Value| object.at(&["spec", "paramKind"]).cloned();
        let Some(kind) = of(policy).filter(|kind| !kind.is_null()) else { return Ok(()) };
        if write.old.is_some_and(|old| same(of(old).as_ref(), Some(&kind))) {
            return Ok(());
        }
        let (params, _) = self.resolve(&kind);
        if may(write, "get", params, "*", "*").await? {
            return Ok(());
        }
        let why = format!(
            "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
            shown(write.call.user),
            kind.str("kind"),
            kind.str("apiVersion")
        );
        Err(refused(write, policy, "paramKind", &why))
    }

    async fn check_binding(&self, write: &Write<'_>, binding: &Value, sort: PolicyKind) -> Result<()> {
        let spec = binding.get("spec").unwrap_or(&Value::Null);
        let Some(given) = spec.get("paramRef").filter(|given| !given.is_null()) else { return Ok(()) };
        let unchanged = |old: &Value| {
            same(old.at(&["spec", "paramRef"]), Some(given))
                && old.at(&["spec", "policyName"]) == spec.get("policyName")
        };
        if write.old.is_some_and(unchanged) {
            return Ok(());
        }
        let (name, verb) = (given.str("name"), if given.str("name").is_empty() { "list" } else { "get" });
        let policies = match sort {
            PolicyKind::Validating => VALIDATING_POLICIES,
            PolicyKind::Mutating => MUTATING_POLICIES,
        };
        let policy = policies.get(write, spec.str("policyName")).await?;
        let kind = policy.as_ref().and_then(|policy| policy.at(&["spec", "paramKind"]));
        let anything = || Params { group: "*".to_owned(), version: "*".to_owned(), resource: "*".to_owned() };
        let (params, is_known) = kind.map_or_else(|| (anything(), true), |kind| self.resolve(kind));
        if may(write, verb, params, given.str("namespace"), name).await? {
            return Ok(());
        }
        let user = shown(write.call.user);
        let least = format!(
            "to determine minimum required permissions and user {user} does not have \"{verb}\" permission for all groups, \
             versions and resources"
        );
        let why = match (policy.is_some(), is_known) {
            (false, _) => format!("unable to get policy {} {least}", spec.str("policyName")),
            (true, false) => {
                let kind = kind.unwrap_or(&Value::Null);
                let kind =
                    format!("&ParamKind{{APIVersion:{},Kind:{},}}", kind.str("apiVersion"), kind.str("kind"));
                format!("unable to resolve paramKind {kind} {least}")
            }
            (true, true) => {
                // Of bindings of policies that change objects the reference tells it in this order.
                let (who, what) = match sort {
                    PolicyKind::Validating => (user.as_str(), verb),
                    PolicyKind::Mutating => (verb, user.as_str()),
                };
                format!("user {who} does not have \"{what}\" permission on the object referenced by paramRef")
            }
        };
        Err(refused(write, binding, "paramRef", &why))
    }
}

fn refused(write: &Write<'_>, object: &Value, field: &str, why: &str) -> Box<Status> {
    let path = FieldPath::new("spec").child(field);
    write.call.invalid(meta::name(object), &[FieldError::forbidden(&path, why)])
}

async fn may(write: &Write<'_>, verb: &str, params: Params, namespace: &str, name: &str) -> Result<bool> {
    let target = Target::Resource {
        group: params.group,
        version: params.version,
        resource: params.resource,
        subresource: String::new(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    authorization::may(&write.backend.access.authorizer, write.call.user, verb, target).await
}

/// A user in the format in which the reference prints it here.
fn shown(user: &Identity) -> String {
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{key}:[{}]", values.join(" "))).collect();
    format!("&{{{} {} [{}] map[{}]}}", user.name, user.uid, user.groups.join(" "), extra.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_shown_with_all_that_is_known_of_them() {
        let mut user = Identity {
            name: "a".to_owned(),
            groups: vec!["g".to_owned(), "h".to_owned()],
            ..Identity::default()
        };
        assert_eq!(shown(&user), "&{a  [g h] map[]}");
        user.extra.insert("k".to_owned(), vec!["v".to_owned(), "w".to_owned()]);
        assert_eq!(shown(&user), "&{a  [g h] map[k:[v w]]}");
    }
}
