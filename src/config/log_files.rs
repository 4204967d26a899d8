//! The log files of this host that clients may read.

use std::path::PathBuf;

use clap::{ArgAction, Args};

/// The flag about them.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Log files")]
pub struct LogFiles {
    /// Serve the files of /var/log at /logs. Deprecated.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub enable_logs_handler: bool,
    /// The directory that is served instead of /var/log. No flag: for embedders.
    #[arg(skip)]
    pub log_directory: Option<PathBuf>,
}

impl LogFiles {
    /// A warning if the flag is used.
    pub(super) fn warning(&self) -> Option<String> {
        self.enable_logs_handler.then(|| {
            "--enable-logs-handler is deprecated: whoever may get /logs reads the logs of this host"
                .to_owned()
        })
    }
}
