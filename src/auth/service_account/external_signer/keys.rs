//! The keys of the signer, and their fetches.
//!
//! One task fetches them: when their time is over, and when a token names an unknown key. The number of fetches that tokens cause is
//! bounded, so that tokens with invented key IDs do not load the signer. Without new keys the old ones stay valid.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use openssl::pkey::{Id, PKey};
use pilothouse_plugins::clipped;
use pilothouse_types::clock::{Clock, Moment, Timestamp};

use super::client::{SignerClient, SignerError};
use super::messages::{DataTimestamp, FetchKeysResponse, Key};
use crate::auth::jwt::VerifyingKey;
use crate::auth::refetches::{RefetchLimits, Refetches};
use crate::auth::service_account::keys::Keys;
use crate::auth::service_account::metadata::{Discovery, Metadata};
use crate::limits::{
    MAX_RSA_BITS, MIN_RSA_BITS, SIGNER_KEY_ID_BYTES, SIGNER_KEYS, SIGNER_LONGEST_REFRESH,
    SIGNER_REFETCH_INTERVAL, SIGNER_REFETCHES, SIGNER_RETRY_INTERVAL, SIGNER_WAIT_TIMEOUT, SIGNER_WAITING,
};
use crate::metrics::external_signer::{ExternalSignerMetrics, OK};

const LIMITS: RefetchLimits = RefetchLimits {
    burst: SIGNER_REFETCHES,
    interval: SIGNER_REFETCH_INTERVAL,
    wait: SIGNER_WAIT_TIMEOUT,
    waiting: SIGNER_WAITING,
};

/// The first and the last second of a Protobuf timestamp: the years 1 to 9999.
const TIMESTAMP_SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// The keys of the signer. Shared by the verifiers of all workers and the fetching task.
pub struct ExternalKeys {
    current: ArcSwap<FetchedKeys>,
    refetches: Refetches,
    discovery: Option<Discovery>,
    metrics: ExternalSignerMetrics,
    clock: Clock,
}

/// The keys of the last successful fetch.
struct FetchedKeys {
    keys: Arc<Keys>,
    /// The documents with the keys that are published.
    metadata: Option<Arc<Metadata>>,
    /// What the keys were made from.
    messages: Vec<Key>,
    fetched: Moment,
    refresh_after: Duration,
}

impl ExternalKeys {
    /// The keys of a first fetch.
    pub fn new(
        fetch: Fetch,
        discovery: Option<Discovery>,
        metrics: ExternalSignerMetrics,
        clock: Clock,
    ) -> Result<ExternalKeys, SignerError> {
        let keys = FetchedKeys::new(fetch, None, discovery.as_ref(), clock.moment())?;
        Ok(ExternalKeys {
            current: ArcSwap::from_pointee(keys),
            refetches: Refetches::new(LIMITS, clock.clone()),
            discovery,
            metrics,
            clock,
        })
    }

    /// All keys. As long as the signer's stay the same, so does the pointer.
    pub fn current(&self) -> Arc<Keys> {
        self.current.load().keys.clone()
    }

    /// The discovery documents and how long they may be cached.
    pub fn metadata(&self) -> Option<(Arc<Metadata>, Duration)> {
        let current = self.current.load();
        Some((current.metadata.clone()?, self.time_left(&current)))
    }

    /// Whether a key with this ID is not published. Fetches the keys if there is none.
    pub async fn is_excluded(&self, key_id: &str) -> bool {
        let find = || {
            let current = self.current.load();
            let mut keys = current.messages.iter().filter(|key| key.key_id == key_id).peekable();
            keys.peek().is_some().then(|| keys.any(|key| key.exclude_from_oidc_discovery))
        };
        if let Some(is_excluded) = find() {
            return is_excluded;
        }
        self.refetch().await;
        find().unwrap_or(false)
    }

    /// Fetches the keys, if tokens may cause that now, and waits for them.
    pub async fn refetch(&self) {
        if let Err(reason) = self.refetches.refetch().await {
            tracing::debug!(%reason, "the keys of the token signer are not fetched for an unknown key");
        }
    }

    /// Keeps the keys up to date until it is dropped.
    pub async fn refresh(&self, client: &SignerClient) {
        let mut delay = self.time_left(&self.current.load());
        loop {
            self.refetches.wait_for_request(delay).await;
            self.refetches.begin_attempt();
            delay = match self.fetch(client).await {
                Ok(()) => self.time_left(&self.current.load()),
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?SIGNER_RETRY_INTERVAL,
                        "the keys of the token signer cannot be fetched; the previous ones stay in use");
                    SIGNER_RETRY_INTERVAL
                }
            };
            self.refetches.end_attempt();
        }
    }

    async fn fetch(&self, client: &SignerClient) -> Result<(), SignerError> {
        let fetch = fetch(client, &self.metrics, &self.clock).await?;
        let current = self.current.load_full();
        let next = FetchedKeys::new(fetch, Some(&current), self.discovery.as_ref(), self.clock.moment())?;
        self.current.store(Arc::new(next));
        Ok(())
    }

    fn time_left(&self, current: &FetchedKeys) -> Duration {
        current.refresh_after.saturating_sub(self.clock.elapsed(current.fetched))
    }
}

/// A response that keeps the rules.
pub struct Fetch {
    messages: Vec<Key>,
    /// The keys that can verify tokens, and whether they are not published.
    keys: Vec<(VerifyingKey, bool)>,
    data_time: DataTimestamp,
    refresh_after: Duration,
}

/// Fetches the keys once, and counts that.
pub async fn fetch(
    client: &SignerClient,
    metrics: &ExternalSignerMetrics,
    clock: &Clock,
) -> Result<Fetch, SignerError> {
    let fetch = client.fetch_keys().await;
    let fetch = fetch.and_then(|response| Fetch::new(response).map_err(SignerError::Response));
    metrics.count_fetch(fetch.as_ref().map_or_else(SignerError::code, |_| OK));
    let fetch = fetch?;
    let DataTimestamp { seconds, nanos } = fetch.data_time;
    let data_seconds = Timestamp::from_unix(seconds).fractional_seconds() + f64::from(nanos) / 1e9;
    metrics.set_fetched(clock.now(), data_seconds);
    Ok(fetch)
}

impl FetchedKeys {
    /// The keys of a fetch. If they are those of `previous`, they stay as they are.
    fn new(
        fetch: Fetch,
        previous: Option<&FetchedKeys>,
        discovery: Option<&Discovery>,
        fetched: Moment,
    ) -> Result<FetchedKeys, SignerError> {
        let Fetch { messages, keys: all, refresh_after, .. } = fetch;
        if let Some(previous) = previous.filter(|previous| previous.messages == messages) {
            let (keys, metadata) = (previous.keys.clone(), previous.metadata.clone());
            return Ok(FetchedKeys { keys, metadata, messages, fetched, refresh_after });
        }
        let published = all.iter().filter(|(_, is_excluded)| !is_excluded).map(|(key, _)| key.clone());
        let published = Keys::from(published.collect::<Vec<_>>());
        let metadata = discovery.map(|discovery| discovery.documents(&published)).transpose();
        Ok(FetchedKeys {
            keys: Arc::new(Keys::from(all.into_iter().map(|(key, _)| key).collect::<Vec<_>>())),
            metadata: metadata.map_err(SignerError::Response)?.map(Arc::new),
            messages,
            fetched,
            refresh_after,
        })
    }
}

impl Fetch {
    /// Checks a response, in the reference's order. One fault refuses all of it.
    fn new(response: FetchKeysResponse) -> Result<Fetch, String> {
        let FetchKeysResponse { keys: messages, data_timestamp, refresh_hint_seconds } = response;
        let hint = u64::try_from(refresh_hint_seconds).ok().filter(|seconds| *seconds > 0);
        let hint = hint.ok_or_else(|| format!("found invalid refresh hint ({refresh_hint_seconds}s)"))?;
        if messages.is_empty() {
            return Err("found no keys".to_owned());
        }
        let data_time =
            check_timestamp(data_timestamp).map_err(|reason| format!("invalid data timestamp: {reason}"))?;
        if messages.len() > SIGNER_KEYS {
            return Err(format!("found more than {SIGNER_KEYS} keys"));
        }
        let keys = verifying_keys(&messages)?;
        let refresh_after = Duration::from_secs(hint).min(SIGNER_LONGEST_REFRESH);
        Ok(Fetch { messages, keys, data_time, refresh_after })
    }
}

fn check_timestamp(time: Option<DataTimestamp>) -> Result<DataTimestamp, String> {
    let Some(DataTimestamp { seconds, nanos }) = time else {
        return Err("proto: invalid nil Timestamp".to_owned());
    };
    let fault = match seconds {
        _ if seconds < *TIMESTAMP_SECONDS.start() => "before 0001-01-01",
        _ if seconds > *TIMESTAMP_SECONDS.end() => "after 9999-12-31",
        _ if !(0..1_000_000_000).contains(&nanos) => "has out-of-range nanos",
        _ => return Ok(DataTimestamp { seconds, nanos }),
    };
    Err(format!("proto: timestamp (seconds:{seconds} nanos:{nanos}) {fault}"))
}

/// The keys that can verify tokens, and whether they are not published.
fn verifying_keys(messages: &[Key]) -> Result<Vec<(VerifyingKey, bool)>, String> {
    let invalid = |reason: &dyn std::fmt::Display| format!("while parsing external public keys: {reason}");
    let mut keys = Vec::with_capacity(messages.len());
    for message in messages {
        if !(1..=SIGNER_KEY_ID_BYTES).contains(&message.key_id.len()) {
            return Err(format!("found invalid public key id {:?}", clipped(&message.key_id)));
        }
        if message.key.is_empty() {
            return Err("found empty public key".to_owned());
        }
        let key = PKey::public_key_from_der(&message.key).map_err(|error| invalid(&error))?;
        let is_unsafe = key.id() == Id::RSA && !(MIN_RSA_BITS..=MAX_RSA_BITS).contains(&key.bits());
        match VerifyingKey::with_id(key, message.key_id.clone()).filter(|_| !is_unsafe) {
            Some(key) => keys.push((key, message.exclude_from_oidc_discovery)),
            None => {
                tracing::warn!(key_id = %message.key_id, "a key of the token signer is of no type that verifies tokens");
            }
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests;
