//! State, order, time, durability and delivery.
//!
//! This crate knows keys, bytes, labels, indexed fields, revisions and identities. It does not know what a Pod is, and
//! it does not know HTTP. Read it in this order:
//!
//! - [`object`] what is stored, [`filter`] what a reader wants of it, [`window`] what happened to it, [`archive`] and [`past`]
//!   what happened longer ago;
//! - [`engine`] where it is kept, [`committer`] how it gets there, [`store`] who owns it, [`directory`] who finds the owner;
//! - [`bell`] how a change is announced, [`broadcaster`] and [`interest`] who hears of it, [`summons`] how a session is
//!   called, [`session`] and [`telling`] what it says, [`feed`] what the client reads;
//! - [`authenticator`] and [`authorizer`]: who is asking, and may they;
//! - [`ports`]: which port on the nodes belongs to whom; [`rates`]: how fast things may come;
//! - [`rounds`]: how many who want to change one thing take turns; [`fair`]: who is served next when not all can be;
//! - [`lock`]: what is shared between threads.

pub mod answer;
pub mod archive;
pub mod authenticator;
pub mod authorizer;
pub mod bell;
pub mod broadcaster;
pub mod checkpoints;
pub mod clock;
pub mod committer;
pub mod directory;
pub mod engine;
pub mod error;
pub mod fair;
pub mod fatal;
pub mod feed;
pub mod filter;
pub mod gauge;
pub mod identity;
pub mod interest;
pub mod limits;
mod line;
pub mod lock;
pub mod object;
pub mod past;
pub mod permit;
pub mod ports;
pub mod rates;
pub mod record;
pub mod recover;
pub mod rounds;
pub mod session;
pub mod snapshot;
pub mod store;
pub mod summons;
pub mod telling;
pub mod trims;
pub mod turns;
pub mod window;
