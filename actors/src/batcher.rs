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
use crate::limits::{BATCHER_ITEMS, BATCHER_MAILBOX};

/// Adds an item to the next round of a key. Returns when it is accepted. On Full the sender waits, within its own permit; on
/// Closed the server ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Enqueue<T: Send + 'static> {
    /// The key of the round.
    pub key: String,
    /// The item to process.
    pub item: T,
}

/// The work of a round: the key and the items, in order.
pub type BatchHandler<T> = Box<dyn Fn(String, Vec<T>) -> LocalBoxFuture<'static, ()>>;

/// The actor. See the module documentation.
pub struct Batcher<T> {
    work: BatchHandler<T>,
    /// Items for the next round of each key that has a round in progress.
    waiting: HashMap<String, Vec<T>>,
    /// Raised if this actor dies: waiting items would never be processed.
    fatal: Fatal,
}

impl<T> Batcher<T> {
    /// An actor with this work.
    pub fn new(work: BatchHandler<T>, fatal: Fatal) -> Batcher<T> {
        Batcher { work, waiting: HashMap::new(), fatal }
    }

    /// Queues an item. Returns it if its key has no round in progress: then the caller starts one.
    fn enqueue(&mut self, key: &str, item: T) -> Option<T> {
        if let Some(waiting) = self.waiting.get_mut(key) {
            waiting.push(item);
            return None;
        }
        self.waiting.insert(key.to_owned(), Vec::new());
        Some(item)
    }

    /// The items of the next round of a key after one has ended; `None` if there are none.
    fn next_round(&mut self, key: &str) -> Option<Vec<T>> {
        let waiting = self.waiting.get_mut(key)?;
        if waiting.is_empty() {
            self.waiting.remove(key);
            return None;
        }
        let rest = waiting.split_off(waiting.len().min(BATCHER_ITEMS));
        Some(std::mem::replace(waiting, rest))
    }
}

impl<T: Unpin + 'static> Batcher<T> {
    fn run(&mut self, key: String, items: Vec<T>, context: &mut Context<Batcher<T>>) {
        let batch = (self.work)(key.clone(), items).into_actor(self);
        let batch = batch.map(move |(), batcher, context| {
            if let Some(items) = batcher.next_round(&key) {
                batcher.run(key, items, context);
            }
        });
        context.spawn(batch);
    }
}

impl<T: Unpin + 'static> Actor for Batcher<T> {
    type Context = Context<Batcher<T>>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(BATCHER_MAILBOX);
    }
}

impl<T> Drop for Batcher<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("the batcher panicked".to_owned());
        }
    }
}

impl<T: Send + Unpin + 'static> Handler<Enqueue<T>> for Batcher<T> {
    type Result = ();

    fn handle(&mut self, command: Enqueue<T>, context: &mut Self::Context) -> Self::Result {
        if let Some(item) = self.enqueue(&command.key, command.item) {
            self.run(command.key, vec![item], context);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    fn batcher() -> Batcher<u32> {
        Batcher::new(Box::new(|_, _| Box::pin(async {})), Fatal::new())
    }

    #[test]
    fn items_enqueued_during_a_round_share_the_next() {
        let mut batcher = batcher();
        assert_eq!(batcher.enqueue("a", 1), Some(1));
        assert_eq!(batcher.enqueue("a", 2), None);
        assert_eq!(batcher.enqueue("b", 3), Some(3));
        assert_eq!(batcher.enqueue("a", 4), None);
        assert_eq!(batcher.next_round("a"), Some(vec![2, 4]));
        assert_eq!(batcher.enqueue("a", 5), None);
        assert_eq!(batcher.next_round("a"), Some(vec![5]));
        assert_eq!(batcher.next_round("a"), None);
        assert_eq!(batcher.next_round("b"), None);
        assert!(batcher.waiting.is_empty(), "an idle key costs nothing");
        assert_eq!(batcher.enqueue("a", 6), Some(6));
    }

    #[test]
    fn round_takes_at_most_the_limit_of_items() {
        let mut batcher = batcher();
        assert_eq!(batcher.enqueue("a", 0), Some(0));
        let many = BATCHER_ITEMS as u32 + 2;
        assert!((1..=many).all(|item| batcher.enqueue("a", item).is_none()));
        assert_eq!(batcher.next_round("a").map(|items| items.len()), Some(BATCHER_ITEMS));
        assert_eq!(batcher.next_round("a"), Some(vec![many - 1, many]));
        assert_eq!(batcher.next_round("a"), None);
    }

    #[actix_rt::test]
    async fn rounds_of_a_key_never_overlap_and_process_every_item() {
        type Item = (u32, oneshot::Sender<()>);
        let (running, rounds) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let gate = std::sync::Arc::new(Semaphore::new(0));
        let work: BatchHandler<Item> = {
            let (running, rounds, gate) = (running.clone(), rounds.clone(), gate.clone());
            Box::new(move |key, items| {
                let (running, rounds, gate) = (running.clone(), rounds.clone(), gate.clone());
                Box::pin(async move {
                    assert_eq!(running.replace(running.get() + 1), 0, "{key}");
                    gate.acquire().await.unwrap().forget();
                    rounds.borrow_mut().push(items.len());
                    running.set(running.get() - 1);
                    items.into_iter().for_each(|(_, answer)| answer.send(()).unwrap());
                })
            })
        };
        let batcher = Batcher::new(work, Fatal::new()).start();
        let mut answers = Vec::new();
        for number in 0..40 {
            let (answer, answered) = oneshot::channel();
            batcher.send(Enqueue { key: "a".to_owned(), item: (number, answer) }).await.unwrap();
            answers.push(answered);
        }
        gate.add_permits(2);
        for answered in answers {
            answered.await.unwrap();
        }
        assert_eq!(*rounds.borrow(), [1, 39]);
    }
}
