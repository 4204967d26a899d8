//! Calls that read and write keys.

use super::Client;
use crate::error::Error;
use crate::messages::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use crate::methods;

impl Client {
    /// Reads one key or a range of keys. Unless the request is serializable, the answer is as new as any answer given before.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        let method = if request.serializable { &methods::SERIALIZABLE_RANGE } else { &methods::RANGE };
        self.call(method, request).await
    }

    /// Writes one key.
    pub async fn put(&self, request: PutRequest) -> Result<PutResponse, Error> {
        self.call(&methods::PUT, request).await
    }

    /// Deletes one key or a range of keys.
    pub async fn delete_range(&self, request: DeleteRangeRequest) -> Result<DeleteRangeResponse, Error> {
        self.call(&methods::DELETE_RANGE, request).await
    }

    /// Does one of two lists of steps, all of them or none. If no step writes, it is repeated as a read is.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Error> {
        let method = if request.is_read_only() { &methods::READ_ONLY_TXN } else { &methods::TXN };
        self.call(method, request).await
    }

    /// Forgets what was replaced before a revision. Watches and reads of older revisions then fail with [`Error::Compacted`].
    pub async fn compact(&self, request: CompactionRequest) -> Result<CompactionResponse, Error> {
        self.call(&methods::COMPACT, request).await
    }
}
