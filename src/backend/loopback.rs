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
use pilothouse_apimachinery::well_known::{AUTHENTICATED, MASTERS};
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::Identity;

use crate::audit::{Audit, Trail};
use crate::metrics::Metrics;
use crate::random;

use super::authorization::{DECISION, REASON, action};
use super::{Backend, Call, Warnings};

/// The user name of the server for its own requests. Others may have it, too: see [`super::Origin`].
pub const OWN_NAME: &str = "system:apiserver";

/// Who the server is where it is a client of itself: nobody may forbid it anything.
pub fn own_identity() -> Arc<Identity> {
    let groups = vec![AUTHENTICATED.to_owned(), MASTERS.to_owned()];
    Arc::new(Identity { name: OWN_NAME.to_owned(), groups, ..Identity::default() })
}

/// What such requests need besides the verbs. One for all threads.
pub struct Loopback {
    /// The audit policy and backends, if configured.
    pub audit: Option<Arc<Audit>>,
    /// Counts authorization decisions.
    pub metrics: Arc<Metrics>,
    /// The source of time.
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
    /// The user who asks.
    pub user: &'a Arc<Identity>,
    /// The User-Agent.
    pub user_agent: &'a str,
    /// The HTTP method.
    pub method: &'static str,
    /// The path.
    pub path: &'a str,
    /// The query string, empty for none.
    pub query: &'a str,
    /// Where verbs leave annotations and the body.
    pub warnings: &'a Warnings,
}

/// How a request ended.
#[derive(Clone, Copy)]
pub enum Response<'a> {
    /// With this code, and an object or list as JSON.
    Object(u16, &'a [u8]),
    /// With this Status.
    Status(&'a Status),
    /// With this code; nobody knows the response.
    Code(u16),
}

/// An authorized request that is being served. If it is dropped, its audit trail ends all the same.
#[must_use]
pub struct Admitted(Option<Rc<Trail>>);

impl Admitted {
    /// Audits the end of the request.
    pub async fn end(self, warnings: &Warnings, response: Response<'_>) {
        if let Some(trail) = self.0 {
            complete(&trail, warnings, response).await;
        }
    }
}

async fn complete(trail: &Trail, warnings: &Warnings, response: Response<'_>) {
    let code = match response {
        Response::Object(code, json) => {
            trail.told(Encoding::Json, json);
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
    async fn open(&self, request: &LoopbackRequest<'_>, parsed: &Request<'_>) -> Result<Option<Rc<Trail>>> {
        let Some(audit) = &self.audit else { return Ok(None) };
        let LoopbackRequest { user, user_agent, path, query, warnings, .. } = *request;
        let Some(decision) = audit.decide(Some(user), parsed) else { return Ok(None) };
        warnings.received.want(decision.level, decision.drops_owners);
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
        let trail = Rc::new(Trail::new(audit, (&self.clock, &self.registry), head, (parsed, decision)));
        match trail.receive().await {
            true => Ok(Some(trail)),
            false => Err(Status::internal("failed to store audit event")),
        }
    }
}

impl Loopback {
    /// Audits a request of the server itself that calls no verb. It needs no authorizer: nobody may forbid the server anything.
    pub async fn audit(&self, request: &LoopbackRequest<'_>) -> Result<Admitted> {
        let parsed = Request::parse(request.method, request.path, &Query::parse(request.query))?;
        let trail = self.open(request, &parsed).await?;
        if let Some(trail) = &trail {
            trail.annotate(DECISION, "allow".to_owned());
            trail.annotate(REASON, String::new());
        }
        Ok(Admitted(trail))
    }
}

impl Backend {
    /// Audits and authorizes a request. Answers the error that a client would get.
    pub async fn admit(&self, request: &LoopbackRequest<'_>) -> Result<Admitted> {
        let loopback = &*self.loopback;
        let parsed = Request::parse(request.method, request.path, &Query::parse(request.query))?;
        let trail = loopback.open(request, &parsed).await?;
        let action = Arc::new(action(&parsed));
        let judged =
            self.access.judge((&loopback.metrics, &self.clock), request.user, action, Arc::default()).await;
        let result = match judged {
            Ok((result, record)) => {
                trail.iter().for_each(|trail| record.annotate(trail));
                result
            }
            Err(_) => Err(Status::unavailable("the authorizer does not answer")),
        };
        let Err(status) = result else { return Ok(Admitted(trail)) };
        if loopback.refusals.allows(self.clock.moment()) {
            tracing::warn!(user = request.user.name, path = request.path, %status, "a request of a controller is refused");
        }
        if let Some(trail) = trail {
            complete(&trail, request.warnings, Response::Status(&status)).await;
        }
        Err(status)
    }

    /// The same for a call of a verb. `query`: the query string of the call.
    pub async fn admit_call(
        &self,
        verb: Verb,
        user: &Arc<Identity>,
        call: &Call<'_>,
        query: &str,
    ) -> Result<Admitted> {
        let (path, user_agent, warnings) = (path(call), call.user_agent, call.warnings);
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
    let gv = &call.resource.gv;
    let mut path = match &*gv.group {
        "" => format!("/api/{}", gv.version),
        group => format!("/apis/{group}/{}", gv.version),
    };
    if call.resource.namespaced && !call.namespace.is_empty() {
        path.push_str("/namespaces/");
        path.push_str(call.namespace);
    }
    for segment in [&*call.resource.plural, call.name, call.subresource] {
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
    use crate::backend::{BodylessCall, Origin};

    #[test]
    fn a_call_is_authorized_as_the_request_that_a_client_would_send() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let (query, warnings, user) = (Query::default(), Warnings::default(), own_identity());
        let sent =
            |(group, plural): (&str, &str), verb, (namespace, name, subresource): (&str, &str, &str)| {
                let resource = catalog.find(group, "v1", plural).unwrap();
                let (origin, user_agent, query, warnings) = (Origin::Server, "a", &query, &warnings);
                let user = &*user;
                let call = BodylessCall {
                    resource,
                    namespace,
                    name,
                    subresource,
                    query,
                    warnings,
                    user,
                    origin,
                    user_agent,
                };
                let call = call.call().unwrap();
                let path = path(&call);
                let parsed = Request::parse(method(verb), &path, call.query).unwrap();
                assert_eq!(parsed.verb, verb, "{path}");
                path
            };
        let maps = ("", "configmaps");
        assert_eq!(sent(maps, Verb::Create, ("n", "", "")), "/api/v1/namespaces/n/configmaps");
        assert_eq!(sent(maps, Verb::List, ("n", "", "")), "/api/v1/namespaces/n/configmaps");
        assert_eq!(sent(maps, Verb::DeleteCollection, ("n", "", "")), "/api/v1/namespaces/n/configmaps");
        assert_eq!(sent(maps, Verb::Delete, ("n", "a", "")), "/api/v1/namespaces/n/configmaps/a");
        assert_eq!(
            sent(("", "namespaces"), Verb::Update, ("", "n", "finalize")),
            "/api/v1/namespaces/n/finalize"
        );
        let roles = ("rbac.authorization.k8s.io", "clusterroles");
        let path = sent(roles, Verb::Patch, ("", "system:x", ""));
        assert_eq!(path, "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:x");
    }

    #[test]
    fn requests_come_from_the_address_of_the_server() {
        let source = |address: &str| source_address(address.parse().unwrap()).to_string();
        assert_eq!(source("0.0.0.0"), "::1");
        assert_eq!(source("::"), "::1");
        assert_eq!(source("127.0.0.1"), "127.0.0.1");
        assert_eq!(source("10.0.0.1"), "10.0.0.1");
    }
}
