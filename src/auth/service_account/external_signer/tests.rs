use openssl::ec::{EcGroup, EcKey};
use openssl::nid::Nid;
use openssl::pkey::PKey;
use pilothouse_plugins::Code;
use pilothouse_plugins::testing::{Call, PluginServer, Reply, Status};
use pilothouse_types::clock::Timestamp;
use pilothouse_types::lock::Lock;
use tempfile::TempDir;

use super::messages::{
    DataTimestamp, FetchKeysRequest, FetchKeysResponse, Key, MetadataRequest, MetadataResponse, methods,
};
use super::*;
use crate::limits::SIGNER_REFETCHES;
use crate::metrics::Metrics;

/// The number of fetches, and whether they fail.
#[derive(Default)]
struct Fetches {
    count: u32,
    fail: bool,
}

fn key() -> Key {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let key = key.public_key_to_der().unwrap();
    Key { key_id: "known".to_owned(), key, exclude_from_oidc_discovery: true }
}

async fn answer(fetches: Arc<Lock<Fetches>>, key: Key, call: Call) -> Reply {
    match call.method() {
        methods::FETCH_KEYS => {
            let fetch = |_: FetchKeysRequest| {
                let mut fetches = fetches.lock();
                fetches.count += 1;
                let data_timestamp = Some(DataTimestamp::default());
                let keys = vec![key.clone()];
                match fetches.fail {
                    true => Err(Status::new(Code::Internal, "no keys")),
                    false => Ok(FetchKeysResponse { keys, data_timestamp, refresh_hint_seconds: 3_600 }),
                }
            };
            call.answer(fetch).await
        }
        methods::METADATA => {
            let max_token_expiration_seconds = 600;
            call.answer(|_: MetadataRequest| Ok(MetadataResponse { max_token_expiration_seconds })).await
        }
        _ => call.unimplemented(),
    }
}

fn settings(directory: &TempDir) -> SignerSettings {
    let clock = Clock::manual(Timestamp(1_000_000_000_000));
    SignerSettings {
        socket: directory.path().join("s"),
        sign_timeout: Duration::from_secs(30),
        discovery: None,
        metrics: Metrics::new(clock.now()).unwrap().external_signer,
        clock,
    }
}

fn start(directory: &TempDir) -> (PluginServer, Arc<Lock<Fetches>>) {
    let (fetches, key) = (Arc::<Lock<Fetches>>::default(), key());
    let counted = fetches.clone();
    let answer = move |call| answer(counted.clone(), key.clone(), call);
    (PluginServer::start(&directory.path().join("s"), answer).unwrap(), fetches)
}

#[actix::test]
async fn start_waits_for_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let connecting = actix::spawn(ExternalSigner::connect(settings(&directory)));
    tokio::task::yield_now().await;
    let (_server, _) = start(&directory);
    let signer = connecting.await.unwrap().unwrap();
    assert_eq!(signer.max_lifetime(), Duration::from_secs(600));
}

#[actix::test]
async fn unknown_keys_cause_a_bounded_number_of_fetches() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, fetches) = start(&directory);
    let signer = ExternalSigner::connect(settings(&directory)).await.unwrap();
    assert!(signer.keys().is_excluded("known").await);
    assert_eq!(fetches.lock().count, 1, "a known key causes none");
    let first = signer.keys().current();
    for number in 0..100 {
        assert!(!signer.keys().is_excluded(&number.to_string()).await);
    }
    // The clock stands still, so the budget does not grow again.
    assert_eq!(fetches.lock().count, 1 + SIGNER_REFETCHES);
    assert!(Arc::ptr_eq(&first, &signer.keys().current()), "the keys are the same");
}

#[actix::test]
async fn keys_stay_after_a_failed_fetch() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, fetches) = start(&directory);
    let signer = ExternalSigner::connect(settings(&directory)).await.unwrap();
    fetches.lock().fail = true;
    assert!(!signer.keys().is_excluded("unknown").await);
    assert_eq!(fetches.lock().count, 2);
    assert!(signer.keys().is_excluded("known").await);
    let error = signer.sign(&serde_json::json!({})).await.unwrap_err();
    assert!(error.starts_with("while signing jwt: rpc error: code = Unimplemented"), "{error}");
}

#[test]
fn endpoint_is_a_path_or_an_abstract_name() {
    assert_eq!(socket_path("/run/signer.sock"), PathBuf::from("/run/signer.sock"));
    assert_eq!(socket_path("@signer"), PathBuf::from("\0signer"));
}
