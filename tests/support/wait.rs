//! Waits in real time. Tests wait for a condition with a generous timeout; none depends on how long something takes.

use std::thread;
use std::time::{Duration, Instant};

/// The timeout of waits that normally end at once.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether long tests are enabled: `PILOTHOUSE_LONG=1`.
pub fn long_tests_enabled() -> bool {
    std::env::var_os("PILOTHOUSE_LONG").is_some_and(|value| value == "1")
}

/// The end of a wait.
#[derive(Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "a test waits for a real process in real time")]
    pub fn after(timeout: Duration) -> Deadline {
        Deadline(Instant::now() + timeout)
    }

    #[expect(clippy::disallowed_methods, reason = "a test waits for a real process in real time")]
    pub fn remaining(self) -> Option<Duration> {
        self.0.checked_duration_since(Instant::now()).filter(|remaining| !remaining.is_zero())
    }

    pub fn has_passed(self) -> bool {
        self.remaining().is_none()
    }
}

/// Calls `probe` until it returns a value; `None` after the timeout.
pub fn poll<T>(timeout: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Deadline::after(timeout);
    loop {
        if let Some(value) = probe() {
            return Some(value);
        }
        if deadline.has_passed() {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
