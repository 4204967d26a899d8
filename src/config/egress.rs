//! The proxies of outgoing connections.

use std::path::PathBuf;

use clap::Args;
use pilothouse_client::egress::EgressSelector;
use pilothouse_types::clock::Clock;

/// The flag about them.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Egress selector")]
pub struct EgressFlags {
    /// EgressSelectorConfiguration: the proxies, such as konnectivity, through which nodes, pods and services (cluster), webhooks with
    /// a URL or of the operator (controlplane) and etcd are reached. What it does not name is connected to directly.
    #[arg(long, value_name = "FILE")]
    pub egress_selector_config_file: Option<PathBuf>,
}

impl EgressFlags {
    /// Reads the file, if there is one.
    pub(crate) fn selector(&self, clock: &Clock) -> Result<EgressSelector, String> {
        match &self.egress_selector_config_file {
            Some(path) => EgressSelector::read(path, clock),
            None => Ok(EgressSelector::default()),
        }
    }
}
