//! State, order, time, durability and delivery.
//!
//! This crate knows keys, bytes, labels, indexed fields, revisions and identities. It does not know what a Pod is, and
//! it does not know HTTP. Read it in this order:
//!
//! - [`object`] what is stored, [`filter`] what a reader wants of it, [`window`] what happened to it;
//! - [`engine`] where it is kept, [`committer`] how it gets there, [`store`] who owns it, [`directory`] who finds the owner;
//! - [`broadcaster`] who hears of a change, [`session`] who tells the client;
//! - [`authenticator`] and [`authorizer`]: who is asking, and may they.

pub mod bell;
pub mod clock;
pub mod committer;
pub mod directory;
pub mod engine;
pub mod error;
pub mod fatal;
pub mod filter;
pub mod gauge;
pub mod limits;
pub mod object;
pub mod permit;
pub mod record;
pub mod recover;
pub mod snapshot;
pub mod store;
pub mod trims;
pub mod window;
