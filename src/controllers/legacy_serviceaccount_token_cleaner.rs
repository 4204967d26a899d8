//! legacy-serviceaccount-token-cleaner-controller: auto-generated token Secrets that are long unused are first marked invalid,
//! and later deleted.

use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::ACCOUNT_TOKEN_TYPE;
use pilothouse_apimachinery::well_known::annotations::{ACCOUNT_NAME, ACCOUNT_UID};
use pilothouse_apimachinery::well_known::stores::{CONFIG_MAPS, SECRETS};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::object::{Object, TypeName};

use crate::auth::service_account::legacy_use::{INVALID_SINCE, LAST_USED, day, is_day};
use crate::bootstrap::system_config_maps::{SINCE, TRACKED};

use super::attempts;
use super::client::{At, Client};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

const EVERY: Duration = Duration::from_secs(24 * 3_600);

/// Cleans up unused legacy tokens.
pub struct LegacyTokenCleaner {
    /// Reads and writes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
    /// How long a token must be unused.
    pub unused_for: Duration,
}

/// The decision about a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Keep it.
    Stay,
    /// Mark its token invalid from today on.
    Mark,
    /// Delete it.
    Go,
}

/// Decides by the Secret alone.
fn judge(secret: &Value, now: Timestamp, unused_for: Duration) -> Verdict {
    let metadata = meta::of(secret);
    let limit = now.minus(unused_for);
    let made =
        time::parse_seconds(metadata.str("creationTimestamp")).ok().and_then(|at| u64::try_from(at).ok());
    let label = |name: &str| metadata.get("labels").map(|labels| labels.str(name)).unwrap_or_default();
    let (last_used, invalid_since) = (label(LAST_USED), label(INVALID_SINCE));
    let is_labelled = metadata.get("labels").is_some_and(|labels| labels.get(LAST_USED).is_some());
    let used = is_labelled && (!is_day(last_used) || *last_used >= *day(limit));
    if made.is_none_or(|made| made >= limit.seconds()) || meta::is_terminating(secret) || used {
        return Verdict::Stay;
    }
    match is_day(invalid_since) {
        false => Verdict::Mark,
        true if *invalid_since >= *day(limit) => Verdict::Stay,
        true => Verdict::Go,
    }
}

impl LegacyTokenCleaner {
    async fn clean(&self) -> Result<Outcome> {
        let now = self.clock.now();
        if self.tracked_long_enough(now).await? {
            let secrets = self.client.snapshot(&TypeName::new(SECRETS)).await?;
            let tokens =
                secrets.iter().filter(|object| object.fields.get("type") == Some(ACCOUNT_TOKEN_TYPE));
            attempts::all(tokens.map(|object| self.look(object, now)), 1).await?;
        }
        Ok(Outcome::After(EVERY))
    }

    /// Whether use has been tracked for as long as a token must be unused, from the day after the first on.
    async fn tracked_long_enough(&self, now: Timestamp) -> Result<bool> {
        let maps = self.client.resource(CONFIG_MAPS)?;
        let map = self.client.read(At { resource: &maps, namespace: TRACKED.0, name: TRACKED.1 }).await?;
        let since = map.as_ref().and_then(|map| map.at(&["data", SINCE])).and_then(Value::as_str);
        let Some(since) = since.filter(|since| is_day(since)) else { return Ok(false) };
        let since = time::parse_seconds(&format!("{since}T00:00:00Z")).unwrap_or(i64::MAX);
        let first = u64::try_from(since).unwrap_or_default().saturating_add(EVERY.as_secs());
        Ok(first.saturating_add(self.unused_for.as_secs()) <= now.seconds())
    }

    async fn look(&self, object: &Arc<Object>, now: Timestamp) -> Result<()> {
        let resource = self.client.resource(SECRETS)?;
        let secret = self.client.load(&resource, object)?;
        let verdict = judge(&secret, now, self.unused_for);
        if verdict == Verdict::Stay
            || !self.is_of_account(&secret, object).await?
            || self.is_mounted(object).await?
        {
            return Ok(());
        }
        let uid = meta::of(&secret).str("uid").to_owned();
        let done = if verdict == Verdict::Mark {
            tracing::info!(secret = object.key.as_str(), "an unused service account token is marked invalid");
            let marked = self.client.patch(At::of(&resource, &object.key), "", |secret| {
                if meta::of(secret).str("uid") == uid {
                    secret.entry("metadata").entry("labels").set(INVALID_SINCE, day(now));
                }
                Ok(meta::of(secret).str("uid") == uid)
            });
            marked.await
        } else {
            tracing::info!(secret = object.key.as_str(), "an unused service account token is deleted");
            let version = Some(object.revision.0.to_string());
            let options = DeleteOptions { resource_version: version, ..DeleteOptions::default() };
            self.client.delete(&resource, object.clone(), &options).await
        };
        done.ignore_not_found_or_conflict()?;
        Ok(())
    }

    /// Whether the service account lists the Secret: only then it was auto-generated.
    async fn is_of_account(&self, secret: &Value, object: &Object) -> Result<bool> {
        let annotation = |name: &str| {
            meta::of(secret).get("annotations").map(|all| all.str(name)).unwrap_or_default().to_owned()
        };
        let (name, uid) = (annotation(ACCOUNT_NAME), annotation(ACCOUNT_UID));
        if name.is_empty() {
            return Ok(false);
        }
        let accounts = self.client.resource("serviceaccounts")?;
        let at = At { resource: &accounts, namespace: object.key.namespace(), name: &name };
        let Some(account) = self.client.read_cached(at).await? else { return Ok(false) };
        let listed = account.get("secrets").map(Value::items).unwrap_or_default();
        Ok((uid.is_empty() || meta::of(&account).str("uid") == uid)
            && listed.iter().any(|secret| secret.str("name") == object.key.name()))
    }

    /// Whether a pod mentions the Secret in any field: a false match only keeps it.
    async fn is_mounted(&self, object: &Object) -> Result<bool> {
        let pods = self.client.snapshot(&TypeName::new("pods")).await?;
        let name = format!("\"{}\"", object.key.name());
        let mut of_namespace = pods.scan(Some(object.key.namespace()), Bound::Unbounded);
        Ok(of_namespace.any(|pod| memchr::memmem::find(&pod.bytes, name.as_bytes()).is_some()))
    }
}

impl Controller for LegacyTokenCleaner {
    type Key = ();

    fn follows(&self) -> Follows {
        Follows::These(&[CONFIG_MAPS])
    }

    fn begins_with(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        let key = &change.object.key;
        if change.at.is_some() && !change.gone && (key.namespace(), key.name()) == TRACKED {
            queue.add(());
        }
    }

    fn work(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Outcome> {
        async move { self.clean().await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::testing::object;

    #[test]
    fn an_unused_token_is_marked_and_goes_when_nobody_missed_it() {
        // 11 January 1970; tokens unused since the first may be deleted.
        let (now, ten_days) = (Timestamp(10 * 86_400 * 1_000_000), Duration::from_secs(10 * 86_400 - 1));
        let judged = |made: &str, labels: &str| {
            let text =
                format!(r#"{{"metadata":{{"creationTimestamp":"{made}T00:00:00Z","labels":{{{labels}}}}}}}"#);
            judge(&object(&text), now, ten_days)
        };
        let old = "1970-01-01";
        assert_eq!(judged(old, ""), Verdict::Mark);
        assert_eq!(judged("1970-01-02", ""), Verdict::Stay, "too young");
        let used = |day: &str| format!(r#""kubernetes.io/legacy-token-last-used":"{day}""#);
        assert_eq!(judged(old, &used("1970-01-01")), Verdict::Stay);
        assert_eq!(judged(old, &used("1969-12-31")), Verdict::Mark);
        assert_eq!(judged(old, &used("never")), Verdict::Stay, "nobody knows");
        let invalid = |day: &str| format!(r#""kubernetes.io/legacy-token-invalid-since":"{day}""#);
        assert_eq!(judged(old, &invalid("1969-12-31")), Verdict::Go);
        assert_eq!(judged(old, &invalid("1970-01-01")), Verdict::Stay);
        assert_eq!(judged(old, &invalid("x")), Verdict::Mark);
        assert_eq!(
            judged(old, &format!("{},{}", invalid("1969-12-31"), used("1970-01-05"))),
            Verdict::Stay,
            "somebody missed it"
        );
    }
}
