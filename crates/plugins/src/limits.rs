//! Every bound of this crate, by name, with its reason. Those of a plugin's calls come from whoever calls it.

use std::time::Duration;

/// Bytes of a text of a plugin, such as the reason why it is not healthy, in errors and logs.
pub const PLUGIN_TEXT_BYTES: usize = 1 << 10;
/// The pause between two attempts to connect to a plugin during one call.
pub const PLUGIN_CONNECT_PAUSE: Duration = Duration::from_millis(100);
