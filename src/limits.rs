//! Every bound of this crate, by name, with its reason. `docs/queues.md` says what happens when one is reached.

use std::time::Duration;

/// Connections that the kernel may hold before the server takes them.
pub const LISTEN_BACKLOG: i32 = 1_024;
/// Open connections of one worker. Past it the worker takes no more, the kernel's backlog fills, and clients wait.
pub const CONNECTIONS_PER_WORKER: usize = 25_000;
/// How long a client may take for the TLS handshake and for the HTTP/2 preface.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an HTTP/1.1 client may take to send the head of a request; the reference server's value.
pub const REQUEST_HEAD: Duration = Duration::from_secs(32);
/// Bytes of a request body; the reference server's value.
pub const REQUEST_BODY_BYTES: usize = 3 << 20;
/// Warning headers of one answer.
pub const WARNINGS: usize = 64;
/// How long a connection without requests stays open; the reference server's value.
pub const IDLE: Duration = Duration::from_secs(90);
/// How often a quiet HTTP/2 connection is asked whether its peer still lives.
pub const PING_EVERY: Duration = Duration::from_secs(30);
/// How long the peer may take to answer a ping.
pub const PING_ANSWER: Duration = Duration::from_secs(15);
/// How long a response may wait for a client that reads nothing of it.
pub const RESPONSE_STALL: Duration = Duration::from_secs(300);
/// How long a closing TLS connection may take.
pub const DISCONNECT: Duration = Duration::from_secs(5);
/// How long a connection that was told to go and has nothing in flight may linger before it is cut.
pub const DRAIN_LINGER: Duration = Duration::from_secs(2);
/// How long a stop without grace waits for watches to end.
pub const HURRIED_STOP: Duration = Duration::from_secs(2);
/// How long a stop waits for the last batch to be durable.
pub const FLUSH: Duration = Duration::from_secs(60);

/// Threads that may serve connections; the bound of actix-server.
pub const WORKERS: usize = 512;
/// Streams that one connection may have open, unless a flag says otherwise; the reference server's value.
pub const STREAMS_PER_CONNECTION: u32 = 100;
/// What `--http2-max-streams-per-connection=0` means, as in the reference server's HTTP library.
pub const STREAMS_PER_CONNECTION_ZERO: u32 = 250;
/// Bytes of headers of one request. HTTP/1.1 has the same bound in actix-http.
pub const HEADER_BYTES: u32 = 128 << 10;
/// Bytes that a client may send on one stream before the handler has read any.
pub const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes that a client may send on all streams of a connection before handlers have read any.
pub const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// Bytes of one response that may lie between its body and the socket.
pub const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Streams that a client may open and reset before they were even looked at; past it the connection ends. As many as a
/// client may have open, so that one that gives up on everything at once is not punished.
pub const RESETS_BEFORE_ACCEPT: usize = 100;
/// Streams that this server reset and still remembers, so that late frames of them are no protocol error.
pub const RESETS_REMEMBERED: usize = 64;
/// Streams that this server may have to reset for a client's protocol errors; past it the connection ends.
pub const RESETS_FOR_ERRORS: usize = 1_024;
/// The largest `--goaway-chance`: one request in fifty.
pub const GOAWAY_CHANCE: f64 = 0.02;

/// How long a certificate authority made here lives.
pub const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How long a certificate made here lives.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(365 * 86_400);
/// A certificate with less life than this is made anew at start.
pub const CERTIFICATE_MARGIN: Duration = Duration::from_secs(90 * 86_400);
/// How far certificates are dated back, so that clients with a slow clock accept them.
pub const CERTIFICATE_BACKDATE: Duration = Duration::from_secs(3_600);
/// Bytes of a key, certificate or bundle file; more is not read.
pub const PKI_FILE_BYTES: u64 = 4 << 20;

/// How long a server that is asked for its health may let a connection, a read or a write wait.
pub const HEALTHCHECK_STEP: Duration = Duration::from_secs(4);
/// Bytes that are read of its answer. A failing server names its checks in far less.
pub const HEALTHCHECK_ANSWER_BYTES: u64 = 64 << 10;

/// Bytes of one object, or of one line, that `convert` reads: far more than a request may have, because lists are
/// converted too.
pub const CONVERT_BYTES: usize = 32 << 20;
/// Bytes of answers that `convert --lines` writes at a time.
pub const CONVERT_CHUNK_BYTES: usize = 64 << 10;

/// Writes that one control loop has under way: enough to share syncs of the disk, few enough that the writes of clients
/// never wait behind many.
pub const DELETIONS_IN_FLIGHT: usize = 32;
/// Events of one type that control loops are told of in one message.
pub const CONTROLLER_EVENTS_PER_TURN: usize = 512;
/// Messages to the informer of the control loops; each loop sends one when it starts.
pub const INFORMER_MAILBOX: usize = 64;
