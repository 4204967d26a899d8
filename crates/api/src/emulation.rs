//! The emulation of an earlier release: which resources it has.

use pilothouse_apimachinery::version::{MinorVersion, RELEASE};

/// The oldest release that can be emulated, and with which what is stored stays compatible.
pub const OLDEST: MinorVersion = (1, 31);

/// The release whose resources are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// The release.
    pub release: MinorVersion,
    /// Whether later versions of a served resource are served too.
    pub forward_compatible: bool,
    /// Whether `--runtime-config` can enable resources of later releases.
    pub runtime_config_forward_compatible: bool,
}

impl Default for Emulation {
    fn default() -> Emulation {
        Emulation { release: RELEASE, forward_compatible: false, runtime_config_forward_compatible: false }
    }
}

/// The oldest release that understands what a server of this release stores: the previous one, which it may be rolled back to.
pub fn min_compatibility((major, minor): MinorVersion) -> MinorVersion {
    (major, minor.saturating_sub(1)).max(OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_objects_are_compatible_with_the_previous_release() {
        let compatibility = [31, 32, 33].map(|minor| min_compatibility((1, minor)));
        assert_eq!(compatibility, [(1, 31), (1, 31), (1, 32)]);
    }
}
