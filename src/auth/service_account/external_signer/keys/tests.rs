use openssl::ec::{EcGroup, EcKey};
use openssl::nid::Nid;

use super::*;
use crate::auth::jwt::{SigningKey, Token};
use crate::metrics::Metrics;

const TIME: DataTimestamp = DataTimestamp { seconds: 1_700_000_000, nanos: 0 };

fn public_key(curve: Nid) -> Vec<u8> {
    let key = EcKey::generate(&EcGroup::from_curve_name(curve).unwrap()).unwrap();
    PKey::from_ec_key(key).unwrap().public_key_to_der().unwrap()
}

fn key(id: &str, is_excluded: bool) -> Key {
    let key = public_key(Nid::X9_62_PRIME256V1);
    Key { key_id: id.to_owned(), key, exclude_from_oidc_discovery: is_excluded }
}

fn response(keys: Vec<Key>) -> FetchKeysResponse {
    FetchKeysResponse { keys, data_timestamp: Some(TIME), refresh_hint_seconds: 60 }
}

#[test]
fn response_with_one_fault_is_refused_as_a_whole() {
    let fault = |change: fn(&mut FetchKeysResponse)| {
        let mut response = response(vec![key("good", false), key("a", false)]);
        change(&mut response);
        Fetch::new(response).err().unwrap_or_default()
    };
    assert_eq!(fault(|_| {}), "");
    assert_eq!(fault(|all| all.refresh_hint_seconds = 0), "found invalid refresh hint (0s)");
    assert_eq!(fault(|all| all.refresh_hint_seconds = -5), "found invalid refresh hint (-5s)");
    assert_eq!(fault(|all| all.keys.clear()), "found no keys");
    assert_eq!(
        fault(|all| all.data_timestamp = None),
        "invalid data timestamp: proto: invalid nil Timestamp"
    );
    for (seconds, nanos, expected) in [
        (-62_135_596_801, 0, "before 0001-01-01"),
        (253_402_300_800, 0, "after 9999-12-31"),
        (0, 1_000_000_000, "has out-of-range nanos"),
        (0, -1, "has out-of-range nanos"),
    ] {
        let error = check_timestamp(Some(DataTimestamp { seconds, nanos })).unwrap_err();
        assert_eq!(error, format!("proto: timestamp (seconds:{seconds} nanos:{nanos}) {expected}"));
    }
    assert_eq!(fault(|all| all.keys[1].key_id.clear()), "found invalid public key id \"\"");
    assert!(
        fault(|all| all.keys[1].key_id = "k".repeat(1_025)).starts_with("found invalid public key id \"kkk")
    );
    assert_eq!(fault(|all| all.keys[1].key.clear()), "found empty public key");
    assert!(fault(|all| all.keys[1].key.truncate(20)).starts_with("while parsing external public keys: "));
    assert_eq!(fault(|all| all.keys = vec![key("a", false); 129]), "found more than 128 keys");
    assert_eq!(fault(|all| all.refresh_hint_seconds = i64::MAX), "", "it is shortened");
}

#[test]
fn key_of_unsupported_type_verifies_nothing_beside_others() {
    let unfit = Key { key: public_key(Nid::SECP256K1), ..key("unfit", false) };
    let fetch = Fetch::new(response(vec![unfit, key("fit", false)])).unwrap();
    let ids: Vec<_> = fetch.keys.iter().map(|(key, _)| key.id.as_str()).collect();
    assert_eq!(ids, ["fit"]);
}

#[test]
fn same_keys_stay_as_they_are() {
    let clock = Clock::manual(Timestamp(1_000_000));
    let discovery = Discovery::new("https://us", None, "x").unwrap();
    let messages = vec![key("a", false), key("b", true)];
    let make = |keys: &[Key], previous: Option<&FetchedKeys>| {
        let fetch = Fetch::new(response(keys.to_vec())).unwrap();
        FetchedKeys::new(fetch, previous, Some(&discovery), clock.moment()).unwrap()
    };
    let first = make(&messages, None);
    let published = &first.metadata.as_ref().unwrap().keys;
    assert!(published.contains("\"a\"") && !published.contains("\"b\""), "{published}");
    let same = make(&messages, Some(&first));
    assert!(Arc::ptr_eq(&first.keys, &same.keys));
    let mut changed = messages.clone();
    changed[1].exclude_from_oidc_discovery = false;
    let next = make(&changed, Some(&first));
    assert!(!Arc::ptr_eq(&first.keys, &next.keys));
    assert!(next.metadata.unwrap().keys.contains("\"b\""));
    let rekeyed = make(&[key("a", false), messages[1].clone()], Some(&first));
    assert!(!Arc::ptr_eq(&first.keys, &rekeyed.keys), "the same id, another key");
}

#[test]
fn key_id_of_the_signer_selects_the_key() {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let signing = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let token = SigningKey::new(signing.clone()).unwrap().unwrap().sign(&serde_json::json!({})).unwrap();
    let token = Token::parse(&token).unwrap();
    let message = |id: &str| Key { key: signing.public_key_to_der().unwrap(), ..key(id, false) };
    let keys = |id: &str| {
        let clock = Clock::manual(Timestamp(1_000_000));
        let metrics = Metrics::new(clock.now()).unwrap().external_signer;
        let fetch = Fetch::new(response(vec![message(id)])).unwrap();
        ExternalKeys::new(fetch, None, metrics, clock).unwrap().current()
    };
    assert!(keys(&token.key_id).verify(&token).is_ok());
    assert!(!keys("other").has_candidate(&token));
}
