//! Everything that clients were told, held against a model: writers that keep every answer, watchers that keep every
//! event, and a server that is killed, stopped and started again under their load.
//!
//! The versions of a type rise by one with every write, so a watcher of everything must be told every number once and
//! in order: that is the history. Every acknowledged write must be in it as it was answered, nothing may be in it that
//! nobody wrote, and what each other watcher was told must be what its selector sees of that history, however often it
//! was cut off, did not read, or was sent on with a bookmark.
//!
//! `PILOTHOUSE_LONG=1` goes on for longer; `PILOTHOUSE_SEED=n` repeats a choice of writes and moments.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the seed belongs to the report of a failure")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use support::Server;
use support::compare::revision;
use support::history::{MAPS, PINNED, State, Watcher, Writer, Written, check, watchers};
use support::random::Random;
use support::wait::is_long;

const WRITERS: u64 = 4;
const BURSTS: u64 = 12;
const BURSTS_LONG: u64 = 600;

/// Lets all of them work for a while, then ends the server one way or the other.
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
                    let (name, wanted) = writer.choose();
                    // A server that is about to stop refuses, and says so.
                    if writer.write(&mut client, &name, wanted) != Written::Done {
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
fn every_watcher_is_told_exactly_what_was_written() {
    let seed = Random::seed();
    let long = is_long();
    let bursts = if long { BURSTS_LONG } else { BURSTS };
    println!("seed {seed}: repeat with PILOTHOUSE_SEED={seed}");
    let directory = support::server::directory();
    let data = directory.path().join("data");
    let mut random = Random::new(seed);
    let mut server = Server::on(&data, &[]);
    let start = revision(&server.admin().get(MAPS).ok());
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let mut watchers = watchers(start);
    for _ in 0..bursts {
        let (pause, kill) = (Duration::from_millis(100 + random.below(300)), random.below(3) > 0);
        burst(server, &mut writers, &mut watchers, pause, kill);
        server = Server::on(&data, &[]);
        let mut client = server.admin();
        writers.iter_mut().for_each(|writer| writer.settle(&mut client));
    }
    // The last word is one that every selector sees.
    let mut client = server.admin();
    assert_eq!(writers[0].write(&mut client, PINNED, Some(State::red("the end"))), Written::Done);
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
