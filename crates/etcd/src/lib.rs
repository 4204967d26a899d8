//! A client of etcd's gRPC API, version 3, for a server whose replicas share one cluster.
//!
//! - [`Client`] makes calls: at the member in use, and at the next one when it fails;
//! - [`Pages`] reads large ranges with bounded memory;
//! - [`WatchStream`] is one watch at one member; [`ResumableWatch`] goes on at another one without gap or repetition;
//!   [`AllKeysWatch`] does so for all keys, and catches up fast;
//! - [`LeaseKeepAlive`] renews leases;
//! - [`messages`] are what is sent and received, and [`Error`] says what can go wrong.
//!
//! What decides about everything else: **a write is sent once.** If its answer is missing, whoever made it is told so, because only
//! they can find out (a transaction that compares revisions can be read back). Whatever only reads is repeated elsewhere.

mod client;
mod error;
mod failure;
pub mod limits;
pub mod messages;
mod methods;
mod pages;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
mod watch;

pub use self::client::{Client, LeaseKeepAlive, Snapshot};
pub use self::error::{EndpointFailure, Error};
pub use self::pages::{Page, Pages};
pub use self::settings::{Dialer, Duplex, Settings, TlsFiles};
pub use self::watch::{AllKeysWatch, ResumableWatch, RevisionEvents, WatchItem, WatchStream, WatchUpdate};
