//! Connections that wait for the next question. One pool per server, for all whom it asks.
//!
//! A connection is kept once its answer was read to the end, under everything that decides whom it leads to and who is believed
//! there ([`Origin`]): whoever is known by another certificate is somebody else. It is used by the thread that made it and
//! by no other, so that it ends with that thread and takes nobody else's question along. One that the other end closes leaves at once;
//! one that nobody uses leaves after a while; and those to somebody whom nobody wants to ask any more ([`Wanted`]) leave with them.

mod line;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use openssl::sha::Sha256;
use pilothouse_actors::clock::{Clock, Timestamp};
use pilothouse_actors::lock::Lock;
use tokio::io::{AsyncRead, AsyncWrite};

use self::line::Line;
pub use self::line::{Unanswered, Whole};
use super::body::RequestBody;
use crate::kubeconfig::Proxy;
use crate::limits::{CONNECTION_KEPT, CONNECTION_SETTLES, CONNECTIONS_KEPT, CONNECTIONS_KEPT_EACH};

/// What stands for certificates and keys, so that nobody keeps those themselves.
pub type Digest = [u8; 32];

/// What somebody is asked for. Connections for one thing are not used for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Logs of containers.
    Kubelet,
    /// Versions that others serve.
    Extension,
    /// Whether a write may happen.
    Admission,
    /// Custom objects in another version.
    Conversion,
    /// What the operator has others asked for: who somebody is, what they may do, and who is told of it.
    Service,
}

impl Purpose {
    /// Whether a question does no more than be answered, however often it is asked: who somebody is, what they may do, what an
    /// object is in another version. Records may come twice in any case.
    fn may_repeat(self) -> bool {
        match self {
            Purpose::Service | Purpose::Conversion => true,
            Purpose::Kubelet | Purpose::Extension | Purpose::Admission => false,
        }
    }

    /// Whether objects say whom to ask, so that connections go with them.
    fn hangs_on_objects(self) -> bool {
        match self {
            Purpose::Extension | Purpose::Admission | Purpose::Conversion => true,
            Purpose::Kubelet | Purpose::Service => false,
        }
    }
}

/// How somebody proves who they are, and what they are shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Private {
    /// The name that their certificate must have.
    pub server_name: String,
    /// Whom they must be known to: see [`authority`].
    pub authority: Digest,
    /// The certificate and key that they are shown: see [`shown`].
    pub shown: Digest,
}

/// Who is asked. What differs in any of it is somebody else.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// What for.
    pub purpose: Purpose,
    /// Where they are.
    pub host: String,
    /// Their port.
    pub port: u16,
    /// How the connection is private; `None`: it is not.
    pub private: Option<Private>,
    /// Who leads there; `None`: the way is free.
    pub proxy: Option<Proxy>,
}

fn digest(parts: &[&[u8]]) -> Digest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finish()
}

/// What stands for whom somebody must be known to: these authorities in PEM, `None`: those of the system; or to nobody.
pub fn authority(pem: Option<&[u8]>, verifies: bool) -> Digest {
    match (verifies, pem) {
        (false, _) => digest(&[b"nobody"]),
        (true, None) => digest(&[b"the system"]),
        (true, Some(pem)) => digest(&[b"these", pem]),
    }
}

/// What stands for a certificate and its key.
pub fn shown(identity: Option<(&[u8], &[u8])>) -> Digest {
    identity.map_or_else(|| digest(&[]), |(certificate, key)| digest(&[certificate, key]))
}

/// A connection that waits.
struct Waiting {
    line: Line,
    since: Timestamp,
}

/// Whom objects say to ask, by what for, the name and the authority.
type Asked = (Purpose, String, Digest);

#[derive(Default)]
struct Shelves {
    /// Those that waited longest come first.
    waiting: HashMap<Arc<Origin>, Vec<Waiting>>,
    count: usize,
    /// How many connections there ever were.
    made: u64,
    /// By how many objects.
    wanted: HashMap<Asked, usize>,
}

impl Shelves {
    fn remove(&mut self, origin: &Arc<Origin>, which: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
        let shelf = self.waiting.get_mut(origin)?;
        // The one that was used last: the others may grow old.
        let place = shelf.iter().rposition(which)?;
        let found = shelf.remove(place);
        if shelf.is_empty() {
            self.waiting.remove(origin);
        }
        self.count -= 1;
        Some(found)
    }

    /// Takes out whoever waited longest.
    fn remove_oldest(&mut self) -> Option<Waiting> {
        let oldest = |shelf: &Vec<Waiting>| shelf.first().map(|first| (first.since, first.line.number));
        let (origin, _) = self.waiting.iter().min_by_key(|(_, shelf)| oldest(shelf))?;
        let origin = origin.clone();
        self.remove_oldest_of(&origin)
    }

    /// The same of those to one origin.
    fn remove_oldest_of(&mut self, origin: &Arc<Origin>) -> Option<Waiting> {
        let number = self.waiting.get(origin)?.first()?.line.number;
        self.remove(origin, |waiting| waiting.line.number == number)
    }

    fn is_wanted(&self, origin: &Origin) -> bool {
        let Some(private) = &origin.private else { return true };
        let asked = (origin.purpose, private.server_name.clone(), private.authority);
        !origin.purpose.hangs_on_objects() || self.wanted.contains_key(&asked)
    }
}

/// The connections that wait. See the module text.
pub struct Pool {
    clock: Clock,
    /// How long a connection waits.
    kept_for: Duration,
    /// A std lock: it is held for one look or one change.
    shelves: Lock<Shelves>,
}

/// Says that somebody may be asked. When the last one who says so is gone, the connections to them go.
pub struct Wanted {
    pool: Arc<Pool>,
    asked: Asked,
}

impl Drop for Wanted {
    fn drop(&mut self) {
        let gone = {
            let mut shelves = self.pool.shelves.lock();
            if let Some(count) = shelves.wanted.get_mut(&self.asked) {
                *count -= 1;
                if *count > 0 {
                    return;
                }
            }
            shelves.wanted.remove(&self.asked);
            let unwanted: Vec<_> =
                shelves.waiting.keys().filter(|origin| !shelves.is_wanted(origin)).cloned().collect();
            let gone: Vec<_> =
                unwanted.iter().filter_map(|origin| shelves.waiting.remove(origin)).flatten().collect();
            shelves.count -= gone.len();
            gone
        };
        drop(gone);
    }
}

/// A connection that is in use. Dropped, it is cut; only [`Connection::done`] keeps it for the next question.
pub struct Connection {
    line: Line,
    origin: Option<Arc<Origin>>,
    pool: Arc<Pool>,
}

/// What came of asking over connections that waited.
pub enum Tried {
    /// An answer begins.
    Answered(Response<Incoming>, Connection),
    /// A new connection has to be made for this.
    Unsent(Request<RequestBody>),
}

impl Pool {
    /// No connections yet.
    pub fn new(clock: Clock) -> Arc<Pool> {
        Arc::new(Pool { clock, kept_for: CONNECTION_KEPT, shelves: Lock::default() })
    }

    /// How many connections wait.
    pub fn waiting(&self) -> usize {
        self.shelves.lock().count
    }

    /// Somebody may be asked for something for as long as this lives.
    pub fn want(self: &Arc<Self>, purpose: Purpose, server_name: &str, authority: Digest) -> Wanted {
        let asked = (purpose, server_name.to_owned(), authority);
        *self.shelves.lock().wanted.entry(asked.clone()).or_default() += 1;
        Wanted { pool: self.clone(), asked }
    }

    /// Makes a connection of what leads to the other end; without an origin it is never kept.
    pub async fn open(
        self: &Arc<Self>,
        origin: Option<Arc<Origin>>,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Connection, hyper::Error> {
        let number = {
            let mut shelves = self.shelves.lock();
            shelves.made += 1;
            shelves.made
        };
        let kept = origin.clone().map(|origin| Kept { pool: Arc::downgrade(self), origin, number });
        Ok(Connection { line: Line::open(number, io, kept).await?, origin, pool: self.clone() })
    }

    /// A connection of this thread that waits and still stands.
    fn take(self: &Arc<Self>, origin: &Arc<Origin>) -> Option<Connection> {
        let (here, now) = (thread::current().id(), self.clock.now());
        loop {
            let found = self.shelves.lock().remove(origin, |waiting| waiting.line.thread == here)?;
            if !found.line.is_closed() && found.since.plus(self.kept_for) > now {
                return Some(Connection {
                    line: found.line,
                    origin: Some(origin.clone()),
                    pool: self.clone(),
                });
            }
        }
    }

    fn keep(&self, origin: Arc<Origin>, line: Line) {
        let waiting = Waiting { line, since: self.clock.now() };
        // Whoever has to go does so after the lock is given back.
        let _gone = {
            let mut shelves = self.shelves.lock();
            let full = shelves.waiting.get(&origin).is_some_and(|shelf| shelf.len() >= CONNECTIONS_KEPT_EACH);
            if waiting.line.is_closed() || !shelves.is_wanted(&origin) {
                Some(waiting)
            } else {
                // The newest is always kept: those that wait may belong to a thread that asks no more, and would keep all others
                // from having one.
                let gone = match full {
                    true => shelves.remove_oldest_of(&origin),
                    false if shelves.count >= CONNECTIONS_KEPT => shelves.remove_oldest(),
                    false => None,
                };
                shelves.count += 1;
                shelves.waiting.entry(origin).or_default().push(waiting);
                gone
            }
        };
    }

    /// How long this connection has waited; `None`: it is in use.
    fn waited(&self, origin: &Arc<Origin>, number: u64) -> Option<Duration> {
        let shelves = self.shelves.lock();
        let shelf = shelves.waiting.get(origin)?;
        let found = shelf.iter().find(|waiting| waiting.line.number == number)?;
        Some(self.clock.now().since(found.since))
    }

    /// Asks over connections that wait, as long as there are any. One that was closed before anything was sent is as if it
    /// had not been there; one that is closed after that is, too, if the question can be asked twice and nothing of an answer came.
    pub async fn over_waiting(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        mut request: Request<RequestBody>,
    ) -> Result<Tried, hyper::Error> {
        while let Some(mut connection) = self.take(origin) {
            let (again, heard) = (repeatable(origin.purpose, &request), connection.line.heard());
            let mut failed = match connection.send(request).await {
                Ok(response) => return Ok(Tried::Answered(response, connection)),
                Err(failed) => failed,
            };
            match (failed.take_message(), again) {
                (Some(unsent), _) => request = unsent,
                (None, Some(again)) if connection.line.heard() == heard => return Ok(Tried::Unsent(again)),
                (None, _) => return Err(failed.into_error()),
            }
        }
        Ok(Tried::Unsent(request))
    }

    /// Asks, and reads the answer if it has at most so many bytes. `dial` is only waited for where no connection is kept.
    pub async fn ask<S, E>(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        request: Request<RequestBody>,
        most: usize,
        dial: impl Future<Output = Result<S, E>>,
    ) -> Result<Whole, Unanswered<E>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let broken = Unanswered::Broken;
        let (response, connection) = match self.over_waiting(origin, request).await.map_err(broken)? {
            Tried::Answered(response, connection) => (response, connection),
            Tried::Unsent(request) => {
                let io = dial.await.map_err(Unanswered::Unreached)?;
                let mut connection = self.open(Some(origin.clone()), io).await.map_err(broken)?;
                let sent = connection.send(request).await;
                (sent.map_err(|failed| broken(failed.into_error()))?, connection)
            }
        };
        let whole = line::read(response, most).await?;
        connection.done();
        Ok(whole)
    }
}

impl Connection {
    /// Sends a request and waits for the beginning of the answer.
    pub async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, hyper::client::conn::TrySendError<Request<RequestBody>>> {
        self.line.send(request).await
    }

    /// The answer was read to the end: the connection waits for the next question, unless the other end does not want that.
    pub fn done(self) {
        let Connection { mut line, origin, pool } = self;
        let Some(origin) = origin else { return };
        if line.is_ready() {
            return pool.keep(origin, line);
        }
        // What was sent is still on its way, or the other end is about to close. Without a runtime the server stops.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Ok(Ok(())) = tokio::time::timeout(CONNECTION_SETTLES, line.ready()).await {
                    pool.keep(origin, line);
                }
            });
        }
    }
}

/// What a connection that may be kept knows of where it waits.
struct Kept {
    /// Not the other way round: the pool holds the connection.
    pool: Weak<Pool>,
    origin: Arc<Origin>,
    number: u64,
}

impl Kept {
    /// Waits until the connection has waited for too long.
    async fn outlived(&self) {
        // Nobody has kept it yet.
        let mut left = self.pool.upgrade().map_or(Duration::ZERO, |pool| pool.kept_for);
        while !left.is_zero() {
            tokio::time::sleep(left).await;
            let Some(pool) = self.pool.upgrade() else { return };
            let waited = pool.waited(&self.origin, self.number).unwrap_or_default();
            left = pool.kept_for.saturating_sub(waited);
        }
    }
}

/// The connection has ended, with its thread or before: it waits for nobody.
impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            let gone = pool.shelves.lock().remove(&self.origin, |waiting| waiting.line.number == self.number);
            drop(gone);
        }
    }
}

/// The same request once more, if it may be asked twice.
fn repeatable(purpose: Purpose, request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
    let body = match request.body() {
        RequestBody::Empty if is_safe => RequestBody::Empty,
        RequestBody::Whole(body) if purpose.may_repeat() => RequestBody::Whole(body.clone()),
        _ => return None,
    };
    let mut again = Request::new(body);
    again.method_mut().clone_from(request.method());
    again.uri_mut().clone_from(request.uri());
    again.headers_mut().clone_from(request.headers());
    Some(again)
}

#[cfg(test)]
mod tests;
