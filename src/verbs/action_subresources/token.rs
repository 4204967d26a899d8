//! TokenRequest: issues a token for a service account.

use pilothouse_api::subresources::token_request::{self, Binding};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Key;

use crate::auth::service_account::claims::{Bound, Grant, Reference};
use crate::pki::random;
use crate::registry::{Backend, Call};
use crate::verbs::{Reply, Success, VerbResult};

/// The audit annotation with the ID of the issued token.
const ISSUED_CREDENTIAL_ID: &str = "authentication.kubernetes.io/issued-credential-id";

/// Issues a token. Nothing is stored, so a dry run does the same.
pub async fn create(backend: &Backend, call: &Call<'_>, mut request: Value) -> VerbResult {
    let mut errors = ErrorList::new();
    token_request::validate_name(&request, call.name(), &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid_body(call.name(), &errors));
    }
    let account = backend.objects.load(call, &*backend.read(call).await?)?;
    let now = backend.clock.now();
    set_defaults(backend, &mut request, &account, &time::format_seconds(now.unix_seconds()));
    token_request::validate(&request, &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid_body("", &errors));
    }
    super::validate_admission(backend, call, &request).await?;

    let mut bound = Bound {
        namespace: call.namespace().to_owned(),
        serviceaccount: reference_to(&account),
        ..Bound::default()
    };
    if let Some(bound_ref) =
        request.get_path(&["spec", "boundObjectRef"]).filter(|bound_ref| !bound_ref.is_null())
    {
        bind(backend, call, bound_ref, &mut bound).await?;
    }
    limit_lifetime(backend, call, &mut request);
    let rules = backend.tokens.settings();
    let (requested_seconds, audiences) =
        (token_request::expiration_seconds(&request), token_request::audiences(&request));
    let (seconds, warn_after_seconds) = rules.lifetime(requested_seconds, bound.pod.is_some(), &audiences);
    let grant = Grant { bound, audiences, seconds, warn_after_seconds };
    let id = random::uuid();
    let token = backend.tokens.issue(&grant, &id, now).await;
    let token = token.map_err(|error| Status::internal(format!("failed to generate token: {error}")))?;
    call.warnings.annotate(ISSUED_CREDENTIAL_ID, format!("JTI={id}"));

    let status = request.entry("status");
    status.set("token", token);
    let expiration = now.unix_seconds().saturating_add(requested_seconds);
    status.set("expirationTimestamp", time::format_seconds(expiration));
    Ok(Reply::Object(Success::Created, backend.objects.encode_view(call, &request)?))
}

/// Removes fields that only the server sets.
pub fn clear_server_fields(request: &mut Value) {
    let meta = request.entry("metadata");
    for field in ["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "selfLink", "uid"] {
        meta.remove(field);
    }
}

/// Sets defaults, and the fields that only the server sets.
fn set_defaults(backend: &Backend, request: &mut Value, account: &Value, now: &str) {
    if token_request::audiences(request).is_empty() {
        let default_audiences =
            backend.tokens.settings().audiences.iter().map(|name| Value::from(name.as_str()));
        request.entry("spec").set("audiences", default_audiences.collect::<Vec<_>>());
    }
    let meta = request.entry("metadata");
    meta.set("name", meta::name(account));
    meta.set("namespace", meta::metadata(account).str("namespace"));
    meta.set("creationTimestamp", now);
    request.remove("status");
}

/// Limits the requested lifetime.
fn limit_lifetime(backend: &Backend, call: &Call<'_>, request: &mut Value) {
    let (max_seconds, requested_seconds) =
        (backend.tokens.settings().max_seconds, token_request::expiration_seconds(request));
    if max_seconds > 0 && requested_seconds > max_seconds {
        call.warnings.add(format!(
            "requested expiration of {requested_seconds} seconds shortened to {max_seconds} seconds"
        ));
        request.entry("spec").set("expirationSeconds", max_seconds);
    }
}

fn reference_to(object: &Value) -> Reference {
    Reference { name: meta::name(object).to_owned(), uid: meta::metadata(object).str("uid").to_owned() }
}

/// Reads the object that the token is bound to.
async fn bind(backend: &Backend, call: &Call<'_>, bound_ref: &Value, bound: &mut Bound) -> Result<()> {
    let name = bound_ref.str("name");
    let binding = token_request::binding(bound_ref)?;
    let object = match binding {
        Binding::Pod => get(backend, call, &PODS, name).await?,
        Binding::Node => get(backend, call, &NODES, name).await?,
        Binding::Secret => get(backend, call, &SECRETS, name).await?,
    };
    if binding == Binding::Pod {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        if spec.str("serviceAccountName") != call.name() {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                call.name()
            )));
        }
        bound.node = node_reference(backend, call, spec.str("nodeName")).await?;
    }
    let reference = reference_to(&object);
    let expected_uid = bound_ref.str("uid");
    if !expected_uid.is_empty() && expected_uid != reference.uid {
        return Err(token_request::uid_conflict(bound_ref.str("kind"), name, expected_uid));
    }
    match binding {
        Binding::Pod => bound.pod = Some(reference),
        Binding::Node => bound.node = Some(reference),
        Binding::Secret => bound.secret = Some(reference),
    }
    Ok(())
}

/// The node of a pod. A node that does not exist is still named.
async fn node_reference(backend: &Backend, call: &Call<'_>, name: &str) -> Result<Option<Reference>> {
    if name.is_empty() {
        return Ok(None);
    }
    match get(backend, call, &NODES, name).await {
        Ok(node) => Ok(Some(reference_to(&node))),
        Err(status) if status.is_not_found() => {
            Ok(Some(Reference { name: name.to_owned(), uid: String::new() }))
        }
        Err(status) => Err(Status::internal(status.message)),
    }
}

const PODS: StoredType = StoredType::v1("", "pods", "Pod");
const NODES: StoredType = StoredType::v1("", "nodes", "Node");
const SECRETS: StoredType = StoredType::v1("", "secrets", "Secret");

async fn get(backend: &Backend, call: &Call<'_>, stored_type: &StoredType, name: &str) -> Result<Value> {
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let errors = names::path_segment(name, false);
    if !errors.is_empty() {
        return Err(Status::bad_request(format!("Name parameter invalid: {name:?}: {}", errors.join(";"))));
    }
    let is_cluster_scoped = *stored_type == NODES;
    let key = if is_cluster_scoped { Key::cluster(name) } else { Key::namespaced(call.namespace(), name) };
    backend.read_stored(stored_type, key, call.permit(), stored_type.group_resource()).await
}
