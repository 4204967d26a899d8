//! The log of the server: lines on stderr, or on both standard streams ([`outputs`]).
//!
//! One thread writes them ([`log_queue`]), so that a stream that nobody reads blocks no other thread. The lines that clients can
//! cause are limited per call site ([`call_site_limit`]). The reason why the process ends is not queued
//! ([`report_fatal`]).

mod call_site_limit;
mod log_queue;
mod outputs;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::Write as _;
use std::panic::PanicHookInfo;
use std::sync::{LazyLock, OnceLock, mpsc};
use std::{io, panic, thread};

use pilothouse_types::clock::Clock;
use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use self::call_site_limit::{CallSiteLimit, Limited};
use self::log_queue::{LineWriter, LogQueue, stderr, stdout};
use self::outputs::{BufferedOutput, Outputs};
use crate::config::{LogFormat, Logging};
use crate::limits;

/// Changes the log verbosity.
type SetVerbosity = Box<dyn Fn(u32) -> Result<(), String> + Send + Sync>;

/// Set once logging has started. There is one log for a process, however many servers run in it.
static SET_VERBOSITY: OnceLock<SetVerbosity> = OnceLock::new();
static QUEUE: LazyLock<LogQueue> = LazyLock::new(LogQueue::default);
static LIMIT: LazyLock<CallSiteLimit> = LazyLock::new(|| CallSiteLimit::new(Clock::system()));

/// The error that keeps logging from starting.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The process has a subscriber already.
    #[error(transparent)]
    Taken(#[from] TryInitError),
    /// There is no stderr, or no thread for it.
    #[error("cannot start the log: {0}")]
    Writer(#[from] io::Error),
}

/// A log that has started. Dropping it waits for the last lines, though not for ever.
#[must_use]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        QUEUE.flush(limits::LOG_FLUSH_TIMEOUT);
    }
}

/// Starts logging for this process. Only the binary calls it: an embedder has a subscriber of its own.
pub fn init(logging: &Logging) -> Result<Log, LogError> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives(logging)));
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(LineWriter(&QUEUE)).with_ansi(false);
    match logging.logging_format {
        LogFormat::Text => {
            let lines = lines.with_filter_reloading();
            install_verbosity_setter(logging, lines.reload_handle());
            lines.finish().with(Limited(&LIMIT)).try_init()?;
        }
        LogFormat::Json => {
            let lines = lines.json().with_filter_reloading();
            install_verbosity_setter(logging, lines.reload_handle());
            lines.finish().with(Limited(&LIMIT)).try_init()?;
        }
    }
    QUEUE.start(outputs(logging)?, || LIMIT.report())?;
    // The default hook writes to stderr directly, which would block the panicking thread if nobody reads.
    panic::set_hook(Box::new(report_panic));
    Ok(Log(()))
}

/// Where the lines go.
fn outputs(logging: &Logging) -> io::Result<Outputs<File>> {
    let Some(info) = logging.info_stream() else { return Ok(Outputs::single(stderr()?)) };
    let errors = if info.has_warnings { Level::ERROR } else { Level::WARN };
    let (interval, clock) = (logging.log_flush_frequency, Clock::system());
    let output = BufferedOutput::new(stdout()?, errors, info.buffer_size, interval, clock);
    Ok(Outputs::split(stderr()?, output))
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let message = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => {
            tracing::error!("thread '{name}' panicked at {location}: {message}\n{backtrace}");
        }
        _ => tracing::error!("thread '{name}' panicked at {location}: {message}"),
    }
}

/// Writes why the process ends, after the queued lines. Not through the queue, which may be full. If nobody reads stderr, the
/// process ends without the line rather than hanging.
pub fn report_fatal(reason: &str) {
    QUEUE.flush(limits::LOG_FLUSH_TIMEOUT);
    let line = format!("pilothouse: {reason}\n");
    let (sender, receiver) = mpsc::sync_channel(1);
    let write = move || {
        let _ = stderr().and_then(|mut output| output.write_all(line.as_bytes()));
        let _ = sender.send(());
    };
    if thread::Builder::new().spawn(write).is_ok() {
        let _ = receiver.recv_timeout(limits::LOG_FLUSH_TIMEOUT);
    }
}

/// Lines that were not written since the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLines {
    /// Nobody read the log fast enough.
    pub dropped: u64,
    /// Their call site wrote too many.
    pub limited: u64,
}

/// Lines that were not written since the start of the process.
pub fn lost_lines() -> LostLines {
    LostLines { dropped: QUEUE.dropped(), limited: LIMIT.limited() }
}

/// Whether nobody writes the log any more. Lines that come are dropped then.
pub fn has_writer_ended() -> bool {
    QUEUE.has_writer_ended()
}

fn install_verbosity_setter<S: 'static>(logging: &Logging, handle: Handle<EnvFilter, S>) {
    let logging = logging.clone();
    let set = move |verbosity| {
        let filter = EnvFilter::new(directives(&Logging { verbosity, ..logging.clone() }));
        handle.reload(filter).map_err(|error| error.to_string())
    };
    // A second start of logging fails anyway.
    let _ = SET_VERBOSITY.set(Box::new(set));
}

/// Changes how much is logged from now on, whatever RUST_LOG says. Fails in a process whose log is not this one.
pub fn set_verbosity(verbosity: u32) -> Result<(), String> {
    let set = SET_VERBOSITY.get().ok_or("this server does not write the log of its process")?;
    set(verbosity)?;
    tracing::info!(verbosity, "the log verbosity was changed");
    Ok(())
}

/// The reference server's levels, which are numbers, as ours.
fn level(verbosity: u32) -> &'static str {
    match verbosity {
        0..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    }
}

/// The log filter without RUST_LOG. Lines of libraries below warn are included only at high verbosity.
fn directives(logging: &Logging) -> String {
    let own_level = level(logging.verbosity);
    let library_level = if logging.verbosity >= 8 { "debug" } else { "warn" };
    let mut directives = format!("{library_level},pilothouse={own_level},pilothouse_actors={own_level}");
    if logging.verbosity < 8 {
        // It writes an error for each malformed request. `http/h1.rs` writes a line with the address instead.
        directives.push_str(",actix_http::h1::dispatcher=off");
    }
    for setting in &logging.vmodule {
        if let Some((module, verbosity)) = setting.split_once('=')
            && module.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':')
            && let Ok(verbosity) = verbosity.parse()
        {
            directives.push_str(&format!(",pilothouse::{module}={}", level(verbosity)));
        }
    }
    directives
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn verbosity_maps_to_log_levels() {
        let mut logging = Config::default().logging;
        let quiet = ",actix_http::h1::dispatcher=off";
        assert_eq!(directives(&logging), format!("warn,pilothouse=info,pilothouse_actors=info{quiet}"));
        logging.verbosity = 4;
        logging.vmodule = ["http=6", "nonsense", "a,b=4", "pki=x"].map(str::to_owned).to_vec();
        let directives = super::directives(&logging);
        let own = "warn,pilothouse=debug,pilothouse_actors=debug";
        assert_eq!(directives, format!("{own}{quiet},pilothouse::http=trace"));
        assert!(EnvFilter::try_new(directives).is_ok());
    }
}
