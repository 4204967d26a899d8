//! The queue between the threads that log and the one that writes. If nobody reads the log, lines are dropped and counted here, and
//! no thread waits.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pilothouse_types::lock::{Lock, wait_while};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::outputs::{Outputs, write_line};
use crate::limits;

thread_local! {
    /// Whether this is the thread that writes the log.
    static WRITES_LOG: Cell<bool> = const { Cell::new(false) };
}

/// Whether the current thread is the one that writes the log. Its own lines are written directly.
pub(super) fn is_log_writer() -> bool {
    WRITES_LOG.get()
}

/// Stderr without the lock of the standard library, which a blocked writer would hold.
pub(super) fn stderr() -> io::Result<File> {
    Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?))
}

/// The same of stdout.
pub(super) fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Log lines that wait to be written.
#[derive(Default)]
pub(super) struct LogQueue {
    waiting: Lock<Waiting>,
    /// Notified when a line comes.
    filled: Condvar,
    /// Notified when everything is written.
    written: Condvar,
    /// Lines that were dropped since the start.
    dropped: AtomicU64,
    /// Whether the thread that writes has ended, which only a panic can cause.
    has_writer_ended: AtomicBool,
}

/// Notes the end of the thread that writes.
struct WriterEnd<'a>(&'a AtomicBool);

impl Drop for WriterEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<(Level, Vec<u8>)>,
    bytes: usize,
    /// Whether a line has left the queue and is not written yet.
    is_writing: bool,
    /// Whether lines are in the buffer of an output.
    is_buffered: bool,
    /// Whether somebody waits until they are written.
    must_flush: bool,
    /// Lines that were dropped since the last report.
    unreported_drops: u64,
    /// Lines that were written since then.
    written: usize,
}

/// What the thread that writes has to do.
enum Task {
    /// Write this line.
    Line(Level, Vec<u8>),
    /// Write what is buffered.
    Flush,
}

impl LogQueue {
    /// Adds a line, or drops it if there is no room.
    fn push(&self, line: &[u8], level: Level) {
        let reserve = if level == Level::ERROR { limits::LOG_ERRORS_WAITING } else { 0 };
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() >= limits::LOG_LINES_WAITING + reserve
            || waiting.bytes + line.len() > limits::LOG_BYTES_WAITING + (reserve << 10)
        {
            waiting.unreported_drops += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back((level, line.to_vec()));
        self.filled.notify_one();
    }

    /// The next task, waited for no longer than `limit`.
    fn next(&self, limit: Duration) -> Option<Task> {
        let waiting = self.waiting.lock();
        let is_idle = |waiting: &mut Waiting| waiting.lines.is_empty() && !waiting.must_flush;
        let mut waiting = wait_while(&self.filled, waiting, limit, is_idle);
        let Some((level, line)) = waiting.lines.pop_front() else {
            return std::mem::take(&mut waiting.must_flush).then_some(Task::Flush);
        };
        waiting.bytes -= line.len();
        waiting.is_writing = true;
        Some(Task::Line(level, line))
    }

    /// Notes that the last line is written, or buffered. Returns the number of lines that were dropped: when the queue is empty, and
    /// occasionally if it never is.
    fn note_written(&self, is_buffered: bool) -> u64 {
        let mut waiting = self.waiting.lock();
        waiting.is_writing = false;
        waiting.is_buffered = is_buffered;
        waiting.written += 1;
        if waiting.lines.is_empty() {
            self.written.notify_all();
        } else if waiting.written < limits::LOG_LINES_WAITING {
            return 0;
        }
        waiting.written = 0;
        std::mem::take(&mut waiting.unreported_drops)
    }

    /// Notes that the buffer is written.
    fn note_flushed(&self) {
        self.waiting.lock().is_buffered = false;
        self.written.notify_all();
    }

    /// Waits until everything is written, but no longer than `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let mut waiting = self.waiting.lock();
        waiting.must_flush = true;
        self.filled.notify_one();
        drop(wait_while(&self.written, waiting, limit, |waiting| {
            waiting.is_writing || waiting.is_buffered || !waiting.lines.is_empty()
        }));
    }

    /// Lines that were dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether the thread that writes has ended.
    pub(super) fn has_writer_ended(&self) -> bool {
        self.has_writer_ended.load(Ordering::Acquire)
    }

    /// Starts the thread that writes. `between_lines` runs on it between lines, and periodically: the lines that it logs are
    /// written directly.
    pub(super) fn start(
        &'static self,
        mut outputs: Outputs<impl Write + Send + 'static>,
        between_lines: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            WRITES_LOG.set(true);
            let _end = WriterEnd(&self.has_writer_ended);
            loop {
                match self.next(outputs.pause()) {
                    Some(Task::Line(level, line)) => {
                        outputs.write(level, &line);
                        let dropped = self.note_written(outputs.has_buffered());
                        if dropped > 0 {
                            tracing::warn!("{dropped} log lines were dropped");
                        }
                    }
                    Some(Task::Flush) => outputs.flush(),
                    None => {}
                }
                outputs.flush_if_due();
                if !outputs.has_buffered() {
                    self.note_flushed();
                }
                between_lines();
            }
        })?;
        Ok(())
    }
}

/// Hands the lines of the subscriber to the queue.
pub(super) struct LineWriter(pub(super) &'static LogQueue);

/// One line of a level.
pub(super) struct LogLine {
    queue: &'static LogQueue,
    level: Level,
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = LogLine;

    fn make_writer(&'a self) -> LogLine {
        LogLine { queue: self.0, level: Level::INFO }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LogLine {
        LogLine { queue: self.0, level: *metadata.level() }
    }
}

impl Write for LogLine {
    /// Takes a whole line: the subscriber writes each with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let truncated = line.get(..limits::LOG_LINE_BYTES).map(|start| [start, b"\n"].concat());
        let bounded = truncated.as_deref().unwrap_or(line);
        if is_log_writer() {
            stderr().map(|mut out| write_line(&mut out, bounded))?;
        } else {
            self.queue.push(bounded, self.level);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_log_queue_drops_lines_but_reserves_space_for_errors() {
        let queue = LogQueue::default();
        for _ in 0..limits::LOG_LINES_WAITING {
            queue.push(b"line\n", Level::INFO);
        }
        assert_eq!(queue.dropped(), 0);
        queue.push(b"line\n", Level::WARN);
        assert_eq!(queue.dropped(), 1);
        for _ in 0..limits::LOG_ERRORS_WAITING {
            queue.push(b"error\n", Level::ERROR);
        }
        assert_eq!(queue.dropped(), 1);
        queue.push(b"error\n", Level::ERROR);
        assert_eq!(queue.dropped(), 2);
    }

    #[test]
    fn log_queue_is_bounded_by_bytes() {
        let queue = LogQueue::default();
        let line = vec![b'x'; limits::LOG_LINE_BYTES];
        for _ in 0..limits::LOG_BYTES_WAITING / limits::LOG_LINE_BYTES {
            queue.push(&line, Level::INFO);
        }
        queue.push(b"\n", Level::INFO);
        assert_eq!(queue.dropped(), 1);
        queue.push(b"\n", Level::ERROR);
        assert_eq!(queue.dropped(), 1);
    }

    #[test]
    fn dropped_log_lines_are_reported_once_when_the_queue_is_empty() {
        let queue = LogQueue::default();
        for _ in 0..limits::LOG_LINES_WAITING + 7 {
            queue.push(b"line\n", Level::INFO);
        }
        let mut reported = Vec::new();
        while queue.next(Duration::ZERO).is_some() {
            reported.push(queue.note_written(false));
        }
        assert_eq!(reported.len(), limits::LOG_LINES_WAITING);
        assert_eq!(reported.pop(), Some(7));
        assert!(reported.iter().all(|dropped| *dropped == 0));
        queue.push(b"line\n", Level::INFO);
        assert!(queue.next(Duration::ZERO).is_some());
        assert_eq!(queue.note_written(false), 0);
    }

    #[test]
    fn log_flush_has_a_timeout() {
        let queue = LogQueue::default();
        queue.flush(Duration::from_secs(600));
        queue.push(b"line\n", Level::INFO);
        queue.flush(Duration::from_millis(1));
        assert!(matches!(queue.next(Duration::ZERO), Some(Task::Line(Level::INFO, _))));
        queue.flush(Duration::from_millis(1));
        assert_eq!(queue.note_written(false), 0);
        queue.flush(Duration::from_secs(600));
    }

    #[test]
    fn log_flush_waits_for_buffered_lines() {
        let queue = LogQueue::default();
        queue.push(b"line\n", Level::INFO);
        assert!(queue.next(Duration::ZERO).is_some());
        queue.note_written(true);
        queue.flush(Duration::from_millis(1));
        assert!(queue.waiting.lock().is_buffered);
        assert!(matches!(queue.next(Duration::ZERO), Some(Task::Flush)));
        queue.note_flushed();
        queue.flush(Duration::from_secs(600));
    }
}
