//! /backup: everything that is stored, as a file that `pilothouse restore` reads.
//!
//! Whoever may get this path reads all objects, so only administrators should; no role of the bootstrap policy allows it.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;

use actix_web::HttpResponse;
use actix_web::http::header;
use bytes::Bytes;
use futures::stream;
use pilothouse_actors::backup::{About, BackupError, BackupSource};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::clock::Clock;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::limits::{BACKUP_CHUNK_BYTES, BACKUP_CHUNKS, BACKUP_STALL, BACKUP_STALL_STEP};

/// The path.
pub const PATH: &str = "/backup";
/// The content type of a backup.
const CONTENT_TYPE: &str = "application/vnd.pilothouse.backup";

/// The backups of a server.
pub struct Backups {
    /// `None` if the objects are in memory only.
    source: Option<Arc<dyn BackupSource>>,
    /// One at a time: each keeps the pages of its moment in the file, and reads the whole disk.
    slot: Arc<Semaphore>,
    version: String,
}

impl Backups {
    /// Backups of this log, which name the version of the server.
    pub fn new(source: Option<Arc<dyn BackupSource>>, version: String) -> Backups {
        Backups { source, slot: Arc::new(Semaphore::new(1)), version }
    }

    /// The response with a backup of this moment.
    pub fn respond(&self, clock: &Clock) -> Result<HttpResponse> {
        let (source, about, slot) = self.begin(clock)?;
        let (sender, receiver) = mpsc::channel(BACKUP_CHUNKS);
        let clock = clock.clone();
        // A thread of its own: it reads the disk for seconds, and waits for the client.
        let thread = thread::Builder::new().name("backup".to_owned()).spawn(move || {
            let _slot = slot;
            let mut out = ChunkSender { sender, chunk: Vec::new(), clock };
            match source.write_to(&about, &mut out) {
                Ok(totals) => tracing::info!(?totals, "a backup was sent"),
                Err(error) => {
                    tracing::warn!(%error, "a backup was not completed");
                    out.fail(&error);
                }
            }
        });
        thread.map_err(|error| Status::internal(format!("cannot begin a backup: {error}")))?;
        let chunks = stream::unfold(receiver, async |mut receiver| {
            let chunk: io::Result<Bytes> = receiver.recv().await?;
            Some((chunk, receiver))
        });
        Ok(HttpResponse::Ok()
            .content_type(CONTENT_TYPE)
            .insert_header((header::CACHE_CONTROL, "no-store"))
            .streaming(Box::pin(chunks)))
    }

    /// What a backup is made from, unless another one is in progress.
    fn begin(&self, clock: &Clock) -> Result<(Arc<dyn BackupSource>, About, OwnedSemaphorePermit)> {
        let Some(source) = self.source.clone() else {
            return Err(Status::bad_request(
                "this server keeps its objects in memory: there is nothing to back up",
            ));
        };
        let Ok(slot) = Arc::clone(&self.slot).try_acquire_owned() else {
            return Err(Status::too_many_requests("another backup is in progress", BACKUP_RETRY_SECONDS));
        };
        Ok((source, About { version: self.version.clone(), created: clock.now() }, slot))
    }
}

/// When to ask again if another backup is in progress.
const BACKUP_RETRY_SECONDS: u32 = 5;

/// Sends what is written in chunks, and gives up on a client that does not read.
struct ChunkSender {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
    clock: Clock,
}

impl ChunkSender {
    fn send(&self, chunk: io::Result<Bytes>) -> io::Result<()> {
        let mut chunk = chunk;
        let since = self.clock.moment();
        loop {
            chunk = match self.sender.try_send(chunk) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => {
                    return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the client is gone"));
                }
                Err(TrySendError::Full(chunk)) => chunk,
            };
            if self.clock.elapsed(since) > BACKUP_STALL {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"));
            }
            thread::sleep(BACKUP_STALL_STEP);
        }
    }

    /// Ends the response in a way that the client can tell from a whole one.
    fn fail(&self, error: &BackupError) {
        let _gone = self.send(Err(io::Error::other(error.to_string())));
    }
}

impl Write for ChunkSender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= BACKUP_CHUNK_BYTES {
            let chunk = std::mem::take(&mut self.chunk);
            self.send(Ok(chunk.into()))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.chunk) {
            chunk if chunk.is_empty() => Ok(()),
            chunk => self.send(Ok(chunk.into())),
        }
    }
}
