//! The real binary as a child process, on a free port, with a data directory of its own.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use openssl::rsa::Rsa;
use pilothouse_types::lock::Lock;
use tempfile::TempDir;

use super::client::Client;
use super::etcd;
use super::wait::{TIMEOUT, poll};

/// The token of a user in `system:masters`.
pub const ADMIN_TOKEN: &str = "token-of-admin";
/// The token of a user without rights.
pub const USER_TOKEN: &str = "token-of-alice";

/// The flag for objects in a file, whatever the servers of other tests have.
pub const ON_FILE: &str = "--engine=redb";

const TOKENS: &str =
    "token-of-admin,admin,uid-admin,\"system:masters\"\ntoken-of-alice,alice,uid-alice,\"devs,testers\"\n";

/// A running server, killed on drop.
pub struct Server {
    child: Child,
    lines: Lines,
    errors: Lines,
    /// The line that the server printed when it was ready.
    pub greeting: String,
    pub data: PathBuf,
    address: SocketAddr,
    kubeconfig: String,
    /// Keeps the directory alive as long as the server; `None` if the directory is the caller's.
    _directory: Option<TempDir>,
}

/// Exit status and output of a server that did not start.
#[derive(Debug)]
pub struct StartFailure {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

type Lines = Arc<Lock<Vec<String>>>;

/// A directory on the build's disk, because /tmp may be in memory.
pub fn temp_directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

/// The flag for a port that a server can have again after a restart: it is free, and none of those that the system gives to outgoing
/// connections.
pub fn lasting_port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + u16::try_from(std::process::id() % 10_000).expect("a small number");
    let port = || first + NEXT.fetch_add(1, Ordering::Relaxed);
    let port = std::iter::repeat_with(port).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    format!("--secure-port={}", port.expect("a port"))
}

fn collect(stream: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let shared = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { break };
            shared.lock().push(String::from_utf8_lossy(&line).into_owned());
        }
    });
    lines
}

/// The command that starts the binary on a data directory, with a free port and the tests' tokens.
pub fn command<A: AsRef<OsStr>>(data: &Path, arguments: &[A]) -> Command {
    let tokens = data.join("tokens.csv");
    fs::create_dir_all(data).expect("the data directory");
    fs::write(&tokens, TOKENS).expect("the token file");
    give_admin_key(data);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilothouse"));
    command
        .arg("--secure-port=0")
        .arg("--data-dir")
        .arg(data)
        .arg("--token-auth-file")
        .arg(tokens)
        .arg("--controllers=-*")
        .args(etcd::flags(data, arguments));
    // Without controllers there are no default service accounts, so pods must not need one, unless the test sets these flags itself.
    let sets_accounts = |flag: &A| {
        let flag = flag.as_ref().to_string_lossy();
        flag.starts_with("--controllers=") || flag.contains("ServiceAccount")
    };
    if !arguments.iter().any(sets_accounts) {
        command.arg("--disable-admission-plugins=ServiceAccount");
    }
    command
        .args(arguments.iter().filter(|flag| etcd::counts(flag.as_ref())))
        .current_dir(data)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Gives a new server the key of its administrator: it would take longer to make it than to start.
fn give_admin_key(data: &Path) {
    static KEY: LazyLock<Vec<u8>> =
        LazyLock::new(|| Rsa::generate(2_048).and_then(|key| key.private_key_to_pem()).expect("a key"));
    let pki = data.join("pki");
    if !pki.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(&pki).expect("the certificate directory");
        let key = pki.join("admin.key");
        fs::write(&key, &*KEY).expect("the key");
        fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("its permissions");
    }
}

/// The same command on a host of another name. Tests that need it are ignored without `has_host_namespaces`.
fn on_host(host: &str, command: &Command) -> Command {
    let mut renamed = Command::new("unshare");
    renamed.args(["-ru", "sh", "-c", "hostname \"$0\" && exec \"$@\"", host]);
    renamed.arg(command.get_program()).args(command.get_args());
    renamed.current_dir(command.get_current_dir().expect("a directory")).env_remove("RUST_LOG");
    renamed.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    renamed
}

impl Server {
    /// A server with its own data directory.
    pub fn start() -> Server {
        Server::with_flags(&[])
    }

    pub fn with_flags(flags: &[&str]) -> Server {
        let directory = temp_directory();
        let data = directory.path().join("data");
        let mut server = Server::start_in(&data, flags);
        server._directory = Some(directory);
        server
    }

    /// A server in a data directory that outlives it.
    pub fn start_in(data: &Path, flags: &[&str]) -> Server {
        Server::try_start_in(data, flags)
            .unwrap_or_else(|failure| panic!("the server did not start: {failure:?}"))
    }

    /// The same with its objects in a file, for tests of the file and of servers that share nothing.
    pub fn start_on_file(data: &Path, flags: &[&str]) -> Server {
        Server::start_in(data, &[flags, &[ON_FILE]].concat())
    }

    /// A server that takes its host for one of this name, in a data directory that outlives it.
    pub fn start_on_host(host: &str, data: &Path, flags: &[&str]) -> Server {
        let server = Server::try_start(on_host(host, &command(data, flags)), data);
        server.unwrap_or_else(|failure| panic!("the server did not start: {failure:?}"))
    }

    /// A server with these variables in its environment, in a data directory that outlives it.
    pub fn start_with_environment(data: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Server {
        let server = Server::try_start_with_environment(data, flags, variables);
        server.unwrap_or_else(|failure| panic!("the server did not start: {failure:?}"))
    }

    /// The same, unless the server ends before it is ready.
    pub fn try_start_with_environment(
        data: &Path,
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Server, StartFailure> {
        let mut command = command(data, flags);
        command.envs(variables.iter().copied());
        Server::try_start(command, data)
    }

    /// A server whose clock is ahead by an offset such as `10m`, in a data directory that outlives it.
    pub fn start_ahead(offset: &str, data: &Path, flags: &[&str]) -> Server {
        Server::start_with_wall_clock(&format!("+{offset}"), data, flags)
    }

    /// A server with another date than this machine: an offset such as `+10m`, or with a speed, `+0 x1000`. How long something takes
    /// stays as it is.
    pub fn start_with_wall_clock(clock: &str, data: &Path, flags: &[&str]) -> Server {
        // The loader puts the library folder of this machine in the place of `$LIB`.
        let library = "/usr/$LIB/faketime/libfaketime.so.1";
        let variables = [("LD_PRELOAD", library), ("FAKETIME_DONT_FAKE_MONOTONIC", "1"), ("FAKETIME", clock)];
        Server::start_with_environment(data, flags, &variables)
    }

    /// Starts a server and waits until it is ready, or has ended.
    pub fn try_start_in(data: &Path, flags: &[&str]) -> Result<Server, StartFailure> {
        Server::try_start(command(data, flags), data)
    }

    fn try_start(mut command: Command, data: &Path) -> Result<Server, StartFailure> {
        let mut child = command.spawn().expect("the binary");
        let lines = collect(child.stdout.take().expect("stdout"));
        let errors = collect(child.stderr.take().expect("stderr"));
        let greeting = poll(TIMEOUT, || {
            let ready_line = lines.lock().iter().find(|line| line.starts_with("kubectl ")).cloned();
            match ready_line {
                Some(line) => Some(Ok(line)),
                None => child.try_wait().expect("the state of the child").map(Err),
            }
        });
        let greeting = match greeting {
            Some(Ok(line)) => line,
            Some(Err(status)) => {
                return Err(StartFailure {
                    status,
                    stdout: complete_output(&lines),
                    stderr: complete_output(&errors),
                });
            }
            None => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the server said nothing for {TIMEOUT:?}: {}", complete_output(&errors));
            }
        };
        let kubeconfig = fs::read_to_string(data.join("admin.kubeconfig")).expect("admin.kubeconfig");
        let url = kubeconfig_value(&kubeconfig, "server");
        let address = url.trim_start_matches("https://").parse().expect("an address");
        let server = Server {
            child,
            lines,
            errors,
            greeting,
            data: data.to_owned(),
            address,
            kubeconfig,
            _directory: None,
        };
        let mut client = server.kubeconfig_client();
        // A store may have been damaged on purpose: objects that cannot be read do not count here.
        let ready = "/readyz?exclude=readable-guards";
        poll(TIMEOUT, || (client.get(ready).status == 200).then_some(())).expect("/readyz succeeds");
        Ok(server)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data.join("admin.kubeconfig")
    }

    /// A client with all rights.
    pub fn admin(&self) -> Client {
        self.anonymous().with_token(Some(ADMIN_TOKEN))
    }

    /// A client without credentials.
    pub fn anonymous(&self) -> Client {
        Client::new(self.address, &self.pem("certificate-authority-data"), None)
    }

    /// A client with the certificate of the kubeconfig.
    pub fn kubeconfig_client(&self) -> Client {
        let (certificate, key) = (self.pem("client-certificate-data"), self.pem("client-key-data"));
        Client::new(self.address, &self.pem("certificate-authority-data"), Some((&certificate, &key)))
    }

    /// A client with another certificate and its intermediates.
    pub fn client_with_certificate(&self, certificates: &[u8], key: &[u8]) -> Client {
        Client::new(self.address, &self.pem("certificate-authority-data"), Some((certificates, key)))
    }

    /// The CA certificate that clients trust, PEM.
    pub fn ca_pem(&self) -> Vec<u8> {
        self.pem("certificate-authority-data")
    }

    /// A line of /proc/PID/status that counts memory, in KiB: `VmRSS`, `VmHWM`.
    pub fn memory_kib(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a running process");
        let value = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
        let value = value.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {line} in {status}"))
    }

    fn pem(&self, key: &str) -> Vec<u8> {
        openssl::base64::decode_block(kubeconfig_value(&self.kubeconfig, key)).expect("base64")
    }

    /// The server's stderr so far.
    pub fn log(&self) -> String {
        self.errors.lock().join("\n")
    }

    /// The server's stdout so far.
    pub fn output(&self) -> String {
        self.lines.lock().join("\n")
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("the state of the child").is_none()
    }

    /// Kills the process, like `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().expect("a signal");
        self.child.wait().expect("its end");
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let status = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", self.pid())).status();
        assert!(status.expect("sh").success(), "the signal was sent");
    }

    /// Waits for the exit after [`Server::terminate`] and returns the status and the log.
    pub fn wait_for_exit(mut self) -> (ExitStatus, String) {
        let status = poll(TIMEOUT, || self.child.try_wait().expect("the state of the child"));
        let status = status.unwrap_or_else(|| panic!("the server did not stop: {}", self.log()));
        (status, complete_output(&self.errors))
    }

    /// Stops the server and expects success.
    pub fn stop(self) {
        self.terminate();
        let (status, log) = self.wait_for_exit();
        assert!(status.success(), "{status}: {log}");
    }

    /// Fails if the server died or a thread panicked.
    pub fn assert_healthy(&mut self) {
        assert!(self.is_alive(), "the server died: {}", self.log());
        assert_eq!(self.kubeconfig_client().get("/readyz").status, 200, "{}", self.log());
        let log = self.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All lines of an exited process. The thread that reads them may be a moment behind.
fn complete_output(lines: &Lines) -> String {
    poll(TIMEOUT, || (Arc::strong_count(lines) == 1).then_some(()));
    lines.lock().join("\n")
}

/// The scalar after a key, however the file is quoted.
fn kubeconfig_value<'a>(text: &'a str, key: &str) -> &'a str {
    let after = text.split_once(&format!("{key}:")).or_else(|| text.split_once(&format!("{key}\":")));
    let (_, after) = after.unwrap_or_else(|| panic!("{key} in the kubeconfig: {text}"));
    let start = after.trim_start_matches([':', '"', '\'', ' ', '\n']);
    start.split(['"', '\'', ',', '\n', '}']).next().unwrap_or_default().trim()
}
