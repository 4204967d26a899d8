//! Real time, in one place. Tests wait for a condition with a generous limit; none depends on how long something takes.

use std::thread;
use std::time::{Duration, Instant};

/// The limit of waits that should end at once.
pub const CAP: Duration = Duration::from_secs(30);

/// Whether long tests are enabled: `PILOTHOUSE_LONG=1`.
pub fn is_long() -> bool {
    std::env::var_os("PILOTHOUSE_LONG").is_some_and(|value| value == "1")
}

/// The end of a wait.
#[derive(Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "a test waits for a real process in real time")]
    pub fn after(cap: Duration) -> Deadline {
        Deadline(Instant::now() + cap)
    }

    #[expect(clippy::disallowed_methods, reason = "a test waits for a real process in real time")]
    pub fn left(self) -> Option<Duration> {
        self.0.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    pub fn passed(self) -> bool {
        self.left().is_none()
    }
}

/// Polls until there is an answer; `None` after the limit.
pub fn poll<T>(cap: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Deadline::after(cap);
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if deadline.passed() {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
