//! The server binary: its output, signals and exit codes.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::Server;
use crate::support::tls;
use crate::support::wait::poll;

/// The timeout of a step: more than any takes on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of 20 ms steps to wait for an exit: half a minute.
const MAX_SIGNALS: u32 = 1_500;

fn pilothouse(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server process, killed on drop.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ServerProcess {
    fn start(home: &Path, flags: &[&str]) -> (ServerProcess, String) {
        let data = home.to_str().unwrap();
        let mut child =
            pilothouse(&[&["--secure-port=0", "--data-dir", data], flags].concat()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (ServerProcess(child), line)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), signal).unwrap();
    }
}

/// Connects to the server of a data directory, with timeouts.
fn connect(home: &Path) -> openssl::ssl::SslStream<TcpStream> {
    let kubeconfig = std::fs::read_to_string(home.join("admin.kubeconfig")).unwrap();
    let (_, server) = kubeconfig.split_once("https://").unwrap();
    let address = server.split(['"', '\n']).next().unwrap().trim();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    tls::session(&tls::context(None, None, &[]), "localhost").connect(stream).unwrap()
}

fn is_healthy(client: &mut (impl Read + Write)) -> bool {
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut response = Vec::new();
    let mut chunk = [0; 4_096];
    while !response.ends_with(b"\r\n\r\nok") {
        match client.read(&mut chunk).unwrap() {
            0 => break,
            read => response.extend_from_slice(&chunk[..read]),
        }
    }
    response.starts_with(b"HTTP/1.1 200")
}

fn start_error(arguments: &[&str]) -> (Option<i32>, String) {
    let output = pilothouse(arguments).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn server_prints_kubectl_command_and_stops_on_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let home = tempfile::tempdir().unwrap();
        let (mut server, line) = ServerProcess::start(home.path(), &[]);
        let kubeconfig = home.path().join("admin.kubeconfig");
        assert_eq!(line, format!("kubectl --kubeconfig {} get namespaces\n", kubeconfig.display()));
        assert!(kubeconfig.exists());
        server.signal(signal);
        assert_eq!(server.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn second_signal_exits_immediately() {
    let home = tempfile::tempdir().unwrap();
    let (mut server, _) = ServerProcess::start(home.path(), &["--shutdown-delay-duration=1h"]);
    server.signal(Signal::SIGTERM);
    // Pending signals of one kind are merged: repeat until the server has received two.
    let exit_status = (0..MAX_SIGNALS).find_map(|_| {
        let exit_status = server.0.try_wait().unwrap();
        if exit_status.is_none() {
            server.signal(Signal::SIGTERM);
            std::thread::sleep(Duration::from_millis(20));
        }
        exit_status
    });
    let status = exit_status.expect("a second signal ends it");
    assert_eq!((status.code(), status.signal()), (Some(1), None));
}

#[test]
fn signal_during_slow_start_exits() {
    let home = tempfile::tempdir().unwrap();
    // Opening a FIFO blocks until it has a writer.
    let slow = home.path().join("slow");
    assert!(Command::new("mkfifo").arg(&slow).status().unwrap().success());
    let data = home.path().join("data");
    let (data, tokens) = (data.to_str().unwrap(), format!("--token-auth-file={}", slow.display()));
    let child = pilothouse(&["--secure-port=0", "--data-dir", data, &tokens]).spawn().unwrap();
    let mut server = ServerProcess(child);
    // Before the server handles signals, a signal would kill it.
    while !Path::new(data).exists() {
        assert!(server.0.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    server.signal(Signal::SIGTERM);
    let exit_status = (0..MAX_SIGNALS).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        server.0.try_wait().unwrap()
    });
    let status = exit_status.expect("it does not wait for the start");
    assert_eq!((status.code(), status.signal()), (Some(0), None));
}

#[test]
fn closed_stdout_does_not_stop_server() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().to_str().unwrap();
    let mut child = pilothouse(&["--secure-port=0", "--data-dir", data]).spawn().unwrap();
    drop(child.stdout.take());
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut server = ServerProcess(child);
    let warning = log.find(|line| line.contains("cannot be printed"));
    assert!(warning.is_some_and(|line| line.contains("WARN") && line.contains("Broken pipe")));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
}

/// With everything logged, the pipe of the log and the queue before it are full after a few requests.
#[test]
fn unread_log_does_not_block_server() {
    const REQUESTS: usize = 400;
    let home = tempfile::tempdir().unwrap();
    let data = home.path().to_str().unwrap();
    let mut command = pilothouse(&["--secure-port=0", "--data-dir", data]);
    let mut child = command.env("RUST_LOG", "trace").spawn().unwrap();
    let (greeting, log) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut server = ServerProcess(child);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(BufReader::new(greeting).lines().next()));
    assert!(receiver.recv_timeout(TIMEOUT).expect("it starts").is_some());
    let mut client = connect(home.path());
    (0..REQUESTS).for_each(|_| assert!(is_healthy(&mut client)));

    // After the log is read again, it reports the number of dropped lines.
    let (sender, receiver) = mpsc::channel();
    let mut log = BufReader::new(log);
    std::thread::spawn(move || {
        let mut line = String::new();
        while log.read_line(&mut line).is_ok_and(|read| read > 0) {
            if line.contains(" log lines were dropped") {
                let _ = sender.send((line, log));
                return;
            }
            line.clear();
        }
    });
    let (line, unread) = receiver.recv_timeout(TIMEOUT).expect("the log says what is missing");
    assert!(line.contains("WARN pilothouse::telemetry"), "{line}");

    (0..REQUESTS).for_each(|_| assert!(is_healthy(&mut client)));
    server.signal(Signal::SIGTERM);
    let exit_status = (0..MAX_SIGNALS).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        server.0.try_wait().unwrap()
    });
    assert_eq!(exit_status.expect("it does not wait for a reader").code(), Some(0));
    drop(unread);
}

/// The reason of a failed start is not logged through the queue, and the exit does not wait for a reader.
#[test]
fn failed_start_exits_with_unread_stderr() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().to_str().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut pipe_writer = writer.try_clone().unwrap();
    // Fills the pipe: the next write blocks.
    pipe_writer.write_all(&[b'x'; 64 << 10]).unwrap();
    drop(pipe_writer);
    let mut command = pilothouse(&["--secure-port=0", "--data-dir", data, "--client-ca-file=absent"]);
    let mut server = ServerProcess(command.stderr(writer).spawn().unwrap());
    drop(command);
    let exit_status = (0..MAX_SIGNALS).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        server.0.try_wait().unwrap()
    });
    assert_eq!(exit_status.expect("it does not wait for a reader").code(), Some(1));
    drop(reader);
}

#[test]
fn start_errors_are_one_line() {
    let home = tempfile::tempdir().unwrap();
    let (server, _) = ServerProcess::start(home.path(), &[]);
    let data = home.path().to_str().unwrap();
    let (code, message) = start_error(&["--secure-port=0", "--data-dir", data]);
    assert_eq!(code, Some(1));
    assert_eq!(message, format!("pilothouse: the data directory {data} is in use by another server\n"));
    drop(server);

    let (code, message) = start_error(&["--secure-port=0", "--data-dir", data, "--client-ca-file=absent"]);
    assert_eq!(code, Some(1));
    assert!(message.starts_with("pilothouse: cannot read absent: "), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn unknown_flag_suggests_nearest_flag() {
    let (code, message) = start_error(&["--secure-prt=1"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("'--secure-port'"), "{message}");
}

#[test]
fn unused_flags_are_logged() {
    let home = tempfile::tempdir().unwrap();
    let (mut server, _) = ServerProcess::start(home.path(), &["--etcd-prefix=/other"]);
    server.signal(Signal::SIGTERM);
    server.0.wait().unwrap();
    let mut log = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("WARN") && log.contains("--etcd-prefix is not used"), "{log}");
}

const SPLIT_STREAM: [&str; 2] = ["--feature-gates=LoggingAlphaOptions=true", "--log-text-split-stream"];

#[test]
fn split_log_streams_divide_errors_from_other_lines() {
    let server = Server::with_flags(&[&SPLIT_STREAM[..], &["--bind-address=0.0.0.0"]].concat());
    poll(TIMEOUT, || server.output().contains(" INFO ").then_some(())).expect("lines on stdout");
    assert!(server.log().contains(" WARN ") && !server.log().contains(" INFO "), "{}", server.log());
    assert!(!server.output().contains(" WARN "), "{}", server.output());
}

#[test]
fn buffered_log_lines_are_written_in_time_and_at_the_end() {
    let buffer = "--log-text-info-buffer-size=1Mi";
    let server = Server::with_flags(&[&SPLIT_STREAM[..], &[buffer, "--log-flush-frequency=1h"]].concat());
    assert!(!server.output().contains(" INFO "), "{}", server.output());
    server.terminate();
    poll(TIMEOUT, || server.output().contains("stopping").then_some(())).expect("the last lines");
    assert!(server.output().contains("serving"), "{}", server.output());

    let server = Server::with_flags(&[&SPLIT_STREAM[..], &[buffer, "--log-flush-frequency=50ms"]].concat());
    poll(TIMEOUT, || server.output().contains("serving").then_some(())).expect("lines of a running server");
}

#[test]
fn split_log_streams_need_their_gate() {
    let (code, message) = start_error(&["--log-json-split-stream"]);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("options.json.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"));
}
