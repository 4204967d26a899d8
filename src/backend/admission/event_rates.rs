//! EventRateLimit: a component that loops must not fill the store with events.

use actix::Addr;
use pilothouse_actors::rates::{Limit, Rates, Spend};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use super::plugin_document::{self, Document};
use super::{Operation, Outcome, Plugin, Write};

/// The default number of keys that a limit remembers; the reference's value.
const KEYS: i64 = 4_096;
/// The maximum number of keys that a limit remembers: 64 MiB of them.
const MOST_KEYS: i64 = 1 << 20;

/// Which events share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// All events.
    Server,
    /// The events of a namespace.
    Namespace,
    /// The events that a user writes.
    User,
    /// The events of one component about one object.
    SourceAndObject,
}

impl Shared {
    const ALL: [Shared; 4] = [Shared::Namespace, Shared::Server, Shared::SourceAndObject, Shared::User];

    fn name(self) -> &'static str {
        match self {
            Shared::Server => "Server",
            Shared::Namespace => "Namespace",
            Shared::User => "User",
            Shared::SourceAndObject => "SourceAndObject",
        }
    }

    fn key(self, namespace: &str, user: &str, event: &Value) -> String {
        match self {
            Shared::Server => String::new(),
            Shared::Namespace => namespace.to_owned(),
            Shared::User => user.to_owned(),
            Shared::SourceAndObject => {
                let part = |of: &str, fields: &[&str]| {
                    let of = event.get(of).unwrap_or(&Value::Null);
                    fields.iter().map(|field| of.str(field)).collect::<String>()
                };
                part("source", &["component", "host"])
                    + &part("involvedObject", &["kind", "namespace", "name", "uid", "apiVersion"])
            }
        }
    }
}

/// One configured limit.
pub type EventLimit = (Shared, Limit);

/// Reads the configuration, which is required: without limits the plug-in would do nothing.
pub fn read(document: Option<&Value>) -> std::result::Result<Vec<EventLimit>, String> {
    let missing = Value::object();
    let (mut limits, mut errors) = (Vec::new(), Vec::new());
    let document = match document {
        Some(document) => {
            Document::of(document, &["eventratelimit.admission.k8s.io/v1alpha1"], "Configuration")?
        }
        None => Document::untyped(&missing),
    };
    document.has_only("", &["apiVersion", "kind", "limits"])?;
    let path = FieldPath::new("limits");
    let list = document.list(&["limits"])?;
    if list.is_empty() {
        errors.push(FieldError::invalid(&path, "[]", "must not be empty"));
    }
    for (index, limit) in list.iter().enumerate() {
        let at = path.index(index);
        let known = ["type", "qps", "burst", "cacheSize"];
        Document::untyped(limit).has_only("", &known).map_err(|why| format!("{at}: {why}"))?;
        let shared = Shared::ALL.into_iter().find(|shared| shared.name() == limit.str("type"));
        if shared.is_none() {
            let names = Shared::ALL.map(Shared::name);
            errors.push(FieldError::not_supported(&at.child("type"), &quoted(limit.str("type")), &names));
        }
        let number = |field: &str| match limit.get(field) {
            None => Ok(0),
            Some(Value::Int(number)) => Ok(*number),
            Some(_) => Err(format!("{} must be a number", at.child(field))),
        };
        let (burst, rate, keys) = (number("burst")?, number("qps")?, number("cacheSize")?);
        let mut bounded = |field: &str, number: i64, least: i64, wrong: &str| {
            if number < least || number > i64::from(i32::MAX) {
                errors.push(FieldError::invalid(&at.child(field), &number.to_string(), wrong));
            }
        };
        bounded("burst", burst, 1, "must be positive");
        bounded("qps", rate, 1, "must be positive");
        if shared != Some(Shared::Server) {
            bounded("cacheSize", keys, 0, "must not be negative");
        }
        let keys = if keys == 0 { KEYS } else { keys.min(MOST_KEYS) };
        let small = |number: i64| u32::try_from(number).unwrap_or_default();
        let keys = usize::try_from(keys).unwrap_or_default();
        let limit = Limit { per_second: small(rate), burst: small(burst), keys };
        limits.extend(shared.map(|shared| (shared, limit)));
    }
    plugin_document::none_wrong(&errors)?;
    Ok(limits)
}

/// Refuses events that come too fast.
pub struct EventRateLimit {
    /// Which events share a limit, one entry per limit.
    pub shared: Vec<Shared>,
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
        let key = |shared: &Shared| shared.key(write.call.namespace, &write.call.user.name, event);
        let keys: Vec<String> = self.shared.iter().map(key).collect();
        let asked = Spend { keys: keys.clone(), permit: write.call.permit.clone() };
        let Ok(had) = self.rates.send(asked).await else {
            return Err(Status::unavailable("the keeper of rates does not answer"));
        };
        match refusal(&self.shared, &keys, &had) {
            None => Ok(()),
            Some(why) => Err(Status::bare(429, "TooManyRequests", why)),
        }
    }
}

fn refusal(shared: &[Shared], keys: &[String], had: &[bool]) -> Option<String> {
    let all = shared.iter().zip(keys).zip(had);
    let mut reached: Vec<String> = all
        .filter(|(_, had)| !**had)
        .map(|((shared, key), _)| format!("limit reached on type {} for key {key}", shared.name()))
        .collect();
    match reached.len() {
        0 => None,
        1 => reached.pop().map(|one| format!("Too many requests: {one}")),
        _ => Some(format!("Too many requests: [{}]", reached.join(", "))),
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
    fn limits_are_read() {
        let all = config(
            "limits: [{type: Server, qps: 5, burst: 7}, {type: User, qps: 1, burst: 2, cacheSize: 9}]",
        );
        let limit = |per_second, burst, keys| Limit { per_second, burst, keys };
        assert_eq!(all.unwrap(), [(Shared::Server, limit(5, 7, 4_096)), (Shared::User, limit(1, 2, 9))]);
    }

    #[test]
    fn wrong_limits_are_refused() {
        let empty = "limits: Invalid value: []: must not be empty";
        assert_eq!(read(None).unwrap_err(), empty);
        for (limits, wanted) in [
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
            ("limits: [{type: User, qsp: 1}]", "limits[0]: unknown field \"qsp\""),
            ("limits: [{type: User, qps: many}]", "limits[0].qps must be a number"),
        ] {
            assert_eq!(config(limits).unwrap_err(), wanted, "{limits}");
        }
    }

    #[test]
    fn each_limit_has_its_key_and_its_words() {
        let event = yaml::read(
            b"{source: {component: c, host: h}, involvedObject: {kind: Pod, namespace: ns, name: p, uid: u, apiVersion: v1}}",
        )
        .unwrap();
        let keys = Shared::ALL.map(|shared| shared.key("n", "jane", &event));
        assert_eq!(keys, ["n", "", "chPodnspuv1", "jane"]);
        assert_eq!(refusal(&Shared::ALL, &keys, &[true; 4]), None);
        assert_eq!(
            refusal(&Shared::ALL, &keys, &[true, false, true, true]).unwrap(),
            "Too many requests: limit reached on type Server for key "
        );
        assert_eq!(
            refusal(&Shared::ALL, &keys, &[false, true, true, false]).unwrap(),
            "Too many requests: [limit reached on type Namespace for key n, limit reached on type User for key jane]"
        );
    }
}
