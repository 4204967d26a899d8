//! The thread that calls plugins.
//!
//! Whoever needs a plugin waits for it, and it may be any thread: a worker of the server or of the storage, a thread for blocking calls,
//! or a plain one. So the calls do not run on the runtime of their caller, but here. The thread ends with the last user of the runtime,
//! and takes its connections with it.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The runtime of the plugins that belong together.
pub struct PluginRuntime {
    handle: Handle,
    /// The thread ends when this is dropped. It is not waited for: whoever drops it may be a task of the runtime.
    _running: oneshot::Sender<()>,
}

impl PluginRuntime {
    /// Starts the thread, with this name.
    pub fn start(name: &str) -> io::Result<PluginRuntime> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, stopped) = oneshot::channel::<()>();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // An error is the signal: nothing is ever sent.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(PluginRuntime { handle, _running: running })
    }

    /// Starts a task.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.handle.spawn(task)
    }

    /// Starts a task whose result any thread but that of the runtime may wait for. There is none if the runtime ends before.
    pub fn start_task<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> mpsc::Receiver<T> {
        // A channel of the standard library, because those of tokio refuse to block the thread of any runtime.
        let (sender, receiver) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // Nobody may be interested any more.
            let _ = sender.send(task.await);
        });
        receiver
    }

    /// Waits for a task on the calling thread, which must not be that of the runtime. `None` if the task did not end.
    pub fn wait_for<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<T> {
        self.start_task(task).recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn tasks_run_for_any_thread_and_end_with_the_runtime() {
        let runtime = Arc::new(PluginRuntime::start("plugins").unwrap());
        assert_eq!(runtime.wait_for(async { 1 }), Some(1));
        let other = runtime.clone();
        assert_eq!(thread::spawn(move || other.wait_for(async { 2 })).join().unwrap(), Some(2));
        let worker = Builder::new_current_thread().build().unwrap();
        assert_eq!(worker.block_on(async { runtime.wait_for(async { 3 }) }), Some(3));
        let (sender, receiver) = mpsc::channel::<()>();
        runtime.spawn(async move {
            let _held = sender;
            std::future::pending::<()>().await;
        });
        drop(runtime);
        assert!(receiver.recv().is_err(), "the task is dropped");
    }
}
