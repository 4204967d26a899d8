//! The parameter objects that bindings name.

use std::ops::Bound;
use std::sync::Arc;

use pilothouse_admission::policies::policy::{Binding, ParamRef, Policy};
use pilothouse_api::catalog::backing::Stored;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object};

use super::super::{Kinds, Write, versioned};

/// The resource of a policy's paramKind; `None` without one, an error if the kind is not served.
pub fn resource(policy: &Policy, kinds: &Kinds) -> Result<Option<Arc<Resource>>, String> {
    let Some((version, kind)) = &policy.params else { return Ok(None) };
    let served = kinds(&version.group, &version.version, kind);
    let resource = served.into_iter().find(|resource| resource.stored().is_some());
    let unknown = || {
        let (group, version) = (&version.group, &version.version);
        format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'")
    };
    resource.map(Some).ok_or_else(unknown)
}

/// The parameters of a binding for a request in a namespace. The policy is evaluated once for each, and not at all without any; a
/// policy without paramKind is evaluated once with null.
pub async fn collect(
    write: &Write<'_>,
    resource: Option<&Arc<Resource>>,
    binding: &Binding,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    let (Some(resource), Some(reference)) = (resource, &binding.params) else { return Ok(vec![Value::Null]) };
    let Some(stored) = resource.stored() else { return Ok(vec![Value::Null]) };
    let namespace = params_namespace(resource, reference, namespace)?;
    let objects = match (&reference.selector, reference.name.as_str()) {
        (Some(_), name) if !name.is_empty() => {
            return Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned());
        }
        (None, "") => return Err("one of name or selector must be provided".to_owned()),
        (None, name) => get_named(write, stored, namespace, name).await?,
        (Some(_), _) => list_all(write, stored, namespace).await?,
    };
    let mut params = Vec::new();
    for object in objects {
        let value = versioned::load_stored(write, resource, object).await.map_err(|status| status.message)?;
        let is_selected =
            |selector| label_selector::matches(Some(selector), value.get_path(&["metadata", "labels"]));
        if reference.selector.as_ref().is_none_or(is_selected) {
            params.push(value);
        }
    }
    if params.is_empty() && reference.required {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(params)
}

/// The namespace of the parameters; `None` if they are cluster-scoped.
fn params_namespace<'a>(
    resource: &Resource,
    reference: &'a ParamRef,
    namespace: &'a str,
) -> Result<Option<&'a str>, String> {
    match (resource.namespaced, reference.namespace.as_str(), namespace) {
        (false, "", _) => Ok(None),
        (false, ..) => {
            Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned())
        }
        (true, "", "") => {
            Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                .to_owned())
        }
        (true, "", namespace) => Ok(Some(namespace)),
        (true, explicit, _) => Ok(Some(explicit)),
    }
}

async fn get_named(
    write: &Write<'_>,
    stored: &Stored,
    namespace: Option<&str>,
    name: &str,
) -> Result<Vec<Arc<Object>>, String> {
    let key = namespace.map_or_else(|| Key::cluster(name), |namespace| Key::namespaced(namespace, name));
    match write.backend.stores.get(&stored.store, key, write.call.permit()).await {
        Ok(object) => Ok(vec![object]),
        Err(StoreError::NotFound) => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
    }
}

async fn list_all(
    write: &Write<'_>,
    stored: &Stored,
    namespace: Option<&str>,
) -> Result<Vec<Arc<Object>>, String> {
    let snapshot = write.backend.stores.snapshot(&stored.store, write.call.permit()).await;
    let snapshot = snapshot.map_err(|error| error.to_string())?;
    // Those that cannot be decrypted may be in any namespace: they are not skipped.
    Ok(snapshot.scan(namespace, Bound::Unbounded).cloned().collect())
}
