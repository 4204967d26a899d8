//! TokenRequest: issues a token for a service account.

use pilothouse_api::subresources::token_request::{self, Binding};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::object::{Key, TypeName};

use crate::auth::service_account::claims::{Bound, Grant, Reference};
use crate::backend::{Backend, Call};
use crate::random;
use crate::verbs::{Reply, Success, VerbResult};

/// The audit annotation with the ID of the issued token.
const ISSUED: &str = "authentication.kubernetes.io/issued-credential-id";

/// Answers the request with a token. Nothing is stored, so a dry run does the same.
pub async fn create(backend: &Backend, call: &Call<'_>, mut request: Value) -> VerbResult {
    let mut errors = ErrorList::new();
    token_request::validate_name(&request, call.name, &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid_body(call.name, &errors));
    }
    let account = backend.objects.load(call, &*backend.read(call).await?)?;
    let now = backend.clock.now();
    complete(backend, &mut request, &account, &time::format_seconds(now.unix_seconds()));
    token_request::validate(&request, &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid_body("", &errors));
    }
    super::admitted(backend, call, &request).await?;

    let mut bound = Bound {
        namespace: call.namespace.to_owned(),
        serviceaccount: reference(&account),
        ..Bound::default()
    };
    if let Some(to) = request.at(&["spec", "boundObjectRef"]).filter(|to| !to.is_null()) {
        bind(backend, call, to, &mut bound).await?;
    }
    shorten(backend, call, &mut request);
    let rules = backend.tokens.rules();
    let (asked, audiences) = (token_request::seconds(&request), token_request::audiences(&request));
    let (seconds, warn_after_seconds) = rules.life(asked, bound.pod.is_some(), &audiences);
    let grant = Grant { bound, audiences, seconds, warn_after_seconds };
    let id = random::uuid();
    let made = backend.tokens.issue(&grant, &id, now).await;
    let made = made.map_err(|error| Status::internal(format!("failed to generate token: {error}")))?;
    call.warnings.note(ISSUED, format!("JTI={id}"));

    let status = request.entry("status");
    status.set("token", made);
    let ends = now.unix_seconds().saturating_add(asked);
    status.set("expirationTimestamp", time::format_seconds(ends));
    Ok(Reply::Object(Success::Created, backend.objects.show_body(call, &request)?))
}

/// Removes fields that only the server sets.
pub fn wipe(request: &mut Value) {
    let meta = request.entry("metadata");
    for field in ["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "selfLink", "uid"] {
        meta.remove(field);
    }
}

/// Sets defaults, and the fields that only the server sets.
fn complete(backend: &Backend, request: &mut Value, account: &Value, now: &str) {
    if token_request::audiences(request).is_empty() {
        let ours = backend.tokens.rules().audiences.iter().map(|name| Value::from(name.as_str()));
        request.entry("spec").set("audiences", ours.collect::<Vec<_>>());
    }
    let meta = request.entry("metadata");
    meta.set("name", meta::name(account));
    meta.set("namespace", meta::of(account).str("namespace"));
    meta.set("creationTimestamp", now);
    request.remove("status");
}

/// Limits the requested lifetime.
fn shorten(backend: &Backend, call: &Call<'_>, request: &mut Value) {
    let (longest, asked) = (backend.tokens.rules().longest_seconds, token_request::seconds(request));
    if longest > 0 && asked > longest {
        call.warnings.add(format!("requested expiration of {asked} seconds shortened to {longest} seconds"));
        request.entry("spec").set("expirationSeconds", longest);
    }
}

fn reference(object: &Value) -> Reference {
    Reference { name: meta::name(object).to_owned(), uid: meta::of(object).str("uid").to_owned() }
}

/// Reads the object that the token is bound to.
async fn bind(backend: &Backend, call: &Call<'_>, to: &Value, bound: &mut Bound) -> Result<()> {
    let name = to.str("name");
    let binding = token_request::binding(to)?;
    let found = match binding {
        Binding::Pod => get(backend, call, "pods", "Pod", name).await?,
        Binding::Node => get(backend, call, "nodes", "Node", name).await?,
        Binding::Secret => get(backend, call, "secrets", "Secret", name).await?,
    };
    if binding == Binding::Pod {
        let spec = found.get("spec").unwrap_or(&Value::Null);
        if spec.str("serviceAccountName") != call.name {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                call.name
            )));
        }
        bound.node = node_of(backend, call, spec.str("nodeName")).await?;
    }
    let itself = reference(&found);
    let wanted = to.str("uid");
    if !wanted.is_empty() && wanted != itself.uid {
        return Err(token_request::other_object(to.str("kind"), name, wanted));
    }
    match binding {
        Binding::Pod => bound.pod = Some(itself),
        Binding::Node => bound.node = Some(itself),
        Binding::Secret => bound.secret = Some(itself),
    }
    Ok(())
}

/// The node of a pod. A node that does not exist is still named.
async fn node_of(backend: &Backend, call: &Call<'_>, name: &str) -> Result<Option<Reference>> {
    if name.is_empty() {
        return Ok(None);
    }
    match get(backend, call, "nodes", "Node", name).await {
        Ok(node) => Ok(Some(reference(&node))),
        Err(status) if status.is_not_found() => {
            Ok(Some(Reference { name: name.to_owned(), uid: String::new() }))
        }
        Err(status) => Err(Status::internal(status.message)),
    }
}

async fn get(backend: &Backend, call: &Call<'_>, resource: &str, kind: &str, name: &str) -> Result<Value> {
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let wrong = names::path_segment(name, false);
    if !wrong.is_empty() {
        return Err(Status::bad_request(format!("Name parameter invalid: {name:?}: {}", wrong.join(";"))));
    }
    let key = if kind == "Node" { Key::cluster(name) } else { Key::namespaced(call.namespace, name) };
    let found = backend.stores.get(&TypeName::new(resource), key, &call.permit).await;
    let found =
        found.map_err(|error| Status::from_store(&error, GroupResource { group: "", resource }, name))?;
    backend.objects.load_kind(&GroupVersion::new("", "v1"), kind, &found)
}
