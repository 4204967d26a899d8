//! A process that does not outlive its owner.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Starts the program, writes its id, and kills it at the end of the input, which comes at the latest when the test process is gone.
/// The shell is the parent, so the id stays that of the program until then.
const SCRIPT: &str = r#"log=$1; shift; "$@" >>"$log" 2>&1 & echo $!; read -r _; kill -KILL $!; wait $!"#;

/// A running program.
pub struct Process {
    shell: Child,
    id: Pid,
}

impl Process {
    /// Starts a program that writes to a log.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> Process {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(log)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let id = Pid::from_raw(line.trim().parse().unwrap());
        Process { shell, id }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id.as_raw().unsigned_abs()
    }

    /// Whether it runs or is paused, and has not ended by itself.
    pub fn is_running(&self) -> bool {
        state(format!("/proc/{}/stat", self.id).as_ref()).is_some_and(|state| !"ZX".contains(state))
    }

    /// Stops it where it is, and returns when none of its threads runs any more. The signal alone is not waited for by anybody: a
    /// member may still answer after it was sent.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        let is_stopped = |thread: fs::DirEntry| state(&thread.path().join("stat")).is_none_or(|s| s == 'T');
        let threads = || fs::read_dir(format!("/proc/{}/task", self.id)).unwrap();
        while !threads().all(|thread| thread.is_ok_and(is_stopped)) {
            sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.id, signal).unwrap();
    }
}

/// The state of a process or thread, by a letter.
fn state(stat: &Path) -> Option<char> {
    let stat = fs::read_to_string(stat).ok()?;
    // It follows after the name, which is in parentheses.
    stat.rsplit_once(") ")?.1.chars().next()
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _status = self.shell.wait();
    }
}
