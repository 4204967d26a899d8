//! A record that one server has for itself, in memory: for items that are counted again at every start.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _, ready};
use pilothouse_types::lock::Lock;
use pilothouse_types::object::Revision;

use super::{RangeContent, RangeError, RangeRecord, RangeWrite, SharedRange};

/// The record. Clones share it.
#[derive(Clone, Default)]
pub struct OwnRange(Arc<Lock<Option<RangeRecord>>>);

impl SharedRange for OwnRange {
    fn read(&self) -> BoxFuture<'static, Result<Option<RangeRecord>, RangeError>> {
        ready(Ok(self.0.lock().clone())).boxed()
    }

    fn write(&self, expected: Option<Revision>, content: RangeContent) -> BoxFuture<'static, RangeWrite> {
        let mut record = self.0.lock();
        let current = record.as_ref().map(|record| record.revision);
        let result = if current == expected {
            let revision = Revision(current.map_or(1, |revision| revision.0 + 1));
            *record = Some(RangeRecord { revision, content });
            RangeWrite::Written(revision)
        } else {
            RangeWrite::Changed(record.clone())
        };
        ready(result).boxed()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn own_record_is_written_only_at_its_revision() {
        let range = OwnRange::default();
        let content = |text: &str| RangeContent { range: text.to_owned(), ..RangeContent::default() };
        let write = |expected, text| range.write(expected, content(text)).now_or_never().unwrap();
        let read = || range.read().now_or_never().unwrap().unwrap().map(|record| record.content.range);
        assert_eq!(read(), None);
        let RangeWrite::Written(first) = write(None, "a") else { panic!("it is the first") };
        assert!(matches!(write(None, "b"), RangeWrite::Changed(Some(_))));
        assert!(matches!(write(Some(first), "c"), RangeWrite::Written(second) if second != first));
        assert!(matches!(write(Some(first), "d"), RangeWrite::Changed(Some(_))));
        assert_eq!(read().as_deref(), Some("c"));
    }
}
