//! The objects that bindings give policies as their parameters.

use std::sync::Arc;

use pilothouse_admission::policies::policy::{Binding, ParamRef, Policy};
use pilothouse_api::catalog::resource::{Resource, Stored};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object};

use super::super::{Kinds, Write, versioned};

/// The resource that the parameters of a policy are of; nothing if it has none, an error if nobody serves their kind.
pub fn resource(policy: &Policy, kinds: &Kinds) -> Result<Option<Arc<Resource>>, String> {
    let Some((version, kind)) = &policy.params else { return Ok(None) };
    let served = kinds(&version.group, &version.version, kind);
    let found = served.into_iter().find(|resource| resource.stored.is_some());
    let unknown = || {
        let (group, version) = (&version.group, &version.version);
        format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'")
    };
    found.map(Some).ok_or_else(unknown)
}

/// The parameters that a binding gives for a request in a namespace: the policy is asked once for each. Without any it is not
/// asked; a policy that wants none is asked once, with nothing.
pub async fn collect(
    write: &Write<'_>,
    resource: Option<&Arc<Resource>>,
    binding: &Binding,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    let (Some(resource), Some(wanted)) = (resource, &binding.params) else { return Ok(vec![Value::Null]) };
    let Some(stored) = &resource.stored else { return Ok(vec![Value::Null]) };
    let place = place(resource, wanted, namespace)?;
    let found = match (&wanted.selector, wanted.name.as_str()) {
        (Some(_), name) if !name.is_empty() => {
            return Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned());
        }
        (None, "") => return Err("one of name or selector must be provided".to_owned()),
        (None, name) => named(write, stored, place, name).await?,
        (Some(_), _) => everywhere(write, stored, place).await?,
    };
    let mut params = Vec::new();
    for object in found {
        let value = versioned::stored(write, resource, object).await.map_err(|status| status.message)?;
        let is_meant = |selector| label_selector::matches(Some(selector), value.at(&["metadata", "labels"]));
        if wanted.selector.as_ref().is_none_or(is_meant) {
            params.push(value);
        }
    }
    if params.is_empty() && wanted.required {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(params)
}

/// The namespace that parameters are in; nothing for those that stand in none.
fn place<'a>(
    resource: &Resource,
    wanted: &'a ParamRef,
    namespace: &'a str,
) -> Result<Option<&'a str>, String> {
    match (resource.namespaced, wanted.namespace.as_str(), namespace) {
        (false, "", _) => Ok(None),
        (false, ..) => {
            Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned())
        }
        (true, "", "") => {
            Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                .to_owned())
        }
        (true, "", own) => Ok(Some(own)),
        (true, named, _) => Ok(Some(named)),
    }
}

async fn named(
    write: &Write<'_>,
    stored: &Stored,
    place: Option<&str>,
    name: &str,
) -> Result<Vec<Arc<Object>>, String> {
    let key = place.map_or_else(|| Key::cluster(name), |namespace| Key::namespaced(namespace, name));
    match write.backend.stores.get(&stored.store, key, &write.call.permit).await {
        Ok(object) => Ok(vec![object]),
        Err(StoreError::NotFound) => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
    }
}

async fn everywhere(
    write: &Write<'_>,
    stored: &Stored,
    place: Option<&str>,
) -> Result<Vec<Arc<Object>>, String> {
    let snapshot = write.backend.stores.snapshot(&stored.store, &write.call.permit).await;
    let snapshot = snapshot.map_err(|error| error.to_string())?;
    let here = snapshot.iter().filter(|object| place.is_none_or(|place| object.key.namespace() == place));
    Ok(here.cloned().collect())
}
