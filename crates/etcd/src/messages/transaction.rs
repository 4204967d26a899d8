//! Transactions: comparisons, and what is done if all of them hold or if one does not.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

use super::key_value::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    ResponseHeader,
};

/// How the state of the key must relate to the given value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum CompareResult {
    /// Both are the same.
    Equal = 0,
    /// The key's is greater.
    Greater = 1,
    /// The key's is less.
    Less = 2,
    /// They differ.
    NotEqual = 3,
}

/// What of the key is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum CompareTarget {
    /// The number of writes since the creation; 0 if there is no such key.
    Version = 0,
    /// The revision of the creation; 0 if there is no such key.
    Create = 1,
    /// The revision of the last write; 0 if there is no such key.
    Mod = 2,
    /// The value.
    Value = 3,
    /// The lease.
    Lease = 4,
}

/// What it is compared with.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum CompareValue {
    /// A number of writes.
    #[prost(int64, tag = "4")]
    Version(i64),
    /// The revision of a creation.
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    /// The revision of a write.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    /// A value.
    #[prost(bytes = "bytes", tag = "7")]
    Value(Bytes),
    /// A lease.
    #[prost(int64, tag = "8")]
    Lease(i64),
}

/// One condition of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Compare {
    /// How both must relate.
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    /// What of the key is compared.
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    /// The key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// What it is compared with.
    #[prost(oneof = "CompareValue", tags = "4, 5, 6, 7, 8")]
    pub value: Option<CompareValue>,
    /// The end of a range whose keys must all satisfy the condition; empty for one key.
    #[prost(bytes = "bytes", tag = "64")]
    pub range_end: Bytes,
}

impl Compare {
    /// A condition on one key.
    pub fn new(key: impl Into<Bytes>, result: CompareResult, value: CompareValue) -> Compare {
        let target = match value {
            CompareValue::Version(_) => CompareTarget::Version,
            CompareValue::CreateRevision(_) => CompareTarget::Create,
            CompareValue::ModRevision(_) => CompareTarget::Mod,
            CompareValue::Value(_) => CompareTarget::Value,
            CompareValue::Lease(_) => CompareTarget::Lease,
        };
        Compare {
            result: result.into(),
            target: target.into(),
            key: key.into(),
            value: Some(value),
            range_end: Bytes::new(),
        }
    }

    /// The key was last written in this revision; 0: there is no such key.
    pub fn mod_revision_is(key: impl Into<Bytes>, revision: i64) -> Compare {
        Compare::new(key, CompareResult::Equal, CompareValue::ModRevision(revision))
    }

    /// There is no such key.
    pub fn is_absent(key: impl Into<Bytes>) -> Compare {
        Compare::mod_revision_is(key, 0)
    }
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Operation {
    /// Reads.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Writes.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Deletes.
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
    /// A transaction within the transaction.
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

/// One step of a transaction, as it is sent.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestOp {
    /// The step.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4")]
    pub operation: Option<Operation>,
}

impl From<RangeRequest> for RequestOp {
    fn from(request: RangeRequest) -> RequestOp {
        RequestOp { operation: Some(Operation::Range(request)) }
    }
}

impl From<PutRequest> for RequestOp {
    fn from(request: PutRequest) -> RequestOp {
        RequestOp { operation: Some(Operation::Put(request)) }
    }
}

impl From<DeleteRangeRequest> for RequestOp {
    fn from(request: DeleteRangeRequest) -> RequestOp {
        RequestOp { operation: Some(Operation::DeleteRange(request)) }
    }
}

/// Does one of two lists of steps, all of them or none, in one revision.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnRequest {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// What is done if all conditions hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// What is done if one does not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

impl TxnRequest {
    /// A transaction under these conditions that does nothing yet.
    pub fn when(compare: impl IntoIterator<Item = Compare>) -> TxnRequest {
        TxnRequest { compare: compare.into_iter().collect(), ..TxnRequest::default() }
    }

    /// Adds a step for the case that all conditions hold.
    pub fn and_then(mut self, operation: impl Into<RequestOp>) -> TxnRequest {
        self.success.push(operation.into());
        self
    }

    /// Adds a step for the case that one does not.
    pub fn or_else(mut self, operation: impl Into<RequestOp>) -> TxnRequest {
        self.failure.push(operation.into());
        self
    }

    /// Whether no step writes, so that the transaction may be repeated.
    pub fn is_read_only(&self) -> bool {
        self.success.iter().chain(&self.failure).all(|step| match &step.operation {
            Some(Operation::Range(_)) | None => true,
            Some(Operation::Txn(nested)) => nested.is_read_only(),
            Some(Operation::Put(_) | Operation::DeleteRange(_)) => false,
        })
    }
}

/// The result of one step.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum OperationResponse {
    /// What was read.
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    /// What was written.
    #[prost(message, tag = "2")]
    Put(PutResponse),
    /// What was deleted.
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeResponse),
    /// What the transaction within the transaction did.
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

/// The result of one step, as it is received.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResponseOp {
    /// The result.
    #[prost(oneof = "OperationResponse", tags = "1, 2, 3, 4")]
    pub response: Option<OperationResponse>,
}

/// What a transaction did.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnResponse {
    /// Who answered, and the revision of the transaction.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether all conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// The results of the steps that were done, in their order.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

impl TxnResponse {
    /// The result of a step that reads.
    pub fn range(&self, step: usize) -> Option<&RangeResponse> {
        match self.responses.get(step)?.response.as_ref()? {
            OperationResponse::Range(response) => Some(response),
            _ => None,
        }
    }
}
