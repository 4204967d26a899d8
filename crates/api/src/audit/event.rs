//! An audit event, and its two formats: JSON, or the legacy text line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::json::write_string;
use pilothouse_apimachinery::status::Status;
use pilothouse_apimachinery::time;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::identity::Identity;

use super::bodies::compact;
use super::response::Response;
use super::{API_VERSION, Level, Stage};

/// The annotation of an event that lost parts.
pub const TRUNCATED: &str = "audit.k8s.io/truncated";

/// The parts that all events of a request share.
#[derive(Debug, Default)]
pub struct EventMetadata {
    /// The audit level.
    pub level: Level,
    /// The audit ID, which connects the events of a request.
    pub id: String,
    /// The request URI.
    pub uri: String,
    /// The verb.
    pub verb: &'static str,
    /// The user, if authenticated.
    pub user: Option<Arc<Identity>>,
    /// The source addresses.
    pub sources: Vec<String>,
    /// The User-Agent header.
    pub agent: String,
    /// The time of arrival.
    pub received: Timestamp,
}

/// The object of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectRef {
    /// The plural of the resource.
    pub resource: String,
    /// The namespace.
    pub namespace: String,
    /// The name from the path, or else from the body.
    pub name: String,
    /// The UID in the body.
    pub uid: String,
    /// The API group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The resourceVersion in the body.
    pub resource_version: String,
    /// The subresource.
    pub subresource: String,
}

/// The response status of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// A code without a Status.
    Code(u16),
    /// A Status as JSON, and its code.
    Status(Vec<u8>, u16),
}

impl ResponseStatus {
    /// A Status as audit events contain it.
    pub fn status(status: &Status) -> ResponseStatus {
        let json = status.to_json();
        ResponseStatus::Status(compact(&json).unwrap_or(json), status.code)
    }

    /// The status of a request without any response.
    pub fn closed_early() -> ResponseStatus {
        let text = r#"{"metadata":{},"status":"Success","message":"Connection closed early","code":200}"#;
        ResponseStatus::Status(text.as_bytes().to_vec(), 200)
    }

    /// The status of a request that panicked.
    pub fn panicked() -> ResponseStatus {
        let text = r#"{"metadata":{},"status":"Failure","message":"APIServer panic'd","reason":"InternalError","code":500}"#;
        ResponseStatus::Status(text.as_bytes().to_vec(), 500)
    }

    fn code(&self) -> u16 {
        match self {
            ResponseStatus::Code(code) | ResponseStatus::Status(_, code) => *code,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            ResponseStatus::Code(_) => 0,
            ResponseStatus::Status(text, _) => text.len(),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        const KIND: &[u8] = br#""kind":"Status","apiVersion":"v1","#;
        match self {
            ResponseStatus::Code(code) => {
                out.extend_from_slice(br#"{"metadata":{},"code":"#);
                out.extend_from_slice(itoa::Buffer::new().format(*code).as_bytes());
                out.push(b'}');
            }
            ResponseStatus::Status(text, code) => {
                let rest = text.strip_prefix(b"{").unwrap_or(text);
                let rest = rest.strip_prefix(KIND).unwrap_or(rest);
                out.push(b'{');
                // A plain success has no code of its own.
                match rest.strip_suffix(b"}") {
                    Some(rest) if *code == 200 && !rest.ends_with(b",\"code\":200") => {
                        out.extend_from_slice(rest);
                        out.extend_from_slice(b",\"code\":200}");
                    }
                    _ => out.extend_from_slice(rest),
                }
            }
        }
    }
}

/// One audit event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The shared parts.
    pub head: Arc<EventMetadata>,
    /// The stage.
    pub stage: Stage,
    /// The impersonated user, if any.
    pub impersonated_user: Option<Arc<Identity>>,
    /// The object of the request.
    pub object: Option<ObjectRef>,
    /// The response status.
    pub response_status: Option<ResponseStatus>,
    /// The request body, as JSON on one line.
    pub request: Option<Bytes>,
    /// The response body.
    pub response: Option<Arc<Response>>,
    /// The time of the stage.
    pub stage_timestamp: Timestamp,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Writes the fields of an object, separated by commas.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Fields<'a> {
    fn new(out: &'a mut Vec<u8>) -> Fields<'a> {
        out.push(b'{');
        Fields { out, first: true }
    }

    fn key(&mut self, name: &str) -> &mut Vec<u8> {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
        write_string(self.out, name);
        self.out.push(b':');
        self.out
    }

    fn write(&mut self, name: &str, text: &str) {
        write_string(self.key(name), text);
    }

    fn write_non_empty(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.write(name, text);
        }
    }

    fn texts(&mut self, name: &str, texts: &[String]) {
        if !texts.is_empty() {
            write_texts(self.key(name), texts);
        }
    }

    fn raw(&mut self, name: &str, text: Option<&Bytes>) {
        if let Some(text) = text {
            self.key(name).extend_from_slice(text);
        }
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

fn write_texts(out: &mut Vec<u8>, texts: &[String]) {
    out.push(b'[');
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_string(out, text);
    }
    out.push(b']');
}

fn write_user(out: &mut Vec<u8>, user: Option<&Identity>) {
    let mut fields = Fields::new(out);
    if let Some(user) = user {
        fields.write_non_empty("username", &user.name);
        fields.write_non_empty("uid", &user.uid);
        fields.texts("groups", &user.groups);
        if !user.extra.is_empty() {
            let mut extra = Fields::new(fields.key("extra"));
            for (key, values) in &user.extra {
                write_texts(extra.key(key), values);
            }
            extra.end();
        }
    }
    fields.end();
}

fn texts_bytes(texts: &[String]) -> usize {
    texts.iter().map(|text| text.len() + size_of::<String>()).sum()
}

fn user_bytes(user: &Identity) -> usize {
    let extra = user.extra.iter().map(|(key, values)| key.len() + texts_bytes(values));
    user.name.len() + user.uid.len() + texts_bytes(&user.groups) + extra.sum::<usize>()
}

fn format_timestamp(timestamp: Timestamp) -> String {
    time::format_micros(timestamp.unix_seconds(), timestamp.subsec_micros())
}

/// A duration of milliseconds or more, in Go's format.
pub fn span(duration: Duration) -> String {
    let (seconds, micros) = (duration.as_secs(), duration.subsec_micros());
    let decimal = |whole: u64, fraction: String| {
        let fraction = fraction.trim_end_matches('0');
        if fraction.is_empty() { whole.to_string() } else { format!("{whole}.{fraction}") }
    };
    if seconds == 0 {
        return format!("{}ms", decimal(u64::from(micros / 1_000), format!("{:03}", micros % 1_000)));
    }
    let text = |seconds| format!("{}s", decimal(seconds, format!("{micros:06}")));
    match (seconds / 3_600, seconds / 60 % 60) {
        (0, 0) => text(seconds),
        (0, minutes) => format!("{minutes}m{}", text(seconds % 60)),
        (hours, minutes) => format!("{hours}h{minutes}m{}", text(seconds % 60)),
    }
}

impl ObjectRef {
    /// The size of its texts. Those from a body may be as long as that.
    fn bytes(&self) -> usize {
        let ObjectRef { resource, namespace, name, uid, group, version, resource_version, subresource } =
            self;
        let texts = [resource, namespace, name, uid, group, version, resource_version, subresource];
        texts.map(String::len).iter().sum()
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut fields = Fields::new(out);
        fields.write_non_empty("resource", &self.resource);
        fields.write_non_empty("namespace", &self.namespace);
        fields.write_non_empty("name", &self.name);
        fields.write_non_empty("uid", &self.uid);
        fields.write_non_empty("apiGroup", &self.group);
        fields.write_non_empty("apiVersion", &self.version);
        fields.write_non_empty("resourceVersion", &self.resource_version);
        fields.write_non_empty("subresource", &self.subresource);
        fields.end();
    }
}

impl Event {
    /// Drops the bodies of a too large event, and annotates that.
    pub fn truncate(&mut self) {
        self.request = None;
        self.response = None;
        self.annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
    }

    /// Drops bodies and the message of the status for lack of memory, and annotates that.
    pub fn shrink(&mut self) {
        self.truncate();
        self.response_status = self.response_status.take().map(|status| ResponseStatus::Code(status.code()));
    }

    /// The size of its bodies. The status is one of them: it may name a thousand fields.
    pub fn body_bytes(&self) -> usize {
        let request = self.request.as_ref().map_or(0, Bytes::len);
        let response = self.response.as_ref().map_or(0, |response| response.bytes());
        request + response + self.response_status.as_ref().map_or(0, ResponseStatus::bytes)
    }

    /// The approximate size of everything else.
    pub fn head_bytes(&self) -> usize {
        let head = &self.head;
        let annotations: usize = self.annotations.iter().map(|(key, text)| key.len() + text.len()).sum();
        let users: usize = head.user.iter().chain(&self.impersonated_user).map(|user| user_bytes(user)).sum();
        let texts = [&head.uri, &head.agent, &head.id].map(String::len).iter().sum::<usize>();
        let object = self.object.as_ref().map_or(0, ObjectRef::bytes);
        1_024 + texts + object + texts_bytes(&head.sources) + users + annotations
    }

    /// Appends the event as JSON. `named`: whether it has kind and apiVersion, which list items do not.
    pub fn write_json(&self, out: &mut Vec<u8>, named: bool) {
        let head = &self.head;
        let mut fields = Fields::new(out);
        if named {
            fields.write("kind", "Event");
            fields.write("apiVersion", API_VERSION);
        }
        fields.write("level", head.level.word());
        fields.write("auditID", &head.id);
        fields.write("stage", self.stage.word());
        fields.write("requestURI", &head.uri);
        fields.write("verb", head.verb);
        write_user(fields.key("user"), head.user.as_deref());
        if let Some(user) = &self.impersonated_user {
            write_user(fields.key("impersonatedUser"), Some(user));
        }
        fields.texts("sourceIPs", &head.sources);
        fields.write_non_empty("userAgent", &head.agent);
        if let Some(object) = &self.object {
            object.write(fields.key("objectRef"));
        }
        if let Some(status) = &self.response_status {
            status.write(fields.key("responseStatus"));
        }
        fields.raw("requestObject", self.request.as_ref());
        fields.raw("responseObject", self.response.as_ref().and_then(|response| response.json()));
        fields.write("requestReceivedTimestamp", &format_timestamp(head.received));
        fields.write("stageTimestamp", &format_timestamp(self.stage_timestamp));
        if !self.annotations.is_empty() {
            let mut annotations = Fields::new(fields.key("annotations"));
            self.annotations.iter().for_each(|(key, text)| annotations.write(key, text));
            annotations.end();
        }
        fields.end();
    }

    /// The event in the legacy text format.
    pub fn line(&self) -> String {
        let head = &self.head;
        let user = head.user.as_ref().filter(|user| !user.name.is_empty());
        let list = |groups: &[String]| groups.iter().map(|group| quoted(group)).collect::<Vec<_>>().join(",");
        let or_default =
            |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
        let groups = or_default(user.map(|user| list(&user.groups)).unwrap_or_default(), "<none>");
        let impersonated = self.impersonated_user.as_ref();
        let impersonated_groups =
            impersonated.filter(|user| !user.groups.is_empty()).map(|user| list(&user.groups));
        let namespace = self.object.as_ref().map(|object| object.namespace.clone()).unwrap_or_default();
        let code = self.response_status.as_ref().map(|status| status.code().to_string());
        // The time without trailing zeros.
        let received = format_timestamp(head.received);
        let received = received.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.');
        let mut line = format!("{received}Z AUDIT:");
        for (key, text) in [
            ("id", head.id.clone()),
            ("stage", self.stage.word().to_owned()),
            ("ip", head.sources.first().map_or("<unknown>", String::as_str).to_owned()),
            ("method", head.verb.to_owned()),
            ("user", user.map_or("<none>", |user| user.name.as_str()).to_owned()),
            ("groups", groups),
            ("as", impersonated.map_or("<self>", |user| user.name.as_str()).to_owned()),
            ("asgroups", impersonated_groups.unwrap_or_else(|| "<lookup>".to_owned())),
            ("user-agent", head.agent.clone()),
            ("namespace", or_default(namespace, "<none>")),
            ("uri", head.uri.clone()),
        ] {
            let _ = write!(line, " {key}={}", quoted(&text));
        }
        let _ = write!(line, " response=\"{}\"", code.unwrap_or_else(|| "<deferred>".to_owned()));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        let user = Identity {
            name: "ann".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["a".to_owned(), "b".to_owned()],
            extra: [("k".to_owned(), vec!["<v>".to_owned()])].into(),
        };
        let head = EventMetadata {
            level: Level::Request,
            id: "id".to_owned(),
            uri: "/api/v1/namespaces/n/pods?a=b&c".to_owned(),
            verb: "create",
            user: Some(Arc::new(user)),
            sources: vec!["127.0.0.1".to_owned()],
            agent: "curl".to_owned(),
            received: Timestamp(1_000_250),
        };
        Event {
            head: Arc::new(head),
            stage: Stage::ResponseComplete,
            impersonated_user: None,
            object: Some(ObjectRef {
                resource: "pods".to_owned(),
                namespace: "n".to_owned(),
                name: "p".to_owned(),
                version: "v1".to_owned(),
                ..ObjectRef::default()
            }),
            response_status: Some(ResponseStatus::Code(201)),
            request: Some(Bytes::from_static(b"{\"a\":1}")),
            response: None,
            stage_timestamp: Timestamp(2_000_000),
            annotations: [("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())].into(),
        }
    }

    fn json(event: &Event, named: bool) -> String {
        let mut out = Vec::new();
        event.write_json(&mut out, named);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn event_fields_have_the_order_of_the_reference() {
        let event = event();
        assert_eq!(
            json(&event, true),
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"id","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/n/pods?a=b\u0026c","verb":"create","user":{"username":"ann","uid":"u","groups":["a","b"],"extra":{"k":["\u003cv\u003e"]}},"sourceIPs":["127.0.0.1"],"userAgent":"curl","objectRef":{"resource":"pods","namespace":"n","name":"p","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":201},"requestObject":{"a":1},"requestReceivedTimestamp":"1970-01-01T00:00:01.000250Z","stageTimestamp":"1970-01-01T00:00:02.000000Z","annotations":{"a":"1","b":"2"}}"#
        );
        assert!(json(&event, false).starts_with(r#"{"level":"Request","#));
    }

    #[test]
    fn response_status_omits_its_kind() {
        let mut event = event();
        event.response_status = Some(ResponseStatus::status(&Status::bad_request("<no>")));
        assert!(
            json(&event, false).contains(
                r#""responseStatus":{"metadata":{},"status":"Failure","message":"\u003cno\u003e","reason":"BadRequest","code":400}"#
            ),
            "{}",
            json(&event, false)
        );
        event.response_status = Some(ResponseStatus::status(&Status::success_for_kind("Pod", "p")));
        assert!(
            json(&event, false)
                .contains(r#""status":"Success","details":{"name":"p","kind":"Pod"},"code":200}"#)
        );
        for other in [ResponseStatus::closed_early(), ResponseStatus::panicked()] {
            event.response_status = Some(other);
            assert!(serde_json::from_str::<serde_json::Value>(&json(&event, true)).is_ok());
        }
    }

    #[test]
    fn legacy_line_has_the_reference_format() {
        let mut event = event();
        assert_eq!(
            event.line(),
            r#"1970-01-01T00:00:01.00025Z AUDIT: id="id" stage="ResponseComplete" ip="127.0.0.1" method="create" user="ann" groups="\"a\",\"b\"" as="<self>" asgroups="<lookup>" user-agent="curl" namespace="n" uri="/api/v1/namespaces/n/pods?a=b&c" response="201""#
        );
        event.response_status = None;
        event.impersonated_user = Some(Arc::new(Identity { name: "bob".to_owned(), ..Identity::default() }));
        assert!(event.line().ends_with("response=\"<deferred>\""));
        assert!(event.line().contains(r#"as="bob" asgroups="<lookup>""#));
    }

    #[test]
    fn durations_have_go_format() {
        for (micros, expected) in [
            (501_000, "501ms"),
            (501_250, "501.25ms"),
            (1_000_000, "1s"),
            (2_500_001, "2.500001s"),
            (61_000_000, "1m1s"),
            (3_661_500_000, "1h1m1.5s"),
        ] {
            assert_eq!(span(Duration::from_micros(micros)), expected);
        }
    }

    #[test]
    fn truncated_event_is_annotated() {
        let mut event = event();
        event.truncate();
        assert_eq!(event.body_bytes(), 0);
        assert!(!json(&event, true).contains("requestObject"));
        assert!(json(&event, true).contains(r#""audit.k8s.io/truncated":"true""#));
    }

    #[test]
    fn shrunk_event_keeps_the_response_code() {
        let mut event = event();
        event.response_status = Some(ResponseStatus::status(&Status::bad_request("x".repeat(1_000))));
        assert!(event.body_bytes() > 1_000);
        event.shrink();
        assert_eq!((event.body_bytes(), &event.response_status), (0, &Some(ResponseStatus::Code(400))));
        assert!(json(&event, true).contains(r#""audit.k8s.io/truncated":"true""#));
    }

    #[test]
    fn head_bytes_count_everything_a_client_controls() {
        type Change = fn(&mut Identity, &mut EventMetadata);
        fn long() -> String {
            "x".repeat(1_000)
        }
        let bytes = |change: Change| {
            let (mut user, mut head) = (Identity::default(), EventMetadata::default());
            change(&mut user, &mut head);
            head.user = Some(Arc::new(user));
            Event { head: Arc::new(head), ..event() }.head_bytes()
        };
        let base = bytes(|_, _| {});
        let changes: [(&str, Change); 5] = [
            ("name", |user, _| user.name = long()),
            ("groups", |user, _| user.groups = vec![long()]),
            ("extra", |user, _| drop(user.extra.insert(String::new(), vec![long()]))),
            ("sources", |_, head| head.sources = vec![long()]),
            ("uri", |_, head| head.uri = long()),
        ];
        for (field, change) in changes {
            assert!(bytes(change) >= base + 1_000, "{field}");
        }
        let object =
            ObjectRef { name: long(), uid: long(), resource_version: long(), ..ObjectRef::default() };
        let with_object = Event { object: Some(object), ..event() };
        let without_object = Event { object: None, ..event() };
        assert!(with_object.head_bytes() >= without_object.head_bytes() + 3_000);
    }
}
