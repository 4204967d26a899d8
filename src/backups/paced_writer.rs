//! Lets a backup leave most of the processor to the requests that are answered meanwhile.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use pilothouse_types::clock::{Clock, Moment};

use crate::limits::{BACKUP_MAX_PAUSE, BACKUP_PAUSE_FACTOR, BACKUP_WORK_STEP};

/// Pauses its thread after each bit of work that was done between two writes, several times as long as the work took. How long the
/// output takes does not count: that is not work of this thread.
pub(crate) struct PacedWriter<'a, W> {
    out: &'a mut W,
    clock: &'a Clock,
    /// Since when this thread works.
    since: Moment,
    /// Work without a pause yet.
    worked: Duration,
}

impl<'a, W: Write> PacedWriter<'a, W> {
    /// Paces what is written to `out`.
    pub(crate) fn new(out: &'a mut W, clock: &'a Clock) -> PacedWriter<'a, W> {
        PacedWriter { out, clock, since: clock.moment(), worked: Duration::ZERO }
    }

    fn pause_after_work(&mut self) {
        self.worked += self.clock.elapsed(self.since);
        if self.worked >= BACKUP_WORK_STEP {
            // A slow disk is no work of this processor, and a backup that takes long keeps old pages in the file.
            thread::sleep((self.worked * BACKUP_PAUSE_FACTOR).min(BACKUP_MAX_PAUSE));
            self.worked = Duration::ZERO;
        }
    }
}

impl<W: Write> Write for PacedWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pause_after_work();
        let written = self.out.write(bytes);
        self.since = self.clock.moment();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::clock::Timestamp;

    use super::*;

    #[test]
    fn work_between_writes_is_followed_by_a_pause_and_slow_output_is_not() {
        let clock = Clock::manual(Timestamp(1));
        /// Takes its time, by the same clock.
        struct Slow<'c>(&'c Clock, usize);
        impl Write for Slow<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.advance(Duration::from_secs(1));
                self.1 += bytes.len();
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut slow = Slow(&clock, 0);
        let mut paced = PacedWriter::new(&mut slow, &clock);
        paced.write_all(b"one").unwrap();
        clock.advance(BACKUP_WORK_STEP / 2);
        paced.write_all(b"two").unwrap();
        assert_eq!(paced.worked, BACKUP_WORK_STEP / 2, "the output was slow, not this thread");
        clock.advance(BACKUP_WORK_STEP / 2);
        paced.write_all(b"three").unwrap();
        assert_eq!((paced.worked, slow.1), (Duration::ZERO, 11), "it has paused");
    }
}
