//! etcd as the log that several servers share, in the layout of the reference: so servers of both kinds may share it.
//!
//! - [`EtcdLog`] is the log of one cluster, [`EtcdLogOptions`] say how objects are stored in it;
//! - [`EtcdForms`] make of drafts what stores propose: encoded, and encrypted if their type is;
//! - [`Types`] are the types whose objects are in the log.
//!
//! Events are put under leases of etcd, which expire by themselves.

mod compactor;
mod convert;
mod endpoint_leases;
mod event_leases;
mod follow;
mod forms;
mod key_wait;
mod limits;
mod log;
mod types;
mod values;

pub use self::endpoint_leases::EndpointLeases;
pub use self::forms::EtcdForms;
pub use self::log::{EtcdLog, EtcdLogOptions};
pub use self::types::Types;
pub use self::values::EncodeError;
