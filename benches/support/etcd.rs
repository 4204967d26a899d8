//! etcd with one member on the disk of the build folder, and the load of a bare client: the floors of a server on etcd.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actix_web::{App, HttpResponse, HttpServer, web};
use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use pilothouse_etcd::messages::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use pilothouse_etcd::testing::{Cluster, Options};
use pilothouse_etcd::{Client, Settings, WatchItem};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::floor::acceptor;
use super::load::Measured;
use super::process::{Process, cpu_of, resident_mib_of};

/// What the keys of the ConfigMaps of the benches begin with.
const KEYS: &str = "/registry/configmaps/default/";
/// More than any bench writes: what etcd does when it is full is not measured.
const QUOTA: &str = "--quota-backend-bytes=8589934592";

/// The key of a ConfigMap.
pub fn config_map_key(name: &str) -> Bytes {
    Bytes::from(format!("{KEYS}{name}"))
}

/// A running etcd. Its data are gone when it is dropped.
pub struct Etcd(Cluster);

impl Etcd {
    /// Starts it with its own defaults, so every write is synced.
    pub fn start() -> Etcd {
        let parent = Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
        let options = Options { flags: vec![QUOTA.to_owned()], parent, ..Options::default() };
        Etcd(runtime().block_on(Cluster::start(options)))
    }

    /// Starts a server on it. Also returns how long it takes to be ready.
    pub fn server(&self, data: &Path) -> (Process, Duration) {
        Process::server_on_etcd(data, &self.url())
    }

    /// Starts a bare handler that creates in it what it is sent.
    pub fn floor(&self, handling: Handling) -> Process {
        Process::of_bench(handling.argument(), &self.url())
    }

    fn url(&self) -> String {
        self.0.members[0].url()
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.0.members[0].id().expect("it runs")
    }

    /// Resident memory in MiB.
    pub fn resident_mib(&self) -> f64 {
        resident_mib_of(self.id())
    }

    /// Does something with a client that has the settings of the server and is connected, all on this thread.
    pub fn with_client<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        LocalSet::new().block_on(&runtime(), async {
            let client = Client::new(Settings::new([self.url()]), Handle::current()).unwrap();
            client.range(RangeRequest::key(KEYS)).await.unwrap();
            work(client).await
        })
    }

    /// The value of a ConfigMap, as a server has written it.
    pub fn value(&self, name: &str) -> Bytes {
        self.with_client(async |client| {
            let response = client.range(RangeRequest::key(config_map_key(name))).await.unwrap();
            response.kvs[0].value.clone()
        })
    }

    /// Its newest revision.
    pub fn revision(&self) -> i64 {
        self.with_client(async |client| newest_revision(&client).await)
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn newest_revision(client: &Client) -> i64 {
    client.range(RangeRequest::key(KEYS)).await.unwrap().header.unwrap().revision
}

/// Makes calls in closed loops for some time: each loop makes its next call after the answer.
async fn run_calls(in_flight: usize, time: Duration, call: impl AsyncFn(u64)) -> Measured {
    let (start, next) = (Instant::now(), Cell::new(0_u64));
    let one_loop = async || {
        let mut latencies = Vec::new();
        while start.elapsed() < time {
            let sent_at = Instant::now();
            call(next.replace(next.get() + 1)).await;
            latencies.push(sent_at.elapsed());
        }
        latencies
    };
    let latencies = join_all((0..in_flight).map(|_| one_loop())).await;
    Measured::new(latencies.concat(), start.elapsed())
}

/// How a bare client creates a key.
#[derive(Clone, Copy)]
pub enum Creation {
    /// As the server does: the revision of an existing key is read.
    WithRange,
    /// As the reference does: nothing is read.
    WithoutRange,
    /// As the server does, and what is created counts when it has arrived by a watch of all keys, too.
    Followed,
}

impl Creation {
    fn transaction(self, number: u64, value: &Bytes) -> TxnRequest {
        let key = config_map_key(&format!("c-{number}"));
        let transaction = TxnRequest::when([Compare::is_absent(key.clone())])
            .and_then(PutRequest::new(key.clone(), value.clone()));
        match self {
            Creation::WithoutRange => transaction,
            Creation::WithRange | Creation::Followed => {
                transaction.or_else(RangeRequest { keys_only: true, ..RangeRequest::key(key) })
            }
        }
    }
}

/// Creates keys with this value for some time.
pub fn run_creates(
    etcd: &Etcd,
    in_flight: usize,
    time: Duration,
    creation: Creation,
    value: &Bytes,
) -> Measured {
    etcd.with_client(async |client| {
        let arrivals = match creation {
            Creation::Followed => {
                let arrivals = Arc::<Arrivals>::default();
                tokio::task::spawn_local(Arc::clone(&arrivals).follow(client.clone()));
                Some(arrivals)
            }
            Creation::WithRange | Creation::WithoutRange => None,
        };
        let create = async |number| {
            let response = client.txn(creation.transaction(number, value)).await.unwrap();
            assert!(response.succeeded, "the key exists already");
            if let Some(arrivals) = &arrivals {
                arrivals.wait_for(response.header.unwrap().revision).await;
            }
        };
        run_calls(in_flight, time, create).await
    })
}

/// What a bare handler does with a create, beside TLS, HTTP and the transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// Nothing: the value in etcd and the response are the body.
    Bytes,
    /// The least that a server with objects in memory does: it parses and renders the body, and answers when what it has created has
    /// arrived by its watch of all keys.
    Objects,
}

impl Handling {
    const ALL: [Handling; 2] = [Handling::Bytes, Handling::Objects];

    /// The argument by which a bench starts it.
    fn argument(self) -> &'static str {
        match self {
            Handling::Bytes => "serve-creates",
            Handling::Objects => "serve-object-creates",
        }
    }

    /// That of an argument.
    pub fn from_argument(argument: &str) -> Option<Handling> {
        Handling::ALL.into_iter().find(|handling| handling.argument() == argument)
    }

    /// The value that is created for a body.
    fn value(self, body: Bytes) -> Bytes {
        match self {
            Handling::Bytes => body,
            Handling::Objects => {
                let object: serde_json::Value = serde_json::from_slice(&body).unwrap();
                serde_json::to_vec(&object).unwrap().into()
            }
        }
    }
}

/// Serves creates by the transport, the transaction and little else. Each worker has a client of its own; one of them follows all keys.
/// Prints its port.
pub fn serve_creates(url: &str, handling: Handling) {
    let (url, next) = (url.to_owned(), Arc::new(AtomicU64::new(0)));
    let (arrivals, is_followed) = (Arc::<Arrivals>::default(), Arc::<AtomicBool>::default());
    actix_web::rt::System::new().block_on(async move {
        let server = HttpServer::new(move || {
            let client = Client::new(Settings::new([url.clone()]), Handle::current()).unwrap();
            if handling == Handling::Objects && !is_followed.swap(true, Ordering::Relaxed) {
                actix_web::rt::spawn(Arc::clone(&arrivals).follow(client.clone()));
            }
            let (next, arrivals) = (Arc::clone(&next), Arc::clone(&arrivals));
            let create = move |body: Bytes| {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let value = handling.value(body);
                let transaction = Creation::WithRange.transaction(number, &value);
                let (client, arrivals) = (client.clone(), Arc::clone(&arrivals));
                async move {
                    let response = client.txn(transaction).await.unwrap();
                    assert!(response.succeeded, "the key exists already");
                    if handling == Handling::Objects {
                        arrivals.wait_for(response.header.unwrap().revision).await;
                    }
                    HttpResponse::Created().content_type("application/json").body(value)
                }
            };
            App::new().default_service(web::to(create))
        })
        .tcp_nodelay(true)
        .bind_openssl("127.0.0.1:0", acceptor())
        .unwrap();
        println!("{}", server.addrs()[0].port());
        server.run().await.unwrap();
    });
}

/// Which revisions have arrived by a watch.
#[derive(Default)]
struct Arrivals(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    seen: i64,
    waiting: BTreeMap<i64, oneshot::Sender<()>>,
}

impl Arrivals {
    /// Follows all keys from now on.
    async fn follow(self: Arc<Arrivals>, client: Client) {
        let newest = newest_revision(&client).await;
        self.arrive(newest);
        let mut watch = client.watch_all_keys(newest + 1);
        loop {
            match watch.next().await.unwrap() {
                WatchItem::Revision(events) => self.arrive(events.revision),
                WatchItem::Connected { .. } | WatchItem::Progress(_) => {}
                WatchItem::Disconnected(error) => panic!("{error}"),
            }
        }
    }

    fn arrive(&self, revision: i64) {
        let mut waiting = self.0.lock().unwrap();
        waiting.seen = revision;
        let later = waiting.waiting.split_off(&(revision + 1));
        for (_, arrived) in std::mem::replace(&mut waiting.waiting, later) {
            let _gone = arrived.send(());
        }
    }

    async fn wait_for(&self, revision: i64) {
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.0.lock().unwrap();
            if waiting.seen >= revision {
                return;
            }
            waiting.waiting.insert(revision, sender);
        }
        receiver.await.unwrap();
    }
}

/// Gets the latest state of one of the first `objects` ConfigMaps again and again.
pub fn run_gets(etcd: &Etcd, in_flight: usize, time: Duration, objects: u64) -> Measured {
    etcd.with_client(async |client| {
        let get = async |number: u64| {
            let key = config_map_key(&format!("c-{}", number % objects));
            let response = client.range(RangeRequest::key(key)).await.unwrap();
            assert_eq!(response.count, 1, "the key exists");
        };
        run_calls(in_flight, time, get).await
    })
}

/// Writes so many copies of a value, and then rewrites `updates` of them, each in a revision of its own. `value` returns the name and
/// the value of a copy.
pub fn fill(etcd: &Etcd, objects: u64, updates: u64, value: impl Fn(u64) -> (String, Bytes)) {
    /// etcd takes 128 at most.
    const PUTS_PER_TRANSACTION: u64 = 100;
    let put = |number| {
        let (name, value) = value(number);
        RequestOp::from(PutRequest::new(config_map_key(&name), value))
    };
    let transactions = (0..objects).step_by(PUTS_PER_TRANSACTION as usize).map(|first| TxnRequest {
        success: (first..objects.min(first + PUTS_PER_TRANSACTION)).map(put).collect(),
        ..TxnRequest::default()
    });
    // The steps visit all objects in an order of their own.
    let updates = (0..updates)
        .map(|number| TxnRequest { success: vec![put(number * 7_919 % objects)], ..TxnRequest::default() });
    etcd.with_client(async |client| {
        let write = async |transaction| client.txn(transaction).await.map(drop).unwrap();
        stream::iter(transactions).for_each_concurrent(16, write).await;
        stream::iter(updates).for_each_concurrent(256, write).await;
    });
}

/// Reads all objects as they were so many revisions ago, and then everything that was changed since, as a server does that starts.
/// Returns how many objects and changes there were, and how long that took.
pub fn read_with_history(etcd: &Etcd, revisions: i64) -> (usize, usize, Duration) {
    etcd.with_client(async |client| {
        let start = Instant::now();
        let newest = newest_revision(&client).await;
        let past = (newest - revisions).max(1);
        let mut pages = client.pages(RangeRequest { revision: past, ..RangeRequest::prefix("/registry/") });
        let (mut objects, mut changes) = (0, 0);
        while let Some(page) = pages.next().await.unwrap() {
            objects += page.kvs.len();
        }
        let mut watch = client.watch_all_keys(past + 1);
        let mut seen = past;
        while seen < newest {
            if let WatchItem::Revision(events) = watch.next().await.unwrap() {
                changes += events.events.len();
                seen = events.revision;
            }
        }
        (objects, changes, start.elapsed())
    })
}

/// The CPU time of processes, to tell what something costs each of them.
pub struct CpuTimes<'n>(Vec<(&'n str, u32, Duration)>);

impl<'n> CpuTimes<'n> {
    /// What these have used so far.
    pub fn read(processes: &[(&'n str, u32)]) -> CpuTimes<'n> {
        CpuTimes(processes.iter().map(|(name, pid)| (*name, *pid, cpu_of(*pid))).collect())
    }

    /// What they have used since for each of `count`, as text.
    pub fn for_each_of(&self, count: u64) -> String {
        let cost = |before: Duration, pid: u32| {
            cpu_of(pid).saturating_sub(before).as_secs_f64() * 1e6 / count.max(1) as f64
        };
        let costs = self.0.iter().map(|(name, pid, before)| format!("{name} {:.0} µs", cost(*before, *pid)));
        costs.collect::<Vec<_>>().join(", ")
    }
}
