//! Asking one webhook: the question in words, the way there, and what comes of the answer.

use std::collections::BTreeMap;

use bytes::Bytes;
use hyper::Uri;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value as Json, json};
use tokio::time::timeout;

use crate::api::field::quoted;
use crate::api::hooks::answer::{self, Said, Unusable};
use crate::api::hooks::hook::SideEffects;
use crate::api::hooks::{REVIEW_GROUP, REVIEW_KIND, ReviewVersion, Way};
use crate::api::options::{DeleteOptions, Propagation};
use crate::api::schema::GroupVersionKind;
use crate::api::status::Status;
use crate::api::value::Value;
use crate::ids;
use crate::limits::HOOK_ANSWER_BYTES;
use crate::webhook::kept::{Place, Question, Reply, seconds};

use super::super::{Operation, Write};
use super::subject::Subject;
use super::{Phase, Webhooks, resolve};

/// What came of asking a webhook that lets the request go on.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The object as the webhook wants it, in the stored version, and whether that is another one.
    pub patched: Option<(Value, bool)>,
}

/// Why the request does not just go on.
pub enum Trouble {
    /// The webhook could not be asked, or its answer is none. The code is only counted.
    Calling {
        /// Why.
        why: String,
        /// What it counts as.
        code: u16,
    },
    /// The webhook refuses.
    Denied(Box<Status>),
    /// Whatever the webhook says, the request cannot go on.
    Server(Box<Status>),
}

impl From<Unusable> for Trouble {
    fn from(unusable: Unusable) -> Trouble {
        Trouble::Calling { why: unusable.why, code: unusable.code }
    }
}

fn calling(why: impl Into<String>) -> Trouble {
    Trouble::Calling { why: why.into(), code: 400 }
}

/// A kind as questions name it.
#[derive(Serialize)]
struct KindName<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

/// A resource as questions name it.
#[derive(Serialize)]
struct ResourceName<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

#[derive(Serialize)]
struct User<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'static str,
    api_version: String,
    request: Request<'a>,
}

/// The question. Fields in the API's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: &'a str,
    kind: KindName<'a>,
    resource: ResourceName<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: KindName<'a>,
    request_resource: ResourceName<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'a str,
    user_info: User<'a>,
    object: Option<Box<RawValue>>,
    old_object: Option<Box<RawValue>>,
    dry_run: bool,
    options: Option<Box<RawValue>>,
}

/// What the client asked for besides, as an object of its own, and whether nothing shall happen.
fn options(write: &Write<'_>) -> (Option<Json>, bool) {
    let query = write.call.query;
    let kind = match write.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => {
            let options = write.backend.delete_options(write.call).unwrap_or_default();
            let is_dry = options.dry_run;
            return (Some(deletion(&options)), is_dry);
        }
        Operation::Connect => return (None, false),
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    let dry: Vec<&str> = query.all("dryRun").filter(|value| !value.is_empty()).collect();
    if !dry.is_empty() {
        options["dryRun"] = json!(dry);
    }
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(said) = query.get(field).filter(|said| !said.is_empty()) {
            options[field] = json!(said);
        }
    }
    (Some(options), write.is_dry_run())
}

fn deletion(options: &DeleteOptions) -> Json {
    let mut json = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
    if let Some(seconds) = options.grace_period_seconds {
        json["gracePeriodSeconds"] = json!(seconds);
    }
    for (field, said) in [("uid", &options.uid), ("resourceVersion", &options.resource_version)] {
        if let Some(said) = said {
            json["preconditions"][field] = json!(said);
        }
    }
    if let Some(orphan) = options.orphan_dependents {
        json["orphanDependents"] = json!(orphan);
    } else if let Some(propagation) = options.propagation {
        json["propagationPolicy"] = json!(match propagation {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        });
    }
    if options.dry_run {
        json["dryRun"] = json!(["All"]);
    }
    json
}

fn raw(text: Option<String>) -> Result<Option<Box<RawValue>>, Trouble> {
    let text = text.map(RawValue::from_string).transpose();
    text.map_err(|error| Trouble::Server(Status::internal(error.to_string())))
}

fn kind_name(kind: &GroupVersionKind) -> KindName<'_> {
    KindName { group: &kind.group, version: &kind.version, kind: &kind.kind }
}

/// The question in words.
fn question(
    subject: &Subject<'_>,
    object: &Value,
    uid: &str,
    version: ReviewVersion,
    (options, dry_run): (Option<Json>, bool),
) -> Result<Vec<u8>, Trouble> {
    let write = subject.write;
    let call = write.call;
    let shown = call.shown_kind();
    let asked = GroupVersionKind::new(&shown.0.group, &shown.0.version, shown.1);
    let (gv, plural) = (&subject.resource.gv, &subject.resource.plural);
    let server = |status: Box<Status>| Trouble::Server(status);
    let old = write.old.map(|old| subject.text(old)).transpose().map_err(server)?.flatten();
    let review = Review {
        kind: REVIEW_KIND,
        api_version: format!("{REVIEW_GROUP}/{}", version.word()),
        request: Request {
            uid,
            kind: kind_name(&subject.kind),
            resource: ResourceName { group: &gv.group, version: &gv.version, resource: plural },
            sub_resource: call.subresource,
            request_kind: kind_name(&asked),
            request_resource: ResourceName {
                group: &call.resource.gv.group,
                version: &call.resource.gv.version,
                resource: &call.resource.plural,
            },
            request_sub_resource: call.subresource,
            name: &subject.name,
            namespace: &subject.namespace,
            operation: subject.operation,
            user_info: User {
                username: &call.user.name,
                uid: &call.user.uid,
                groups: &call.user.groups,
                extra: &call.user.extra,
            },
            object: raw(subject.text(object).map_err(server)?)?,
            old_object: raw(old)?,
            dry_run,
            options: options.map(|options| to_raw_value(&options)).transpose().unwrap_or_default(),
        },
    };
    serde_json::to_vec(&review).map_err(|error| server(Status::internal(error.to_string())))
}

/// Where to ask, as messages and requests say it.
struct Target {
    place: Place,
    /// The name that users of the operator's configuration are found by.
    known_as: String,
    path: String,
    says_port: bool,
    url: String,
}

fn target(way: &Way, authority_pem: &[u8]) -> Result<Target, Trouble> {
    let unusable = |why: &str| calling(format!("could not get REST client: {why}"));
    let place = |secure, host: &str, port| Place {
        secure,
        host: host.to_owned(),
        port,
        authority_pem: authority_pem.to_vec(),
    };
    match way {
        Way::None => Err(unusable("webhook configuration must have either service or URL")),
        Way::Service { namespace, name, path, port } => {
            let host = format!("{name}.{namespace}.svc");
            let path = rooted(path);
            Ok(Target {
                known_as: format!("{host}:{port}"),
                url: format!("https://{host}:{port}{path}"),
                place: place(true, &host, *port),
                path,
                says_port: true,
            })
        }
        Way::Url(url) => {
            let uri: Uri = url.parse().map_err(|error| unusable(&format!("Unparsable URL: {error}")))?;
            let host = uri.host().ok_or_else(|| unusable("the URL has no host"))?;
            let secure = uri.scheme_str() != Some("http");
            let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
            let path = rooted(uri.path());
            let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
            let scheme = if secure { "https" } else { "http" };
            Ok(Target {
                known_as: format!("{host}:{}", uri.port_u16().unwrap_or(443)),
                url: format!("{scheme}://{authority}{path}"),
                place: place(secure, host.trim_matches(['[', ']']), port),
                path,
                says_port: uri.port_u16().is_some(),
            })
        }
    }
}

/// A path as clients of the reference join it: with a slash before and none behind.
fn rooted(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}

impl Webhooks {
    /// Asks, and does what the answer says.
    pub(super) async fn call(&self, subject: &Subject<'_>, object: &Value) -> Result<Outcome, Trouble> {
        let hook = subject.hook;
        let options = options(subject.write);
        if options.1 {
            match hook.side_effects {
                SideEffects::None => {}
                SideEffects::Unsaid => return Err(calling("Webhook SideEffects is nil")),
                SideEffects::Some => {
                    let name = quoted(&hook.name);
                    let why = format!("admission webhook {name} does not support dry run");
                    return Err(Trouble::Server(Status::bad_request(why)));
                }
            }
        }
        let version = hook.version.ok_or_else(|| {
            calling(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, \
                 v1beta1)",
            )
        })?;
        let uid = ids::uuid();
        let body = question(subject, object, &uid, version, options)?;
        let target = target(&hook.way, &hook.authority_pem)?;
        let reply = self.exchange(subject, &target, body).await?;
        let said = read(&reply, version, &uid, self.phase == Phase::Mutating)?;
        self.heed(subject, object, said)
    }

    async fn exchange(
        &self,
        subject: &Subject<'_>,
        target: &Target,
        body: Vec<u8>,
    ) -> Result<Reply, Trouble> {
        let hook = subject.hook;
        let parameter = format!("timeout={}", seconds(hook.timeout));
        let asked = async {
            let _place = self.places.acquire().await.map_err(|error| error.to_string())?;
            let at = match &hook.way {
                Way::Service { namespace, name, port, .. } => {
                    let service = (namespace.as_str(), name.as_str(), *port);
                    Some(resolve::service(subject.write, self.settings.to_endpoints, service).await?)
                }
                Way::Url(_) | Way::None => None,
            };
            let question = Question {
                target: format!("{}?{parameter}", target.path),
                body: Bytes::from(body),
                says_port: target.says_port,
                most: HOOK_ANSWER_BYTES,
            };
            self.peers.ask(&target.place, || self.users.of(&target.known_as), at, &question).await
        };
        let reply = timeout(hook.timeout, asked).await;
        let reply = reply.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        reply.map_err(|why| {
            let url = quoted(&format!("{}?{parameter}", target.url));
            calling(format!("failed to call webhook: Post {url}: {why}"))
        })
    }

    fn heed(&self, subject: &Subject<'_>, object: &Value, said: Said) -> Result<Outcome, Trouble> {
        let hook = subject.hook;
        for (key, value) in &said.annotations {
            tracing::debug!(annotation = format!("{}/{key}", hook.name), value, "a webhook has a remark");
        }
        for warning in said.warnings {
            subject.write.call.warnings.add(warning);
        }
        if !said.allowed {
            return Err(Trouble::Denied(answer::denial(&hook.name, said.status.as_ref())));
        }
        let Some(patch) = said.patch else { return Ok(Outcome::default()) };
        let patched = subject.patched(object, &patch).map_err(Trouble::Server)?;
        Ok(Outcome { patched })
    }
}

fn read(reply: &Reply, version: ReviewVersion, uid: &str, mutating: bool) -> Result<Said, Trouble> {
    let is_text = reply.content_type.is_empty() || reply.content_type.starts_with("text/");
    if !(200..=206).contains(&reply.status) {
        return Err(answer::refused(reply.status, is_text, &reply.body).into());
    }
    if reply.body.is_empty() {
        let sort = if reply.content_type.is_empty() { "application/json" } else { &reply.content_type };
        return Err(calling(format!(
            "failed to call webhook: 0-length response with status code: {} and content type: {sort}",
            reply.status
        )));
    }
    Ok(answer::read(&reply.body, version, uid, mutating)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(trouble: Trouble) -> (String, u16) {
        match trouble {
            Trouble::Calling { why, code } => (why, code),
            Trouble::Denied(status) | Trouble::Server(status) => (status.message.clone(), status.code),
        }
    }

    #[test]
    fn every_way_has_a_url() {
        let (namespace, name, path) = ("n".to_owned(), "s".to_owned(), "p/q/".to_owned());
        let service = Way::Service { namespace, name, path, port: 443 };
        for (way, url, known_as, port) in [
            (service, "https://s.n.svc:443/p/q", "s.n.svc:443", 443),
            (Way::Url("https://h".into()), "https://h/", "h:443", 443),
            (Way::Url("https://h:8443/a/".into()), "https://h:8443/a", "h:8443", 8443),
            (Way::Url("https://[::1]:1/a".into()), "https://[::1]:1/a", "[::1]:1", 1),
        ] {
            let target = target(&way, b"pem").ok().unwrap();
            assert_eq!(
                (target.url.as_str(), target.known_as.as_str(), target.place.port),
                (url, known_as, port)
            );
            assert!(!target.place.host.contains('[') && target.place.authority_pem == b"pem");
        }
        let wrong = told(target(&Way::None, b"").err().unwrap());
        assert!(wrong.0.ends_with("must have either service or URL"), "{wrong:?}");
    }

    #[test]
    fn an_empty_answer_is_none() {
        let reply = Reply { status: 200, ..Reply::default() };
        let (why, code) = told(read(&reply, ReviewVersion::V1, "u", true).unwrap_err());
        assert_eq!(code, 400);
        assert!(
            why.ends_with("0-length response with status code: 200 and content type: application/json"),
            "{why}"
        );
    }

    #[test]
    fn options_of_deletions_are_written_as_they_came() {
        let options = DeleteOptions {
            grace_period_seconds: Some(3),
            uid: Some("u".into()),
            propagation: Some(Propagation::Foreground),
            dry_run: true,
            ..DeleteOptions::default()
        };
        assert_eq!(
            deletion(&options),
            json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 3,
                "preconditions": {"uid": "u"}, "propagationPolicy": "Foreground", "dryRun": ["All"]})
        );
    }
}
