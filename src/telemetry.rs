//! What the server tells its operator: log lines on stderr.

use std::io;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::config::{LogFormat, Logging};

/// What changes how much is logged from now on.
type Change = Box<dyn Fn(u32) -> Result<(), String> + Send + Sync>;

/// Set once logging has started. There is one log for a process, however many servers run in it.
static CHANGE: OnceLock<Change> = OnceLock::new();

/// Starts logging for this process. Only the binary calls it: an embedder has a subscriber of its own.
pub fn init(logging: &Logging) -> Result<(), TryInitError> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives(logging)));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    match logging.logging_format {
        LogFormat::Text => {
            let lines = lines.with_filter_reloading();
            change_by(logging, lines.reload_handle());
            lines.finish().try_init()
        }
        LogFormat::Json => {
            let lines = lines.json().with_filter_reloading();
            change_by(logging, lines.reload_handle());
            lines.finish().try_init()
        }
    }
}

fn change_by<S: 'static>(logging: &Logging, handle: Handle<EnvFilter, S>) {
    let logging = logging.clone();
    let change = move |verbosity| {
        let filter = EnvFilter::new(directives(&Logging { verbosity, ..logging.clone() }));
        handle.reload(filter).map_err(|error| error.to_string())
    };
    // A second start of logging fails anyway.
    let _ = CHANGE.set(Box::new(change));
}

/// Changes how much is logged from now on, whatever RUST_LOG says. Fails in a process whose log is not this one.
pub fn set_verbosity(verbosity: u32) -> Result<(), String> {
    let change = CHANGE.get().ok_or("this server does not write the log of its process")?;
    change(verbosity)?;
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

/// What is logged when RUST_LOG does not say. The libraries below are heard only when everything is wanted.
fn directives(logging: &Logging) -> String {
    let own = level(logging.verbosity);
    let others = if logging.verbosity >= 8 { "debug" } else { "warn" };
    let mut directives = format!("{others},pilothouse={own},pilothouse_actors={own}");
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
    fn verbosity_becomes_levels() {
        let mut logging = Config::default().logging;
        assert_eq!(directives(&logging), "warn,pilothouse=info,pilothouse_actors=info");
        logging.verbosity = 4;
        logging.vmodule = ["http=6", "nonsense", "a,b=4", "pki=x"].map(str::to_owned).to_vec();
        let all = directives(&logging);
        assert_eq!(all, "warn,pilothouse=debug,pilothouse_actors=debug,pilothouse::http=trace");
        assert!(EnvFilter::try_new(all).is_ok());
    }
}
