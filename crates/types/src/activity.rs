//! What actors, queues and threads do at a moment: plain data, as an actor tells it when it is asked. Nothing of it is kept while nobody
//! asks.

use std::time::Duration;

/// The watches with the most unread events that an actor names.
pub const SLOWEST_WATCHES: usize = 10;

/// How much waits in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// What waits where.
    pub name: String,
    /// How much.
    pub depth: usize,
    /// How much may; `None` if something else bounds it, see docs/queues.md.
    pub bound: Option<usize>,
}

impl QueueDepth {
    /// A queue with a bound of its own.
    pub fn bounded(name: impl Into<String>, depth: usize, bound: usize) -> QueueDepth {
        QueueDepth { name: name.into(), depth, bound: Some(bound) }
    }

    /// A queue that something else bounds.
    pub fn unbounded(name: impl Into<String>, depth: usize) -> QueueDepth {
        QueueDepth { name: name.into(), depth, bound: None }
    }
}

/// A watch whose client is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowWatch {
    /// What it watches.
    pub type_name: String,
    /// Announced events that its client has not read.
    pub unread: usize,
}

/// Keeps those with the most unread events.
pub fn retain_slowest(watches: &mut Vec<SlowWatch>) {
    watches.retain(|watch| watch.unread > 0);
    watches.sort_by_key(|watch| std::cmp::Reverse(watch.unread));
    watches.truncate(SLOWEST_WATCHES);
}

/// What an actor does, in its own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// The thread that it runs on.
    pub thread: String,
    /// Its queues, apart from its mailbox.
    pub queues: Vec<QueueDepth>,
    /// What else it counts.
    pub numbers: Vec<(&'static str, u64)>,
    /// Its slowest watches, the slowest first.
    pub slow_watches: Vec<SlowWatch>,
}

impl Activity {
    /// That of an actor on this thread.
    pub fn here(queues: Vec<QueueDepth>, numbers: Vec<(&'static str, u64)>) -> Activity {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        Activity { thread, queues, numbers, slow_watches: Vec::new() }
    }
}

/// An actor, and what it has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorReport {
    /// Which sort of actor it is.
    pub kind: &'static str,
    /// Which one of them; empty if there is only one.
    pub name: String,
    /// How long the question was on its way through the mailbox: the rest of the turn that the actor was in, and one turn for each
    /// message before it. `None`: longer than anybody waits.
    pub waited: Option<Duration>,
    /// What it does; empty if it did not answer.
    pub activity: Activity,
}

/// A thread of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadReport {
    /// Its number.
    pub id: u32,
    /// Its name, as far as the kernel keeps it.
    pub name: String,
    /// Its state, as the kernel abbreviates it: R runs, S waits, D waits for a device.
    pub state: char,
    /// The processor time that it has used, in clock ticks.
    pub ticks: u64,
}

/// Everything at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerActivity {
    /// The actors.
    pub actors: Vec<ActorReport>,
    /// The queues that no actor owns.
    pub queues: Vec<QueueDepth>,
    /// The threads.
    pub threads: Vec<ThreadReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_watches_are_kept_and_those_without_unread_events_are_not() {
        let watch = |unread| SlowWatch { type_name: "pods".to_owned(), unread };
        let mut watches: Vec<SlowWatch> = (0..2 * SLOWEST_WATCHES).map(watch).collect();
        retain_slowest(&mut watches);
        let unread: Vec<usize> = watches.iter().map(|watch| watch.unread).collect();
        assert_eq!(unread, (SLOWEST_WATCHES..2 * SLOWEST_WATCHES).rev().collect::<Vec<_>>());
        let mut idle = vec![watch(0)];
        retain_slowest(&mut idle);
        assert!(idle.is_empty());
    }
}
