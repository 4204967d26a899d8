//! An answer that is available now, or one that takes time.
//!
//! Most verifiers and policies answer from memory. Those that call another server answer later, and only their requests wait: an
//! actor that returns [`Answer::Later`] is free for the next message.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;

use actix::dev::{MessageResponse, OneshotSender};
use actix::{Actor, Message};
use futures::future::{Either, LocalBoxFuture, select};

/// A result, now or later. A later one runs on the thread of the caller.
pub enum Answer<T> {
    /// The result is available.
    Now(T),
    /// The result takes time.
    Later(LocalBoxFuture<'static, T>),
}

impl<T: 'static> Answer<T> {
    /// A result that takes time.
    pub fn later(answer: impl Future<Output = T> + 'static) -> Answer<T> {
        Answer::Later(Box::pin(answer))
    }

    /// Transforms the result, now or later.
    pub fn map<U: 'static>(self, transform: impl FnOnce(T) -> U + 'static) -> Answer<U> {
        match self {
            Answer::Now(answer) => Answer::Now(transform(answer)),
            Answer::Later(answer) => Answer::later(async move { transform(answer.await) }),
        }
    }
}

/// A later answer is cancelled when its receiver is gone. Otherwise clients that disconnect could cause any number of calls.
impl<A: Actor, M: Message> MessageResponse<A, M> for Answer<M::Result> {
    fn handle(self, _: &mut A::Context, reply: Option<OneshotSender<M::Result>>) {
        let Some(mut reply) = reply else { return };
        match self {
            Answer::Now(answer) => {
                let _gone = reply.send(answer);
            }
            Answer::Later(answer) => {
                actix::spawn(async move {
                    let result = match select(answer, pin!(reply.closed())).await {
                        Either::Left((answer, _)) => answer,
                        Either::Right(_) => return,
                    };
                    let _gone = reply.send(result);
                });
            }
        }
    }
}

/// Calls several sources, one after the other, until one decides.
pub(crate) trait DecisionChain: Sized + 'static {
    /// The answer of one source.
    type Opinion: 'static;
    /// The final outcome.
    type Outcome: 'static;

    /// Calls the next source; `None` if there are no more.
    fn ask(&mut self) -> Option<Answer<Self::Opinion>>;
    /// Evaluates an opinion.
    fn consider(&mut self, opinion: Self::Opinion) -> ControlFlow<Self::Outcome>;
    /// The outcome if no source has decided.
    fn close(self) -> Self::Outcome;
}

/// Runs a chain. It needs no allocation until a source answers later.
pub(crate) fn run_chain<H: DecisionChain>(mut chain: H) -> Answer<H::Outcome> {
    loop {
        match chain.ask() {
            None => return Answer::Now(chain.close()),
            Some(Answer::Now(opinion)) => {
                if let ControlFlow::Break(outcome) = chain.consider(opinion) {
                    return Answer::Now(outcome);
                }
            }
            Some(Answer::Later(opinion)) => return Answer::later(resume(chain, opinion)),
        }
    }
}

async fn resume<H: DecisionChain>(mut chain: H, opinion: LocalBoxFuture<'static, H::Opinion>) -> H::Outcome {
    if let ControlFlow::Break(outcome) = chain.consider(opinion.await) {
        return outcome;
    }
    match run_chain(chain) {
        Answer::Now(outcome) => outcome,
        Answer::Later(outcome) => outcome.await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::executor::block_on;

    use super::*;

    /// A request that is never answered. The count of its value shows when it is cancelled.
    #[derive(Message)]
    #[rtype(result = "()")]
    struct NeverAnswered(Arc<()>);

    struct Server;

    impl Actor for Server {
        type Context = actix::Context<Self>;
    }

    impl actix::Handler<NeverAnswered> for Server {
        type Result = Answer<()>;

        fn handle(&mut self, NeverAnswered(value): NeverAnswered, _: &mut Self::Context) -> Answer<()> {
            Answer::later(async move {
                std::future::pending::<()>().await;
                drop(value);
            })
        }
    }

    #[actix::test]
    async fn later_answer_is_cancelled_when_receiver_is_dropped() {
        let value = Arc::new(());
        let server = Server.start();
        let mut request = Box::pin(server.send(NeverAnswered(Arc::clone(&value))));
        for _ in 0..10 {
            assert!(futures::poll!(&mut request).is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&value), 2, "the answer is pending");
        drop(request);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&value), 1);
    }

    /// Sums numbers until they reach ten.
    struct Sum {
        opinions: Vec<Answer<u32>>,
        sum: u32,
    }

    impl DecisionChain for Sum {
        type Opinion = u32;
        type Outcome = Result<u32, u32>;

        fn ask(&mut self) -> Option<Answer<u32>> {
            self.opinions.pop()
        }

        fn consider(&mut self, opinion: u32) -> ControlFlow<Result<u32, u32>> {
            self.sum += opinion;
            if self.sum >= 10 { ControlFlow::Break(Ok(self.sum)) } else { ControlFlow::Continue(()) }
        }

        fn close(self) -> Result<u32, u32> {
            Err(self.sum)
        }
    }

    fn outcome(opinions: &[(u32, bool)]) -> (Result<u32, u32>, bool) {
        let opinions = opinions.iter().rev().map(|&(opinion, is_late)| match is_late {
            true => Answer::later(async move { opinion }),
            false => Answer::Now(opinion),
        });
        match run_chain(Sum { opinions: opinions.collect(), sum: 0 }) {
            Answer::Now(outcome) => (outcome, false),
            Answer::Later(outcome) => (block_on(outcome), true),
        }
    }

    #[test]
    fn chain_ends_with_first_decision_and_waits_only_for_later_answers() {
        assert_eq!(outcome(&[(4, false), (7, false), (1, true)]), (Ok(11), false));
        assert_eq!(outcome(&[(4, true), (1, false), (6, true), (9, false)]), (Ok(11), true));
        assert_eq!(outcome(&[(4, false), (1, true)]), (Err(5), true));
        assert_eq!(outcome(&[]), (Err(0), false));
    }
}
