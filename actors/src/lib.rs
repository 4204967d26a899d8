//! State, order, time, durability and delivery.
//!
//! This crate knows keys, bytes, labels, indexed fields, revisions and identities. It does not know what a Pod is, and it does
//! not know HTTP. Suggested reading order:
//!
//! - [`object`] is the stored unit, [`filter`] selects objects, [`window`] holds recent events, [`archive`] and [`past`] older
//!   ones;
//! - [`engine`] is the log, [`committer`] writes it, [`store`] owns the objects of a type, [`directory`] finds stores;
//! - [`bell`] announces a change, [`broadcaster`] and [`interest`] find the watches that it concerns, [`summons`] calls a
//!   session, [`session`] and [`telling`] make its events, [`feed`] is what the client reads;
//! - [`authenticator`] and [`authorizer`] check requests;
//! - [`ports`] allocates node ports; [`rates`] limits event rates;
//! - [`rounds`] batches concurrent changes of one object; [`fair`] is API Priority and Fairness;
//! - [`lock`] guards state that threads share.

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
