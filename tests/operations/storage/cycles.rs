//! Load, a backup, more load, and then a kill, a full disk or a restoration, again and again on one small disk, with clients that keep
//! caches.
//!
//! The writers know what they were told. After each cycle the server has exactly what it acknowledged, or exactly what the backup had
//! if that was restored; and each cache, which listed again only if it was told so by a 410, has exactly what the server has. Deletions
//! are never refused.
//!
//! `PILOTHOUSE_LONG=1` makes 200 cycles; `PILOTHOUSE_SEED=n` repeats a choice of writes and events.

#![allow(clippy::print_stdout, reason = "the seed belongs to the report of a failure")]

mod cache;
mod model;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use serde_json::Value;

use self::cache::{Cache, Ended};
use self::model::{Load, Objects, RESOURCES, Resource, Stored, Writer, list};
use super::small_disk::SmallDisk;
use super::{MAPS, map, pilothouse};
use crate::support::random::Random;
use crate::support::server::lasting_port;
use crate::support::wait::{TIMEOUT, long_tests_enabled, poll};
use crate::support::{Client, Server};

const DISK_BYTES: u64 = 64 << 20;
const WRITERS: u64 = 4;
const CYCLES: usize = 6;
const CYCLES_LONG: usize = 200;
/// The object whose event tells that a cache has seen everything before it.
const MARKER: &str = "marker";
/// Objects that fill the store.
const BALLAST: &str = "ballast";
const BALLAST_BYTES: usize = 900_000;

/// How a cycle ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Kill,
    FullDisk,
    Restoration,
}

/// A backup, and which changes of each writer it has: at least and at most.
struct Backup {
    file: PathBuf,
    changes: Vec<(usize, usize)>,
}

/// The writers and caches while they run.
struct Running {
    load: Arc<Load>,
    writers: Vec<JoinHandle<Writer>>,
    caches: Vec<JoinHandle<(Cache, Ended)>>,
    logged: Vec<Arc<std::sync::atomic::AtomicUsize>>,
}

struct Cycles {
    disk: SmallDisk,
    data: PathBuf,
    port: String,
    random: Random,
    cycle: usize,
    writers: Vec<Writer>,
    caches: Vec<Cache>,
    /// How often the disk was full for a writer.
    refusals: usize,
}

impl Cycles {
    fn start(&self) -> Server {
        // With another port it would have to write the kubeconfig, also when there is no space.
        Server::start_on_file(&self.data, &["--event-ttl=0", &self.port])
    }

    /// Lets writers and caches run.
    fn run(&mut self, server: &Server) -> Running {
        let load = Arc::new(Load::default());
        let logged = self.writers.iter().map(|writer| Arc::clone(&writer.logged)).collect();
        let writers = self.writers.drain(..).map(|mut writer| {
            let (client, load) = (server.admin(), Arc::clone(&load));
            writer.begin_log();
            thread::spawn(move || {
                writer.run(client, &load);
                writer
            })
        });
        let writers = writers.collect();
        let marker = self.cycle.to_string();
        let caches = self.caches.drain(..).map(|mut cache| {
            let (mut client, marker) = (server.admin(), marker.clone());
            thread::spawn(move || {
                let ended = cache.run(&mut client, is_marker(&marker));
                (cache, ended)
            })
        });
        Running { load, writers, caches: caches.collect(), logged }
    }

    /// One cycle. Returns the server that runs afterwards.
    fn cycle(&mut self, mut server: Server, event: Event) -> Server {
        let running = self.run(&server);
        running.wait_for_answers(20 + self.random.below(60) as usize);
        let backup = self.back_up(&server, &running);
        running.wait_for_answers(20 + self.random.below(60) as usize);
        let mut restored = None;
        match event {
            Event::Kill => {
                server.kill();
                self.stop_writers(&running.load, running.writers);
                server = self.start();
            }
            Event::FullDisk => {
                // Somebody who takes space while the server makes some gets that, too.
                let pause = running.load.pause.write();
                let foreign = self.disk.fill();
                drop(pause);
                let mut admin = server.admin();
                let mut ballast = Vec::new();
                // The server makes space while it is full, so it may have to be filled again before a writer notices.
                let is_refused = || {
                    create_until_full(&mut admin, &mut ballast);
                    (running.load.refusals.load(Ordering::Relaxed) > 0).then_some(())
                };
                poll(TIMEOUT, is_refused).expect("a writer that is told that the disk is full");
                // It must also start, and delete, while there is no space.
                if self.random.below(2) == 0 {
                    server.kill();
                    self.stop_writers(&running.load, running.writers);
                    server = self.start();
                    admin = server.admin();
                } else {
                    self.stop_writers(&running.load, running.writers);
                }
                for name in &ballast {
                    admin.delete(&format!("{MAPS}/{name}")).ok();
                }
                fs::remove_file(foreign).expect("the foreign file");
                let created = || (admin.post(MAPS, &map(BALLAST, "")).status == 201).then_some(());
                poll(TIMEOUT, created).expect("space becomes available again");
                admin.delete(&format!("{MAPS}/{BALLAST}")).ok();
            }
            Event::Restoration => {
                self.stop_writers(&running.load, running.writers);
                if self.random.below(2) == 0 {
                    server.kill();
                } else {
                    server.stop();
                }
                self.restore(&backup);
                server = self.start();
                restored = Some(&backup);
            }
        }
        self.compare_writers(&mut server.admin(), restored);
        self.compare_caches(&server, running.caches);
        fs::remove_file(&backup.file).expect("the backup");
        server
    }

    fn stop_writers(&mut self, load: &Load, writers: Vec<JoinHandle<Writer>>) {
        load.stop.store(true, Ordering::Relaxed);
        self.writers = writers.into_iter().map(|thread| thread.join().expect("a writer")).collect();
        self.refusals += load.refusals.load(Ordering::Relaxed);
    }

    /// Makes a backup of the running server, which is on another disk.
    fn back_up(&self, server: &Server, running: &Running) -> Backup {
        let count = || running.logged.iter().map(|logged| logged.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let before = count();
        let backup = server.admin().get("/backup");
        assert_eq!(backup.status, 200, "{}", backup.text());
        // One more may be in it that was answered later.
        let changes = before.into_iter().zip(count()).map(|(before, after)| (before, after + 1)).collect();
        let file = self.disk.beside("backup");
        fs::write(&file, &backup.body).expect("the backup");
        Backup { file, changes }
    }

    fn restore(&mut self, backup: &Backup) {
        let store = self.data.join("pilothouse.redb");
        let taken = fs::metadata(&store).expect("the store").blocks() * 512;
        let (file, data) = (backup.file.to_string_lossy(), self.data.to_string_lossy());
        let output = if taken < DISK_BYTES / 4 && self.random.below(2) == 0 {
            pilothouse(&["restore", &file, "--data-dir", &data, "--replace"])
        } else {
            // There is no space for two.
            fs::remove_file(store).expect("the store");
            pilothouse(&["restore", &file, "--data-dir", &data])
        };
        assert!(output.status.success(), "{output:?}");
        let entries = fs::read_dir(&self.data).expect("the data directory").flatten();
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".before-restore"))
        {
            fs::remove_file(entry.path()).expect("the store that was replaced");
        }
    }

    /// Compares what the server has with what the writers know, or with the backup that was restored.
    fn compare_writers(&mut self, client: &mut Client, restored: Option<&Backup>) {
        let mut actual = Objects::new();
        for (resource, Resource { name, .. }) in RESOURCES.iter().enumerate() {
            let (objects, _) = list(client, resource);
            if let Some(backup) = restored {
                let expected = inspect(backup, name);
                let objects = objects.iter().map(|(name, stored)| (name.clone(), stored.revision)).collect();
                assert_eq!(expected, objects, "the restored objects are those of the backup");
            }
            actual.extend(objects.into_iter().map(|(name, stored)| ((resource, name), stored)));
        }
        for (number, writer) in self.writers.iter_mut().enumerate() {
            match restored {
                Some(backup) => {
                    let (least, most) = backup.changes[number];
                    writer.go_back(least, most, &mut actual);
                }
                None => writer.resolve(&mut actual),
            }
        }
        actual.retain(|(_, name), _| name != MARKER);
        assert!(actual.is_empty(), "nobody wrote {actual:?}");
    }

    /// Lets the caches see everything, and compares them with what the server has.
    fn compare_caches(&mut self, server: &Server, caches: Vec<JoinHandle<(Cache, Ended)>>) {
        let mut admin = server.admin();
        let marker = self.cycle.to_string();
        for resource in &RESOURCES {
            let path = format!("{}/{MARKER}", resource.collection);
            let annotations = serde_json::json!({"metadata": {"annotations": {"payload": marker}}});
            admin.patch(&path, "merge", &annotations).ok();
        }
        for (resource, thread) in caches.into_iter().enumerate() {
            let (mut cache, ended) = thread.join().expect("a cache");
            if ended == Ended::Disconnected {
                let ended = cache.run(&mut admin, is_marker(&marker));
                assert_eq!(ended, Ended::Reached, "the watch ended");
            }
            assert_eq!(
                cache.objects,
                list(&mut admin, resource).0,
                "a cache of {}",
                RESOURCES[resource].name
            );
            self.caches.push(cache);
        }
    }
}

impl Running {
    /// Waits until the writers got so many more answers.
    fn wait_for_answers(&self, more: usize) {
        let answers = || self.load.answers.load(Ordering::Relaxed);
        let target = answers() + more;
        let is_over = || self.writers.iter().any(JoinHandle::is_finished);
        poll(TIMEOUT, || (answers() >= target || is_over()).then_some(())).expect("answers");
        assert!(!is_over(), "a writer failed");
    }
}

/// Whether a version of an object is the marker with this payload.
fn is_marker(payload: &str) -> impl Fn(&str, &Stored) -> bool + use<'_> {
    move |name, stored| name == MARKER && stored.has_payload(payload)
}

/// Creates large objects until the store is full, and adds their names.
fn create_until_full(client: &mut Client, names: &mut Vec<String>) {
    let payload = "x".repeat(BALLAST_BYTES);
    loop {
        let name = format!("{BALLAST}-{}", names.len());
        let response = client.post(MAPS, &map(&name, &payload));
        match response.status {
            201 => names.push(name),
            507 => return,
            other => panic!("{other}: {}", response.text()),
        }
        assert!(names.len() < 80, "the disk is never full");
    }
}

/// The objects of a resource in a backup: names and versions.
fn inspect(backup: &Backup, resource: &str) -> BTreeSet<(String, u64)> {
    let file = backup.file.to_string_lossy();
    let output = pilothouse(&["inspect", &file, "--objects", "--resource", resource, "--namespace=default"]);
    assert!(output.status.success(), "{output:?}");
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let objects = lines.map(|line| serde_json::from_slice::<Value>(line).expect("an object"));
    objects
        .map(|object| {
            let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
            (name, Stored::read(&object).revision)
        })
        .collect()
}

#[test]
fn nothing_is_lost_and_no_cache_is_wrong_after_kills_full_disks_and_restorations() {
    let seed = Random::seed();
    println!("seed {seed}: repeat with PILOTHOUSE_SEED={seed}");
    let disk = SmallDisk::mount(DISK_BYTES);
    let mut cycles = Cycles {
        data: disk.path().join("data"),
        disk,
        port: lasting_port(),
        random: Random::new(seed),
        cycle: 0,
        writers: (1..=WRITERS).map(|number| Writer::new(number, seed)).collect(),
        caches: Vec::new(),
        refusals: 0,
    };
    let mut server = cycles.start();
    let mut admin = server.admin();
    for resource in 0..RESOURCES.len() {
        model::create_marker(&mut admin, resource, MARKER);
        cycles.caches.push(Cache::new(resource, &mut admin));
    }
    let mut events = Vec::new();
    let count = if long_tests_enabled() { CYCLES_LONG } else { CYCLES };
    for cycle in 1..=count {
        if events.is_empty() {
            // Each of them before any comes again.
            let mut next = vec![Event::Kill, Event::FullDisk, Event::Restoration];
            while !next.is_empty() {
                events.push(next.remove(cycles.random.below(next.len() as u64) as usize));
            }
        }
        let event = events.pop().expect("an event");
        println!("cycle {cycle}: {event:?}");
        cycles.cycle = cycle;
        server = cycles.cycle(server, event);
    }
    server.assert_healthy();
    let sum = |count: fn(&Cache) -> u64| cycles.caches.iter().map(count).sum::<u64>();
    let (applied, expired) = (sum(|cache| cache.events), sum(|cache| cache.expired));
    println!("{count} cycles: {applied} events, {expired} lists after a 410, {} refusals", cycles.refusals);
    assert!(expired as usize >= count / 3, "each restoration expires what the caches continue from");
}
