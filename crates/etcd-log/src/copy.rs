//! What a copy of a whole cluster needs of etcd: everything at one revision, page by page, and a place that no server takes for whole
//! before it is.

mod leases;
mod source;
mod target;

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_etcd::Error;
use pilothouse_etcd::messages::RangeRequest;
use pilothouse_etcd_layout::keys::Record;

pub use self::source::{CopyEntry, CopyObject, CopyPage, CopyPages, CopySource};
pub use self::target::{CopyTarget, CopyWrite};
use crate::convert::{refusal, unavailable};
use crate::log::EtcdLog;

/// Characters of an etcd key that a message quotes.
const QUOTED_KEY: usize = 200;

/// Why a copy ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// etcd does not do what it should.
    #[error(transparent)]
    Etcd(#[from] Error),
    /// The revision that is read is gone.
    #[error(
        "etcd was compacted while it was read: run the command again, or give it an etcd of its own that was made of a snapshot"
    )]
    Compacted,
    /// Whether an object can be decrypted is not known now.
    #[error("objects cannot be decrypted now: {0}")]
    KeyUnavailable(String),
    /// The source is itself the target of a copy.
    #[error("a copy into this etcd was begun and is not finished (key {0}): finish it first")]
    Unfinished(String),
    /// The target is in use.
    #[error("etcd is not empty: it has keys below {prefix} ({count} of them), such as {key}")]
    NotEmpty {
        /// What the keys begin with.
        prefix: String,
        /// How many there are.
        count: i64,
        /// One of them.
        key: String,
    },
    /// The target has an unfinished copy, and somebody works with it.
    #[error(
        "an unfinished copy is in etcd, and {0} does not come from it: a server works with it. Stop that, and delete all keys of the \
         prefix or use another one"
    )]
    Changed(String),
    /// Somebody else writes into the target.
    #[error(
        "somebody else writes into this etcd, such as {0}: stop all servers that use it, and run the command again"
    )]
    Disturbed(String),
}

impl EtcdLog {
    /// Whether all objects are there. They are not while a copy into this etcd is under way, or after it was interrupted.
    pub async fn check_complete(&self) -> Result<(), SharedLogError> {
        let (client, types, _) = self.copy_parts();
        let key = types.record_key(&Record::UnfinishedCopy);
        let request = RangeRequest { keys_only: true, ..RangeRequest::key(key.clone()) };
        let found = client.range(request).await.map_err(|error| refusal(&error))?;
        match found.kvs.is_empty() {
            true => Ok(()),
            false => Err(unavailable(&format!(
                "a copy into this etcd is not finished (key {key}): `pilothouse copy` finishes it"
            ))),
        }
    }
}

/// A key in a message.
fn quote(etcd_key: &[u8]) -> String {
    String::from_utf8_lossy(etcd_key).escape_debug().take(QUOTED_KEY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_keys_are_short_and_printable() {
        assert_eq!(quote(b"/registry/a\n\xff"), "/registry/a\\n\u{fffd}");
        assert_eq!(quote("a".repeat(1_000).as_bytes()).len(), QUOTED_KEY);
    }
}
