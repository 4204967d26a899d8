//! Runs the many steps of one work item. A failed step must not stop the others: a corrupt object stays so until somebody repairs
//! it.

use futures::{StreamExt as _, stream};
use pilothouse_apimachinery::status::{Result, Status};

/// The errors so far. The first one makes the controller retry, after all other steps are done.
#[derive(Debug, Default)]
pub struct Attempts {
    first: Option<Box<Status>>,
}

impl Attempts {
    /// The result of one step, if it succeeded.
    pub fn take<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|status| self.first.get_or_insert(status)).ok()
    }

    /// The result of all steps.
    pub fn end(self) -> Result<()> {
        self.first.map_or(Ok(()), Err)
    }
}

/// Runs all futures, `concurrency` at a time: they share disk syncs and still let others write.
pub async fn all<W: Future<Output = Result<()>>>(
    steps: impl IntoIterator<Item = W>,
    concurrency: usize,
) -> Result<()> {
    let mut steps = stream::iter(steps).buffer_unordered(concurrency);
    let mut attempts = Attempts::default();
    while let Some(result) = steps.next().await {
        attempts.take(result);
    }
    attempts.end()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[actix_rt::test]
    async fn failed_step_does_not_stop_others_and_first_error_is_returned() {
        let done = RefCell::new(Vec::new());
        let steps = (0..5).map(|number| {
            let done = &done;
            async move {
                if number % 2 == 1 {
                    return Err(Status::internal(format!("the {number}th")));
                }
                done.borrow_mut().push(number);
                Ok(())
            }
        });
        let error = all(steps, 1).await.unwrap_err();
        assert!(error.message.contains("the 1th"), "{error}");
        assert_eq!(*done.borrow(), [0, 2, 4]);
        assert!(all(std::iter::empty::<std::future::Ready<Result<()>>>(), 1).await.is_ok());
    }
}
