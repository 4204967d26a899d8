//! The binary as an operator meets it: what it prints, how it exits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected fails")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Signals that are sent before it is too late: half a minute of them.
const SIGNALS: u32 = 1_500;

fn pilothouse(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(home: &Path, more: &[&str]) -> (Running, String) {
        let data = home.to_str().unwrap();
        let mut child =
            pilothouse(&[&["--secure-port=0", "--data-dir", data], more].concat()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Running(child), line)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), signal).unwrap();
    }
}

fn refusal(arguments: &[&str]) -> (Option<i32>, String) {
    let output = pilothouse(arguments).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn it_prints_one_line_to_paste_and_stops_when_told() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let home = tempfile::tempdir().unwrap();
        let (mut server, line) = Running::start(home.path(), &[]);
        let kubeconfig = home.path().join("admin.kubeconfig");
        assert_eq!(line, format!("kubectl --kubeconfig {} get namespaces\n", kubeconfig.display()));
        assert!(kubeconfig.exists());
        server.signal(signal);
        assert_eq!(server.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let home = tempfile::tempdir().unwrap();
    let (mut server, _) = Running::start(home.path(), &["--shutdown-delay-duration=1h"]);
    server.signal(Signal::SIGTERM);
    // Signals of one kind that come together count once: repeat until it has seen two.
    let ended = (0..SIGNALS).find_map(|_| {
        let ended = server.0.try_wait().unwrap();
        if ended.is_none() {
            server.signal(Signal::SIGTERM);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        ended
    });
    let status = ended.expect("a second signal ends it");
    assert_eq!((status.code(), status.signal()), (Some(1), None));
}

#[test]
fn a_signal_ends_a_start_that_takes_long() {
    let home = tempfile::tempdir().unwrap();
    // Whoever opens it waits for somebody who writes to it.
    let slow = home.path().join("slow");
    assert!(Command::new("mkfifo").arg(&slow).status().unwrap().success());
    let data = home.path().join("data");
    let (data, tokens) = (data.to_str().unwrap(), format!("--token-auth-file={}", slow.display()));
    let child = pilothouse(&["--secure-port=0", "--data-dir", data, &tokens]).spawn().unwrap();
    let mut server = Running(child);
    // Until it listens to signals one ends it too, though not as it should.
    while !Path::new(data).exists() {
        assert!(server.0.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    server.signal(Signal::SIGTERM);
    let ended = (0..SIGNALS).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        server.0.try_wait().unwrap()
    });
    let status = ended.expect("it does not wait for the start");
    assert_eq!((status.code(), status.signal()), (Some(0), None));
}

#[test]
fn a_server_whose_greeting_nobody_reads_serves_all_the_same() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().to_str().unwrap();
    let mut child = pilothouse(&["--secure-port=0", "--data-dir", data]).spawn().unwrap();
    drop(child.stdout.take());
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut server = Running(child);
    let told = log.find(|line| line.contains("cannot be printed"));
    assert!(told.is_some_and(|line| line.contains("WARN") && line.contains("Broken pipe")));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
}

#[test]
fn mistakes_are_named_in_one_line() {
    let home = tempfile::tempdir().unwrap();
    let (server, _) = Running::start(home.path(), &[]);
    let data = home.path().to_str().unwrap();
    let (code, message) = refusal(&["--secure-port=0", "--data-dir", data]);
    assert_eq!(code, Some(1));
    assert_eq!(message, format!("pilothouse: the data directory {data} is in use by another server\n"));
    drop(server);

    let (code, message) = refusal(&["--secure-port=0", "--data-dir", data, "--client-ca-file=absent"]);
    assert_eq!(code, Some(1));
    assert!(message.starts_with("pilothouse: cannot read absent: "), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn an_unknown_flag_names_the_nearest_known_one() {
    let (code, message) = refusal(&["--secure-prt=1"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("'--secure-port'"), "{message}");
}

#[test]
fn flags_without_effect_are_told_in_the_log() {
    let home = tempfile::tempdir().unwrap();
    let (mut server, _) = Running::start(home.path(), &["--etcd-servers=http://127.0.0.1:2379"]);
    server.signal(Signal::SIGTERM);
    server.0.wait().unwrap();
    let mut log = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("WARN") && log.contains("--etcd-servers is not used"), "{log}");
}
