//! The turn of the compaction, which all servers of one etcd share.
//!
//! Each server proposes a compaction once per interval: a transaction that writes [`crate::keys::COMPACTION_KEY`] if the key still has
//! the version (the number of its writes) that the server saw last. The one that succeeds compacts to the revision that it learned one
//! interval before, so that watches have at least that long to catch up. The others learn the current version and revision, and
//! propose again after the next interval: if the first one has died meanwhile, one of them takes over.

/// What a server knows of the turn. Begins at zero, as before the first write of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionTurn {
    /// The version that the key had last.
    version: i64,
    /// The revision of etcd when the server learned that version; zero before the first answer.
    revision: i64,
}

/// A transaction that asks for the turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionProposal {
    /// The version that the key must have; zero if it must not exist.
    pub expected_version: i64,
    /// The value to write: the revision that will be compacted.
    pub value: Vec<u8>,
}

impl CompactionTurn {
    /// The transaction for the next attempt. If the comparison fails, it reads the key.
    pub fn proposal(&self) -> CompactionProposal {
        CompactionProposal { expected_version: self.version, value: self.revision.to_string().into_bytes() }
    }

    /// The transaction succeeded, and `current` is the revision of its response. Returns the revision to compact, if the server has
    /// seen one: the first turn only begins to count.
    pub fn won(&mut self, current: i64) -> Option<i64> {
        let compacted = self.revision;
        *self = CompactionTurn { version: self.version.saturating_add(1), revision: current };
        (compacted > 0).then_some(compacted)
    }

    /// etcd accepts no writes, so nobody can take the turn: the key has this version, and `current` is the revision of etcd. Returns the
    /// revision to compact all the same, if the server has seen one: that frees space. If all servers do so, nothing is lost by it.
    pub fn unwritable(&mut self, version: i64, current: i64) -> Option<i64> {
        let compacted = self.revision;
        self.lost(version, current);
        (compacted > 0).then_some(compacted)
    }

    /// Another server had the turn: the key has this version, and `current` is the revision of the response. A key that is gone has
    /// version zero.
    pub fn lost(&mut self, version: i64, current: i64) {
        *self = CompactionTurn { version, revision: current };
    }
}

/// The revision in the value of the key: a compaction to it was begun by whoever wrote it. `None` if it is no number.
pub fn compacted_revision(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok().filter(|revision| *revision >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key in etcd.
    #[derive(Default)]
    struct Etcd {
        version: i64,
        value: Vec<u8>,
        revision: i64,
    }

    impl Etcd {
        /// Runs the transaction of a server. Returns what it compacts.
        fn run(&mut self, turn: &mut CompactionTurn) -> Option<i64> {
            let proposal = turn.proposal();
            if proposal.expected_version != self.version {
                turn.lost(self.version, self.revision);
                return None;
            }
            self.revision += 1;
            (self.version, self.value) = (self.version + 1, proposal.value);
            turn.won(self.revision)
        }
    }

    #[test]
    fn first_turn_compacts_nothing_and_later_ones_the_revision_of_the_turn_before() {
        let (mut etcd, mut turn) = (Etcd::default(), CompactionTurn::default());
        etcd.revision = 100;
        assert_eq!(etcd.run(&mut turn), None);
        assert_eq!(compacted_revision(&etcd.value), Some(0));
        etcd.revision = 500;
        assert_eq!(etcd.run(&mut turn), Some(101));
        assert_eq!((etcd.version, compacted_revision(&etcd.value)), (2, Some(101)));
        assert_eq!(etcd.run(&mut turn), Some(501));
    }

    #[test]
    fn one_server_has_the_turn_and_another_takes_over() {
        let (mut etcd, mut first, mut second) =
            (Etcd::default(), CompactionTurn::default(), CompactionTurn::default());
        etcd.revision = 10;
        etcd.run(&mut first);
        assert_eq!(etcd.run(&mut second), None);
        for revision in [20, 30, 40] {
            etcd.revision = revision;
            assert!(etcd.run(&mut first).is_some());
            assert_eq!(etcd.run(&mut second), None, "it proposes later in each interval");
        }
        etcd.revision = 50;
        assert_eq!(etcd.run(&mut second), Some(41), "what it learned when it lost last");
        assert_eq!(etcd.run(&mut first), None);
    }

    #[test]
    fn server_that_starts_late_learns_the_version() {
        let (mut etcd, mut turn) =
            (Etcd { version: 7, value: b"90".to_vec(), revision: 99 }, CompactionTurn::default());
        assert_eq!(etcd.run(&mut turn), None);
        assert_eq!(turn, CompactionTurn { version: 7, revision: 99 });
        assert_eq!(etcd.run(&mut turn), Some(99));
    }

    #[test]
    fn value_is_a_decimal_revision() {
        for (value, revision) in [
            (&b"0"[..], Some(0)),
            (b"1234567890123", Some(1_234_567_890_123)),
            (b"", None),
            (b"-1", None),
            (b"1x", None),
            (b"\xff", None),
        ] {
            assert_eq!(compacted_revision(value), revision);
        }
    }
}
