//! Writers and watchers at two servers, over three members of etcd, while members, connections and servers fail.
//!
//! `PILOTHOUSE_LONG=1` runs more rounds; `PILOTHOUSE_SEED=n` repeats a choice of writes and faults.

#![allow(clippy::print_stdout, reason = "the seed belongs to the report of a failure")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pilothouse_etcd::testing::Proxy;
use tokio::runtime::Runtime;

use super::reference::Reference;
use super::*;
use crate::support::compare::revision;
use crate::support::history::{self, PINNED, State, Watcher, WriteOutcome, Writer, check_shared};
use crate::support::random::Random;
use crate::support::wait::long_tests_enabled;

const WRITERS: u64 = 4;
const ROUNDS: u64 = 7;
const ROUNDS_LONG: u64 = 200;
const SERVERS: [&str; 2] = ["one", "other"];

/// What fails.
#[derive(Clone, Copy, Debug)]
enum Fault {
    LeaderKilled,
    FollowerKilled,
    /// Longer than it takes to elect another leader.
    LeaderPaused,
    AllMembersStopped,
    ConnectionsCut,
    ServerKilled,
    ServerStopped,
}

const FAULTS: [Fault; 7] = [
    Fault::LeaderKilled,
    Fault::ConnectionsCut,
    Fault::ServerKilled,
    Fault::LeaderPaused,
    Fault::AllMembersStopped,
    Fault::FollowerKilled,
    Fault::ServerStopped,
];

/// The cluster, behind proxies, and its servers.
struct Site {
    replicas: Replicas,
    runtime: Runtime,
    proxies: Vec<Proxy>,
    servers: BTreeMap<&'static str, Server>,
    /// Where clients find the servers, which a restart does not change.
    ports: BTreeMap<&'static str, String>,
}

impl Site {
    fn start() -> Site {
        let replicas = Replicas::new(3);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let ports = replicas.etcd.members.iter().map(|member| member.port).collect::<Vec<_>>();
        let proxies = ports.into_iter().map(|port| runtime.block_on(Proxy::start(port))).collect();
        let mut site = Site { replicas, runtime, proxies, servers: BTreeMap::new(), ports: BTreeMap::new() };
        SERVERS.into_iter().for_each(|name| site.start_server(name));
        site
    }

    fn start_server(&mut self, name: &'static str) {
        let urls: Vec<String> = self.proxies.iter().map(Proxy::url).collect();
        let mut flags = vec![format!("--etcd-servers={}", urls.join(","))];
        flags.extend(self.ports.get(name).map(|port| format!("--secure-port={port}")));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start_in(&self.replicas.directory.path().join(name), &flags);
        self.ports.insert(name, server.address().port().to_string());
        self.servers.insert(name, server);
    }

    fn clients(&self) -> Vec<Client> {
        self.servers.values().map(Server::admin).collect()
    }

    fn leader(&self) -> usize {
        self.runtime.block_on(self.replicas.etcd.leader())
    }

    fn restart_member(&mut self, member: usize, pause: Duration) {
        self.replicas.etcd.members[member].kill();
        thread::sleep(pause);
        self.replicas.etcd.members[member].start();
    }

    /// Lets something fail, and comes back when it has been mended.
    fn fail(&mut self, fault: Fault, pause: Duration, server: &'static str) {
        match fault {
            Fault::LeaderKilled => self.restart_member(self.leader(), pause),
            Fault::FollowerKilled => self.restart_member((self.leader() + 1) % 3, pause),
            Fault::LeaderPaused => {
                let leader = self.leader();
                self.replicas.etcd.members[leader].pause();
                thread::sleep(pause + Duration::from_secs(2));
                self.replicas.etcd.members[leader].resume();
            }
            Fault::AllMembersStopped => {
                let members = &mut self.replicas.etcd.members;
                members.iter_mut().for_each(|member| member.kill());
                thread::sleep(pause);
                members.iter_mut().for_each(|member| member.start());
            }
            Fault::ConnectionsCut => {
                for proxy in &self.proxies {
                    proxy.cut();
                    thread::sleep(pause / 3);
                }
            }
            Fault::ServerKilled | Fault::ServerStopped => {
                let stopped = self.servers.remove(server).unwrap();
                match fault {
                    Fault::ServerKilled => stopped.kill(),
                    _ => stopped.stop(),
                };
                self.start_server(server);
            }
        }
    }
}

/// Writes at one server after the other until it is told to stop.
fn write(writer: &mut Writer, clients: &mut [Client], stop: &AtomicBool) {
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let index = turn % clients.len();
        let client = &mut clients[index];
        let (name, desired) = writer.choose();
        match writer.write(client, &name, desired) {
            WriteOutcome::Done => {}
            WriteOutcome::Busy => thread::sleep(Duration::from_millis(20)),
            WriteOutcome::Gone => {
                thread::sleep(Duration::from_millis(20));
                // By now another server may be the one that answers.
                let index = (turn + 1) % clients.len();
                writer.read_uncertain(&mut clients[index]);
            }
        }
    }
}

/// Writes what every watcher waits for. Nothing fails any more.
fn write_end(writer: &mut Writer, client: &mut Client, last: &str) {
    let mut settled = 0;
    poll(TIMEOUT, || {
        writer.read_uncertain(client);
        settled += 1;
        let state = State::red(&format!("settled {settled}"));
        (writer.write(client, PINNED, Some(state)) == WriteOutcome::Done).then_some(())
    })
    .expect("the server writes again");
    assert_eq!(writer.write(client, PINNED, Some(State::red(last))), WriteOutcome::Done);
}

/// Lets clients write at some servers and watch at others, in turn, while `fail` lets something fail once in every round. Checks that
/// all of them have seen one history.
fn check_one_history(
    writing: &[Client],
    watching: &[Client],
    (seed, rounds): (u64, u64),
    mut fail: impl FnMut(u64, &mut Random),
) {
    println!("seed {seed}: repeat with PILOTHOUSE_SEED={seed}");
    let mut random = Random::new(seed);
    let mut client = watching[0].new_connection();
    let start = revision(&client.get(MAPS).ok());
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let mut watchers: Vec<Watcher> = watching.iter().flat_map(|_| history::watchers(start)).collect();
    let new_connections = |clients: &[Client]| clients.iter().map(Client::new_connection).collect::<Vec<_>>();
    let stop = AtomicBool::new(false);
    let last = format!("the end of {seed}");
    thread::scope(|scope| {
        let followers: Vec<_> = watchers
            .iter_mut()
            .enumerate()
            .map(|(index, watcher)| {
                let mut clients = new_connections(watching);
                clients.rotate_left(index % watching.len());
                let last = &last;
                scope.spawn(move || watcher.follow(&clients, last))
            })
            .collect();
        thread::scope(|scope| {
            for writer in &mut writers {
                let (mut clients, stop) = (new_connections(writing), &stop);
                scope.spawn(move || write(writer, &mut clients, stop));
            }
            for round in 0..rounds {
                thread::sleep(Duration::from_millis(200 + random.below(300)));
                fail(round, &mut random);
            }
            thread::sleep(Duration::from_millis(500));
            stop.store(true, Ordering::Relaxed);
        });
        write_end(&mut writers[0], &mut client, &last);
        for follower in followers {
            follower.join().expect("a watcher");
        }
    });
    let events = check_shared(&writers, &watchers);
    println!("{rounds} faults, {events} events");
    assert!(events as u64 > rounds, "the writers hardly wrote");
}

/// How many rounds there are.
fn rounds() -> u64 {
    if long_tests_enabled() { ROUNDS_LONG } else { ROUNDS }
}

#[test]
fn clients_of_several_servers_see_one_history_while_etcd_and_servers_fail() {
    let mut site = Site::start();
    let clients = site.clients();
    check_one_history(&clients, &clients, (Random::seed(), rounds()), |round, random| {
        let fault = FAULTS[round as usize % FAULTS.len()];
        let pause = Duration::from_millis(300 + random.below(1200));
        println!("{fault:?} for {pause:?}");
        site.fail(fault, pause, SERVERS[random.below(2) as usize]);
    });
}

/// Watches stay at the servers of this project: after a restart, the reference does not know the past, and watches have to begin anew.
#[test]
#[ignore = "needs kube-apiserver 1.33, named by PILOTHOUSE_REFERENCE"]
fn two_servers_and_one_of_the_reference_are_killed_in_turn_under_load() {
    let mut site = Site::start();
    let watching = site.clients();
    let mut reference = Reference::start(&site.replicas, &site.servers["one"]);
    let writing: Vec<Client> =
        watching.iter().map(Client::new_connection).chain([reference.admin()]).collect();
    check_one_history(&writing, &watching, (Random::seed(), rounds()), |round, _| {
        match SERVERS.get(round as usize % (SERVERS.len() + 1)) {
            Some(server) => site.fail(Fault::ServerKilled, Duration::ZERO, server),
            None => reference.restart(),
        }
    });
}
