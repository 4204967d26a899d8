//! Connection limits, and which connection is evicted when there are too many.

use std::net::Ipv4Addr;
use std::time::Duration;

use pilothouse::config::Config;
use pilothouse::server::{Handle, Server};
use pilothouse_types::clock::Clock;
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use crate::support;
use crate::support::edge::h1::Client;
use crate::support::edge::{start, start_with_clock, tcp, wait_until};

/// Addresses of this host that count as other sources.
const ALICE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const BOB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn config_with_limits(total: usize, per_source: usize) -> Config {
    let mut config = Config::ephemeral();
    config.serving.max_connections = total;
    config.serving.max_connections_per_source = per_source;
    config
}

/// A clock that stands still at a time at which certificates are valid.
fn standing_clock() -> Clock {
    Clock::manual(Clock::system().now())
}

/// A connection on which a GET of `path` succeeded.
async fn connect(server: &Handle, source: Ipv4Addr, path: &str) -> Client {
    let mut client = Client::connect_from(server, source).await.expect("it is admitted");
    let end = if path == "/hello" { "hello" } else { "welcome" };
    assert!(client.get(path, "", end).await.starts_with("HTTP/1.1 200"));
    client
}

#[tokio::test]
async fn connections_per_source_are_limited() {
    let (server, application) = start(config_with_limits(12, 2));
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(connect(&server, ALICE, "/login").await);
    }
    assert!(Client::connect_from(&server, ALICE).await.is_none(), "a third one of the same address");
    held.push(connect(&server, BOB, "/login").await);
    for _ in 0..5 {
        held.push(connect(&server, LOOPBACK, "/login").await);
    }
    assert_eq!(application.connections().refused, [0, 1, 0, 0, 0]);
    // A closed connection frees its slot.
    drop(held.remove(0));
    wait_until(|| application.connections().open[2] == 2).await;
    held.push(connect(&server, ALICE, "/login").await);
}

#[tokio::test]
async fn longest_idle_anonymous_connection_is_evicted_first() {
    let clock = standing_clock();
    let (server, application) = start_with_clock(config_with_limits(4, 4), clock.clone());
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(connect(&server, ALICE, "/hello").await);
        clock.advance(Duration::from_secs(1));
    }
    let mut authenticated_client = connect(&server, ALICE, "/login").await;
    // The first is used again, so the second is idle the longest.
    idle[0].get("/hello", "", "hello").await;
    clock.advance(Duration::from_secs(1));
    let _new_client = connect(&server, BOB, "/hello").await;
    assert_eq!(idle[1].read_to_end().await, "");
    for client in [&mut idle[0], &mut authenticated_client] {
        client.get("/hello", "", "hello").await;
    }
    assert_eq!((application.connections().evicted, application.connections().refused), ([1, 0], [0; 5]));
}

#[tokio::test]
async fn busy_and_authenticated_connections_are_not_evicted() {
    let (server, application) = start(config_with_limits(3, 3));
    let mut authenticated_client = connect(&server, ALICE, "/login").await;
    let mut busy_client = Client::connect_from(&server, ALICE).await.unwrap();
    busy_client.write(b"GET /gated HTTP/1.1\r\nhost: x\r\n\r\n").await;
    wait_until(|| application.count() == 1).await;
    let mut silent_client = Client::connect_from(&server, ALICE).await.unwrap();
    wait_until(|| application.connections().open == [0, 2, 1, 0]).await;
    let mut third_client = connect(&server, BOB, "/login").await;
    assert_eq!(silent_client.read_to_end().await, "", "a connection without a request is evicted");
    // No connection can be evicted: the new one is closed at once.
    assert!(Client::connect_from(&server, BOB).await.is_none());
    assert!(Client::connect_from(&server, LOOPBACK).await.is_none());
    application.open_gate();
    busy_client.read_until("gated").await;
    for client in [&mut authenticated_client, &mut third_client] {
        client.get("/hello", "", "hello").await;
    }
    let _next_client = connect(&server, BOB, "/hello").await;
    assert_eq!(busy_client.read_to_end().await, "");
}

#[tokio::test]
async fn evicted_anonymous_watch_is_closed() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let server = Server::start(config_with_limits(3, 3)).unwrap();
    let admin = server.admin();
    let mut admin_client = support::Client::new(
        server.address(),
        server.ca_pem(),
        Some((&admin.certificates_pem, &admin.key_pem)),
    );
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "anonymous-view"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:anonymous"}]});
    admin_client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).ok();
    let mut watchers = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect_from(&server, ALICE).await.expect("it is admitted");
        while !client.get(MAPS, "", "}\n").await.starts_with("HTTP/1.1 200") {}
        client.get(&format!("{MAPS}?watch=1"), "", "\r\n\r\n").await;
        watchers.push(client);
    }
    let _new_client = Client::connect_from(&server, BOB).await.expect("it is admitted");
    let ends = watchers.iter_mut().map(|watcher| Box::pin(watcher.read_to_end()));
    futures::future::select_all(ends).await;
}

#[tokio::test]
async fn reserved_connections_are_for_exempt_users_and_loopback() {
    let (server, application) = start(config_with_limits(32, 32));
    let mut held = Vec::new();
    for _ in 0..30 {
        held.push(connect(&server, ALICE, "/login").await);
    }
    let mut client = Client::connect_from(&server, BOB).await.expect("it may be exempt");
    client.write(b"GET /login HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(client.read_to_end().await.starts_with("HTTP/1.1 429"));
    wait_until(|| application.connections().open == [0, 0, 30, 0]).await;
    held.push(connect(&server, BOB, "/exempt").await);
    assert!(Client::connect_from(&server, BOB).await.is_none());
    held.push(connect(&server, LOOPBACK, "/login").await);
    assert!(Client::connect_from(&server, LOOPBACK).await.is_none());
    assert_eq!(application.connections().refused, [2, 0, 0, 0, 1]);
    for client in &mut held {
        client.get("/hello", "", "hello").await;
    }
}

#[tokio::test]
async fn handshakes_are_limited_and_slow_ones_evicted() {
    let clock = standing_clock();
    let (server, application) = start_with_clock(config_with_limits(4, 4), clock.clone());
    let mut slow = tcp(&server, ALICE).await;
    wait_until(|| application.connections().open[0] == 1).await;
    let _second_handshake = tcp(&server, ALICE).await;
    wait_until(|| application.connections().open[0] == 2).await;
    assert!(Client::connect_from(&server, ALICE).await.is_none(), "half of all handshakes");
    let _other_source = connect(&server, BOB, "/hello").await;
    clock.advance(Duration::from_secs(3));
    let _late_client = connect(&server, ALICE, "/hello").await;
    assert_eq!(slow.read(&mut [0; 8]).await.unwrap_or(0), 0, "it is closed");
    assert_eq!(application.connections().evicted, [0, 1]);
}

#[tokio::test]
async fn full_server_reserves_connections_for_exempt_users() {
    let home = tempfile::tempdir().unwrap();
    let tokens = home.path().join("tokens.csv");
    let lines =
        "alice,alice,1,\"devs\"\nadmin,admin,2,\"system:masters\"\nnode,system:node:a,3,\"system:nodes\"\n";
    std::fs::write(&tokens, lines).unwrap();
    let mut config = config_with_limits(64, 64);
    config.authentication.token_auth_file = Some(tokens);
    let server = Server::start(config).unwrap();
    let mut held = Vec::new();
    let get_version = async |client: &mut Client, user: &str| {
        client.get("/version", &format!("authorization: Bearer {user}\r\n"), "\r\n\r\n").await
    };
    for _ in 0..60 {
        let mut client = Client::connect_from(&server, ALICE).await.expect("there is room");
        assert!(get_version(&mut client, "alice").await.starts_with("HTTP/1.1 200"));
        held.push(client);
    }
    let mut client = Client::connect_from(&server, BOB).await.expect("it may be exempt");
    let response = get_version(&mut client, "alice").await.to_lowercase();
    assert!(response.starts_with("http/1.1 429") && response.contains("retry-after: 1\r\n"), "{response}");
    assert!(client.read_to_end().await.contains("too many connections, please try again later"));
    for user in ["admin", "node"] {
        let mut client = Client::connect_from(&server, BOB).await.expect("it may be exempt");
        assert!(get_version(&mut client, user).await.starts_with("HTTP/1.1 200"));
        held.push(client);
    }
    assert!(Client::connect_from(&server, BOB).await.is_none());
    let mut loopback_client =
        Client::connect_from(&server, LOOPBACK).await.expect("there is room for this host");
    loopback_client
        .write(
            b"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin\r\nconnection: close\r\n\r\n",
        )
        .await;
    let page = loopback_client.read_to_end().await;
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
