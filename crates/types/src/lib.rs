//! Data types that the actors and the API crates share, without actors, I/O or HTTP.
//!
//! - [`object`] is the stored unit, [`filter`] selects objects, [`error`] is the error of a store;
//! - [`host_port`] is where another server listens;
//! - [`identity`] is a user, [`authentication`] and [`authorization`] are the decisions about one;
//! - [`memory`] counts bytes, [`user_shares`] what each user has of something, [`frame`] is an encoded watch event that watches share;
//! - [`activity`] is what actors, queues and threads do;
//! - [`clock`] is injected time, [`lock`] are locks without poisoning, [`contention`] tells where threads wait for them,
//!   [`bounded`] are collections with a maximum size, [`bitmap`] is a set of small numbers;
//! - [`trace`] records the steps of a request.

pub mod activity;
pub mod authentication;
pub mod authorization;
pub mod bitmap;
pub mod bounded;
pub mod clock;
pub mod contention;
pub mod error;
pub mod filter;
pub mod frame;
pub mod host_port;
pub mod identity;
pub mod limits;
pub mod lock;
pub mod memory;
pub mod object;
pub mod stored_form;
pub mod trace;
pub mod user_shares;
