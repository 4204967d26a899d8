//! An answer that is at hand, or one that must be waited for.
//!
//! Most verifiers and policies answer from memory. Those that must ask another server answer later, and only their
//! requests wait: an actor that hands out a [`Answer::Later`] is free for the next message.

use std::future::Future;
use std::ops::ControlFlow;

use futures::future::LocalBoxFuture;

/// What was asked for, now or later. What comes later runs on the thread that asked.
pub enum Answer<T> {
    /// It is at hand.
    Now(T),
    /// It takes time.
    Later(LocalBoxFuture<'static, T>),
}

impl<T: 'static> Answer<T> {
    /// An answer that takes time.
    pub fn later(answer: impl Future<Output = T> + 'static) -> Answer<T> {
        Answer::Later(Box::pin(answer))
    }

    /// The answer to something else that follows from this one.
    pub fn map<U: 'static>(self, turn: impl FnOnce(T) -> U + 'static) -> Answer<U> {
        match self {
            Answer::Now(answer) => Answer::Now(turn(answer)),
            Answer::Later(answer) => Answer::later(async move { turn(answer.await) }),
        }
    }
}

impl<T: 'static> From<Answer<T>> for actix::Response<T> {
    fn from(answer: Answer<T>) -> actix::Response<T> {
        match answer {
            Answer::Now(answer) => actix::Response::reply(answer),
            Answer::Later(answer) => actix::Response::fut(answer),
        }
    }
}

/// Several are asked, one after the other, until an outcome stands.
pub(crate) trait Hearing: Sized + 'static {
    /// What each of them says.
    type Word: 'static;
    /// What comes of it.
    type Outcome: 'static;

    /// Asks the next one; `None` if all have been asked.
    fn ask(&mut self) -> Option<Answer<Self::Word>>;
    /// Weighs what it said.
    fn weigh(&mut self, word: Self::Word) -> ControlFlow<Self::Outcome>;
    /// The outcome if nobody has decided.
    fn close(self) -> Self::Outcome;
}

/// Holds a hearing. It takes no time, not even an allocation, until someone answers later.
pub(crate) fn hold<H: Hearing>(mut hearing: H) -> Answer<H::Outcome> {
    loop {
        match hearing.ask() {
            None => return Answer::Now(hearing.close()),
            Some(Answer::Now(word)) => {
                if let ControlFlow::Break(outcome) = hearing.weigh(word) {
                    return Answer::Now(outcome);
                }
            }
            Some(Answer::Later(word)) => return Answer::later(resume(hearing, word)),
        }
    }
}

async fn resume<H: Hearing>(mut hearing: H, word: LocalBoxFuture<'static, H::Word>) -> H::Outcome {
    if let ControlFlow::Break(outcome) = hearing.weigh(word.await) {
        return outcome;
    }
    match hold(hearing) {
        Answer::Now(outcome) => outcome,
        Answer::Later(outcome) => outcome.await,
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    /// Sums what it hears until that reaches ten.
    struct Sum {
        words: Vec<Answer<u32>>,
        so_far: u32,
    }

    impl Hearing for Sum {
        type Word = u32;
        type Outcome = Result<u32, u32>;

        fn ask(&mut self) -> Option<Answer<u32>> {
            self.words.pop()
        }

        fn weigh(&mut self, word: u32) -> ControlFlow<Result<u32, u32>> {
            self.so_far += word;
            if self.so_far >= 10 { ControlFlow::Break(Ok(self.so_far)) } else { ControlFlow::Continue(()) }
        }

        fn close(self) -> Result<u32, u32> {
            Err(self.so_far)
        }
    }

    fn outcome(words: &[(u32, bool)]) -> (Result<u32, u32>, bool) {
        let words = words.iter().rev().map(|&(word, late)| match late {
            true => Answer::later(async move { word }),
            false => Answer::Now(word),
        });
        match hold(Sum { words: words.collect(), so_far: 0 }) {
            Answer::Now(outcome) => (outcome, false),
            Answer::Later(outcome) => (block_on(outcome), true),
        }
    }

    #[test]
    fn a_hearing_ends_with_the_first_decision_and_waits_only_where_it_must() {
        assert_eq!(outcome(&[(4, false), (7, false), (1, true)]), (Ok(11), false));
        assert_eq!(outcome(&[(4, true), (1, false), (6, true), (9, false)]), (Ok(11), true));
        assert_eq!(outcome(&[(4, false), (1, true)]), (Err(5), true));
        assert_eq!(outcome(&[]), (Err(0), false));
    }
}
