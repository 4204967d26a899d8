//! What clients know about the objects that they write, from the answers alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pilothouse_types::lock::SharedLock;
use serde_json::{Value, json};

use crate::support::Client;
use crate::support::client::{Failure, JSON};
use crate::support::compare::{revision, text};
use crate::support::random::Random;

/// A resource that is written.
pub(super) struct Resource {
    pub(super) collection: &'static str,
    /// As `pilothouse inspect` calls it.
    pub(super) name: &'static str,
    api_version: &'static str,
    kind: &'static str,
    /// Whether an update must name the version that it replaces.
    is_versioned: bool,
}

pub(super) const RESOURCES: [Resource; 3] = [
    Resource {
        collection: "/api/v1/namespaces/default/configmaps",
        name: "configmaps",
        api_version: "v1",
        kind: "ConfigMap",
        is_versioned: false,
    },
    Resource {
        collection: "/api/v1/namespaces/default/secrets",
        name: "secrets",
        api_version: "v1",
        kind: "Secret",
        is_versioned: false,
    },
    Resource {
        collection: "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        name: "leases.coordination.k8s.io",
        api_version: "coordination.k8s.io/v1",
        kind: "Lease",
        is_versioned: true,
    },
];

/// An object: its resource, as a position in [`RESOURCES`], and its name.
pub(super) type Place = (usize, String);

/// The unique payload of a write, and the version that it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    payload: String,
    pub(super) revision: u64,
}

impl Stored {
    pub(super) fn read(object: &Value) -> Stored {
        let payload = text(object, "/metadata/annotations/payload").to_owned();
        Stored { payload, revision: revision(object) }
    }

    pub(super) fn has_payload(&self, payload: &str) -> bool {
        self.payload == payload
    }
}

pub(super) type Objects = BTreeMap<Place, Stored>;

/// All objects of a list, and the version of the list.
pub(super) fn list(client: &mut Client, resource: usize) -> (BTreeMap<String, Stored>, u64) {
    let list = client.get(RESOURCES[resource].collection).ok();
    let items = list["items"].as_array().expect("items");
    let objects = items.iter().map(|item| (text(item, "/metadata/name").to_owned(), Stored::read(item)));
    (objects.collect(), revision(&list))
}

fn object((resource, name): &Place, payload: &str, precondition: Option<u64>) -> Value {
    let Resource { api_version, kind, .. } = RESOURCES[*resource];
    let mut object = json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "annotations": {"payload": payload}}});
    if let Some(revision) = precondition {
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
    }
    object
}

/// Creates an object that no writer owns.
pub(super) fn create_marker(client: &mut Client, resource: usize, name: &str) {
    let marker = object(&(resource, name.to_owned()), "", None);
    client.post(RESOURCES[resource].collection, &marker).ok();
}

const KEYS: u64 = 4;
/// One payload in so many is large.
const LARGE_ONE_IN: u64 = 12;
const LARGE_BYTES: u64 = 200_000;
const SMALL_BYTES: u64 = 600;

/// How all writers are doing.
#[derive(Default)]
pub(super) struct Load {
    /// Whether they shall stop.
    pub(super) stop: AtomicBool,
    /// Held by whoever wants them to pause.
    pub(super) pause: SharedLock<()>,
    /// Answers so far.
    pub(super) answers: AtomicUsize,
    /// Answers that the disk is full.
    pub(super) refusals: AtomicUsize,
}

/// A client that alone writes its objects.
pub(super) struct Writer {
    number: u64,
    random: Random,
    count: u64,
    pub(super) objects: Objects,
    /// The write that was sent and not answered: the payload, `None` for a deletion.
    unanswered: Option<(Place, Option<String>)>,
    /// The objects at the last call of `begin_log`, and all changes since.
    base: Objects,
    log: Vec<(Place, Option<Stored>)>,
    /// The length of the log, for other threads.
    pub(super) logged: Arc<AtomicUsize>,
}

impl Writer {
    pub(super) fn new(number: u64, seed: u64) -> Writer {
        Writer {
            number,
            random: Random::new(seed ^ (number << 32)),
            count: 0,
            objects: Objects::new(),
            unanswered: None,
            base: Objects::new(),
            log: Vec::new(),
            logged: Arc::default(),
        }
    }

    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let number = self.number;
        (0..RESOURCES.len())
            .flat_map(move |resource| (0..KEYS).map(move |key| (resource, format!("writer-{number}-{key}"))))
    }

    /// Writes until it shall stop, or the server is gone.
    pub(super) fn run(&mut self, mut client: Client, load: &Load) {
        let mut is_served = true;
        while is_served && !load.stop.load(Ordering::Relaxed) {
            is_served = self.write(&mut client, load);
        }
    }

    /// One write; `false` if the server is gone.
    fn write(&mut self, client: &mut Client, load: &Load) -> bool {
        let _pause = load.pause.read();
        self.count += 1;
        let resource = self.random.below(RESOURCES.len() as u64) as usize;
        let place = (resource, format!("writer-{}-{}", self.number, self.random.below(KEYS)));
        let collection = RESOURCES[resource].collection;
        let path = format!("{collection}/{}", place.1);
        let (choice, payload) = (self.random.below(10), self.payload());
        let (method, target, payload, precondition) = match self.objects.get(&place) {
            None => ("POST", collection, Some(payload), None),
            Some(_) if choice < 3 => ("DELETE", path.as_str(), None, None),
            Some(stored) => {
                let names_version = choice < 7 || RESOURCES[resource].is_versioned;
                ("PUT", path.as_str(), Some(payload), names_version.then_some(stored.revision))
            }
        };
        let body = payload.as_ref().map(|payload| object(&place, payload, precondition).to_string());
        let response = match client.attempt(method, target, &JSON, body.unwrap_or_default().as_bytes()) {
            Ok(response) => response,
            Err(Failure::Unsent(_)) => return false,
            Err(Failure::Unanswered(_)) => {
                self.unanswered = Some((place, payload));
                return false;
            }
        };
        load.answers.fetch_add(1, Ordering::Relaxed);
        match (response.status, payload) {
            (507, Some(_)) => {
                load.refusals.fetch_add(1, Ordering::Relaxed);
            }
            (_, None) => {
                response.ok();
                self.record(place, None);
            }
            (_, Some(payload)) => {
                let stored = Stored::read(&response.ok());
                assert_eq!(stored.payload, payload, "{method} {target} answers what was written");
                let is_later = self.objects.get(&place).is_none_or(|old| old.revision < stored.revision);
                assert!(is_later, "{method} {target}: {} is not later", stored.revision);
                self.record(place, Some(stored));
            }
        }
        true
    }

    fn payload(&mut self) -> String {
        let most = if self.random.below(LARGE_ONE_IN) == 0 { LARGE_BYTES } else { SMALL_BYTES };
        let padding = "x".repeat(self.random.below(most) as usize);
        format!("{}-{}-{padding}", self.number, self.count)
    }

    fn record(&mut self, place: Place, stored: Option<Stored>) {
        apply(&mut self.objects, place.clone(), stored.clone());
        self.log.push((place, stored));
        self.logged.store(self.log.len(), Ordering::SeqCst);
    }

    /// Compares with what the server has, and learns what became of the unanswered write. What is compared is removed from `actual`.
    pub(super) fn resolve(&mut self, actual: &mut Objects) {
        let unanswered = self.unanswered.take();
        for place in self.places() {
            let (known, actual) = (self.objects.get(&place).cloned(), actual.remove(&place));
            if known == actual {
                continue;
            }
            let is_of_unanswered = unanswered.as_ref().is_some_and(|(unanswered, payload)| {
                *unanswered == place && *payload == actual.as_ref().map(|stored| stored.payload.clone())
            });
            assert!(
                is_of_unanswered,
                "{place:?}: acknowledged {known:?}, in doubt {unanswered:?}, but there is {actual:?}"
            );
            self.record(place, actual);
        }
    }

    /// From now on, all changes are remembered.
    pub(super) fn begin_log(&mut self) {
        self.base.clone_from(&self.objects);
        self.log.clear();
        self.logged.store(0, Ordering::SeqCst);
    }

    /// Goes back to a state in the log: the one after `least` to `most` changes that the server has. Nobody writes any more.
    pub(super) fn go_back(&mut self, least: usize, most: usize, actual: &mut Objects) {
        let mine: Objects =
            self.places().filter_map(|place| actual.remove(&place).map(|stored| (place, stored))).collect();
        let mut objects = self.base.clone();
        let mut log = self.log.drain(..);
        for (place, stored) in log.by_ref().take(least) {
            apply(&mut objects, place, stored);
        }
        for (place, stored) in log.take(most - least) {
            if objects == mine {
                break;
            }
            apply(&mut objects, place, stored);
        }
        assert_eq!(objects, mine, "no state of writer {} while the backup was made", self.number);
        self.objects = objects;
    }
}

fn apply(objects: &mut Objects, place: Place, stored: Option<Stored>) {
    match stored {
        Some(stored) => objects.insert(place, stored),
        None => objects.remove(&place),
    };
}
