//! Rounds that lose to others who write quotas.

use futures::FutureExt as _;
use pilothouse_actors::directory::{Options, Stores as Storage, start};
use pilothouse_actors::engine::faulty::{Faults, Faulty};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::store::write_turns::{BaseState, TurnMode};
use pilothouse_apimachinery::testing::object;
use pilothouse_types::object::Pairs;

use super::*;

const NAMESPACE: &str = "n";

/// A charger over real stores with one quota, and somebody else who writes it.
struct Scene {
    ledger: QuotaCharger,
    other: Stores,
    faults: Faults,
    _storage: Storage,
}

fn key() -> Key {
    Key::namespaced(NAMESPACE, "q")
}

fn of() -> TypeName {
    TypeName::new(RESOURCE_QUOTAS)
}

impl Scene {
    async fn new() -> Scene {
        let faults = Faults::default();
        let engine = Faulty::new(Box::new(Memory::new()), faults.clone());
        let storage = start(Box::new(engine), Options::default()).unwrap();
        let ledger = QuotaCharger {
            stores: Stores::new(storage.directory.clone()),
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
        let other = Stores::new(storage.directory.clone());
        let scene = Scene { ledger, other, faults, _storage: storage };
        scene.other.create(&of(), scene.draft("5"), &Permit::none()).await.unwrap();
        // Both have found the store: from here on what one of them asks leaves at once.
        scene.ledger.stores.get(&of(), key(), &Permit::none()).await.unwrap();
        scene
    }

    /// The quota, unused, allowing so many pods.
    fn draft(&self, hard: &str) -> Draft {
        let value = object(&format!(
            r#"{{"kind":"ResourceQuota","apiVersion":"v1","metadata":{{"name":"q","namespace":"n"}},
                "spec":{{"hard":{{"pods":"{hard}"}}}},"status":{{"hard":{{"pods":"{hard}"}},"used":{{"pods":"0"}}}}}}"#
        ));
        let registry = &self.ledger.registry;
        let encoded = codec::encode_draft(registry, registry.kind("", "v1", KIND).unwrap(), &value);
        encoded.into_draft(key(), Pairs::default(), Pairs::default())
    }

    async fn stored(&self) -> (Arc<Object>, Value) {
        let object = self.other.get(&of(), key(), &Permit::none()).await.unwrap();
        let ty = self.ledger.registry.kind("", "v1", KIND).unwrap();
        let value = codec::decode_stored(&object.bytes, ty, &self.ledger.registry).unwrap();
        (object, value)
    }

    async fn turn(&self) -> BaseState {
        self.other.basis(&of(), key(), TurnMode::Always, &Permit::none()).await.unwrap()
    }
}

/// A pod that waits for its charge, and where it hears.
fn charge() -> (Charge, oneshot::Receiver<std::result::Result<(), Failure>>) {
    let (answer, heard) = oneshot::channel();
    let (new, old) = (object(r#"{"metadata":{"name":"p"},"spec":{}}"#), Value::Null);
    let of = GroupResource { group: "", resource: "pods" };
    let request = Request { of, subresource: "", change: Change::Create, new: &new, old: &old, now: 0 };
    (Charge::new(&request, Permit::none(), answer), heard)
}

#[actix_rt::test]
async fn a_round_that_lost_charges_what_the_winner_left() {
    let scene = Scene::new().await;
    let before = scene.stored().await.0.revision;
    // A write that the store has taken in and nobody sees yet: whoever reads now is too late.
    scene.faults.hold();
    let (commits, of, permit) = (scene.faults.commits().len(), of(), Permit::none());
    let mut winner = Box::pin(scene.other.replace(&of, scene.draft("7"), before, &permit));
    assert!(winner.as_mut().now_or_never().is_none());
    scene.faults.wait_for_commits(commits + 1);
    let (charge, heard) = charge();
    let release = async {
        // Asked behind the round: once it is answered the round has read.
        scene.other.get(&of, key(), &permit).await.unwrap();
        scene.faults.release();
    };
    let ((), (), winner) = futures::join!(scene.ledger.round(NAMESPACE, vec![charge]), release, winner);
    assert!(heard.await.unwrap().is_ok());
    let (object, value) = scene.stored().await;
    assert_eq!(
        value.at(&["spec", "hard", "pods"]).and_then(Value::as_str),
        Some("7"),
        "the winner's write stays"
    );
    assert_eq!(
        value.at(&["status", "used", "pods"]).and_then(Value::as_str),
        Some("1"),
        "and is charged once"
    );
    assert_eq!(object.revision, winner.unwrap().revision.next());
}

#[actix_rt::test]
async fn what_others_were_quicker_to_write_is_read_in_a_turn_that_lasts_until_it_is_charged() {
    let scene = Scene::new().await;
    let late = BTreeSet::from(["q".to_owned(), "gone".to_owned()]);
    let (pages, mut quotas) = scene.ledger.read(NAMESPACE, Some(&late)).await.unwrap();
    let mut pages: Vec<QuotaState> = pages;
    assert_eq!(pages.len(), 1, "one that is gone limits nothing");
    let elsewhere = Key::namespaced(NAMESPACE, "other");
    let free = scene.other.basis(&of(), elsewhere, TurnMode::Always, &Permit::none()).await;
    assert!(free.unwrap().turn.is_some(), "nobody has a turn at another one");
    // Nobody works on the round meanwhile, so its turn does not end, and others are told to try without.
    assert!(scene.turn().await.turn.is_none(), "the round has the turn");
    let (charge, _heard) = charge();
    let open = scene.ledger.check(vec![charge], &mut pages, &mut quotas, &[]);
    assert_eq!(open.len(), 1);
    assert!(scene.ledger.store(pages, &quotas).await.unwrap().is_empty());
    let next = scene.turn().await;
    assert!(next.turn.is_some(), "it is over once the charge is taken in");
    assert_eq!(next.object.unwrap().revision, scene.stored().await.0.revision);
    drop(next.turn);
    // At first nobody knows that there are others: no turn is taken.
    let (pages, _) = scene.ledger.read(NAMESPACE, None).await.unwrap();
    assert!(pages.iter().all(|page| page.turn.is_none()));
}
