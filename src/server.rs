//! A whole server in one call: [`Server::start`] for the binary, for tests and for embedders alike. Each server owns a
//! thread with its own actix System, so that several live in one process and any caller can start one, also from
//! inside another runtime.

pub mod application;
mod assembly;
mod handle;
mod lifecycle;

use std::fs::{DirBuilder, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

use pilothouse_client::routes::Routes;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_types::clock::Clock;
use tokio::sync::watch;

pub use handle::{Exit, Handle, Stopper};

pub use self::application::StartError;
use self::application::{Assemble, StartContext};
pub use self::assembly::Assembly;
pub(crate) use self::assembly::storage::STORE_FILE;
use crate::config::Config;
use crate::http::edge::Edge;
use crate::http::listener;
use crate::http::tls::Tls;
use crate::pki;

/// The entry point: [`Server::start`] and its variants.
pub struct Server;

impl Server {
    /// Starts a server and waits until it is ready. Blocks the calling thread for some milliseconds.
    pub fn start(config: Config) -> Result<Handle, StartError> {
        Server::start_with(config, Clock::system(), Assembly::default())
    }

    /// As [`Server::start`], without blocking the caller's runtime.
    pub async fn start_async(config: Config) -> Result<Handle, StartError> {
        let starting = tokio::task::spawn_blocking(move || Server::start(config));
        starting.await.unwrap_or_else(|error| Err(StartError::System(io::Error::other(error))))
    }

    /// As [`Server::start`], with another clock and another application.
    pub fn start_with(config: Config, clock: Clock, assembly: impl Assemble) -> Result<Handle, StartError> {
        config.validate()?;
        let requested = SocketAddr::new(config.serving.bind_address, config.serving.secure_port);
        let listen_error = |source| StartError::Listen { address: requested, source };
        let listener = listener::bind(requested, config.serving.permit_port_sharing).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let lock = config.storage.data_dir.as_deref().map(DirectoryLock::take).transpose()?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let pki = Arc::new(pki::prepare(&config, address, &clock)?);
        let tls = Tls::new(&config.serving, &pki)?;
        let edge = Edge::new(listener, tls.clone(), &config, clock.clone());
        let egress = config.egress.selector(&clock);
        let egress = egress.map_err(|error| StartError::flag("--egress-selector-config-file")(&error))?;
        let routes = Routes::from_env().map_err(|error| StartError::part("outgoing connections")(&error))?;
        let routes = Routes { egress, ..routes };
        let pool = Pool::with_routes(clock.clone(), routes);
        let connections = edge.connections();
        let (config, handle_pki) = (Arc::new(config), Arc::clone(&pki));
        let context = StartContext { config, pki, tls, clock, pool, address, connections };

        let (orders, order_receiver) = watch::channel(handle::StopOrder::Run);
        let (exit_sender, exit) = watch::channel(None);
        let (started_sender, started_receiver) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("pilothouse".to_owned()).spawn(move || {
            let exit = lifecycle::run(context, edge, assembly, order_receiver, started_sender);
            drop(lock);
            exit_sender.send_replace(Some(exit));
        })?;
        let handle = Handle::new(address, handle_pki, orders, exit, thread);
        match started_receiver.recv() {
            Ok(Ok(())) => {
                tracing::info!(%address, "serving");
                Ok(handle)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StartError::System(io::Error::other("the server's thread has ended"))),
        }
    }
}

/// Makes a data directory, if there is none. It holds Secrets and keys: other users of this host must not read it.
pub(crate) fn create_data_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// A data directory belongs to this process until this is dropped.
struct DirectoryLock(File);

impl DirectoryLock {
    fn take(directory: &Path) -> Result<DirectoryLock, StartError> {
        let path = directory.display().to_string();
        let directory_error = |source| StartError::DataDirectory { path: path.clone(), source };
        create_data_directory(directory).map_err(directory_error)?;
        let file = File::options()
            .mode(0o600)
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join("lock"))
            .map_err(directory_error)?;
        match file.try_lock() {
            Ok(()) => Ok(DirectoryLock(file)),
            Err(std::fs::TryLockError::WouldBlock) => Err(StartError::Locked(path)),
            Err(std::fs::TryLockError::Error(source)) => Err(directory_error(source)),
        }
    }
}

impl Drop for DirectoryLock {
    /// To close the file is not enough: a child that another thread of this process is starting has a copy of it until it runs its
    /// program, and with it the lock.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "the data directory cannot be unlocked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ends_although_a_child_has_a_copy_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(directory.path()).unwrap();
        let copy = lock.0.try_clone().unwrap();
        assert!(matches!(DirectoryLock::take(directory.path()), Err(StartError::Locked(_))));
        drop(lock);
        drop(DirectoryLock::take(directory.path()).unwrap());
        drop(copy);
    }
}
