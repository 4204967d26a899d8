//! Messages against their bytes, written by hand from the numbers and types of the fields.

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn check<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M, bytes: &str) {
    assert_eq!(message.encode_to_vec(), hex(bytes), "{message:?}");
    assert_eq!(M::decode(hex(bytes).as_slice()).unwrap(), *message);
}

proptest! {
    /// Whatever a member sends is a message or an error.
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _response = RangeResponse::decode(bytes.as_slice());
        let _response = TxnResponse::decode(bytes.as_slice());
        let _response = WatchResponse::decode(bytes.as_slice());
        let _response = StatusResponse::decode(bytes.as_slice());
        let _response = MemberListResponse::decode(bytes.as_slice());
    }
}

/// A transaction within a transaction, and so on, far deeper than etcd allows.
#[test]
fn deep_responses_are_refused() {
    let mut nested = TxnResponse::default();
    for _ in 0..40 {
        let response = Some(OperationResponse::Txn(nested));
        nested = TxnResponse { responses: vec![ResponseOp { response }], ..TxnResponse::default() };
    }
    TxnResponse::decode(nested.encode_to_vec().as_slice()).unwrap();
    for _ in 0..40 {
        let response = Some(OperationResponse::Txn(nested));
        nested = TxnResponse { responses: vec![ResponseOp { response }], ..TxnResponse::default() };
    }
    TxnResponse::decode(nested.encode_to_vec().as_slice()).unwrap_err();
}

#[test]
fn ranges_end_after_the_last_key_with_the_prefix() {
    assert_eq!(prefix_end(b"/registry/"), Bytes::from_static(b"/registry0"));
    assert_eq!(prefix_end(b"a\xff\xff"), Bytes::from_static(b"b"));
    assert_eq!(prefix_end(b"\xff"), FROM_KEY);
    assert_eq!(prefix_end(b""), FROM_KEY);
    assert_eq!(after(b"a"), Bytes::from_static(b"a\0"));
}

#[test]
fn ranges() {
    let request = RangeRequest {
        limit: 3,
        revision: 300,
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Mod.into(),
        serializable: true,
        keys_only: true,
        count_only: true,
        min_mod_revision: 1,
        max_mod_revision: 2,
        min_create_revision: 3,
        max_create_revision: 4,
        ..RangeRequest::prefix("a")
    };
    check(&request, "0a0161 120162 1803 20ac02 2802 3003 3801 4001 4801 5001 5802 6003 6804");
    let key = KeyValue {
        key: "k".into(),
        create_revision: 1,
        mod_revision: 2,
        version: 3,
        value: "v".into(),
        lease: -1,
    };
    let header = ResponseHeader { cluster_id: 1, member_id: u64::MAX, revision: 5, raft_term: 6 };
    let response = RangeResponse { header: Some(header), kvs: vec![key], more: true, count: 9 };
    check(
        &response,
        "0a11 0801 10ffffffffffffffffff01 1805 2006
         1217 0a016b 1001 1802 2003 2a0176 30ffffffffffffffffff01
         1801 2009",
    );
}

#[test]
fn transactions() {
    let request = TxnRequest::when([
        Compare::mod_revision_is("k", 7),
        Compare::new("k", CompareResult::NotEqual, CompareValue::Value("v".into())),
        Compare::new("k", CompareResult::Greater, CompareValue::Version(0)),
        Compare::new("k", CompareResult::Less, CompareValue::CreateRevision(1)),
        Compare::new("k", CompareResult::Equal, CompareValue::Lease(2)),
    ])
    .and_then(PutRequest { lease: 5, prev_kv: true, ..PutRequest::new("k", "v") })
    .and_then(DeleteRangeRequest::key("d"))
    .or_else(RangeRequest::key("k"));
    assert!(!request.is_read_only());
    check(
        &request,
        "0a07 1002 1a016b 3007
         0a0a 0803 1003 1a016b 3a0176
         0a07 0801 1a016b 2000
         0a09 0802 1001 1a016b 2801
         0a07 1004 1a016b 4002
         120c 120a 0a016b 120176 1805 2001
         1205 1a03 0a0164
         1a05 0a03 0a016b",
    );
    let read = TxnRequest::when([]).and_then(RangeRequest::key("k"));
    assert!(read.is_read_only());
    let response = TxnResponse {
        header: None,
        succeeded: true,
        responses: vec![
            ResponseOp { response: Some(OperationResponse::Put(PutResponse::default())) },
            ResponseOp {
                response: Some(OperationResponse::Range(RangeResponse {
                    count: 1,
                    ..RangeResponse::default()
                })),
            },
        ],
    };
    check(&response, "1001 1a02 1200 1a04 0a02 2001");
    assert_eq!((response.range(0), response.range(1).map(|range| range.count)), (None, Some(1)));
}

#[test]
fn watches() {
    let create = WatchCreateRequest {
        filters: vec![WatchFilter::NoPut.into(), WatchFilter::NoDelete.into()],
        prev_kv: true,
        ..WatchCreateRequest::prefix("a", 8)
    };
    let request = WatchRequest::from(WatchRequestKind::Create(create));
    check(&request, "0a12 0a0161 120162 1808 2001 2a020001 3001 4001");
    check(&WatchRequest::from(WatchRequestKind::Cancel(WatchCancelRequest { watch_id: 1 })), "1202 0801");
    check(&WatchRequest::from(WatchRequestKind::Progress(WatchProgressRequest {})), "1a00");
    let key = |key: &'static str| Some(KeyValue { key: key.into(), ..KeyValue::default() });
    let response = WatchResponse {
        header: None,
        watch_id: 1,
        created: true,
        canceled: true,
        compact_revision: 4,
        cancel_reason: "r".to_owned(),
        fragment: true,
        events: vec![Event { kind: EventType::Delete.into(), kv: key("k"), prev_kv: key("p") }],
    };
    check(&response, "1001 1801 2001 2804 320172 3801 5a0c 0801 12030a016b 1a030a0170");
}

#[test]
fn leases_and_members() {
    check(&LeaseGrantRequest { ttl: 5, id: 6 }, "0805 1006");
    check(&LeaseTimeToLiveRequest { id: 6, keys: true }, "0806 1001");
    let response = LeaseTimeToLiveResponse {
        header: None,
        id: 6,
        ttl: -1,
        granted_ttl: 5,
        keys: vec!["a".into(), "b".into()],
    };
    check(&response, "1006 18ffffffffffffffffff01 2005 2a0161 2a0162");
    check(&LeaseKeepAliveResponse { header: None, id: 6, ttl: 5 }, "1006 1805");
    check(&CompactionRequest { revision: 3, physical: true }, "0803 1001");
    let alarm =
        AlarmRequest { action: AlarmAction::Deactivate.into(), member_id: 1, alarm: Alarm::NoSpace.into() };
    check(&alarm, "0802 1001 1801");
    let status = StatusResponse {
        version: "3".to_owned(),
        db_size: 1,
        leader: 2,
        raft_index: 3,
        raft_term: 4,
        raft_applied_index: 5,
        errors: vec!["e".to_owned()],
        db_size_in_use: 6,
        is_learner: true,
        header: None,
    };
    check(&status, "120133 1801 2002 2803 3004 3805 420165 4806 5001");
    let member = Member {
        id: 1,
        name: "n".to_owned(),
        peer_urls: vec!["p".to_owned()],
        client_urls: vec!["c".to_owned()],
        is_learner: true,
    };
    check(&MemberListResponse { header: None, members: vec![member] }, "120d 0801 12016e 1a0170 220163 2801");
    let part = SnapshotResponse { header: None, remaining_bytes: 1, blob: "b".into() };
    check(&part, "1001 1a0162");
}
