//! Rounds that run into conflicts with other writers of quotas.

use futures::FutureExt as _;
use pilothouse_actors::directory::{Options, Stores as Storage, start};
use pilothouse_actors::engine::faulty::{Faults, Faulty};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::store::write_turns::{BaseState, TurnMode};
use pilothouse_apimachinery::testing::object;
use pilothouse_types::object::Pairs;

use super::*;

const NAMESPACE: &str = "n";

/// A charger over real stores with one quota, and another writer of it.
struct TestBed {
    charger: QuotaCharger,
    other: Stores,
    faults: Faults,
    _storage: Storage,
}

fn key() -> Key {
    Key::namespaced(NAMESPACE, "q")
}

fn store() -> TypeName {
    TypeName::new(RESOURCE_QUOTAS)
}

impl TestBed {
    async fn new() -> TestBed {
        let faults = Faults::default();
        let engine = Faulty::new(Box::new(Memory::new()), faults.clone());
        let storage = start(Box::new(engine), Options::default()).unwrap();
        let charger = QuotaCharger {
            stores: Stores::new(&storage),
            registry: Arc::new(Registry::builtin().unwrap()),
            clock: Clock::system(),
            limited: Vec::new(),
            loopback: None,
            features: Features {
                resized_pods: true,
                pod_resources: true,
                failed_expansion: true,
                attributes_classes: true,
                device_claims: true,
            },
        };
        let other = Stores::new(&storage);
        let bed = TestBed { charger, other, faults, _storage: storage };
        bed.other.create(&store(), bed.draft("5"), &Permit::none()).await.unwrap();
        // Both have cached the address of the store: from here on they send commands at once.
        bed.charger.stores.get(&store(), key(), &Permit::none()).await.unwrap();
        bed
    }

    /// The quota, unused, allowing so many pods.
    fn draft(&self, hard: &str) -> Draft {
        let value = object(&format!(
            r#"{{"kind":"ResourceQuota","apiVersion":"v1","metadata":{{"name":"q","namespace":"n"}},
                "spec":{{"hard":{{"pods":"{hard}"}}}},"status":{{"hard":{{"pods":"{hard}"}},"used":{{"pods":"0"}}}}}}"#
        ));
        let registry = &self.charger.registry;
        let encoded = codec::encode_draft(registry, registry.kind("", "v1", KIND).unwrap(), &value);
        encoded.into_draft(key(), Pairs::default(), Pairs::default())
    }

    async fn stored(&self) -> (Arc<Object>, Value) {
        let object = self.other.get(&store(), key(), &Permit::none()).await.unwrap();
        let ty = self.charger.registry.kind("", "v1", KIND).unwrap();
        let value = codec::decode_stored(&object.bytes, ty, &self.charger.registry).unwrap();
        (object, value)
    }

    async fn turn(&self) -> BaseState {
        self.other.base_state(&store(), key(), TurnMode::Always, &Permit::none()).await.unwrap()
    }
}

/// A pod that waits for its charge, and the receiver of the outcome.
fn charge() -> (Charge, oneshot::Receiver<std::result::Result<(), Failure>>) {
    let (sender, outcome) = oneshot::channel();
    let (new, old) = (object(r#"{"metadata":{"name":"p"},"spec":{}}"#), Value::Null);
    let pods = GroupResource { group: "", resource: "pods" };
    let request =
        Request { resource: pods, subresource: "", change: Change::Create, new: &new, old: &old, now: 0 };
    (Charge::new(&request, Permit::none(), sender), outcome)
}

#[actix_rt::test]
async fn quota_round_with_conflict_charges_current_state() {
    let bed = TestBed::new().await;
    let before = bed.stored().await.0.revision;
    // A write that the store has accepted but that is not visible yet: a charge that reads now runs into a conflict.
    bed.faults.hold();
    let (commits, store_name, permit) = (bed.faults.commits().len(), store(), Permit::none());
    let mut other_write = Box::pin(bed.other.replace(&store_name, bed.draft("7"), before, &permit));
    assert!(other_write.as_mut().now_or_never().is_none());
    bed.faults.wait_for_commits(commits + 1);
    let (charge, outcome) = charge();
    let release = async {
        // Sent after the read of the round: once it returns, the round has read.
        bed.other.get(&store_name, key(), &permit).await.unwrap();
        bed.faults.release();
    };
    let ((), (), other_write) =
        futures::join!(bed.charger.charge_all(NAMESPACE, vec![charge]), release, other_write);
    assert!(outcome.await.unwrap().is_ok());
    let (object, value) = bed.stored().await;
    assert_eq!(
        value.get_path(&["spec", "hard", "pods"]).and_then(Value::as_str),
        Some("7"),
        "the other write stays"
    );
    assert_eq!(
        value.get_path(&["status", "used", "pods"]).and_then(Value::as_str),
        Some("1"),
        "it is charged once"
    );
    assert_eq!(object.revision, other_write.unwrap().revision.next());
}

#[actix_rt::test]
async fn conflicted_quota_is_read_with_turn_until_charged() {
    let bed = TestBed::new().await;
    let conflicted = BTreeSet::from(["q".to_owned(), "gone".to_owned()]);
    let (states, mut quotas) = bed.charger.read(NAMESPACE, Some(&conflicted)).await.unwrap();
    let mut states: Vec<QuotaState> = states;
    assert_eq!(states.len(), 1, "a deleted quota limits nothing");
    let other_key = Key::namespaced(NAMESPACE, "other");
    let free = bed.other.base_state(&store(), other_key, TurnMode::Always, &Permit::none()).await;
    assert!(free.unwrap().turn.is_some(), "the turn of another quota is free");
    // The round does not go on, so its turn does not end, and other writers get none.
    assert!(bed.turn().await.turn.is_none(), "the round has the turn");
    let (charge, _outcome) = charge();
    let pending = bed.charger.check(vec![charge], &mut states, &mut quotas, &[]);
    assert_eq!(pending.len(), 1);
    assert!(bed.charger.store(states, &quotas).await.unwrap().is_empty());
    let base = bed.turn().await;
    assert!(base.turn.is_some(), "it ends once the charge is accepted");
    assert_eq!(base.object.unwrap().revision, bed.stored().await.0.revision);
    drop(base.turn);
    // The first read takes no turn.
    let (states, _) = bed.charger.read(NAMESPACE, None).await.unwrap();
    assert!(states.iter().all(|state| state.turn.is_none()));
}
