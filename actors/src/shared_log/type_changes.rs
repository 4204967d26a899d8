//! Which types of a shared log this server keeps. Definitions add and remove some while it runs.

use pilothouse_types::object::TypeName;
use tokio::sync::{mpsc, oneshot};

use super::SharedLogError;

/// A change of the types, for the follower.
pub(crate) enum TypeChange {
    /// A type is known from now on.
    Add {
        type_name: TypeName,
        /// Tells the log which keys are those of the type. Returns false if they could be those of another one.
        register: Box<dyn FnOnce() -> bool + Send>,
        /// Told when its objects are here; dropped if the type is refused.
        done: oneshot::Sender<Result<(), SharedLogError>>,
    },
    /// A type is gone.
    Remove {
        type_name: TypeName,
        /// Tells the log that its keys are foreign.
        unregister: Box<dyn FnOnce() + Send>,
        /// Told when no more of its changes will come.
        done: oneshot::Sender<()>,
    },
}

/// Why a type cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddTypeError {
    /// Its keys could be those of another type.
    #[error("its keys in the shared log could be those of another type")]
    Refused,
    /// Its objects cannot be read now.
    #[error(transparent)]
    Log(#[from] SharedLogError),
}

/// Where types are added and removed. Cheap to clone.
#[derive(Clone)]
pub struct TypeChanges(mpsc::Sender<TypeChange>);

impl TypeChanges {
    /// A queue of so many changes, and its other end.
    pub(crate) fn new(capacity: usize) -> (TypeChanges, mpsc::Receiver<TypeChange>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (TypeChanges(sender), receiver)
    }

    /// A type is known from now on. Returns when its objects are here. `register` tells the log which keys are those of the type, and
    /// returns false if they could be those of another one.
    pub async fn add(
        &self,
        type_name: TypeName,
        register: Box<dyn FnOnce() -> bool + Send>,
    ) -> Result<(), AddTypeError> {
        let (done, receiver) = oneshot::channel();
        let sent = self.0.send(TypeChange::Add { type_name, register, done }).await;
        sent.map_err(|_| SharedLogError::Unavailable("the server ends".into()))?;
        receiver.await.map_err(|_| AddTypeError::Refused)?.map_err(AddTypeError::Log)
    }

    /// A type is gone. `unregister` tells the log that its keys are foreign. Returns when no more of its changes will come, so its store
    /// may end.
    pub async fn remove(&self, type_name: TypeName, unregister: Box<dyn FnOnce() + Send>) {
        let (done, receiver) = oneshot::channel();
        // Where nobody listens any more, nothing comes.
        if self.0.send(TypeChange::Remove { type_name, unregister, done }).await.is_ok() {
            let _ended = receiver.await;
        }
    }
}
