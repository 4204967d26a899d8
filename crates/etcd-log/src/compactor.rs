//! Compacts etcd, which keeps every version of every object else. Servers of both kinds take turns at it: see
//! `crates/etcd-layout/src/compaction.rs`.

use std::time::Duration;

use pilothouse_etcd::messages::{
    CompactionRequest, Compare, CompareResult, CompareValue, PutRequest, RangeRequest, RangeResponse,
    ResponseHeader, TxnRequest,
};
use pilothouse_etcd::{Client, Error};
use pilothouse_etcd_layout::compaction::CompactionTurn;
use pilothouse_etcd_layout::keys::COMPACTION_KEY;
use tokio::time::sleep;

/// Tries to take the turn once in every interval, for ever.
pub(crate) async fn run(client: Client, interval: Duration) {
    let mut turn = CompactionTurn::default();
    loop {
        sleep(interval).await;
        match attempt(&client, &mut turn).await {
            Ok(Some(revision)) => tracing::debug!(revision, "etcd was compacted"),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "etcd cannot be compacted; trying again later"),
        }
    }
}

/// Tries to take the turn. Returns the revision up to which etcd was compacted, if it was.
async fn attempt(client: &Client, turn: &mut CompactionTurn) -> Result<Option<i64>, Error> {
    let proposal = turn.proposal();
    let version = CompareValue::Version(proposal.expected_version);
    let transaction = TxnRequest::when([Compare::new(COMPACTION_KEY, CompareResult::Equal, version)])
        .and_then(PutRequest::new(COMPACTION_KEY, proposal.value))
        .or_else(RangeRequest::key(COMPACTION_KEY));
    let version = |range: Option<&RangeResponse>| {
        range.and_then(|range| range.kvs.first()).map_or(0, |entry| entry.version)
    };
    let revision = match client.txn(transaction).await {
        Ok(response) if response.succeeded => turn.won(revision_of(response.header.as_ref())),
        Ok(response) => {
            turn.lost(version(response.range(0)), revision_of(response.header.as_ref()));
            None
        }
        Err(Error::NoSpace) => {
            let present = client.range(RangeRequest::key(COMPACTION_KEY)).await?;
            turn.unwritable(version(Some(&present)), revision_of(present.header.as_ref()))
        }
        Err(error) => return Err(error),
    };
    let Some(revision) = revision else { return Ok(None) };
    match client.compact(CompactionRequest { revision, ..CompactionRequest::default() }).await {
        // Somebody else has compacted further.
        Ok(_) | Err(Error::Compacted(_)) => Ok(Some(revision)),
        Err(error) => Err(error),
    }
}

fn revision_of(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

#[cfg(test)]
mod tests {
    use pilothouse_etcd::testing::{Cluster, Options};

    use super::*;

    async fn put(client: &Client, value: Vec<u8>) -> Result<i64, Error> {
        let response = client.put(PutRequest::new("a", value)).await?;
        Ok(revision_of(response.header.as_ref()))
    }

    async fn read_at(client: &Client, revision: i64) -> Result<(), Error> {
        client.range(RangeRequest { revision, ..RangeRequest::key("a") }).await.map(drop)
    }

    #[tokio::test]
    async fn servers_take_turns_and_compact_what_is_an_interval_old() {
        let cluster = Cluster::single().await;
        let client = cluster.client();
        let (mut one, mut other) = (CompactionTurn::default(), CompactionTurn::default());
        let old = put(&client, vec![1]).await.unwrap();
        assert_eq!(attempt(&client, &mut one).await.unwrap(), None, "nobody knows what is old");
        assert_eq!(attempt(&client, &mut other).await.unwrap(), None, "it was the turn of the first");
        let newer = put(&client, vec![2]).await.unwrap();
        let compacted = attempt(&client, &mut one).await.unwrap().unwrap();
        assert!(old < compacted && compacted < newer, "{old} {compacted} {newer}");
        assert!(matches!(read_at(&client, old).await, Err(Error::Compacted(_))));
        read_at(&client, newer).await.unwrap();
        assert_eq!(attempt(&client, &mut other).await.unwrap(), None, "the first one was faster");
        // The first one has ended.
        let last = attempt(&client, &mut other).await.unwrap().unwrap();
        assert!(last > newer, "{last} {newer}");
        assert!(matches!(read_at(&client, newer).await, Err(Error::Compacted(_))));
    }

    #[tokio::test]
    async fn full_database_is_compacted_although_nobody_can_note_it() {
        let flags = vec!["--quota-backend-bytes=1048576".to_owned()];
        let cluster = Cluster::start(Options { flags, ..Options::default() }).await;
        let client = cluster.client();
        let mut turn = CompactionTurn::default();
        let old = put(&client, vec![1]).await.unwrap();
        put(&client, vec![2]).await.unwrap();
        assert_eq!(attempt(&client, &mut turn).await.unwrap(), None);
        let error = loop {
            if let Err(error) = put(&client, vec![1; 200_000]).await {
                break error;
            }
        };
        assert_eq!(error, Error::NoSpace);
        let compacted = attempt(&client, &mut turn).await.unwrap().unwrap();
        assert!(old < compacted, "{old} {compacted}");
        assert!(matches!(read_at(&client, old).await, Err(Error::Compacted(_))));
        let later = attempt(&client, &mut turn).await.unwrap().unwrap();
        assert!(later > compacted, "it has learned the revision");
    }
}
