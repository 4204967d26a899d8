//! A KMS plugin for tests, which speaks v1beta1 and v2:
//!
//!     kms-plugin --socket PATH --key-id ID --state FILE
//!
//! The keys are kept in the state file. A new key is made when the plugin is started with an id that is not in the file, and at
//! SIGHUP, which adds a number to the id. The newest key encrypts. The plugin prints a line when it is ready, and a line with the id of
//! each new key.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program")]

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use pilothouse_encryption::testing::{KeyFile, KmsPlugin, PluginState};
use tokio::signal::unix::{SignalKind, signal};

/// The arguments.
#[derive(Default)]
struct Arguments {
    socket: PathBuf,
    key_id: String,
    state: PathBuf,
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        let value = value.or_else(|| words.next()).ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--socket" => arguments.socket = value.into(),
            "--key-id" => arguments.key_id = value,
            "--state" => arguments.state = value.into(),
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    let is_complete = !arguments.socket.as_os_str().is_empty()
        && !arguments.key_id.is_empty()
        && !arguments.state.as_os_str().is_empty();
    is_complete.then_some(arguments).ok_or_else(|| "--socket, --key-id and --state are needed".to_owned())
}

/// Makes a new key at each SIGHUP, until the process is told to end.
async fn rotate_on_hangup(state: Arc<PluginState>, key_id: String) -> io::Result<()> {
    let (mut hangup, mut terminate) = (signal(SignalKind::hangup())?, signal(SignalKind::terminate())?);
    println!("ready");
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => {
                let id = format!("{key_id}-{}", state.key_count() + 1);
                state.rotate(&id)?;
                println!("key {id}");
            }
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let Arguments { socket, key_id, state } = arguments()?;
    let state = Arc::new(PluginState::new(KeyFile::open(state, &key_id)?));
    let _plugin = KmsPlugin::start(&socket, state.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(rotate_on_hangup(state, key_id))?)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kms-plugin: {error}");
            ExitCode::FAILURE
        }
    }
}
