//! Watches: one at one member, and one that goes on at another member.

mod assembler;
mod resumable;
mod stream;

pub use self::assembler::RevisionEvents;
pub use self::resumable::{ResumableWatch, WatchItem};
pub use self::stream::{WatchStream, WatchUpdate};
