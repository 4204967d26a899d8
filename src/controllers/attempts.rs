//! Runs the many steps of one work item. A failed step must not stop the others: a corrupt object stays so until somebody repairs
//! it.

use futures::{StreamExt as _, stream};
use pilothouse_apimachinery::status::{Result, Status};

/// The errors so far. The first one makes the loop retry, after all other steps are done.
#[derive(Debug, Default)]
pub struct Attempts {
    first: Option<Box<Status>>,
}

impl Attempts {
    /// The result of one step, if it succeeded.
    pub fn take<T>(&mut self, tried: Result<T>) -> Option<T> {
        tried.map_err(|status| self.first.get_or_insert(status)).ok()
    }

    /// The result of all steps.
    pub fn end(self) -> Result<()> {
        self.first.map_or(Ok(()), Err)
    }
}

/// Runs all futures, `at_once` at a time: they share disk syncs and still let others write.
pub async fn all<W: Future<Output = Result<()>>>(
    works: impl IntoIterator<Item = W>,
    at_once: usize,
) -> Result<()> {
    let mut works = stream::iter(works).buffer_unordered(at_once);
    let mut attempts = Attempts::default();
    while let Some(done) = works.next().await {
        attempts.take(done);
    }
    attempts.end()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[actix_rt::test]
    async fn one_that_fails_does_not_keep_the_others_and_the_first_failure_is_told() {
        let done = RefCell::new(Vec::new());
        let works = (0..5).map(|number| {
            let done = &done;
            async move {
                if number % 2 == 1 {
                    return Err(Status::internal(format!("the {number}th")));
                }
                done.borrow_mut().push(number);
                Ok(())
            }
        });
        let failed = all(works, 1).await.unwrap_err();
        assert!(failed.message.contains("the 1th"), "{failed}");
        assert_eq!(*done.borrow(), [0, 2, 4]);
        assert!(all(std::iter::empty::<std::future::Ready<Result<()>>>(), 1).await.is_ok());
    }
}
