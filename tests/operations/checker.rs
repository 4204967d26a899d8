//! The responses of writers and the events of watchers, compared with a model (`support/history.rs`) while the server is killed,
//! stopped and started again under their load.
//!
//! The events of a watcher must match the history however often its connection was cut, it did not read, or it resumed from a
//! bookmark.
//!
//! `PILOTHOUSE_LONG=1` runs more bursts; `PILOTHOUSE_SEED=n` repeats a choice of writes and moments.

#![allow(clippy::print_stdout, reason = "the seed belongs to the report of a failure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::Server;
use crate::support::compare::revision;
use crate::support::history::{MAPS, PINNED, State, Watcher, WriteOutcome, Writer, check, watchers};
use crate::support::random::Random;
use crate::support::wait::long_tests_enabled;

const WRITERS: u64 = 4;
const BURSTS: u64 = 12;
const BURSTS_LONG: u64 = 600;

/// Runs writers and watchers for a while, then kills or stops the server.
fn burst(server: Server, writers: &mut [Writer], watchers: &mut [Watcher], pause: Duration, kill: bool) {
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        for watcher in watchers {
            let client = server.admin();
            scope.spawn(move || watcher.run(&client, pause / 2, None));
        }
        for writer in writers {
            let (mut client, stop) = (server.admin(), Arc::clone(&stop));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let (name, desired) = writer.choose();
                    // A server that is about to stop refuses writes.
                    if writer.write(&mut client, &name, desired) != WriteOutcome::Done {
                        return;
                    }
                }
            });
        }
        thread::sleep(pause);
        if kill {
            server.kill();
        } else {
            server.stop();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn watchers_receive_exactly_the_acknowledged_writes_across_restarts() {
    let seed = Random::seed();
    let long = long_tests_enabled();
    let bursts = if long { BURSTS_LONG } else { BURSTS };
    println!("seed {seed}: repeat with PILOTHOUSE_SEED={seed}");
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let mut random = Random::new(seed);
    let mut server = Server::start_in(&data, &[]);
    let start = revision(&server.admin().get(MAPS).ok());
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let mut watchers = watchers(start);
    for _ in 0..bursts {
        let (pause, kill) = (Duration::from_millis(100 + random.below(300)), random.below(3) > 0);
        burst(server, &mut writers, &mut watchers, pause, kill);
        server = Server::start_in(&data, &[]);
        let mut client = server.admin();
        writers.iter_mut().for_each(|writer| writer.resolve_unanswered(&mut client));
    }
    // The last write is one that every selector matches.
    let mut client = server.admin();
    assert_eq!(writers[0].write(&mut client, PINNED, Some(State::red("the end"))), WriteOutcome::Done);
    let end = revision(&client.get(&format!("{MAPS}/{PINNED}")).ok());
    thread::scope(|scope| {
        for watcher in &mut watchers {
            let client = server.admin();
            scope.spawn(move || {
                while watcher.last < end {
                    watcher.run(&client, Duration::ZERO, Some(end));
                }
            });
        }
    });
    let events = check(&writers, &watchers, start, end);
    let bookmarks: usize = watchers.iter().map(|watcher| watcher.bookmarks).sum();
    println!("{bursts} bursts, {events} events, {bookmarks} bookmarks");
    assert!(events as u64 > bursts, "the writers hardly wrote");
    server.stop();
}
