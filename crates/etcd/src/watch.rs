//! Watches: one at one member, one that goes on at another member, and one of all keys that catches up fast.

mod all_keys;
mod assembler;
mod resumable;
mod stream;

pub use self::all_keys::AllKeysWatch;
pub use self::assembler::RevisionEvents;
pub use self::resumable::{ResumableWatch, WatchItem};
pub use self::stream::{WatchStream, WatchUpdate};
