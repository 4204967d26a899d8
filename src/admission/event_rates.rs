//! EventRateLimit: limits events, so that a component in a loop does not fill the store with them.

use actix::Addr;
use pilothouse_actors::rates::{Limit, Rates, Spend};
use pilothouse_apimachinery::document::{self, FieldReader};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use super::{Operation, Outcome, Plugin, Write};

/// The default number of keys that a limit remembers; the reference's value.
const KEYS: i64 = 4_096;
/// The maximum number of keys that a limit remembers: 64 MiB of them.
const MAX_KEYS: i64 = 1 << 20;

/// The events that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitScope {
    /// All events.
    Server,
    /// The events of a namespace.
    Namespace,
    /// The events that a user writes.
    User,
    /// The events of one component about one object.
    SourceAndObject,
}

impl LimitScope {
    const ALL: [LimitScope; 4] =
        [LimitScope::Namespace, LimitScope::Server, LimitScope::SourceAndObject, LimitScope::User];

    fn name(self) -> &'static str {
        match self {
            LimitScope::Server => "Server",
            LimitScope::Namespace => "Namespace",
            LimitScope::User => "User",
            LimitScope::SourceAndObject => "SourceAndObject",
        }
    }

    fn key(self, namespace: &str, user: &str, event: &Value) -> String {
        match self {
            LimitScope::Server => String::new(),
            LimitScope::Namespace => namespace.to_owned(),
            LimitScope::User => user.to_owned(),
            LimitScope::SourceAndObject => {
                let joined_fields = |name: &str, fields: &[&str]| {
                    let object = event.get(name).unwrap_or(&Value::Null);
                    fields.iter().map(|field| object.str(field)).collect::<String>()
                };
                joined_fields("source", &["component", "host"])
                    + &joined_fields("involvedObject", &["kind", "namespace", "name", "uid", "apiVersion"])
            }
        }
    }
}

/// One configured limit.
pub type EventLimit = (LimitScope, Limit);

/// Reads the configuration, which is required: without limits the plug-in would do nothing.
pub fn read(document: Option<&Value>) -> std::result::Result<Vec<EventLimit>, String> {
    let missing = Value::object();
    if let Some(document) = document {
        document::check_kind(document, "Configuration", &["eventratelimit.admission.k8s.io/v1alpha1"])?;
    }
    let document = document.unwrap_or(&missing);
    let (mut limits, mut reader, root) = (Vec::new(), FieldReader::default(), FieldPath::root());
    reader.check_fields(document, &root, &["apiVersion", "kind", "limits"]);
    let path = FieldPath::new("limits");
    let list = reader.list(document, "limits", &root);
    reader.result()?;
    if list.is_empty() {
        reader.push_error(&FieldError::invalid(&path, "[]", "must not be empty"));
    }
    for (index, limit) in list.iter().enumerate() {
        let item_path = path.index(index);
        let known_fields = ["type", "qps", "burst", "cacheSize"];
        reader.check_fields(limit, &item_path, &known_fields);
        let scope = LimitScope::ALL.into_iter().find(|scope| scope.name() == limit.str("type"));
        if scope.is_none() {
            let names = LimitScope::ALL.map(LimitScope::name);
            reader.push_error(&FieldError::not_supported(
                &item_path.child("type"),
                &quoted(limit.str("type")),
                &names,
            ));
        }
        let mut number = |field: &str| reader.integer(limit, field, &item_path);
        let (burst, rate, keys) = (number("burst"), number("qps"), number("cacheSize"));
        let mut check_range = |field: &str, number: i64, min: i64, message: &str| {
            if number < min || number > i64::from(i32::MAX) {
                reader.push_error(&FieldError::invalid(
                    &item_path.child(field),
                    &number.to_string(),
                    message,
                ));
            }
        };
        check_range("burst", burst, 1, "must be positive");
        check_range("qps", rate, 1, "must be positive");
        if scope != Some(LimitScope::Server) {
            check_range("cacheSize", keys, 0, "must not be negative");
        }
        let keys = if keys == 0 { KEYS } else { keys.min(MAX_KEYS) };
        let to_u32 = |number: i64| u32::try_from(number).unwrap_or_default();
        let keys = usize::try_from(keys).unwrap_or_default();
        let limit = Limit { per_second: to_u32(rate), burst: to_u32(burst), keys };
        limits.extend(scope.map(|scope| (scope, limit)));
    }
    reader.result()?;
    Ok(limits)
}

/// Refuses events that come too fast.
pub struct EventRateLimit {
    /// The scope of each limit.
    pub scopes: Vec<LimitScope>,
    /// The actor that counts, with the limits in the same order.
    pub rates: Addr<Rates>,
}

impl Plugin for EventRateLimit {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "events") && !write.is_dry_run()
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, event: &'a Value) -> Outcome<'a> {
        Box::pin(self.spend(write, event))
    }
}

impl EventRateLimit {
    async fn spend(&self, write: &Write<'_>, event: &Value) -> Result<()> {
        let key = |scope: &LimitScope| scope.key(write.call.namespace(), &write.call.user().name, event);
        let keys: Vec<String> = self.scopes.iter().map(key).collect();
        let command = Spend { keys: keys.clone(), permit: write.call.permit().clone() };
        let Ok(granted) = self.rates.send(command).await else {
            return Err(Status::unavailable("the rate limiter does not answer"));
        };
        match refusal_message(&self.scopes, &keys, &granted) {
            None => Ok(()),
            Some(reason) => Err(Status::bare(429, "TooManyRequests", reason)),
        }
    }
}

fn refusal_message(scopes: &[LimitScope], keys: &[String], granted: &[bool]) -> Option<String> {
    let all = scopes.iter().zip(keys).zip(granted);
    let mut messages: Vec<String> = all
        .filter(|(_, granted)| !**granted)
        .map(|((scope, key), _)| format!("limit reached on type {} for key {key}", scope.name()))
        .collect();
    match messages.len() {
        0 => None,
        1 => messages.pop().map(|message| format!("Too many requests: {message}")),
        _ => Some(format!("Too many requests: [{}]", messages.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    fn config(limits: &str) -> std::result::Result<Vec<EventLimit>, String> {
        let head = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n";
        read(Some(&yaml::read(format!("{head}{limits}").as_bytes()).unwrap()))
    }

    #[test]
    fn event_limits_are_parsed() {
        let all = config(
            "limits: [{type: Server, qps: 5, burst: 7}, {type: User, qps: 1, burst: 2, cacheSize: 9}]",
        );
        let limit = |per_second, burst, keys| Limit { per_second, burst, keys };
        assert_eq!(
            all.unwrap(),
            [(LimitScope::Server, limit(5, 7, 4_096)), (LimitScope::User, limit(1, 2, 9))]
        );
    }

    #[test]
    fn invalid_event_limits_are_refused() {
        let empty = "limits: Invalid value: []: must not be empty";
        assert_eq!(read(None).unwrap_err(), empty);
        for (limits, expected) in [
            ("", empty),
            (
                "limits: [{type: All, qps: 1, burst: 1}]",
                "limits[0].type: Unsupported value: \"All\": supported values: \"Namespace\", \"Server\", \
                 \"SourceAndObject\", \"User\"",
            ),
            (
                "limits: [{type: User, qps: -1, cacheSize: -2}]",
                "[limits[0].burst: Invalid value: 0: must be positive, limits[0].qps: Invalid value: -1: must be \
                 positive, limits[0].cacheSize: Invalid value: -2: must not be negative]",
            ),
            ("limits: [{type: User, qsp: 1, qps: 1, burst: 1}]", "unknown field \"limits[0].qsp\""),
            (
                "limits: [{type: User, qps: many, burst: 1}]",
                "[limits[0].qps: must be a number, limits[0].qps: Invalid value: 0: must be positive]",
            ),
        ] {
            assert_eq!(config(limits).unwrap_err(), expected, "{limits}");
        }
    }

    #[test]
    fn event_limit_keys_and_messages() {
        let event = yaml::read(
            b"{source: {component: c, host: h}, involvedObject: {kind: Pod, namespace: ns, name: p, uid: u, apiVersion: v1}}",
        )
        .unwrap();
        let keys = LimitScope::ALL.map(|scope| scope.key("n", "jane", &event));
        assert_eq!(keys, ["n", "", "chPodnspuv1", "jane"]);
        assert_eq!(refusal_message(&LimitScope::ALL, &keys, &[true; 4]), None);
        assert_eq!(
            refusal_message(&LimitScope::ALL, &keys, &[true, false, true, true]).unwrap(),
            "Too many requests: limit reached on type Server for key "
        );
        assert_eq!(
            refusal_message(&LimitScope::ALL, &keys, &[false, true, true, false]).unwrap(),
            "Too many requests: [limit reached on type Namespace for key n, limit reached on type User for key jane]"
        );
    }
}
