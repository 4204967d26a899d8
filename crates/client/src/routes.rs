//! The ways to other servers: which proxies are on them.

mod environment;

pub use self::environment::ProxyEnvironment;
use crate::egress::EgressSelector;

/// What decides about the way to another server. Cheap to clone; by default all ways are direct.
#[derive(Clone, Default)]
pub struct Routes {
    /// The proxies of the egress selector. They also carry the connections to the other proxies.
    pub egress: EgressSelector,
    /// The proxies of the environment, for requests that are no upgrades.
    pub environment: ProxyEnvironment,
}

impl Routes {
    /// Without an egress selector.
    pub fn of_process() -> Routes {
        Routes { egress: EgressSelector::default(), environment: ProxyEnvironment::of_process() }
    }
}
