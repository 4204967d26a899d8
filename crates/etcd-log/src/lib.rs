//! etcd as the log that several servers share, in the layout of the reference: so servers of both kinds may share it.
//!
//! - [`EtcdLog`] is the log of one cluster, [`EtcdLogOptions`] say how objects are stored in it;
//! - [`EtcdForms`] make of drafts what stores propose: encoded, and encrypted if their type is;
//! - [`RangeAllocations`] are the records of taken node ports and cluster IPs;
//! - [`EndpointLeases`] and [`PeerLeases`] are the records of servers that are alive;
//! - [`Types`] are the types whose objects are in the log;
//! - [`CopySource`] and [`CopyTarget`] are for copies of everything in it;
//! - [`Observer`] counts what is done with etcd.
//!
//! Events are put under leases of etcd, which expire by themselves.

mod compactor;
mod convert;
mod copy;
mod decoding;
mod endpoint_leases;
mod event_leases;
mod follow;
mod forms;
mod leased_records;
mod limits;
mod log;
mod meter;
mod peer_leases;
mod range_records;
mod types;
mod values;

pub use self::copy::{
    CopyEntry, CopyError, CopyObject, CopyPage, CopyPages, CopySource, CopyTarget, CopyWrite,
};
pub use self::endpoint_leases::EndpointLeases;
pub use self::forms::EtcdForms;
pub use self::log::{EtcdLog, EtcdLogOptions};
pub use self::meter::{Observer, Operation};
pub use self::peer_leases::{PeerEndpoint, PeerLeases};
pub use self::range_records::RangeAllocations;
pub use self::types::Types;
pub use self::values::EncodeError;
