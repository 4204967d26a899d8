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
use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

const INTERVAL: Duration = Duration::from_secs(24 * 3_600);

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
enum Decision {
    /// Keep it.
    Keep,
    /// Label its token as invalid from today on.
    Invalidate,
    /// Delete it.
    Delete,
}

/// Decides by the Secret alone.
fn decide(secret: &Value, now: Timestamp, unused_for: Duration) -> Decision {
    let metadata = meta::metadata(secret);
    let cutoff = now.minus(unused_for);
    let created = time::parse_seconds(metadata.str("creationTimestamp"))
        .ok()
        .and_then(|seconds| u64::try_from(seconds).ok());
    let label = |name: &str| metadata.get("labels").map(|labels| labels.str(name)).unwrap_or_default();
    let (last_used, invalid_since) = (label(LAST_USED), label(INVALID_SINCE));
    let has_last_used = metadata.get("labels").is_some_and(|labels| labels.get(LAST_USED).is_some());
    let is_used = has_last_used && (!is_day(last_used) || *last_used >= *day(cutoff));
    if created.is_none_or(|created| created >= cutoff.seconds()) || meta::is_terminating(secret) || is_used {
        return Decision::Keep;
    }
    match is_day(invalid_since) {
        false => Decision::Invalidate,
        true if *invalid_since >= *day(cutoff) => Decision::Keep,
        true => Decision::Delete,
    }
}

impl LegacyTokenCleaner {
    async fn clean(&self) -> Result<Outcome> {
        let now = self.clock.now();
        if self.tracked_long_enough(now).await? {
            let secrets = self.client.snapshot(&TypeName::new(SECRETS)).await?;
            let tokens =
                secrets.iter().filter(|object| object.fields.get("type") == Some(ACCOUNT_TOKEN_TYPE));
            attempts::all(tokens.map(|object| self.clean_secret(object, now)), 1).await?;
        }
        Ok(Outcome::RequeueAfter(INTERVAL))
    }

    /// Whether use has been tracked for as long as a token must be unused, from the day after the first on.
    async fn tracked_long_enough(&self, now: Timestamp) -> Result<bool> {
        let maps = self.client.resource(CONFIG_MAPS)?;
        let map =
            self.client.read(ObjectRef { resource: &maps, namespace: TRACKED.0, name: TRACKED.1 }).await?;
        let since = map.as_ref().and_then(|map| map.get_path(&["data", SINCE])).and_then(Value::as_str);
        let Some(since) = since.filter(|since| is_day(since)) else { return Ok(false) };
        let since = time::parse_seconds(&format!("{since}T00:00:00Z")).unwrap_or(i64::MAX);
        let first = u64::try_from(since).unwrap_or_default().saturating_add(INTERVAL.as_secs());
        Ok(first.saturating_add(self.unused_for.as_secs()) <= now.seconds())
    }

    async fn clean_secret(&self, object: &Arc<Object>, now: Timestamp) -> Result<()> {
        let resource = self.client.resource(SECRETS)?;
        let secret = self.client.load(&resource, object)?;
        let decision = decide(&secret, now, self.unused_for);
        if decision == Decision::Keep
            || !self.is_listed_by_account(&secret, object).await?
            || self.is_mounted(object).await?
        {
            return Ok(());
        }
        let uid = meta::metadata(&secret).str("uid").to_owned();
        let result = if decision == Decision::Invalidate {
            tracing::info!(secret = object.key.as_str(), "an unused service account token is marked invalid");
            let update = self.client.patch(ObjectRef::new(&resource, &object.key), "", |secret| {
                if meta::metadata(secret).str("uid") == uid {
                    secret.entry("metadata").entry("labels").set(INVALID_SINCE, day(now));
                }
                Ok(meta::metadata(secret).str("uid") == uid)
            });
            update.await
        } else {
            tracing::info!(secret = object.key.as_str(), "an unused service account token is deleted");
            let version = Some(object.revision.0.to_string());
            let options = DeleteOptions { resource_version: version, ..DeleteOptions::default() };
            self.client.delete(&resource, object.clone(), &options).await
        };
        result.ignore_not_found_or_conflict()?;
        Ok(())
    }

    /// Whether the service account lists the Secret: only then it was auto-generated.
    async fn is_listed_by_account(&self, secret: &Value, object: &Object) -> Result<bool> {
        let annotation = |name: &str| {
            meta::metadata(secret).get("annotations").map(|all| all.str(name)).unwrap_or_default().to_owned()
        };
        let (name, uid) = (annotation(ACCOUNT_NAME), annotation(ACCOUNT_UID));
        if name.is_empty() {
            return Ok(false);
        }
        let accounts = self.client.resource("serviceaccounts")?;
        let target = ObjectRef { resource: &accounts, namespace: object.key.namespace(), name: &name };
        let Some(account) = self.client.read_cached(target).await? else { return Ok(false) };
        let secrets = account.get("secrets").map(Value::items).unwrap_or_default();
        Ok((uid.is_empty() || meta::metadata(&account).str("uid") == uid)
            && secrets.iter().any(|secret| secret.str("name") == object.key.name()))
    }

    /// Whether a pod mentions the Secret in any field, or cannot be read: a false match only keeps it.
    async fn is_mounted(&self, object: &Object) -> Result<bool> {
        let pods = self.client.snapshot(&TypeName::new("pods")).await?;
        let name = format!("\"{}\"", object.key.name());
        let mut pods_in_namespace = pods.scan(Some(object.key.namespace()), Bound::Unbounded);
        Ok(pods_in_namespace
            .any(|pod| !pod.is_readable() || memchr::memmem::find(&pod.bytes, name.as_bytes()).is_some()))
    }
}

impl Controller for LegacyTokenCleaner {
    type Key = ();

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[CONFIG_MAPS])
    }

    fn initial_keys(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        let key = &change.object.key;
        if change.time.is_some() && !change.is_deleted && (key.namespace(), key.name()) == TRACKED {
            queue.add(());
        }
    }

    fn reconcile(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.clean().await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn unused_legacy_token_is_invalidated_and_later_deleted() {
        // 11 January 1970; tokens unused since the first may be deleted.
        let (now, ten_days) = (Timestamp(10 * 86_400 * 1_000_000), Duration::from_secs(10 * 86_400 - 1));
        let decide_for = |created: &str, labels: &str| {
            let text = format!(
                r#"{{"metadata":{{"creationTimestamp":"{created}T00:00:00Z","labels":{{{labels}}}}}}}"#
            );
            decide(&object(&text), now, ten_days)
        };
        let old = "1970-01-01";
        assert_eq!(decide_for(old, ""), Decision::Invalidate);
        assert_eq!(decide_for("1970-01-02", ""), Decision::Keep, "too young");
        let used = |day: &str| format!(r#""kubernetes.io/legacy-token-last-used":"{day}""#);
        assert_eq!(decide_for(old, &used("1970-01-01")), Decision::Keep);
        assert_eq!(decide_for(old, &used("1969-12-31")), Decision::Invalidate);
        assert_eq!(decide_for(old, &used("never")), Decision::Keep, "unknown date");
        let invalid = |day: &str| format!(r#""kubernetes.io/legacy-token-invalid-since":"{day}""#);
        assert_eq!(decide_for(old, &invalid("1969-12-31")), Decision::Delete);
        assert_eq!(decide_for(old, &invalid("1970-01-01")), Decision::Keep);
        assert_eq!(decide_for(old, &invalid("x")), Decision::Invalidate);
        assert_eq!(
            decide_for(old, &format!("{},{}", invalid("1969-12-31"), used("1970-01-05"))),
            Decision::Keep,
            "used after it was invalidated"
        );
    }
}
