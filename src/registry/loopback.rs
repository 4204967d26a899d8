//! Requests that the server and its controllers make to this server. They call the verbs directly, but are authorized and audited
//! like those of other clients. In the reference they come over the loopback interface, or from kube-controller-manager.

use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use pilothouse_actors::throttle::Throttle;
use pilothouse_api::audit::event::EventMetadata;
use pilothouse_api::path::Request;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::well_known::{API_SERVER_USER, AUTHENTICATED, MASTERS};
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::Identity;

use crate::audit::{Audit, AuditedRequest, Trail};
use crate::metrics::Metrics;
use crate::pki::random;

use super::authorization::{DECISION, REASON, action};
use super::{Backend, Call, Warnings};

/// The identity of the server as a client of itself. As a member of system:masters it is always authorized.
pub fn own_identity() -> Arc<Identity> {
    let groups = vec![AUTHENTICATED.to_owned(), MASTERS.to_owned()];
    Arc::new(Identity { name: API_SERVER_USER.to_owned(), groups, ..Identity::default() })
}

/// Shared dependencies of loopback requests. One for all threads.
pub struct Loopback {
    /// The audit policy and backends, if configured.
    pub audit: Option<Arc<Audit>>,
    /// Counts authorization decisions.
    pub metrics: Arc<Metrics>,
    /// The clock.
    pub clock: Clock,
    /// The schemas by which responses are decoded for audit events.
    pub registry: Arc<Registry>,
    /// The address that audit events name as the source.
    pub source: IpAddr,
    /// Limits log lines about refused requests: a controller without its rights is refused again and again.
    pub refusals: Throttle,
}

/// The address from which requests to a server at this address would come: its own, or the loopback interface.
pub fn source_address(server: IpAddr) -> IpAddr {
    if server.is_unspecified() { Ipv6Addr::LOCALHOST.into() } else { server }
}

/// One request, as it would be sent.
pub struct LoopbackRequest<'a> {
    /// The user.
    pub user: &'a Arc<Identity>,
    /// The User-Agent header.
    pub user_agent: &'a str,
    /// The HTTP method.
    pub method: &'static str,
    /// The path.
    pub path: &'a str,
    /// The query string, empty for none.
    pub query: &'a str,
    /// Collects annotations and the body for the audit log.
    pub warnings: &'a Warnings,
}

/// The response of a loopback request, for the audit log.
#[derive(Clone, Copy)]
pub enum Response<'a> {
    /// A status code, and an object or list as JSON.
    Object(u16, &'a [u8]),
    /// An error, or a success without an object.
    Status(&'a Status),
    /// A status code only.
    Code(u16),
}

/// An authorized request that is being served. Dropping it ends its audit trail.
#[must_use]
pub struct AdmittedRequest(Option<Rc<Trail>>);

impl AdmittedRequest {
    /// Audits the end of the request.
    pub async fn end(self, warnings: &Warnings, response: Response<'_>) {
        if let Some(trail) = self.0 {
            finish(&trail, warnings, response).await;
        }
    }
}

async fn finish(trail: &Trail, warnings: &Warnings, response: Response<'_>) {
    let code = match response {
        Response::Object(code, json) => {
            trail.record_response(Encoding::Json, json);
            code
        }
        Response::Status(status) => {
            trail.status(status, &status.to_json());
            status.code
        }
        Response::Code(code) => code,
    };
    warnings.record(trail, code);
    trail.end().await;
}

impl Loopback {
    /// Begins auditing a request and writes RequestReceived; `None` if the request is not audited.
    async fn begin_trail(
        &self,
        request: &LoopbackRequest<'_>,
        parsed: &Request<'_>,
    ) -> Result<Option<Rc<Trail>>> {
        let Some(audit) = &self.audit else { return Ok(None) };
        let LoopbackRequest { user, user_agent, path, query, warnings, .. } = *request;
        let Some(decision) = audit.decide(Some(user), parsed) else { return Ok(None) };
        warnings.audit_body.enable(decision.level, decision.omits_managed_fields);
        let head = EventMetadata {
            level: decision.level,
            id: random::uuid(),
            uri: if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") },
            verb: parsed.verb.as_str(),
            user: Some(user.clone()),
            sources: vec![self.source.to_string()],
            agent: user_agent.to_owned(),
            received: self.clock.now(),
        };
        let (clock, registry, request) = (&self.clock, &self.registry, parsed);
        let trail = Trail::new(AuditedRequest { audit, clock, registry, head, request, decision });
        let trail = Rc::new(trail);
        match trail.receive().await {
            true => Ok(Some(trail)),
            false => Err(Status::internal("failed to store audit event")),
        }
    }
}

impl Loopback {
    /// Audits a request of the server itself that calls no verb. It is not authorized: the server may do everything.
    pub async fn audit(&self, request: &LoopbackRequest<'_>) -> Result<AdmittedRequest> {
        let parsed = Request::parse(request.method, request.path, &Query::parse(request.query))?;
        self.metrics.requests.count_own(&parsed);
        let trail = self.begin_trail(request, &parsed).await?;
        if let Some(trail) = &trail {
            trail.annotate(DECISION, "allow".to_owned());
            trail.annotate(REASON, String::new());
        }
        Ok(AdmittedRequest(trail))
    }
}

impl Backend {
    /// Audits and authorizes a request. Returns the error that a client would get.
    pub async fn admit(&self, request: &LoopbackRequest<'_>) -> Result<AdmittedRequest> {
        let loopback = &*self.loopback;
        let parsed = Request::parse(request.method, request.path, &Query::parse(request.query))?;
        if request.user.name == API_SERVER_USER {
            loopback.metrics.requests.count_own(&parsed);
        }
        let trail = loopback.begin_trail(request, &parsed).await?;
        let action = Arc::new(action(&parsed));
        let decided = self
            .access
            .authorize_request(&loopback.metrics, &self.clock, request.user, action, Arc::default())
            .await;
        let result = match decided {
            Ok((result, record)) => {
                trail.iter().for_each(|trail| record.annotate(trail));
                result
            }
            Err(_) => Err(Status::unavailable("the authorizer does not answer")),
        };
        let Err(status) = result else { return Ok(AdmittedRequest(trail)) };
        if loopback.refusals.allows(self.clock.moment()) {
            tracing::warn!(user = request.user.name, path = request.path, %status, "a request of a controller is refused");
        }
        if let Some(trail) = trail {
            finish(&trail, request.warnings, Response::Status(&status)).await;
        }
        Err(status)
    }

    /// Like [`Backend::admit`], for a call of a verb. `query` is its query string.
    pub async fn admit_call(
        &self,
        verb: Verb,
        user: &Arc<Identity>,
        call: &Call<'_>,
        query: &str,
    ) -> Result<AdmittedRequest> {
        let (path, user_agent, warnings) = (path(call), call.requester.user_agent, call.warnings);
        self.admit(&LoopbackRequest { user, user_agent, method: method(verb), path: &path, query, warnings })
            .await
    }
}

fn method(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "POST",
        Verb::Update => "PUT",
        Verb::Patch => "PATCH",
        Verb::Delete | Verb::DeleteCollection => "DELETE",
        _ => "GET",
    }
}

/// The path of a call.
fn path(call: &Call<'_>) -> String {
    let gv = &call.resource().gv;
    let mut path = match &*gv.group {
        "" => format!("/api/{}", gv.version),
        group => format!("/apis/{group}/{}", gv.version),
    };
    if call.resource().namespaced && !call.namespace().is_empty() {
        path.push_str("/namespaces/");
        path.push_str(call.namespace());
    }
    for segment in [&*call.resource().plural, call.name(), call.subresource()] {
        if !segment.is_empty() {
            path.push('/');
            path.push_str(segment);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_api::catalog::runtime_config::RuntimeConfig;

    use super::*;
    use crate::registry::{CallTarget, Origin, Requester};

    #[test]
    fn loopback_path_of_call_parses_to_same_verb() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let (query, warnings, user) = (Query::default(), Warnings::default(), own_identity());
        let check_path = |(group, plural): (&str, &str),
                          verb,
                          (namespace, name, subresource): (&str, &str, &str)| {
            let resource = catalog.find(group, "v1", plural).unwrap();
            let requester = Requester { user: &user, origin: Origin::Server, user_agent: "a" };
            let target = CallTarget { namespace, name, subresource, ..CallTarget::stored(resource).unwrap() };
            let call = Call::new(target, requester, &query, &warnings);
            let path = path(&call);
            let parsed = Request::parse(method(verb), &path, call.query).unwrap();
            assert_eq!(parsed.verb, verb, "{path}");
            path
        };
        let maps = ("", "configmaps");
        assert_eq!(check_path(maps, Verb::Create, ("n", "", "")), "/api/v1/namespaces/n/configmaps");
        assert_eq!(check_path(maps, Verb::List, ("n", "", "")), "/api/v1/namespaces/n/configmaps");
        assert_eq!(
            check_path(maps, Verb::DeleteCollection, ("n", "", "")),
            "/api/v1/namespaces/n/configmaps"
        );
        assert_eq!(check_path(maps, Verb::Delete, ("n", "a", "")), "/api/v1/namespaces/n/configmaps/a");
        assert_eq!(
            check_path(("", "namespaces"), Verb::Update, ("", "n", "finalize")),
            "/api/v1/namespaces/n/finalize"
        );
        let roles = ("rbac.authorization.k8s.io", "clusterroles");
        let path = check_path(roles, Verb::Patch, ("", "system:x", ""));
        assert_eq!(path, "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:x");
    }

    #[test]
    fn loopback_source_is_server_address_or_localhost() {
        let source = |address: &str| source_address(address.parse().unwrap()).to_string();
        assert_eq!(source("0.0.0.0"), "::1");
        assert_eq!(source("::"), "::1");
        assert_eq!(source("127.0.0.1"), "127.0.0.1");
        assert_eq!(source("10.0.0.1"), "10.0.0.1");
    }
}
