//! The limits of this crate. Whoever can write to etcd controls its keys and values.

/// Bytes of an etcd key that may belong to an object: prefix, group, plural, namespace and name take less together.
pub const KEY_BYTES: usize = 4 << 10;
/// Bytes of one value. etcd accepts 1.5 MiB unless it is configured otherwise, and the server bodies of 3 MiB, whose Protobuf or
/// JSON can be somewhat larger.
pub const VALUE_BYTES: usize = 8 << 20;
/// Bytes of memory that decoding one value may take, by the estimate of the codecs. The estimate is far above what real objects
/// take, so only values made of many tiny parts reach it.
pub const DECODED_BYTES: usize = 512 << 20;
/// Bytes of the values of an error message that come from etcd.
pub const QUOTED_BYTES: usize = 100;
