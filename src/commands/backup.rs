//! `pilothouse backup`: copies everything that is stored, from a running server or from the data directory of a stopped one.

use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use clap::Parser;
use hyper::Method;
use pilothouse_actors::backup::{About, BackupError, BackupReader, BackupSource as _, Entry, Totals};
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::redb::StoppedStore;
use pilothouse_client::api_server::{self, ApiRequest, ApiServer};
use pilothouse_types::clock::Clock;

use super::Command;
use super::connection::{ConnectionFlags, run_until_interrupted};
use super::object_stream::output_file::OutputFile;
use super::progress::Progress;
use crate::http::handler::backup::PATH;
use crate::limits::{BACKUP_CHUNK_BYTES, REFUSAL_BYTES};
use crate::server::STORE_FILE;

/// Back up everything that is stored, as it is at one moment. The server goes on meanwhile.
///
/// The file appears under its name only when it is whole. It has the Secrets, as they are stored: keep it as safe as the server.
/// `pilothouse restore` makes a new store of it, and `pilothouse inspect` shows what it holds.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse backup", no_binary_name = true)]
pub(super) struct Options {
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Back up the store in the data directory of a stopped server, instead of asking a running one.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Connection(String),
    #[error("{0}")]
    Request(#[from] api_server::Failure),
    #[error("the server answered {status}: {message}")]
    Refused { status: u16, message: String },
    #[error("{0}")]
    Store(#[from] EngineError),
    #[error("{0}")]
    Backup(#[from] BackupError),
    #[error("cannot write {file}: {error}")]
    Output { file: String, error: io::Error },
}

impl Command for Options {
    const NAME: &str = "backup";
    type Failure = Failure;

    fn run(&self) -> Result<(), Failure> {
        let unwritable = |error| Failure::Output { file: self.to.display().to_string(), error };
        let mut file = OutputFile::create(&self.to).map_err(unwritable)?;
        match &self.data_dir {
            Some(directory) => copy_store(&directory.join(STORE_FILE), &mut file)?,
            None => {
                let server = self.connection.api_server().map_err(Failure::Connection)?;
                run_until_interrupted(async { Ok(download(&server, &mut file).await) })
                    .map_err(Failure::Connection)??;
            }
        }
        // What arrived is not trusted to be whole.
        let totals = verify(BufReader::new(file.reader().map_err(unwritable)?))?;
        file.publish().map_err(unwritable)?;
        Progress::new().line(format_args!(
            "Backed up {} records of {} resources to {}.",
            totals.records,
            totals.types,
            self.to.display()
        ));
        Ok(())
    }
}

/// Copies the store of a stopped server. Opening it fails if a server uses it.
fn copy_store(store: &Path, file: &mut OutputFile) -> Result<(), Failure> {
    let store = StoppedStore::open(store)?;
    let about = About { version: env!("CARGO_PKG_VERSION").to_owned(), created: Clock::system().now() };
    let mut out = BufWriter::with_capacity(BACKUP_CHUNK_BYTES, Counted::new(file));
    store.backup_source().write_to(&about, &mut out)?;
    Ok(out.flush().map_err(BackupError::from)?)
}

/// A file, and how much was written to it, for whoever waits.
struct Counted<'a> {
    file: &'a mut OutputFile,
    bytes: usize,
    progress: Progress,
}

impl Counted<'_> {
    fn new(file: &mut OutputFile) -> Counted<'_> {
        Counted { file, bytes: 0, progress: Progress::new() }
    }
}

impl io::Write for Counted<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let written = self.file.write(piece)?;
        self.bytes += written;
        self.progress.show(format_args!("{} MiB", self.bytes >> 20));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

async fn download(server: &ApiServer, file: &mut OutputFile) -> Result<(), Failure> {
    let request =
        ApiRequest { method: Method::GET, target: PATH, accept: "*/*", body: None, max_bytes: REFUSAL_BYTES };
    let mut file = Counted::new(file);
    let refusal = server.download(request, |piece| file.write_all(piece)).await?;
    match refusal {
        None => Ok(()),
        Some(response) => {
            let message = String::from_utf8_lossy(&response.body).trim().to_owned();
            Err(Failure::Refused { status: response.status, message })
        }
    }
}

/// Reads a backup to its end.
pub(super) fn verify(file: impl io::Read) -> Result<Totals, BackupError> {
    let (mut backup, _) = BackupReader::open(file)?;
    loop {
        if let Entry::End(totals) = backup.next()? {
            return Ok(totals);
        }
    }
}
