//! What the actors and the rules of the API share: plain data, without actors, I/O or HTTP.
//!
//! - [`object`] is the stored unit and [`filter`] selects objects; [`error`] is what a store answers;
//! - [`identity`] is a user, [`authentication`] and [`authorization`] are the answers about one;
//! - [`memory`] counts bytes, [`frame`] is a shared event as it is sent;
//! - [`clock`] tells the time, [`lock`] guards state that threads share.

pub mod authentication;
pub mod authorization;
pub mod clock;
pub mod error;
pub mod filter;
pub mod frame;
pub mod identity;
pub mod limits;
pub mod lock;
pub mod memory;
pub mod object;
