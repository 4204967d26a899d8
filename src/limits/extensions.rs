//! The bounds of extension API servers.

use std::time::Duration;

/// How long an extension API server may take to answer discovery, including the connection; the reference's value.
pub const EXTENSION_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to send an OpenAPI document or the list of them; the reference's value.
pub const EXTENSION_OPENAPI_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to delete or list objects in a terminating namespace.
pub const EXTENSION_DELETION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long deleting the objects of one resource in a terminating namespace may take per round.
pub const EXTENSION_CLEARING_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a list of its objects in such a namespace; a larger one counts as a failure.
pub const EXTENSION_LIST_BYTES: usize = 16 << 20;
/// Bytes of its discovery document; a larger one counts as missing.
pub const EXTENSION_DOCUMENT_BYTES: usize = 4 << 20;
/// Bytes of all discovery documents and lists of OpenAPI v3 documents of extension API servers; beyond that they are dropped.
pub const EXTENSION_DOCUMENTS_BYTES: usize = 32 << 20;
/// Bytes of an OpenAPI v2 document of an extension API server; a larger one is left out.
pub const EXTENSION_OPENAPI_BYTES: usize = 64 << 20;
/// Bytes of all their OpenAPI v2 documents: what is kept of them, and those that are being fetched and read.
pub const EXTENSION_OPENAPI_TOTAL_BYTES: usize = 512 << 20;
/// How often extension API servers are probed; the reference's value.
pub const EXTENSION_PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// How often their discovery is fetched; the reference's value.
pub const EXTENSION_DISCOVERY_INTERVAL: Duration = Duration::from_secs(60);
/// Requests of one probe: of several endpoints one may be down. The reference's value.
pub const EXTENSION_PROBES: usize = 5;
/// APIServices that have metrics of their own; further ones share one label.
pub const EXTENSION_LABELS: usize = 1_024;
/// Their OpenAPI documents that are fetched at once: more than there are usually APIServices, because a slow one holds its place for
/// [`EXTENSION_OPENAPI_TIMEOUT`].
pub const EXTENSION_OPENAPI_FETCHES: usize = 64;
