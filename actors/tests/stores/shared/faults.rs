//! Random writes on several servers, while they are cut off, lose answers and miss changes that are compacted.
//!
//! `PILOTHOUSE_LONG=1` runs ten thousand histories; `PILOTHOUSE_SEED=n` begins with that one.

#![allow(clippy::print_stdout, reason = "the seed belongs to the report of a failure")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pilothouse_actors::directory::Stop;

use super::*;
use crate::common::rendered_object;

const SERVERS: usize = 3;
const WRITERS: u64 = 6;
const WRITES: usize = 60;
const KEYS: u64 = 5;
const HISTORIES: u64 = 8;
const HISTORIES_LONG: u64 = 10_000;

/// The answers that clients got.
#[derive(Default)]
struct Answers {
    /// The revision of each write that was acknowledged: its key, and its body unless it was a removal.
    acknowledged: BTreeMap<u64, (String, Option<String>)>,
    /// The bodies of writes that were refused.
    refused: BTreeSet<String>,
    /// The newest acknowledged revision of each key.
    newest: BTreeMap<String, u64>,
}

/// A small generator of numbers that are different in each run: what is checked holds for all.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_invented_under_faults() {
    let setting = |name| std::env::var(name).unwrap_or_default();
    let histories = if setting("PILOTHOUSE_LONG") == "1" { HISTORIES_LONG } else { HISTORIES };
    let first = setting("PILOTHOUSE_SEED").parse().unwrap_or(1);
    for seed in first..first + histories {
        println!("seed {seed}");
        // The tasks of its servers end with the system.
        actix_rt::System::new().block_on(make_history(seed));
    }
}

async fn make_history(seed: u64) {
    let log = MemoryLog::new(decode);
    let servers = Rc::new(servers::<SERVERS>(&log).await);
    let answers = Rc::new(RefCell::new(Answers::default()));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let random = Random(seed * 1_000 + writer + 1);
            actix_rt::spawn(write(Rc::clone(&servers), Rc::clone(&answers), writer, random))
        })
        .collect();
    let disturbing = actix_rt::spawn(disturb(log.clone(), Rc::clone(&servers), Random(seed * 77)));
    for writer in writers {
        writer.await.unwrap();
    }
    disturbing.abort();
    let _cancelled = disturbing.await;
    for server in &*servers {
        server.member.set_cut_off(false);
        server.member.lose_answers(0);
    }
    let answers = answers.take();
    check(&log, &servers, &answers).await;
    for server in &*servers {
        server.stores.directory.send(Stop).await.unwrap().unwrap();
    }
}

/// Reads, then creates, replaces or removes, and remembers the answer.
async fn write(
    servers: Rc<[Server; SERVERS]>,
    answers: Rc<RefCell<Answers>>,
    writer: u64,
    mut random: Random,
) {
    for count in 0..WRITES {
        let server = &servers[usize::try_from(random.below(SERVERS as u64)).unwrap()];
        let key = format!("k{}", random.below(KEYS));
        let known = answers.borrow().newest.get(&key).copied().unwrap_or(0);
        let read = server.get(&key).await;
        if let Ok(object) = &read {
            assert!(
                object.revision.0 >= known,
                "{key} was acknowledged at {known}, and read at {}",
                object.revision
            );
        }
        let body = format!("{writer}-{count}");
        let (result, body) = match read {
            Ok(object) if random.below(3) == 0 => (server.remove(&key, object.revision).await, None),
            Ok(object) => (server.replace(&key, &body, object.revision).await, Some(body)),
            Err(StoreError::NotFound) => (server.create(&key, &body).await, Some(body)),
            Err(StoreError::Unreachable) => {
                tokio::time::sleep(Duration::from_micros(300)).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let mut answers = answers.borrow_mut();
        match result {
            Ok(object) => {
                let newest = answers.newest.entry(key.clone()).or_default();
                *newest = object.revision.0.max(*newest);
                if let Some(body) = &body {
                    assert_eq!(object_text(&object), rendered_object(body, object.revision.0));
                }
                let twice = answers.acknowledged.insert(object.revision.0, (key, body));
                assert_eq!(twice, None, "one revision for two writes");
            }
            Err(StoreError::UnknownOutcome) => {}
            Err(_) => answers.refused.extend(body),
        }
    }
}

async fn disturb(log: MemoryLog, servers: Rc<[Server; SERVERS]>, mut random: Random) {
    loop {
        let server = &servers[usize::try_from(random.below(SERVERS as u64)).unwrap()];
        match random.below(4) {
            0 => server.member.lose_answers(usize::try_from(random.below(4)).unwrap()),
            1 => server.member.set_cut_off(true),
            2 => servers.iter().for_each(|server| server.member.set_cut_off(false)),
            _ => log.compact(),
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

async fn check(log: &MemoryLog, servers: &[Server; SERVERS], answers: &Answers) {
    let history = log.history();
    for (revision, (key, body)) in &answers.acknowledged {
        let change = history.iter().find(|change| change.revision.0 == *revision);
        let change = change.unwrap_or_else(|| panic!("the write of {key} at {revision} is lost"));
        assert_eq!(change.key.as_str(), key);
        assert_eq!(change.value.as_ref().map(|value| value.to_vec()), body.clone().map(String::into_bytes));
    }
    let written: BTreeSet<String> = history
        .iter()
        .filter_map(|change| Some(String::from_utf8(change.value.as_ref()?.to_vec()).unwrap()))
        .collect();
    assert_eq!(answers.refused.intersection(&written).collect::<Vec<_>>(), [""; 0], "refused, and written");
    let expected: Vec<(String, u64, String)> = log
        .entries()
        .into_iter()
        .map(|entry| {
            let body = String::from_utf8(entry.value.to_vec()).unwrap();
            (entry.key.as_str().to_owned(), entry.revision.0, rendered_object(&body, entry.revision.0))
        })
        .collect();
    for server in servers {
        assert_eq!(server.objects().await, expected);
        let events = server.events().await;
        assert!(events.is_sorted_by_key(|event| event.revision()));
        let mut state = BTreeMap::new();
        for event in &events {
            let key = event.object.key.as_str().to_owned();
            let is_known = state.contains_key(&key);
            match event.change {
                Change::Created => assert!(!is_known, "{key} was created twice"),
                Change::Replaced | Change::Removed => assert!(is_known, "{key} was not there"),
            }
            match event.change {
                Change::Removed => state.remove(&key),
                Change::Created | Change::Replaced => state.insert(key, event.revision().0),
            };
        }
        let expected: BTreeMap<String, u64> =
            expected.iter().map(|(key, revision, _)| (key.clone(), *revision)).collect();
        assert_eq!(state, expected, "the events lead to what is there");
    }
}
