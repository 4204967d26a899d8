//! The way out of this server: `--egress-selector-config-file` says which connections go through a proxy, such as konnectivity.
//!
//! A selection without a proxy, and one that is not configured, is connected to directly. A proxy that fails is never passed by: the
//! connection fails.

mod configuration;
mod dialer;
pub mod http_connect;
pub mod konnectivity;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use pilothouse_types::clock::Clock;

pub use pilothouse_api::connect::Egress;

use self::configuration::Configuration;
pub use self::dialer::{DialObserver, ProxyKind, Stage, TunnelDialer};
use crate::bounded_read;
use crate::limits::EGRESS_CONFIGURATION_BYTES;

/// The proxies of connections. Cheap to clone; without a file all connections are direct.
#[derive(Clone, Default)]
pub struct EgressSelector {
    dialers: Arc<BTreeMap<Egress, Arc<TunnelDialer>>>,
}

impl EgressSelector {
    /// Reads the file, and the certificates that it names. The error is in the reference's words.
    pub fn read(path: &Path, clock: &Clock) -> Result<EgressSelector, String> {
        let text = match bounded_read::read_file(path, EGRESS_CONFIGURATION_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(format!("egress-selector-config-file {} does not exist", path.display()));
            }
            Err(error) => return Err(format!("failed to read egress selector config: {error}")),
        };
        let configuration = Configuration::parse(&text)?;
        let mut dialers = BTreeMap::new();
        for (egress, connection) in configuration.selections {
            let dialer = TunnelDialer::new(connection, clock).map_err(|error| {
                let name = configuration::name(egress);
                format!(
                    "failed to setup egress selector: failed to create dialer for egressSelection \"{name}\": {error}"
                )
            })?;
            if let Some(dialer) = dialer {
                dialers.insert(egress, Arc::new(dialer));
            }
        }
        Ok(EgressSelector { dialers: Arc::new(dialers) })
    }

    /// The proxy of these connections; `None` if they are direct.
    pub fn dialer(&self, egress: Egress) -> Option<&Arc<TunnelDialer>> {
        self.dialers.get(&egress)
    }

    /// Tells an observer of every connection through a proxy from now on. Only the first observer is told.
    pub fn set_observer(&self, observer: &Arc<dyn DialObserver>) {
        self.dialers.values().for_each(|dialer| dialer.set_observer(observer));
    }
}

#[cfg(test)]
mod tests;
