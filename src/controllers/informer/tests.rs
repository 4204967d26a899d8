use bytes::Bytes;
use pilothouse_actors::directory::{self, Options};
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::event::Change;
use pilothouse_types::object::{Draft, Key, Pairs};

use super::*;

/// What is kept of the history in memory: a few events.
const WINDOW: usize = 4_096;

/// A loop that writes down what it hears.
#[derive(Default)]
struct Listener {
    lists: usize,
    gone: Vec<String>,
}

impl Actor for Listener {
    type Context = Context<Self>;
}

impl Handler<Listed> for Listener {
    type Result = ();

    fn handle(&mut self, _: Listed, _: &mut Self::Context) {
        self.lists += 1;
    }
}

impl Handler<Changed> for Listener {
    type Result = ();

    fn handle(&mut self, Changed { events, .. }: Changed, _: &mut Self::Context) {
        let gone = events.iter().filter(|event| event.change == Change::Removed);
        self.gone.extend(gone.map(|event| event.object.key.name().to_owned()));
    }
}

impl Handler<CaughtUp> for Listener {
    type Result = ();

    fn handle(&mut self, _: CaughtUp, _: &mut Self::Context) {}
}

#[derive(Message)]
#[rtype(result = "(usize, Vec<String>)")]
struct Tell;

impl Handler<Tell> for Listener {
    type Result = MessageResult<Tell>;

    fn handle(&mut self, _: Tell, _: &mut Self::Context) -> Self::Result {
        MessageResult((self.lists, self.gone.clone()))
    }
}

fn draft(name: &str) -> Draft {
    let head = r#"{"metadata":{"resourceVersion":""#;
    let bytes = Bytes::from(format!(r#"{head}"}},"data":"{}"}}"#, "x".repeat(512)));
    let key = Key::namespaced("n", name);
    Draft {
        key,
        bytes,
        revision_at: head.len(),
        item_at: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    }
}

/// A list says nothing of what has gone, and some loops act on just that: what memory no longer holds is read from the log.
#[actix_rt::test]
async fn whoever_falls_behind_what_memory_holds_still_hears_what_went() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Redb::open(&folder.path().join("log")).unwrap();
    let options = Options { window_bounds: WINDOW.into(), ..Options::default() };
    let storage = directory::start(Box::new(engine), options).unwrap();
    let (stores, permit) = (Stores::new(storage.directory.clone()), Permit::none());
    let of = TypeName::new("configmaps");
    let listener = Listener::default().start();
    let subscriber = Subscriber {
        follows: Follows::Every,
        listed: listener.clone().recipient(),
        changed: listener.clone().recipient(),
        caught_up: listener.clone().recipient(),
    };
    let mut subscriptions = Subscriptions::default();
    let first = stores.create(&of, draft("first"), &permit).await.unwrap();
    subscriptions.join(subscriber, &stores).await.unwrap();
    stores.remove(&of, first.key.clone(), first.revision, &permit).await.unwrap();
    for number in 0..40 {
        stores.create(&of, draft(&number.to_string()), &permit).await.unwrap();
    }
    let window = stores.open_watch(&of, &permit).await.unwrap().window;
    assert!(window.extent().archived > 0, "{:?}", window.extent());
    assert!(subscriptions.deliver(std::slice::from_ref(&of), &stores).await);
    let (lists, gone) = listener.send(Tell).await.unwrap();
    assert_eq!((lists, gone), (1, vec!["first".to_owned()]), "listed once, when it joined");
}
