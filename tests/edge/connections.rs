//! How many connections there may be, and which of them goes when there are too many.

use std::net::Ipv4Addr;
use std::time::Duration;

use pilothouse::config::Config;
use pilothouse::server::{Handle, Server};
use pilothouse_types::clock::Clock;
use tokio::io::AsyncReadExt as _;

use super::support::h1::Client;
use super::support::{start, start_at, tcp, until};

/// Addresses of this host that count as those of others.
const ALICE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const BOB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn bounded(total: usize, per_source: usize) -> Config {
    let mut config = Config::ephemeral();
    config.serving.max_connections = total;
    config.serving.max_connections_per_source = per_source;
    config
}

/// A clock that stands still at a time at which certificates are valid.
fn standing_clock() -> Clock {
    Clock::manual(Clock::system().now())
}

/// A connection on which `path` was answered.
async fn connect(server: &Handle, source: Ipv4Addr, path: &str) -> Client {
    let mut client = Client::connect_from(server, source).await.expect("it is admitted");
    let end = if path == "/hello" { "hello" } else { "welcome" };
    assert!(client.ask(path, "", end).await.starts_with("HTTP/1.1 200"));
    client
}

#[tokio::test]
async fn one_source_cannot_take_every_connection() {
    let (server, live) = start(bounded(12, 2));
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(connect(&server, ALICE, "/login").await);
    }
    assert!(Client::connect_from(&server, ALICE).await.is_none(), "a third one of the same address");
    held.push(connect(&server, BOB, "/login").await);
    for _ in 0..5 {
        held.push(connect(&server, HERE, "/login").await);
    }
    assert_eq!(live.connections().refused, [0, 1, 0, 0, 0]);
    // Whoever leaves makes room.
    drop(held.remove(0));
    until(|| live.connections().open[2] == 2).await;
    held.push(connect(&server, ALICE, "/login").await);
}

#[tokio::test]
async fn idle_connections_without_a_user_make_room_the_longest_idle_first() {
    let clock = standing_clock();
    let (server, live) = start_at(bounded(4, 4), clock.clone());
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(connect(&server, ALICE, "/hello").await);
        clock.advance(Duration::from_secs(1));
    }
    let mut known = connect(&server, ALICE, "/login").await;
    // The first is used again, so the second is idle the longest.
    idle[0].ask("/hello", "", "hello").await;
    clock.advance(Duration::from_secs(1));
    let _new = connect(&server, BOB, "/hello").await;
    assert_eq!(idle[1].read_to_end().await, "");
    for client in [&mut idle[0], &mut known] {
        client.ask("/hello", "", "hello").await;
    }
    assert_eq!((live.connections().evicted, live.connections().refused), ([1, 0], [0; 5]));
}

#[tokio::test]
async fn requests_in_flight_and_authenticated_connections_are_never_cut_for_others() {
    let (server, live) = start(bounded(3, 3));
    let mut known = connect(&server, ALICE, "/login").await;
    let mut waiting = Client::connect_from(&server, ALICE).await.unwrap();
    waiting.write(b"GET /gated HTTP/1.1\r\nhost: x\r\n\r\n").await;
    until(|| live.count() == 1).await;
    let mut silent = Client::connect_from(&server, ALICE).await.unwrap();
    until(|| live.connections().open == [0, 2, 1, 0]).await;
    let mut third = connect(&server, BOB, "/login").await;
    assert_eq!(silent.read_to_end().await, "", "it has said nothing yet");
    // Nobody is left who could make room: the new one is closed, and does not wait until it is served.
    assert!(Client::connect_from(&server, BOB).await.is_none());
    assert!(Client::connect_from(&server, HERE).await.is_none());
    live.open_gate();
    waiting.read_until("gated").await;
    for client in [&mut known, &mut third] {
        client.ask("/hello", "", "hello").await;
    }
    let _next = connect(&server, BOB, "/hello").await;
    assert_eq!(waiting.read_to_end().await, "");
}

#[tokio::test]
async fn the_last_connections_are_for_exempt_users_and_for_this_host() {
    let (server, live) = start(bounded(32, 32));
    let mut held = Vec::new();
    for _ in 0..30 {
        held.push(connect(&server, ALICE, "/login").await);
    }
    let mut guest = Client::connect_from(&server, BOB).await.expect("it may be exempt");
    guest.write(b"GET /login HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(guest.read_to_end().await.starts_with("HTTP/1.1 429"));
    until(|| live.connections().open == [0, 0, 30, 0]).await;
    held.push(connect(&server, BOB, "/exempt").await);
    assert!(Client::connect_from(&server, BOB).await.is_none());
    held.push(connect(&server, HERE, "/login").await);
    assert!(Client::connect_from(&server, HERE).await.is_none());
    assert_eq!(live.connections().refused, [2, 0, 0, 0, 1]);
    for client in &mut held {
        client.ask("/hello", "", "hello").await;
    }
}

#[tokio::test]
async fn handshakes_are_bounded_and_slow_ones_make_room() {
    let clock = standing_clock();
    let (server, live) = start_at(bounded(4, 4), clock.clone());
    let mut slow = tcp(&server, ALICE).await;
    until(|| live.connections().open[0] == 1).await;
    let _other = tcp(&server, ALICE).await;
    until(|| live.connections().open[0] == 2).await;
    assert!(Client::connect_from(&server, ALICE).await.is_none(), "half of all handshakes");
    let _of_bob = connect(&server, BOB, "/hello").await;
    clock.advance(Duration::from_secs(3));
    let _late = connect(&server, ALICE, "/hello").await;
    assert_eq!(slow.read(&mut [0; 8]).await.unwrap_or(0), 0, "it is closed");
    assert_eq!(live.connections().evicted, [0, 1]);
}

#[tokio::test]
async fn a_whole_server_knows_who_is_exempt() {
    let home = tempfile::tempdir().unwrap();
    let tokens = home.path().join("tokens.csv");
    let lines =
        "alice,alice,1,\"devs\"\nadmin,admin,2,\"system:masters\"\nnode,system:node:a,3,\"system:nodes\"\n";
    std::fs::write(&tokens, lines).unwrap();
    let mut config = bounded(64, 64);
    config.authentication.token_auth_file = Some(tokens);
    let server = Server::start(config).unwrap();
    let mut held = Vec::new();
    let ask = async |client: &mut Client, user: &str| {
        client.ask("/version", &format!("authorization: Bearer {user}\r\n"), "\r\n\r\n").await
    };
    for _ in 0..60 {
        let mut client = Client::connect_from(&server, ALICE).await.expect("there is room");
        assert!(ask(&mut client, "alice").await.starts_with("HTTP/1.1 200"));
        held.push(client);
    }
    let mut guest = Client::connect_from(&server, BOB).await.expect("it may be exempt");
    let refusal = ask(&mut guest, "alice").await.to_lowercase();
    assert!(refusal.starts_with("http/1.1 429") && refusal.contains("retry-after: 1\r\n"), "{refusal}");
    assert!(guest.read_to_end().await.contains("too many connections, please try again later"));
    for user in ["admin", "node"] {
        let mut client = Client::connect_from(&server, BOB).await.expect("it may be exempt");
        assert!(ask(&mut client, user).await.starts_with("HTTP/1.1 200"));
        held.push(client);
    }
    assert!(Client::connect_from(&server, BOB).await.is_none());
    let mut here = Client::connect_from(&server, HERE).await.expect("there is room for this host");
    here.write(
        b"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin\r\nconnection: close\r\n\r\n",
    )
    .await;
    let page = here.read_to_end().await;
    for line in [
        "pilothouse_connections_open{state=\"authenticated\"} 60",
        "pilothouse_connections_open{state=\"exempt\"} 2",
        "pilothouse_connections_open{state=\"loopback\"} 1",
        "pilothouse_connections_refused_total{reason=\"total\"} 1",
        "pilothouse_connections_refused_total{reason=\"reserve\"} 1",
        "pilothouse_connections_evicted_total{reason=\"idle\"} 0",
        "pilothouse_log_lines_lost_total{reason=\"queue_full\"} 0",
    ] {
        assert!(page.contains(line), "{line}");
    }
}
