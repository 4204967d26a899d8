use bytes::Bytes;
use pilothouse_actors::directory::{self, Options};
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::event::Change;
use pilothouse_actors::store::Freshness;
use pilothouse_types::object::{Draft, Key, Pairs};

use super::*;

/// The bytes of history in memory: enough for a few events.
const WINDOW: usize = 4_096;

/// A controller that records what it receives.
#[derive(Default)]
struct RecordingSubscriber {
    lists: usize,
    deleted: Vec<String>,
}

impl Actor for RecordingSubscriber {
    type Context = Context<Self>;
}

impl Handler<Listed> for RecordingSubscriber {
    type Result = ();

    fn handle(&mut self, _: Listed, _: &mut Self::Context) {
        self.lists += 1;
    }
}

impl Handler<Changed> for RecordingSubscriber {
    type Result = ();

    fn handle(&mut self, Changed { events, .. }: Changed, _: &mut Self::Context) {
        let deleted = events.iter().filter(|event| event.change == Change::Removed);
        self.deleted.extend(deleted.map(|event| event.object.key.name().to_owned()));
    }
}

impl Handler<CaughtUp> for RecordingSubscriber {
    type Result = ();

    fn handle(&mut self, _: CaughtUp, _: &mut Self::Context) {}
}

#[derive(Message)]
#[rtype(result = "(usize, Vec<String>)")]
struct GetRecorded;

impl Handler<GetRecorded> for RecordingSubscriber {
    type Result = MessageResult<GetRecorded>;

    fn handle(&mut self, _: GetRecorded, _: &mut Self::Context) -> Self::Result {
        MessageResult((self.lists, self.deleted.clone()))
    }
}

fn draft(name: &str) -> Draft {
    let head = r#"{"metadata":{"resourceVersion":""#;
    let bytes = Bytes::from(format!(r#"{head}"}},"data":"{}"}}"#, "x".repeat(512)));
    let key = Key::namespaced("n", name);
    Draft {
        key,
        bytes,
        revision_offset: head.len(),
        item_offset: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    }
}

/// A list does not contain deletions, and some controllers act on those: events that left memory are read from the log.
#[actix_rt::test]
async fn informer_behind_the_window_reads_deletions_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Redb::open(&folder.path().join("log")).unwrap();
    let options = Options { window_bounds: WINDOW.into(), ..Options::default() };
    let storage = directory::start(Box::new(engine), options).unwrap();
    let (stores, permit) = (Stores::new(&storage), Permit::none());
    let type_name = TypeName::new("configmaps");
    let recording = RecordingSubscriber::default().start();
    let subscriber = Subscriber {
        watched_types: WatchedTypes::All,
        listed: recording.clone().recipient(),
        changed: recording.clone().recipient(),
        caught_up: recording.clone().recipient(),
    };
    let mut subscriptions = Subscriptions::default();
    let first = stores.create(&type_name, draft("first"), &permit).await.unwrap();
    subscriptions.join(subscriber, &stores).await.unwrap();
    stores.remove(&type_name, first.key.clone(), first.revision, &permit).await.unwrap();
    for number in 0..40 {
        stores.create(&type_name, draft(&number.to_string()), &permit).await.unwrap();
    }
    let window = stores.open_watch(&type_name, Freshness::Latest, &permit).await.unwrap().window;
    assert!(window.extent().archived > 0, "{:?}", window.extent());
    assert!(subscriptions.deliver(std::slice::from_ref(&type_name), &stores).await);
    let (lists, deleted) = recording.send(GetRecorded).await.unwrap();
    assert_eq!((lists, deleted), (1, vec!["first".to_owned()]), "listed once, when it joined");
}
