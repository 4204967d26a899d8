//! Whether the member at the other end of a connection still answers.
//!
//! A member that is paused keeps its connections, so calls to it would wait until the next ping fails. This notices it sooner: when
//! calls wait and none is answered for a while, the member is asked for its status, which it answers at once if it lives, whatever
//! else it is busy with.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The calls of one connection.
#[derive(Default)]
struct Counters {
    in_flight: AtomicU64,
    answered: AtomicU64,
}

/// Counts the calls of one connection, and tells them when the member has fallen silent.
#[derive(Clone)]
pub struct Liveness {
    counters: Arc<Counters>,
    is_silent: watch::Receiver<bool>,
}

/// Watches over the calls of one connection.
pub struct Monitor {
    counters: Arc<Counters>,
    is_silent: watch::Sender<bool>,
}

/// A call that waits for its answer.
pub struct WaitingCall<'l>(&'l Counters);

impl WaitingCall<'_> {
    /// The member has answered.
    pub fn answered(self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The two ends of the watch over one connection.
pub fn pair() -> (Liveness, Monitor) {
    let (sender, receiver) = watch::channel(false);
    let counters = Arc::<Counters>::default();
    let monitor = Monitor { counters: counters.clone(), is_silent: sender };
    (Liveness { counters, is_silent: receiver }, monitor)
}

impl Liveness {
    /// Counts a call until it is dropped.
    pub fn begin_call(&self) -> WaitingCall<'_> {
        self.counters.in_flight.fetch_add(1, Ordering::Relaxed);
        WaitingCall(&self.counters)
    }

    /// Whether the member has fallen silent.
    pub fn is_silent(&self) -> bool {
        *self.is_silent.borrow()
    }

    /// Waits until the member falls silent, maybe for ever.
    pub async fn silence(&self) {
        let mut is_silent = self.is_silent.clone();
        if is_silent.wait_for(|is_silent| *is_silent).await.is_err() {
            // The monitor has ended with the connection, which the call notices itself.
            std::future::pending::<()>().await;
        }
    }
}

impl Monitor {
    /// Probes the member whenever calls wait and none was answered for `patience`. Ends when a probe takes as long.
    pub async fn run<F: Future<Output = bool>>(self, patience: Duration, probe: impl Fn() -> F) {
        let mut answered = self.counters.answered.load(Ordering::Relaxed);
        loop {
            sleep(patience).await;
            let before = std::mem::replace(&mut answered, self.counters.answered.load(Ordering::Relaxed));
            if self.counters.in_flight.load(Ordering::Relaxed) == 0 || before != answered {
                continue;
            }
            if !matches!(timeout(patience, probe()).await, Ok(true)) {
                let _nobody_listens = self.is_silent.send(true);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(5);

    #[tokio::test]
    async fn member_that_answers_probes_is_not_silent() {
        let (liveness, monitor) = pair();
        let probes = AtomicU64::new(0);
        let call = liveness.begin_call();
        let probe = || {
            let count = probes.fetch_add(1, Ordering::Relaxed);
            async move { count < 3 }
        };
        monitor.run(PATIENCE, probe).await;
        assert!(liveness.is_silent());
        liveness.silence().await;
        assert_eq!(probes.load(Ordering::Relaxed), 4);
        drop(call);
    }

    #[tokio::test]
    async fn probe_without_answer_means_silence() {
        let (liveness, monitor) = pair();
        let call = liveness.begin_call();
        monitor.run(PATIENCE, std::future::pending::<bool>).await;
        assert!(liveness.is_silent());
        call.answered();
        assert_eq!(liveness.counters.in_flight.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn nothing_is_probed_while_nothing_waits() {
        let (liveness, monitor) = pair();
        let idle = monitor.run(PATIENCE, || async { panic!("nobody waits") });
        timeout(PATIENCE * 4, idle).await.unwrap_err();
        assert!(!liveness.is_silent());
    }
}
