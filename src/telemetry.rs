//! What the server tells its operator: log lines on stderr.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::config::{LogFormat, Logging};

/// Starts logging for this process. Only the binary calls it: an embedder has a subscriber of its own.
pub fn init(logging: &Logging) -> Result<(), TryInitError> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives(logging)));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    match logging.logging_format {
        LogFormat::Text => lines.finish().try_init(),
        LogFormat::Json => lines.json().finish().try_init(),
    }
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
