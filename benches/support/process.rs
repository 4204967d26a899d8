//! A server as a child process, and its memory and CPU time.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A running child that is ended with this value.
pub struct Process {
    child: Child,
    /// Where it listens.
    pub port: u16,
}

impl Process {
    /// Starts the server on `data` and waits for the line it prints when it is ready. Also returns how long that took.
    pub fn server(data: &Path, engine: &str) -> (Process, Duration) {
        Process::server_at(data, engine, 0)
    }

    /// The same on a port.
    pub fn server_at(data: &Path, engine: &str, port: u16) -> (Process, Duration) {
        Process::server_with(data, engine, &[&format!("--secure-port={port}")])
    }

    /// The same with more flags, on any port if none of them names one.
    pub fn server_with(data: &Path, engine: &str, flags: &[&str]) -> (Process, Duration) {
        Process::server_storing_in(&format!("--engine={engine}"), data, flags)
    }

    /// The same with its objects in etcd at this address.
    pub fn server_on_etcd(data: &Path, etcd: &str) -> (Process, Duration) {
        Process::server_storing_in(&format!("--etcd-servers={etcd}"), data, &[])
    }

    /// The same, run by a program such as valgrind.
    pub fn server_under(mut program: Command, data: &Path, engine: &str) -> Process {
        program.arg(env!("CARGO_BIN_EXE_pilothouse"));
        Process::start_server(program, &format!("--engine={engine}"), data, &[]).0
    }

    fn server_storing_in(storage: &str, data: &Path, flags: &[&str]) -> (Process, Duration) {
        Process::start_server(Command::new(env!("CARGO_BIN_EXE_pilothouse")), storage, data, flags)
    }

    fn start_server(mut command: Command, storage: &str, data: &Path, flags: &[&str]) -> (Process, Duration) {
        let start = Instant::now();
        let tokens = data.join("tokens.csv");
        std::fs::create_dir_all(data).unwrap();
        std::fs::write(&tokens, "bench,bench,1,system:masters\n").unwrap();
        let mut child = command
            .args(flags.iter().all(|flag| !flag.starts_with("--secure-port")).then_some("--secure-port=0"))
            .args(flags)
            .args([
                "--controllers=-*",
                "--disable-admission-plugins=ServiceAccount",
                "--max-mutating-requests-inflight=1000",
            ])
            .arg(storage)
            .arg(format!("--data-dir={}", data.display()))
            .arg(format!("--token-auth-file={}", tokens.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let elapsed = start.elapsed();
        assert!(line.starts_with("kubectl"), "the server says: {line}");
        (Process { child, port: kubeconfig_port(&data.join("admin.kubeconfig")) }, elapsed)
    }

    /// Starts this very binary as the bare floor server.
    pub fn floor(body: usize) -> Process {
        Process::of_bench("serve-floor", &body.to_string())
    }

    /// The same, run by a program such as valgrind.
    pub fn floor_under(mut program: Command, body: usize) -> Process {
        program.arg(std::env::current_exe().unwrap());
        Process::start_floor(program, "serve-floor", &body.to_string())
    }

    /// Starts this very binary as a floor of this name.
    pub fn of_bench(name: &str, argument: &str) -> Process {
        Process::start_floor(Command::new(std::env::current_exe().unwrap()), name, argument)
    }

    fn start_floor(mut command: Command, name: &str, argument: &str) -> Process {
        let mut child =
            command.args([name, argument]).stdout(Stdio::piped()).spawn().expect("the floor starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Process { child, port: line.trim().parse().expect("the floor prints its port") }
    }

    /// Its number, for those who measure it from another thread.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// User and system time used so far.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }

    /// Resident memory in MiB.
    pub fn resident_mib(&self) -> f64 {
        resident_mib_of(self.child.id())
    }

    /// The most memory that was resident while `work` ran, above what was resident before, in MiB.
    pub fn peak_mib(&self, work: impl FnOnce()) -> f64 {
        let before = self.resident_mib();
        // Resets the high-water mark of the kernel.
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
        work();
        memory_mib(self.child.id(), "VmHWM:") - before
    }

    /// Asks it to stop and waits.
    pub fn stop(mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time that a process has used so far.
pub fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Resident memory of a process in MiB.
pub fn resident_mib_of(pid: u32) -> f64 {
    memory_mib(pid, "VmRSS:")
}

fn memory_mib(pid: u32, line: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|text| text.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn kubeconfig_port(kubeconfig: &Path) -> u16 {
    let text = std::fs::read_to_string(kubeconfig).unwrap();
    let server = text.lines().find_map(|line| line.trim().strip_prefix("server:")).expect("a server line");
    server.rsplit_once(':').unwrap().1.trim_matches(['"', '/', ' ']).parse().unwrap()
}

/// Lets this process open as many files as it may: every client is one.
pub fn raise_file_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

/// A directory of its own below the build folder, empty.
pub fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}
