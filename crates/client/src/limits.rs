//! Every bound of this crate, by name, with its reason.

use std::time::Duration;

/// How long a connection may be silent before the kernel probes it. Not HTTP/2 pings, which only tell whether the client reads
/// right now: a client that is stopped in a debugger, or processes slowly, is alive.
pub const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
/// The interval of further probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The number of unanswered probes after which the peer is gone.
pub const KEEPALIVE_PROBES: u32 = 3;
/// A connection with a rate carries in each such interval what it may carry in a second, divided by their number.
pub const PACE_INTERVAL: Duration = Duration::from_millis(100);
/// The number of these intervals in a second.
pub const PACE_INTERVALS_PER_SECOND: u64 = 10;
/// Open connections to kubelets, pods and services, including upgraded ones and followed logs.
pub const UPSTREAM_CONNECTIONS: usize = 4_096;
/// Open connections to extension API servers.
pub const EXTENSION_CONNECTIONS: usize = 4_096;
/// Connections of either kind on behalf of one user.
pub const CONNECTIONS_PER_USER: usize = 1_024;
/// Addresses of one host that are tried.
pub const UPSTREAM_ADDRESSES: usize = 8;
/// How long a connection to one address of a host may take before the next address is tried beside it; the reference's value for
/// the other address family.
pub const NEXT_ADDRESS_DELAY: Duration = Duration::from_millis(300);
/// The read buffer of an outgoing connection; the head of a response must fit.
pub const UPSTREAM_BUFFER_BYTES: usize = 64 << 10;
/// Headers of one response of another server.
pub const UPSTREAM_HEADERS: usize = 128;
/// How long a kubelet may take to begin its response. It has to ask its container runtime first.
pub const KUBELET_HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a proxied backend may take to begin its response.
pub const PROXY_HEAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Extension API servers whose TLS contexts are cached; beyond that the cache is cleared.
pub const EXTENSION_TLS_CONTEXTS: usize = 256;
/// Bytes that are read of a key, certificate or bundle file.
pub const PKI_FILE_BYTES: u64 = 4 << 20;
/// Bytes of a kubeconfig, and of each file that it names.
pub const KUBECONFIG_BYTES: u64 = 1 << 20;
/// How long a credential plug-in may take. A connection has to be made afterwards.
pub const EXEC_PLUGIN_TIMEOUT: Duration = Duration::from_secs(25);
/// Bytes of a credential plug-in's output.
pub const EXEC_OUTPUT_BYTES: u64 = 1 << 20;
/// Bytes of a proxy's response to CONNECT.
pub const PROXY_RESPONSE_BYTES: usize = 16 << 10;
/// Bytes of a webhook's response; more is a mistake or an attack.
pub const WEBHOOK_RESPONSE_BYTES: usize = 1 << 20;
/// How long one webhook call may take, including the connection; the reference's value.
pub const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// Concurrent calls to one webhook of the operator; further ones wait.
pub const WEBHOOK_CALLS: usize = 256;
/// Webhooks whose TLS contexts a worker caches; beyond that the cache is cleared. The reference's value.
pub const HOOK_PEERS: usize = 200;
/// Attempts of a webhook call.
pub const WEBHOOK_ATTEMPTS: u32 = 5;
/// Idle connections per destination; the reference's value.
pub const IDLE_CONNECTIONS_PER_DESTINATION: usize = 25;
/// Idle connections to all destinations; beyond that the longest idle one is closed.
pub const IDLE_CONNECTIONS: usize = 1_024;
/// How long an idle connection is kept. Well below the 90 s after which many servers close one: a request that meets the end of
/// its connection cannot always be repeated.
pub const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may take to become reusable after a response; a slower one is closed.
pub const CONNECTION_SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long one request to another API server may take: longer than such a server lets a request take itself.
pub const API_REQUEST_TIMEOUT: Duration = Duration::from_secs(70);
/// Warnings of one response of another API server that are kept.
pub const API_WARNINGS: usize = 16;
/// Bytes of the file of the egress selector.
pub const EGRESS_CONFIGURATION_BYTES: u64 = 1 << 20;
/// How long each step of a connection through a proxy of the egress selector may take: that to the proxy, and that from there on. The
/// reference's value.
pub const EGRESS_STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that a konnectivity server may send for one connection before they are read.
pub const KONNECTIVITY_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of one packet of a konnectivity server.
pub const KONNECTIVITY_PACKET_BYTES: usize = 1 << 20;
/// Bytes of a connection in one packet that is sent.
pub const KONNECTIVITY_DATA_BYTES: usize = 32 << 10;
/// Packets of one connection that wait to be sent.
pub const KONNECTIVITY_PACKETS: usize = 4;
/// How long a konnectivity server may take to confirm the end of a connection; the reference's value.
pub const KONNECTIVITY_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the headers of one response over HTTP/2.
pub const UPSTREAM_HEADER_BYTES: u32 = 64 << 10;
/// Bytes of one response over HTTP/2 that a server may send before they are read; a connection may have as many responses as streams.
pub const HTTP2_WINDOW_BYTES: u32 = 256 << 10;
/// Requests that one HTTP/2 connection carries at a time, if its server allows as many.
pub const HTTP2_STREAMS_PER_CONNECTION: usize = 100;
/// HTTP/2 connections of one thread to one server; if all have as many requests as they may, further ones wait.
pub const HTTP2_CONNECTIONS_PER_DESTINATION: usize = 256;
/// Requests of one thread that wait for an HTTP/2 connection to one server; further ones fail.
pub const HTTP2_WAITING_REQUESTS: usize = 4_096;
/// Servers of which is known whether they have chosen HTTP/1.1 or HTTP/2; beyond that all is forgotten.
pub const KNOWN_PROTOCOLS: usize = 1_024;
/// Attempts of a request that its server has not processed. About the reference's value.
pub const EXCHANGE_ATTEMPTS: usize = 6;
/// How long a connection over HTTP/2 may be silent before the server is asked whether it is there; the reference's value.
pub const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long the server may take to answer that; the reference's value.
pub const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(15);
