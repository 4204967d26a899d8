//! The layout in which the reference server stores objects in etcd: which key an object has, and which bytes. Pure functions: no
//! I/O, no clock, no actors.
//!
//! - [`prefix`] and [`keys`] map types and keys of objects to etcd keys, and back;
//! - [`media`] and [`values`] map stored objects to the bytes under those keys, and back; [`earlier`] reads the versions in which
//!   earlier releases stored objects;
//! - [`range_allocation`], [`endpoint_lease`] and [`compaction`] are the records beside the objects, by which several servers agree;
//!   [`expiry_leases`] decides which events expire together.
//!
//! Why a crate of its own: it knows the catalog and the codecs, and nobody below the server needs it.

pub mod compaction;
pub mod earlier;
pub mod endpoint_lease;
pub mod expiry_leases;
pub mod keys;
pub mod limits;
pub mod media;
pub mod prefix;
pub mod range_allocation;
pub mod values;
