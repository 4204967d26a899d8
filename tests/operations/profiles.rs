//! Profiles of a running server, and the socket for operators on its machine.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::support::profile::Profile;
use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

/// Gives the server work while `observe` runs.
fn under_load<T>(server: &Server, observe: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for worker in 0..4 {
            let mut client = server.admin();
            let is_over = &is_over;
            scope.spawn(move || {
                let maps = "/api/v1/namespaces/default/configmaps";
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("map-{worker}-{number}");
                    client.post(maps, &json!({"metadata": {"name": name}})).ok();
                    client.get(maps);
                }
            });
        }
        let observed = observe();
        is_over.store(true, Ordering::Relaxed);
        observed
    })
}

fn profile(client: &mut Client, path: &str) -> Profile {
    let response = client.get(path);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/octet-stream"));
    Profile::decode(&response.body)
}

fn types(profile: &Profile) -> Vec<(&str, &str)> {
    profile.types.iter().map(|(name, unit)| (name.as_str(), unit.as_str())).collect()
}

#[test]
fn cpu_profile_names_functions_of_the_server() {
    let server = Server::start();
    let mut client = server.admin();
    let found = under_load(&server, || {
        // A machine that is busy with something else may give the server no time in the first second.
        poll(TIMEOUT, || {
            let profile = profile(&mut client, "/debug/pprof/profile?seconds=1");
            profile.mentions("pilothouse").then_some(profile)
        })
    });
    let profile = found.expect("functions of the server in a profile under load");
    assert_eq!(types(&profile), [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(profile.period, 10_000_000);
    assert!(profile.duration >= 1_000_000_000, "{}", profile.duration);
    for (stack, values) in &profile.samples {
        assert!(values[0] > 0 && values[1] == values[0] * profile.period, "{stack:?} {values:?}");
        assert!(!stack.iter().any(|name| name.contains("perf_signal_handler")), "{stack:?}");
    }
}

#[test]
fn second_cpu_profile_is_refused_and_length_is_bounded() {
    let server = Server::start();
    let mut client = server.admin();
    let response = client.get("/debug/pprof/profile?seconds=301");
    assert_eq!(
        (response.status, response.text().as_str()),
        (400, "profile duration exceeds server's WriteTimeout\n")
    );
    let long = client.head("GET", "/debug/pprof/profile?seconds=300", &[]) + "\r\n";
    let mut recording = None;
    let refused = poll(TIMEOUT, || {
        // Again if it was itself refused, because the other request came first.
        let mut connection = client.raw();
        connection.send(long.as_bytes()).unwrap();
        recording = Some(connection);
        let response = client.get("/debug/pprof/profile?seconds=1");
        (response.status == 500).then(|| response.text())
    });
    assert_eq!(refused.as_deref(), Some("Could not enable CPU profiling: cpu profiling already in use\n"));
    assert_eq!(client.get("/livez").status, 200);
    drop(recording);
    let next = poll(TIMEOUT, || {
        let response = client.get("/debug/pprof/profile?seconds=1");
        (response.status == 200).then_some(response)
    });
    assert!(next.is_some(), "the profile of a client that is gone has not ended");
}

#[test]
fn heap_profile_has_the_accounts_of_the_memory_ledger() {
    let server = Server::start();
    let mut client = server.admin();
    let profile = profile(&mut client, "/debug/pprof/heap");
    assert_eq!(types(&profile), [("inuse_space", "bytes")]);
    assert!(profile.mentions("connections") && profile.mentions("watches"), "{profile:?}");
    let total: i64 = profile.samples.iter().map(|(_, values)| values[0]).sum();
    assert!(total > 1 << 20, "{total}");
    let text = client.get("/debug/pprof/heap?debug=1").text();
    assert!(text.starts_with("inuse_space/bytes\n") && text.contains("  resident memory\n"), "{text}");
    let response = client.get("/debug/pprof/heap?seconds=5");
    assert_eq!(response.status, 400, "{}", response.text());
}

#[test]
fn profiles_without_meaning_are_not_found() {
    let server = Server::start();
    let mut client = server.admin();
    let redirect = client.get("/debug/pprof");
    assert_eq!((redirect.status, redirect.header("location")), (302, Some("/debug/pprof/")));
    let index = client.get("/debug/pprof/");
    assert!(index.status == 200 && index.text().contains("href=\"heap\""), "{}", index.text());
    for (name, reason) in [
        ("goroutine", "there are no goroutines"),
        ("trace", "there is no execution trace"),
        ("allocs", "allocations are not counted"),
        ("cmdline", "Unknown profile"),
        ("nothing", "Unknown profile"),
    ] {
        let response = client.get(&format!("/debug/pprof/{name}"));
        assert!(response.status == 404 && response.text().contains(reason), "{name}: {}", response.text());
    }
    let server = Server::with_flags(&["--profiling=false"]);
    assert_eq!(server.admin().get("/debug/pprof/heap").status, 404);
}

#[test]
fn waits_for_locks_are_profiled_if_the_flag_says_so() {
    let is_profile_of_waits = |profile: &Profile| {
        assert_eq!(types(profile), [("contentions", "count"), ("delay", "nanoseconds")]);
    };
    let server = Server::with_flags(&["--contention-profiling"]);
    let mut client = server.admin();
    let found = under_load(&server, || {
        poll(TIMEOUT, || {
            let profile = profile(&mut client, "/debug/pprof/block");
            (!profile.samples.is_empty()).then_some(profile)
        })
    });
    let waits = found.expect("a thread that waits for a lock under load");
    is_profile_of_waits(&waits);
    assert!(waits.samples.iter().all(|(_, values)| values[0] > 0), "{waits:?}");
    is_profile_of_waits(&profile(&mut client, "/debug/pprof/mutex"));
    let server = Server::start();
    let waits = under_load(&server, || profile(&mut server.admin(), "/debug/pprof/block"));
    is_profile_of_waits(&waits);
    assert!(waits.samples.is_empty(), "{waits:?}");
}

/// The response to a request on a Unix socket.
fn request_on_socket(path: &Path, head: &str, body: &str) -> String {
    let mut socket = UnixStream::connect(path).unwrap();
    let length = body.len();
    let request =
        format!("{head} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    socket.read_to_end(&mut response).unwrap();
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
fn debug_socket_serves_pages_without_authentication() {
    let directory = temp_directory();
    let path = directory.path().join("debug.sock");
    let flag = format!("--debug-socket-path={}", path.display());
    let is_socket = || path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    // Left behind by a server that was killed.
    Server::with_flags(&[&flag]).kill();
    assert!(is_socket());
    let server = Server::with_flags(&[&flag, "--profiling=false"]);
    let get = |target: &str| request_on_socket(&path, &format!("GET {target}"), "");
    let answers = |target: &str, part: &str| {
        let response = get(target);
        assert!(response.starts_with("HTTP/1.1 200") && response.contains(part), "{target}: {response}");
    };
    answers("/debug/pprof/", "href=\"heap\"");
    answers("/debug/pprof/heap?debug=1", "resident memory");
    answers("/debug/pprof/cmdline", &flag);
    assert!(request_on_socket(&path, "PUT /debug/flags/v", "2").contains("successfully set"));
    for target in ["/api/v1/namespaces", "/metrics", "/healthz"] {
        assert!(get(target).starts_with("HTTP/1.1 404"), "{target}");
    }
    server.stop();
    assert!(!path.exists());
}

#[test]
fn debug_socket_of_a_running_server_is_not_replaced() {
    let directory = temp_directory();
    let path = directory.path().join("debug.sock");
    let flag = format!("--debug-socket-path={}", path.display());
    let server = Server::with_flags(&[&flag]);
    assert_eq!(path.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let data = temp_directory();
    let Err(failure) = Server::try_start_in(data.path(), &[&flag]) else { panic!("it has started") };
    let expected = format!("--debug-socket-path: another process listens on {}", path.display());
    assert!(format!("{}{}", failure.stdout, failure.stderr).contains(&expected), "{failure:?}");
    assert!(request_on_socket(&path, "GET /debug/pprof/", "").starts_with("HTTP/1.1 200"));
    server.stop();
    assert!(!path.exists());
}
