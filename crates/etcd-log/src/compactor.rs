//! Compacts etcd, which keeps every version of every object else. Servers of both kinds take turns at it: see
//! `crates/etcd-layout/src/compaction.rs`.

use std::time::Duration;

use pilothouse_etcd::messages::{
    CompactionRequest, Compare, CompareResult, CompareValue, PutRequest, RangeRequest, TxnRequest,
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
    let response = client.txn(transaction).await?;
    let current = response.header.as_ref().map_or(0, |header| header.revision);
    if !response.succeeded {
        let present = response.range(0).and_then(|range| range.kvs.first());
        turn.lost(present.map_or(0, |entry| entry.version), current);
        return Ok(None);
    }
    let Some(revision) = turn.won(current) else { return Ok(None) };
    match client.compact(CompactionRequest { revision, ..CompactionRequest::default() }).await {
        // Somebody else has compacted further.
        Ok(_) | Err(Error::Compacted(_)) => Ok(Some(revision)),
        Err(error) => Err(error),
    }
}
