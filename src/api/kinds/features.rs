//! Fields that belong to features which are off unless somebody says otherwise.
//!
//! Where a feature is off its fields are dropped before anything looks at them, so their rules need not ask. The gates hold for
//! the whole process, as the flag that sets them does.

use std::sync::atomic::{AtomicU8, Ordering};

/// A feature with fields of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Containers say which signal ends them.
    ContainerStopSignals,
    /// Volumes that are images.
    ImageVolume,
    /// Trust bundles among the files of a projected volume.
    ClusterTrustBundleProjection,
    /// Claims that are filled from what lies in another namespace.
    CrossNamespaceVolumeDataSource,
    /// Classes of attributes that volumes can change to.
    VolumeAttributesClass,
}

static ON: AtomicU8 = AtomicU8::new(0);

impl Feature {
    const ALL: [Feature; 5] = [
        Feature::ContainerStopSignals,
        Feature::ImageVolume,
        Feature::ClusterTrustBundleProjection,
        Feature::CrossNamespaceVolumeDataSource,
        Feature::VolumeAttributesClass,
    ];

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Whether its fields are kept.
    pub fn is_on(self) -> bool {
        ON.load(Ordering::Relaxed) & self.bit() != 0
    }
}

/// Says once, at the start, which gates are open, by their names.
pub fn set_features(is_open: impl Fn(&str) -> bool) {
    let open = Feature::ALL.into_iter().filter(|feature| is_open(&format!("{feature:?}")));
    ON.store(open.fold(0, |all, feature| all | feature.bit()), Ordering::Relaxed);
}
