//! The actor that batches work: one round at a time per key, and items that arrive meanwhile share the next round.
//!
//! Writers that change the same object one by one, each against the version it read, would mostly conflict with each other. Here
//! they wait for a round instead, and one read and one write serve all of them. The actor knows nothing about the items; the work
//! of a round is injected.
//!
//! The items of a key are processed in order. Rounds of different keys run concurrently. An accepted item is processed even if
//! its sender is gone, so a sender that wants an answer puts a channel into the item.

use std::collections::HashMap;

use actix::{Actor, ActorFutureExt as _, AsyncContext as _, Context, Handler, Message, WrapFuture as _};
use futures::future::LocalBoxFuture;

use crate::fatal::Fatal;
use crate::limits::{ROUND_ITEMS, ROUNDS_MAILBOX};

/// Adds an item to the next round of a key. Answers when it is accepted. On Full the sender waits, within its own permit; on
/// Closed the server ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Join<T: Send + 'static> {
    /// The key of the round.
    pub key: String,
    /// The item to process.
    pub item: T,
}

/// The work of a round: the key and the items, in order.
pub type Work<T> = Box<dyn Fn(String, Vec<T>) -> LocalBoxFuture<'static, ()>>;

/// The actor. See the module documentation.
pub struct Rounds<T> {
    work: Work<T>,
    /// Items for the next round of each key that has a round in progress.
    waiting: HashMap<String, Vec<T>>,
    /// Raised if this actor dies: waiting items would never be processed.
    fatal: Fatal,
}

impl<T> Rounds<T> {
    /// An actor with this work.
    pub fn new(work: Work<T>, fatal: Fatal) -> Rounds<T> {
        Rounds { work, waiting: HashMap::new(), fatal }
    }

    /// Queues an item. Returns it if its key has no round in progress.
    fn wait(&mut self, key: &str, item: T) -> Option<T> {
        if let Some(waiting) = self.waiting.get_mut(key) {
            waiting.push(item);
            return None;
        }
        self.waiting.insert(key.to_owned(), Vec::new());
        Some(item)
    }

    /// The items of the next round of a key after one has ended; `None` if there are none.
    fn next(&mut self, key: &str) -> Option<Vec<T>> {
        let waiting = self.waiting.get_mut(key)?;
        if waiting.is_empty() {
            self.waiting.remove(key);
            return None;
        }
        let rest = waiting.split_off(waiting.len().min(ROUND_ITEMS));
        Some(std::mem::replace(waiting, rest))
    }
}

impl<T: Unpin + 'static> Rounds<T> {
    fn hold(&mut self, key: String, items: Vec<T>, context: &mut Context<Rounds<T>>) {
        let round = (self.work)(key.clone(), items).into_actor(self);
        let round = round.map(move |(), rounds, context| {
            if let Some(items) = rounds.next(&key) {
                rounds.hold(key, items, context);
            }
        });
        context.spawn(round);
    }
}

impl<T: Unpin + 'static> Actor for Rounds<T> {
    type Context = Context<Rounds<T>>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(ROUNDS_MAILBOX);
    }
}

impl<T> Drop for Rounds<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("the keeper of rounds panicked".to_owned());
        }
    }
}

impl<T: Send + Unpin + 'static> Handler<Join<T>> for Rounds<T> {
    type Result = ();

    fn handle(&mut self, command: Join<T>, context: &mut Self::Context) -> Self::Result {
        if let Some(item) = self.wait(&command.key, command.item) {
            self.hold(command.key, vec![item], context);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    fn idle() -> Rounds<u32> {
        Rounds::new(Box::new(|_, _| Box::pin(async {})), Fatal::new())
    }

    #[test]
    fn those_who_come_during_a_round_share_the_next() {
        let mut rounds = idle();
        assert_eq!(rounds.wait("a", 1), Some(1));
        assert_eq!(rounds.wait("a", 2), None);
        assert_eq!(rounds.wait("b", 3), Some(3));
        assert_eq!(rounds.wait("a", 4), None);
        assert_eq!(rounds.next("a"), Some(vec![2, 4]));
        assert_eq!(rounds.wait("a", 5), None);
        assert_eq!(rounds.next("a"), Some(vec![5]));
        assert_eq!(rounds.next("a"), None);
        assert_eq!(rounds.next("b"), None);
        assert!(rounds.waiting.is_empty(), "an idle key costs nothing");
        assert_eq!(rounds.wait("a", 6), Some(6));
    }

    #[test]
    fn a_round_has_a_bound() {
        let mut rounds = idle();
        assert_eq!(rounds.wait("a", 0), Some(0));
        let many = ROUND_ITEMS as u32 + 2;
        assert!((1..=many).all(|item| rounds.wait("a", item).is_none()));
        assert_eq!(rounds.next("a").map(|items| items.len()), Some(ROUND_ITEMS));
        assert_eq!(rounds.next("a"), Some(vec![many - 1, many]));
        assert_eq!(rounds.next("a"), None);
    }

    #[actix_rt::test]
    async fn rounds_of_a_key_never_overlap_and_every_item_has_its_turn() {
        type Item = (u32, oneshot::Sender<()>);
        let (running, seen) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let gate = std::sync::Arc::new(Semaphore::new(0));
        let work: Work<Item> = {
            let (running, seen, gate) = (running.clone(), seen.clone(), gate.clone());
            Box::new(move |key, items| {
                let (running, seen, gate) = (running.clone(), seen.clone(), gate.clone());
                Box::pin(async move {
                    assert_eq!(running.replace(running.get() + 1), 0, "{key}");
                    gate.acquire().await.unwrap().forget();
                    seen.borrow_mut().push(items.len());
                    running.set(running.get() - 1);
                    items.into_iter().for_each(|(_, answer)| answer.send(()).unwrap());
                })
            })
        };
        let rounds = Rounds::new(work, Fatal::new()).start();
        let mut answers = Vec::new();
        for number in 0..40 {
            let (answer, answered) = oneshot::channel();
            rounds.send(Join { key: "a".to_owned(), item: (number, answer) }).await.unwrap();
            answers.push(answered);
        }
        gate.add_permits(2);
        for answered in answers {
            answered.await.unwrap();
        }
        assert_eq!(*seen.borrow(), [1, 39]);
    }
}
