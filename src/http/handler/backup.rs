//! /backup: everything that is stored, as a file that `pilothouse restore` reads.
//!
//! Whoever may get this path reads all objects, so only administrators should; no role of the bootstrap policy allows it.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header;
use bytes::Bytes;
use futures::stream;
use pilothouse_actors::backup::BackupError;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::clock::{Clock, Moment};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::backups::paced_writer::PacedWriter;
use crate::backups::{Backups, NoBackup, PendingBackup};
use crate::limits::{BACKUP_CHUNK_BYTES, BACKUP_CHUNKS, BACKUP_LEAST_RATE, BACKUP_STALL, BACKUP_STALL_STEP};

/// The path.
pub const PATH: &str = "/backup";
/// The content type of a backup.
const CONTENT_TYPE: &str = "application/vnd.pilothouse.backup";

/// The response with a backup of this moment.
pub fn respond(backups: &Backups, clock: &Clock) -> Result<HttpResponse> {
    let PendingBackup { source, about, slot } = backups.begin(clock).map_err(|refusal| match refusal {
        NoBackup::InMemory | NoBackup::InEtcd => Status::bad_request(refusal.to_string()),
        NoBackup::Busy => Status::too_many_requests(refusal.to_string(), BACKUP_RETRY_SECONDS),
    })?;
    let (sender, receiver) = mpsc::channel(BACKUP_CHUNKS);
    let clock = clock.clone();
    // A thread of its own: it reads the disk for seconds, and waits for the client.
    let thread = thread::Builder::new().name("backup".to_owned()).spawn(move || {
        let _slot = slot;
        let begin = clock.moment();
        let mut out = ChunkSender { sender, chunk: Vec::new(), sent: 0, begin, clock: clock.clone() };
        match source.write_to(&about, &mut PacedWriter::new(&mut out, &clock)) {
            Ok(totals) => tracing::info!(records = totals.records, types = totals.types, "a backup was sent"),
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

/// When to ask again if another backup is in progress.
const BACKUP_RETRY_SECONDS: u32 = 5;

/// Sends what is written in chunks, and gives up on a client that does not read.
struct ChunkSender {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
    /// Bytes that were sent.
    sent: u64,
    begin: Moment,
    clock: Clock,
}

impl ChunkSender {
    fn send(&mut self, chunk: io::Result<Bytes>) -> io::Result<()> {
        let mut chunk = chunk;
        self.sent += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        let since = self.clock.moment();
        loop {
            chunk = match self.sender.try_send(chunk) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => {
                    return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the client is gone"));
                }
                Err(TrySendError::Full(chunk)) => chunk,
            };
            let at_least = BACKUP_STALL + Duration::from_secs(self.sent / BACKUP_LEAST_RATE);
            if self.clock.elapsed(since) > BACKUP_STALL || self.clock.elapsed(self.begin) > at_least {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly"));
            }
            thread::sleep(BACKUP_STALL_STEP);
        }
    }

    /// Ends the response in a way that the client can tell from a whole one.
    fn fail(&mut self, error: &BackupError) {
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
