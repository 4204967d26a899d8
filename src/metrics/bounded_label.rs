//! Values of a label that come from objects: bounded, so that objects under ever new names do not fill the memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilothouse_types::lock::Lock;

/// The value that stands for all beyond the bound.
pub(super) const OTHERS: &str = "others";

/// The values of a label. Cheap to clone.
#[derive(Clone)]
pub(super) struct BoundedLabel {
    /// Those that have series of their own.
    known: Arc<Lock<BTreeSet<String>>>,
    limit: usize,
}

impl BoundedLabel {
    /// At most so many values, and one for the others.
    pub fn new(limit: usize) -> BoundedLabel {
        BoundedLabel { known: Arc::default(), limit }
    }

    /// The value under which this one is counted.
    pub fn value<'a>(&self, value: &'a str) -> &'a str {
        let mut known = self.known.lock();
        if known.contains(value) {
            return value;
        }
        if known.len() >= self.limit {
            return OTHERS;
        }
        known.insert(value.to_owned());
        value
    }
}
