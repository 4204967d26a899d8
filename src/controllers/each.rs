//! Many things that a loop does in one work. One that fails must not keep the others: a record that cannot be read stays so
//! until somebody does something about it.

use futures::{StreamExt as _, stream};

use crate::api::status::{Result, Status};

/// What went wrong so far. The first of it makes the loop come back; the rest is done before that.
#[derive(Debug, Default)]
pub struct Attempts {
    first: Option<Box<Status>>,
}

impl Attempts {
    /// What came of one of them, if anything did.
    pub fn take<T>(&mut self, tried: Result<T>) -> Option<T> {
        tried.map_err(|status| self.first.get_or_insert(status)).ok()
    }

    /// What became of all.
    pub fn end(self) -> Result<()> {
        self.first.map_or(Ok(()), Err)
    }
}

/// Does all of these, so many at a time: so that they share syncs of the disk and still let others write.
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
