//! Where log lines go: all to stderr, or with split streams those that are no errors to stdout, which may be buffered.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use pilothouse_types::clock::{Clock, Moment};
use tracing::Level;

use crate::limits;

/// The pause before another attempt at an output that does not block and has no room.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The least pause between two flushes.
const MIN_FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// The outputs of the log.
pub(super) struct Outputs<W> {
    errors: W,
    info: Option<BufferedOutput<W>>,
}

/// The output of lines that are no errors.
pub(super) struct BufferedOutput<W> {
    output: W,
    /// The most verbose level of the lines that do not belong to it.
    errors: Level,
    /// Lines that are not written yet.
    buffer: Vec<u8>,
    /// Bytes that it may hold; zero if each line is written at once.
    buffer_size: usize,
    /// How long a line may stay in it.
    flush_interval: Duration,
    clock: Clock,
    flushed: Moment,
}

impl<W: Write> Outputs<W> {
    /// All lines go to one output.
    pub(super) fn single(errors: W) -> Outputs<W> {
        Outputs { errors, info: None }
    }

    /// Lines of other levels than errors go to `info`.
    pub(super) fn split(errors: W, info: BufferedOutput<W>) -> Outputs<W> {
        Outputs { errors, info: Some(info) }
    }

    /// Writes a whole line, or puts it into the buffer.
    pub(super) fn write(&mut self, level: Level, line: &[u8]) {
        match &mut self.info {
            Some(info) if level > info.errors => info.write(line),
            _ => write_line(&mut self.errors, line),
        }
    }

    /// Whether lines wait in the buffer.
    pub(super) fn has_buffered(&self) -> bool {
        self.info.as_ref().is_some_and(|info| !info.buffer.is_empty())
    }

    /// Writes what is in the buffer.
    pub(super) fn flush(&mut self) {
        if let Some(info) = &mut self.info {
            info.flush();
        }
    }

    /// The same, if it is time for that.
    pub(super) fn flush_if_due(&mut self) {
        if let Some(info) = &mut self.info
            && info.clock.elapsed(info.flushed) >= info.flush_interval
        {
            info.flush();
        }
    }

    /// How long nothing has to be done without a line.
    pub(super) fn pause(&self) -> Duration {
        let buffered = self.info.as_ref().filter(|info| info.buffer_size > 0);
        let interval = buffered.map_or(limits::LOG_LINE_INTERVAL, |info| info.flush_interval);
        interval.clamp(MIN_FLUSH_INTERVAL, limits::LOG_LINE_INTERVAL)
    }
}

impl<W: Write> BufferedOutput<W> {
    /// An output for lines of more verbose levels than `errors`.
    pub(super) fn new(
        output: W,
        errors: Level,
        buffer_size: usize,
        flush_interval: Duration,
        clock: Clock,
    ) -> BufferedOutput<W> {
        let flushed = clock.moment();
        BufferedOutput { output, errors, buffer: Vec::new(), buffer_size, flush_interval, clock, flushed }
    }

    fn write(&mut self, line: &[u8]) {
        if self.buffer.len() + line.len() > self.buffer_size {
            self.flush();
        }
        if line.len() > self.buffer_size {
            write_line(&mut self.output, line);
        } else {
            self.buffer.extend_from_slice(line);
        }
    }

    fn flush(&mut self) {
        write_line(&mut self.output, &self.buffer);
        self.buffer.clear();
        self.flushed = self.clock.moment();
    }
}

/// Writes a whole line. Errors are ignored: there is no other place to report them.
pub(super) fn write_line(out: &mut impl Write, mut line: &[u8]) {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return,
            Ok(written) => line = line.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY_PAUSE),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilothouse_types::clock::Timestamp;
    use pilothouse_types::lock::Lock;

    use super::*;

    #[derive(Clone, Default)]
    struct Text(Arc<Lock<String>>);

    impl Text {
        fn take(&self) -> String {
            std::mem::take(&mut *self.0.lock())
        }
    }

    impl Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Outputs with split streams, and what was written to stderr and stdout.
    fn split(errors: Level, buffer_size: usize, clock: &Clock) -> (Outputs<Text>, Text, Text) {
        let (stderr, stdout) = (Text::default(), Text::default());
        let interval = Duration::from_secs(5);
        let info = BufferedOutput::new(stdout.clone(), errors, buffer_size, interval, clock.clone());
        (Outputs::split(stderr.clone(), info), stderr, stdout)
    }

    #[test]
    fn lines_go_to_the_stream_of_their_level() {
        let clock = Clock::manual(Timestamp(0));
        let write_all = |outputs: &mut Outputs<Text>| {
            for (level, line) in
                [(Level::ERROR, "e"), (Level::WARN, "w"), (Level::INFO, "i"), (Level::DEBUG, "d")]
            {
                outputs.write(level, line.as_bytes());
            }
        };
        let all = Text::default();
        write_all(&mut Outputs::single(all.clone()));
        assert_eq!(all.take(), "ewid");
        let (mut outputs, stderr, stdout) = split(Level::WARN, 0, &clock);
        write_all(&mut outputs);
        assert_eq!((stderr.take(), stdout.take()), ("ew".to_owned(), "id".to_owned()));
        let (mut outputs, stderr, stdout) = split(Level::ERROR, 0, &clock);
        write_all(&mut outputs);
        assert_eq!((stderr.take(), stdout.take()), ("e".to_owned(), "wid".to_owned()));
        assert!(!outputs.has_buffered());
    }

    #[test]
    fn buffer_is_written_when_it_is_full_or_it_is_time() {
        let clock = Clock::manual(Timestamp(0));
        let (mut outputs, stderr, stdout) = split(Level::WARN, 8, &clock);
        outputs.write(Level::INFO, b"abc\n");
        outputs.write(Level::INFO, b"def\n");
        outputs.write(Level::ERROR, b"error\n");
        assert_eq!((stderr.take().as_str(), stdout.take().as_str()), ("error\n", ""));
        outputs.write(Level::INFO, b"g\n");
        assert_eq!(stdout.take(), "abc\ndef\n");
        outputs.write(Level::INFO, b"longer than that\n");
        assert_eq!(stdout.take(), "g\nlonger than that\n", "in order");
        outputs.write(Level::INFO, b"h\n");
        clock.advance(Duration::from_secs(4));
        outputs.flush_if_due();
        assert!(stdout.take().is_empty() && outputs.has_buffered());
        clock.advance(Duration::from_secs(1));
        outputs.flush_if_due();
        assert_eq!(stdout.take(), "h\n");
        outputs.write(Level::INFO, b"i\n");
        outputs.flush();
        assert!(stdout.take() == "i\n" && !outputs.has_buffered());
    }
}
