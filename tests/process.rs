//! The binary as an operator meets it: what it prints, how it exits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected fails")]

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};

/// More than any step takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
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

/// A client of a server in a directory, over HTTP/1.1. Whatever takes too long fails.
fn connect(home: &Path) -> openssl::ssl::SslStream<TcpStream> {
    let kubeconfig = std::fs::read_to_string(home.join("admin.kubeconfig")).unwrap();
    let (_, server) = kubeconfig.split_once("https://").unwrap();
    let address = server.split(['"', '\n']).next().unwrap().trim();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
    connector.set_verify(SslVerifyMode::NONE);
    connector.build().connect("localhost", stream).unwrap()
}

fn is_healthy(client: &mut (impl Read + Write)) -> bool {
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let mut piece = [0; 4_096];
    while !answer.ends_with(b"\r\n\r\nok") {
        match client.read(&mut piece).unwrap() {
            0 => break,
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    answer.starts_with(b"HTTP/1.1 200")
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
            std::thread::sleep(Duration::from_millis(20));
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
        std::thread::sleep(Duration::from_millis(10));
    }
    server.signal(Signal::SIGTERM);
    let ended = (0..SIGNALS).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
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

/// With everything logged, the pipe of the log and the queue before it are full after a few requests.
#[test]
fn a_server_whose_log_nobody_reads_serves_and_stops_all_the_same() {
    const REQUESTS: usize = 400;
    let home = tempfile::tempdir().unwrap();
    let data = home.path().to_str().unwrap();
    let mut command = pilothouse(&["--secure-port=0", "--data-dir", data]);
    let mut child = command.env("RUST_LOG", "trace").spawn().unwrap();
    let (greeting, log) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut server = Running(child);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(BufReader::new(greeting).lines().next()));
    assert!(told.recv_timeout(PATIENCE).expect("it starts").is_some());
    let mut client = connect(home.path());
    (0..REQUESTS).for_each(|_| assert!(is_healthy(&mut client)));

    // Whoever reads again learns how much is missing.
    let (tell, told) = mpsc::channel();
    let mut log = BufReader::new(log);
    std::thread::spawn(move || {
        let mut line = String::new();
        while log.read_line(&mut line).is_ok_and(|read| read > 0) {
            if line.contains(" log lines were dropped") {
                let _ = tell.send((line, log));
                return;
            }
            line.clear();
        }
    });
    let (line, unread) = told.recv_timeout(PATIENCE).expect("the log says what is missing");
    assert!(line.contains("WARN pilothouse::telemetry"), "{line}");

    (0..REQUESTS).for_each(|_| assert!(is_healthy(&mut client)));
    server.signal(Signal::SIGTERM);
    let ended = (0..SIGNALS).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        server.0.try_wait().unwrap()
    });
    assert_eq!(ended.expect("it does not wait for a reader").code(), Some(0));
    drop(unread);
}

/// The reason of a failure has a way of its own: it is not among the lines that are dropped, and nobody waits for a reader for ever.
#[test]
fn a_server_that_fails_while_nobody_reads_ends() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().to_str().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    // As much as a pipe takes: the next byte waits for a reader.
    filler.write_all(&[b'x'; 64 << 10]).unwrap();
    drop(filler);
    let mut command = pilothouse(&["--secure-port=0", "--data-dir", data, "--client-ca-file=absent"]);
    let mut server = Running(command.stderr(writer).spawn().unwrap());
    drop(command);
    let ended = (0..SIGNALS).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        server.0.try_wait().unwrap()
    });
    assert_eq!(ended.expect("it does not wait for a reader").code(), Some(1));
    drop(reader);
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
