//! The bounds that a client or another server can reach, with their reasons. `docs/queues.md` says what happens at each. Bounds
//! of objects (lengths of names, numbers of entries) are beside their kinds, and the intervals of a controller in its file. The
//! actors crate has bounds of its own.

mod extensions;
mod log_files;
mod openid;

pub use self::extensions::*;
pub use self::log_files::*;
pub use self::openid::*;

use std::time::Duration;

/// Connections that the kernel queues before the server accepts them.
pub const LISTEN_BACKLOG: i32 = 1_024;
/// The default of `--max-connections`, for each worker, if so many files may be open.
pub const CONNECTIONS_PER_WORKER: usize = 25_000;
/// Refused connections that a worker has not closed yet. Beyond that it accepts no more, the kernel's queue fills, and clients
/// wait.
pub const CONNECTIONS_CLOSING: usize = 1_024;
/// One in this many connections is reserved: half of the reserve for clients on this host, the other half for exempt users.
pub const CONNECTIONS_RESERVED_DIVISOR: usize = 16;
/// The most connections that are reserved.
pub const MAX_CONNECTIONS_RESERVED: usize = 1_024;
/// Memory of an open connection after its first response, most of it TLS. Measured: docs/numbers.md.
pub const CONNECTION_BYTES: usize = 24 << 10;
/// The memory limit is divided by this to get the part that connections may have.
pub const CONNECTIONS_MEMORY_DIVISOR: usize = 4;
/// That part is divided by this to get what connections may use even if the memory is exhausted.
pub const CONNECTIONS_GUARANTEED_DIVISOR: usize = 16;
/// Connections in their TLS handshake, loopback ones aside; half of them may come from one source address.
pub const HANDSHAKES: usize = 4_096;
/// How long a handshake is not disturbed when there are too many; a slower one makes room. Longer than a server takes that has
/// [`HANDSHAKES`] to do, so that clients that all reconnect at once do not evict each other.
pub const HANDSHAKE_UNDISTURBED: Duration = Duration::from_secs(3);
/// Connections that are examined, when there are too many, to find an idle one.
pub const CONNECTIONS_EXAMINED: usize = 32;
/// How long a client may take for the TLS handshake and for the HTTP/2 preface; then the connection is closed.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an HTTP/1.1 client may take to send the head of a request; the reference's value.
pub const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(32);
/// Bytes of the head of an HTTP/1.1 request: as many as the driver reads, less those that folding may add.
pub const REQUEST_HEAD_BYTES: usize = 96 << 10;
/// Headers of an HTTP/1.1 request. Maps of headers that are sent on hold fewer than 24,576 names.
pub const REQUEST_HEADERS: usize = 16_384;
/// Bytes of a request body; the reference's value.
pub const REQUEST_BODY_BYTES: usize = 3 << 20;
/// Samples of the processor time that a CPU profile takes in a second; Go's value.
pub const CPU_PROFILE_FREQUENCY: i32 = 100;
/// The length of a CPU profile whose client asks for none, in seconds; Go's value.
pub const CPU_PROFILE_SECONDS: u64 = 30;
/// The longest CPU profile, in seconds.
pub const MAX_CPU_PROFILE_SECONDS: u64 = 300;
/// Memory of the table of stacks that the first CPU profile makes.
pub const CPU_PROFILER_BYTES: usize = 68 << 20;
/// How long a start waits for its hooks. Then the server is ready, and its health checks tell which are missing.
pub const START_HOOKS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long /debug/actors waits for the answer of an actor.
pub const ACTIVITY_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections of the debug socket.
pub const DEBUG_SOCKET_CONNECTIONS: usize = 16;
/// Bytes of a new value for a flag at run time.
pub const FLAG_BYTES: usize = 64;
/// How long a writer waits for its turn at an object after a conflict. Then it tries without one: a request with slow admission
/// must not block the others.
pub const TURN_TIMEOUT: Duration = Duration::from_millis(500);
/// The history when compaction is disabled.
pub const UNLIMITED_HISTORY: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The longest wait for a seat, if a quarter of the request's timeout is not shorter; the reference's value.
pub const MAX_QUEUE_WAIT: Duration = Duration::from_secs(60);
/// Priority levels with more queues than this omit the empty ones in debug dumps.
pub const DUMPED_EMPTY_QUEUES: u32 = 1_024;
/// Characters of client-chosen text (paths, names) in debug dumps of the requests in priority levels.
pub const DUMP_TEXT_CHARS: usize = 256;
/// Bytes that all lists in flight may hold together before they are sent.
pub const LIST_BYTES: usize = 256 << 20;
/// Bytes that the bodies of all requests in flight may take while they are processed, without a memory limit.
pub const REQUEST_BODIES_BYTES: usize = 2 << 30;
/// Bytes that definitions may take while they are compiled, without a memory limit.
pub const DEFINITIONS_BYTES: usize = 2 << 30;
/// Bytes of memory for a body from which it counts against the share of its user.
pub const LARGE_BODY_BYTES: usize = 1 << 20;
/// How many times its text a definition takes while it is validated and compiled, and afterwards until the process is measured
/// again.
pub const DEFINITION_GROWTH: usize = 48;
/// Bytes up to which a body counts only once it is processed.
pub const SMALL_BODY_BYTES: usize = 4 << 10;
/// Bytes that a body is given at first; more as it arrives.
pub const BODY_STEP_BYTES: usize = 64 << 10;
/// The least memory limit: the server itself, and some requests at a time.
pub const MIN_MEMORY_LIMIT: usize = 64 << 20;
/// The percentage of a control group's memory that becomes the memory limit; the rest is for memory that is not counted.
pub const CGROUP_PERCENT: usize = 90;
/// How often a server with a memory limit is measured.
pub const MEMORY_SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// Warning headers of one response; further warnings are dropped.
pub const WARNING_HEADERS: usize = 64;
/// Characters of all warnings of one response before they are cut; the reference's value.
pub const WARNING_CHARS: usize = 4_096;
/// Characters of a cut warning; the reference's value.
pub const TRUNCATED_WARNING_CHARS: usize = 256;
/// How long a connection without requests stays open; the reference's value.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How often an HTTP/2 connection is checked for streams.
pub const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Bytes that an HTTP/1.1 client may send during a watch; more ends the connection.
pub const INPUT_DURING_WATCH_BYTES: usize = 16 << 10;
/// How long a response may wait for a client that does not read; then the connection is closed.
pub const RESPONSE_STALL: Duration = Duration::from_secs(300);
/// How long a closing TLS connection may take; then it is dropped.
pub const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that are read of a client that speaks plain HTTP to the secure port, so that it gets its answer.
pub const PLAIN_REQUEST_BYTES: usize = 1 << 20;
/// How often the server checks for stored objects that cannot be read.
pub const UNREADABLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often health checks probe the storage; between two probes they report the last result.
pub const STORAGE_PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// How long a health check waits for the storage: as long as the reference's `--etcd-healthcheck-timeout`.
pub const STORAGE_PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long /metrics waits for the size of a database of etcd; the reference's value.
pub const ETCD_STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// Objects that cannot be read which a health check names.
pub const UNREADABLE_GUARDS_LISTED: usize = 100;
/// How long the acceptor may take to notice that it is paused; then the listening socket is closed.
pub const ACCEPTOR_PAUSE: Duration = Duration::from_millis(50);
/// How long a draining connection without requests may linger before it is closed; up to twice as long over HTTP/2.
pub const DRAIN_LINGER: Duration = Duration::from_secs(2);
/// How long a server that has failed still sends responses.
pub const LAST_RESPONSES_TIMEOUT: Duration = Duration::from_millis(200);
/// How long connections may take to end that were told to, once all requests are answered; the reference's value.
pub const LAST_CONNECTIONS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a stop without grace waits for watches to end.
pub const FORCED_STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a stop waits for the last batch to be durable; then the process ends without it.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// Log lines that wait to be written; further ones are dropped and counted.
pub const LOG_LINES_WAITING: usize = 4_096;
/// Bytes of these lines.
pub const LOG_BYTES_WAITING: usize = 1 << 20;
/// Lines of level error that may wait beyond both bounds (their bytes: as many KiB): a flood of other lines must not displace them.
pub const LOG_ERRORS_WAITING: usize = 256;
/// Bytes of one log line; the rest is cut.
pub const LOG_LINE_BYTES: usize = 64 << 10;
/// Bytes of buffered log lines, whatever `--log-text-info-buffer-size` says; the reference's value.
pub const LOG_BUFFER_BYTES: usize = 2 << 30;
/// Log lines of one call site in a burst, at the levels that are on by default. Clients can cause many of them; the longest list
/// that a start writes is shorter.
pub const LOG_LINE_BURST: u32 = 100;
/// The interval after which a call site may write one more line, and at which suppressed lines are reported.
pub const LOG_LINE_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the last log lines, and for the line with its reason.
pub const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads that may serve connections; the bound of actix-server.
pub const WORKERS: usize = 512;
/// The default number of open streams per connection; the reference's value.
pub const STREAMS_PER_CONNECTION: u32 = 100;
/// The meaning of `--http2-max-streams-per-connection=0`, as in Go's HTTP library.
pub const STREAMS_PER_CONNECTION_IF_ZERO: u32 = 250;
/// Bytes of headers of one request. HTTP/1.1 has the same bound in actix-http.
pub const HEADER_BYTES: u32 = 128 << 10;
/// Bytes that a client may send on one stream before the handler reads.
pub const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes that a client may send on all streams of a connection before handlers read.
pub const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// Bytes of one response that may be buffered between its body and the socket.
pub const SEND_BUFFER_BYTES: usize = 256 << 10;
/// A smaller response frame is sent only if it is the last, or if the window stays small for a while.
pub const MIN_FRAME_BYTES: usize = 1 << 10;
/// How long to wait for a larger window.
pub const SMALL_FRAME_WAIT: Duration = Duration::from_millis(20);
/// Streams that a client may open and reset before they are accepted; beyond that the connection ends. As many as may be open, so
/// that a client that cancels everything at once is not punished.
pub const RESETS_BEFORE_ACCEPT: usize = 100;
/// Streams that this server reset and still remembers, so that their late frames are no protocol error.
pub const RESETS_REMEMBERED: usize = 64;
/// Streams that this server may have to reset for a client's protocol errors; past it the connection ends.
pub const RESETS_FOR_ERRORS: usize = 1_024;
/// The largest `--goaway-chance`: one request in fifty.
pub const MAX_GOAWAY_CHANCE: f64 = 0.02;

/// Bytes of a page whose links are rewritten; a larger one passes unchanged.
pub const PROXY_PAGE_BYTES: usize = 4 << 20;
/// How long such a page may take to arrive; a slower one passes unchanged.
pub const PROXY_PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that all such pages in flight may hold together.
pub const PROXY_PAGES_BYTES: usize = 128 << 20;
/// Bytes of a kubelet's error that are read; the reference's value.
pub const KUBELET_REFUSAL_BYTES: usize = 50_000;
/// How long a kubelet's error is waited for.
pub const KUBELET_REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Pods that are examined to find a backend of a service.
pub const SERVICE_CANDIDATES: usize = 64;
/// Bytes that are copied at a time between the ends of an upgraded connection.
pub const CONVERSATION_BYTES: usize = 16 << 10;
/// Bytes of a log per WebSocket message; the reference's value.
pub const LOG_MESSAGE_BYTES: usize = 2 << 10;
/// Bytes of a WebSocket control frame; the standard's value.
pub const WEBSOCKET_CONTROL_BYTES: usize = 125;
/// Pings of one end that wait for their pong; further ones are dropped.
pub const PINGS_WAITING: usize = 16;
/// Bytes of a SPDY control frame.
pub const SPDY_CONTROL_BYTES: usize = 64 << 10;
/// Bytes of a command's final Status.
pub const COMMAND_STATUS_BYTES: usize = 64 << 10;
/// How long a kubelet may take to open the streams of a command; the reference's value.
pub const STREAMS_OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// API servers on one etcd of which each knows what they serve; further ones get no requests of others.
pub const PEERS: usize = 64;
/// Hosts that the metrics of outgoing requests tell apart; further ones share one label.
pub const HOST_LABELS: usize = 256;

/// The lifetime of a CA made here.
pub const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The lifetime of a certificate made here.
pub const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(365 * 86_400);
/// A certificate with a shorter remaining lifetime is renewed at start.
pub const CERTIFICATE_MARGIN: Duration = Duration::from_secs(90 * 86_400);
/// How far certificates are backdated, so that clients with a slow clock accept them.
pub const CERTIFICATE_BACKDATE: Duration = Duration::from_secs(3_600);
/// How often a changed encryption configuration is looked for, if it is to be reloaded.
pub const ENCRYPTION_RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// How long a start waits before it tries again to read etcd.
pub const STORAGE_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often it says that it does.
pub const STORAGE_RETRY_MESSAGE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a start waits before it asks again for a key that it needs.
pub const DECRYPTION_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often key and certificate files are checked for changes.
pub const PKI_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// How often they are reloaded even if unchanged: a certificate made here may be about to expire.
pub const PKI_RENEW_INTERVAL: Duration = Duration::from_secs(12 * 3_600);

/// How long a health check waits for a connection, a read or a write.
pub const HEALTHCHECK_STEP: Duration = Duration::from_secs(4);
/// Bytes of a health check's response that are read. A failing server lists its checks in far less.
pub const HEALTHCHECK_RESPONSE_BYTES: u64 = 64 << 10;

/// Bytes of one object or line that `convert` reads: far more than a request may have, because lists are converted, too.
pub const CONVERT_BYTES: usize = 32 << 20;
/// Bytes of output that `convert --lines` writes at a time.
pub const CONVERT_CHUNK_BYTES: usize = 64 << 10;

/// How much of what is damaged or lost `check` and `repair` print for each heading; a report has everything.
pub const FINDINGS_PRINTED: usize = 100;
/// Bytes of one line or JSON document that `import` reads: a list of objects may be one.
pub const STREAM_DOCUMENT_BYTES: usize = 32 << 20;
/// Bytes of one YAML document that `import` reads, as for a request. A list that kubectl wrote may be longer: each of its items
/// counts as one.
pub const STREAM_YAML_BYTES: usize = 3 << 20;
/// Bytes of a YAML document of kubectl after which it is taken apart: before that it is parsed as a whole.
pub const STREAM_YAML_LIST_BYTES: usize = 256 << 10;
/// Objects of a page that `export` asks for; kubectl's value.
pub const EXPORT_PAGE_OBJECTS: u32 = 500;
/// Bytes of such a page: if there are more, `export` asks for fewer objects.
pub const EXPORT_PAGE_BYTES: usize = 4 << 20;
/// Bytes of a page with one object: more than any object has.
pub const EXPORT_OBJECT_BYTES: usize = 16 << 20;
/// Objects that `import` creates at a time. The server makes those durable together that come together.
pub const IMPORT_CONCURRENCY: usize = 8;
/// Bytes of the response to a write of `import`: an object with defaults and the owners of its fields.
pub const IMPORT_RESPONSE_BYTES: usize = 16 << 20;
/// Attempts of `import` to write an object that others change.
pub const IMPORT_CONFLICTS: u32 = 5;
/// How long `import` waits until a CustomResourceDefinition is established.
pub const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it looks.
pub const ESTABLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Different warnings of a server that `import` prints; further ones are counted.
pub const IMPORT_WARNINGS: usize = 100;
/// Bytes of a discovery document of another server, or of its APIServices.
pub const DISCOVERY_BYTES: usize = 64 << 20;
/// Attempts of a command to send a request that a server was too busy for.
pub const CLIENT_ATTEMPTS: u32 = 8;
/// The pause before the second attempt if the server named none; each later one is twice as long.
pub const CLIENT_FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause, whatever the server named.
pub const CLIENT_MAX_PAUSE: Duration = Duration::from_secs(30);
/// Characters of a response that is no Status, in an error message.
pub const CLIENT_MESSAGE_CHARS: usize = 300;

/// Bytes of a service account token; longer tokens are ignored.
pub const TOKEN_BYTES: usize = 16 << 10;
/// Service account tokens whose signature is cached. A full cache is cleared.
pub const CACHED_TOKENS: usize = 4_096;
/// Idle OpenSSL contexts per key: so many signatures can be verified at once without making new ones.
pub const SIGNATURE_CONTEXTS: usize = 16;
/// The smallest RSA key in a JWK; Go accepts no smaller ones.
pub const MIN_RSA_BITS: u32 = 1_024;
/// The largest RSA key in a JWK: OpenSSL verifies nothing with larger ones.
pub const MAX_RSA_BITS: u32 = 16_384;
/// How long a verifier waits for a store before it refuses a token.
pub const TOKEN_LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent lookups of verifiers. Their requests have no seat yet.
pub const TOKEN_LOOKUPS: usize = 256;
/// The longest lifetime that can be requested for a service account token; the reference's value.
pub const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(1 << 32);
/// The lifetime of the default tokens of pods. Issuers recognize them by this odd number; the reference's value.
pub const POD_TOKEN_LIFETIME: Duration = Duration::from_secs(3_607);
/// The lifetime of default pod tokens if it is extended; the reference's value.
pub const EXTENDED_TOKEN_LIFETIME: Duration = Duration::from_secs(365 * 86_400);
/// The tolerated clock difference for tokens; the reference's value.
pub const TOKEN_LEEWAY: Duration = Duration::from_secs(60);
/// Bytes of a response of an external token signer.
pub const SIGNER_RESPONSE_BYTES: usize = 1 << 20;
/// Keys of an external token signer; a token without a key ID is tried with all of them. A longer response is refused as a whole.
pub const SIGNER_KEYS: usize = 128;
/// Bytes of the ID of a key of such a signer; the reference's value.
pub const SIGNER_KEY_ID_BYTES: usize = 1 << 10;
/// How long its keys may be fetched; the reference's value.
pub const SIGNER_FETCH_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the start waits until it says what it can do; the reference's value.
pub const SIGNER_METADATA_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a token that is to be signed waits for a connection. The reference waits as long as the request may take.
pub const SIGNER_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest maximum of the lifetime of tokens that a signer may have; the reference's value.
pub const SIGNER_SHORTEST_LIFETIME: Duration = Duration::from_secs(600);
/// After how long its keys are fetched again at the latest, whatever it says.
pub const SIGNER_LONGEST_REFRESH: Duration = Duration::from_secs(365 * 86_400);
/// When they are fetched again after a failure; the reference's value.
pub const SIGNER_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How often tokens with unknown keys can cause a fetch in a burst.
pub const SIGNER_REFETCHES: u32 = 3;
/// How often they can in the long run.
pub const SIGNER_REFETCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long a token waits for keys to be fetched.
pub const SIGNER_WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Tokens that may wait for keys; further ones are refused.
pub const SIGNER_WAITING: usize = 256;
/// Cached results of client certificates: so many valid chains, and so many refused ones. A full table is cleared.
pub const CACHED_CERTIFICATES: usize = 1_024;
/// How long a client certificate stays refused without being verified again. It is verified again earlier when one of the
/// certificates involved becomes valid, and when the trusted CAs change.
pub const REFUSED_CERTIFICATE_CACHE_TTL: Duration = Duration::from_secs(60);
/// Bytes of the authorization configuration file.
pub const AUTHORIZATION_FILE_BYTES: usize = 1 << 20;
/// Characters of the logged reason.
pub const REFUSAL_CHARS: usize = 512;
/// Bytes of the authentication configuration file.
pub const AUTHENTICATION_FILE_BYTES: usize = 3 << 20;
/// Providers in that file; the reference's value.
pub const JWT_AUTHENTICATORS: usize = 64;
/// How long a changed file waits for the keys of its providers; the reference's value.
pub const JWT_RELOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How often these files are checked for changes.
pub const CONFIG_FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often they are read regardless of their modification time; the reference's value.
pub const CONFIG_FILE_READ_INTERVAL: Duration = Duration::from_secs(60);
/// Match conditions of one authorization webhook; the reference's value.
pub const MATCH_CONDITIONS: usize = 64;
/// Cached answers of a webhook; beyond that expired ones are dropped, or else the half that expires first.
pub const WEBHOOK_CACHE_ENTRIES: usize = 8_192;
/// Bytes of client-chosen input in a cached question; the reference's value.
pub const WEBHOOK_CACHED_BYTES: usize = 10_000;
/// Remembered answers of the image policy webhook; the reference's value.
pub const IMAGE_REVIEWS: usize = 1_024;
/// Concurrent writes of one controller, or of one deletion of a collection: enough to share disk syncs, few enough that the
/// writes of clients never wait behind many.
pub const DELETIONS_IN_FLIGHT: usize = 32;
/// Objects of one page of a list that `migrate` reads.
pub const MIGRATE_PAGE_OBJECTS: usize = 250;
/// Objects of one resource that `migrate` names because they could not be rewritten; all are counted.
pub const MIGRATE_REPORTED_FAILURES: usize = 10;
/// Objects that `copy` writes to etcd at once: enough to share its syncs.
pub const COPY_WRITES_IN_FLIGHT: usize = 64;
/// Places of keys that belong to no resource and that `copy` names; further ones are only counted.
pub const COPY_FOREIGN_FOLDERS: usize = 100;
/// Objects that a storage version migration rewrites at once.
pub const MIGRATIONS_IN_FLIGHT: usize = 16;
/// Reports about used legacy tokens that wait to be written.
pub const TOKEN_USES_WAITING: usize = 256;
/// Events of one type in one message to the controllers.
pub const CONTROLLER_EVENTS_PER_TURN: usize = 512;
/// Messages that may wait for the informer; each controller sends one when it starts.
pub const INFORMER_MAILBOX: usize = 64;
/// Messages that may wait for the actor of CustomResourceDefinitions: one notification waits at a time.
pub const DEFINITIONS_MAILBOX: usize = 16;
/// Concurrent deletions of objects of terminating definitions.
pub const DEFINITION_DELETIONS_IN_FLIGHT: usize = 64;
/// How long a request waits to learn whether another server has established a kind. etcd answers in milliseconds; if it does not, requests
/// for what this server knows must not wait with the others.
pub const DEFINITIONS_READ_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a request waits until this server serves a kind that another server has established.
pub const DEFINITION_WAIT: Duration = Duration::from_secs(5);
/// Concurrent status writes of definitions.
pub const DEFINITION_WRITES_IN_FLIGHT: usize = 64;
/// Changes of definitions that are read one by one; after more, all definitions are read.
pub const DEFINITIONS_PER_READ: usize = 4096;
/// Bytes of an admission webhook's response: a patch that inserts a whole object, in base64, fits.
pub const HOOK_RESPONSE_BYTES: usize = 8 << 20;
/// Concurrent admission webhook calls of one worker; further ones wait, up to the call's timeout.
pub const HOOK_CALLS: usize = 1_024;
/// Audit annotations of one request.
pub const REQUEST_ANNOTATIONS: usize = 64;
/// Bytes of one audit annotation of a policy; the reference's value.
pub const POLICY_ANNOTATION_BYTES: usize = 10 << 10;
/// How often a policy is evaluated again for authorization checks. Their CEL cost ends it much earlier.
pub const POLICY_AUTHORIZER_ROUNDS: usize = 256;
/// The timeout of a conversion webhook; the reference's value.
pub const CONVERSION_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects in one call of a conversion webhook.
pub const CONVERSION_OBJECTS: usize = 256;
/// Objects of a list that are converted, or found converted, before other requests of the worker get their turn.
pub const CONVERSIONS_PER_TURN: usize = 64;
/// Bytes of stored objects after which the next call begins: the response must fit into [`HOOK_RESPONSE_BYTES`].
pub const CONVERSION_BYTES: usize = 2 << 20;
/// How often field ownership is computed again because another version had to be converted.
pub const CONVERSION_ROUNDS: usize = 64;
/// Concurrent conversion webhook calls of one worker; further ones wait.
pub const CONVERSION_CALLS: usize = 256;
/// Bytes of the audit policy file.
pub const AUDIT_POLICY_BYTES: usize = 1 << 20;
/// Audit events that may wait for one backend, whatever the flags say.
pub const AUDIT_EVENTS_WAITING: usize = 1 << 20;
/// Bytes of all waiting audit events without their bodies; beyond that events are dropped.
pub const AUDIT_HEADS_BYTES: usize = 32 << 20;
/// Last events of requests that may wait after their client has gone; further ones are cancelled with it.
pub const AUDIT_DETACHED_EVENTS: usize = 1_024;
/// Bytes of the bodies of waiting and unfinished audit events; beyond that events lose their bodies.
pub const AUDIT_BODIES_BYTES: usize = 32 << 20;
/// Bytes of one recorded body; a larger one is left out.
pub const AUDIT_BODY_BYTES: usize = 16 << 20;
/// Events that are written to the log at once in blocking mode.
pub const AUDIT_LINES_PER_WRITE: usize = 256;
/// Bytes of events after which the next batch begins.
pub const AUDIT_BATCH_BYTES: usize = 10 << 20;
/// Batches in flight to the audit webhook; the rest waits.
pub const AUDIT_BATCHES_IN_FLIGHT: usize = 16;
/// How long a stopping server waits for its last audit events.
pub const AUDIT_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The default size of an audit log file; the reference's value.
pub const AUDIT_LOG_BYTES: u64 = 100 << 20;
/// Bytes of the user agent in an audit event; the reference's value.
pub const AUDIT_AGENT_BYTES: usize = 1_024;

/// Attempts of an operation on the current state of an object after conflicts.
pub const CONFLICT_ATTEMPTS: usize = 16;
/// Attempts of an eviction after conflicts at the pod or budget; the reference's value.
pub const EVICTION_ATTEMPTS: usize = 20;
/// Attempts of a write after conflicts. One of the contenders always succeeds, so this is also how many may contend before one is
/// refused.
pub const WRITE_ATTEMPTS: usize = 64;
/// How often a type is read again by a live index before the reader gets an error.
pub const INDEX_READ_ATTEMPTS: usize = 3;
/// How often a generated name is drawn again when it is taken.
pub const GENERATED_NAME_ATTEMPTS: usize = 8;
/// Attempts to release a cluster IP after conflicts.
pub const RELEASE_ATTEMPTS: usize = 4;
/// How often the default service account of a namespace is looked for: a controller creates it soon after the namespace.
pub const DEFAULT_ACCOUNT_ATTEMPTS: usize = 10;
/// Bytes of cached OpenAPI documents; the oldest are dropped.
pub const OPENAPI_CACHE_BYTES: usize = 4 << 20;
/// Bytes for generating the largest OpenAPI document of built-in kinds, in the most expensive format.
pub const OPENAPI_BUILTIN_BYTES: usize = 12 << 20;
/// How many times its length a custom schema takes while a document is generated.
pub const OPENAPI_GROWTH: usize = 8;
/// Bytes of a list that are encoded at a time: enough to fill the network, few enough that thousands of lists in flight hold
/// little.
pub const LIST_CHUNK_BYTES: usize = 64 << 10;
/// Bytes of the objects of a Protobuf list whose messages are kept until they are sent, because the length of all of them comes
/// first. A larger list is encoded twice: once for its length, and again as the client reads it.
pub const PROTOBUF_LIST_BUFFER_BYTES: usize = 32 << 20;
/// How many times its JSON an object may take in memory while it is turned into YAML.
pub const YAML_GROWTH: usize = 8;
/// Bytes of objects that are turned into rows or another encoding before other requests of the worker have their turn.
pub const LIST_TURN_BYTES: usize = 128 << 10;
/// Bytes of events that are sent together over WebSocket.
pub const WEBSOCKET_CHUNK_BYTES: usize = 64 << 10;
/// Bytes that a connection reads or writes before the other connections of its worker have their turn: some tenths of a millisecond
/// of encryption and copying.
pub const CONNECTION_TURN_BYTES: usize = 64 << 10;
/// The least quota of a store: the objects that every server creates take a part of a MiB, and versions of them as much again.
pub const QUOTA_MIN_BYTES: u64 = 8 << 20;
/// The shortest time between scheduled backups.
pub const BACKUP_MIN_INTERVAL: Duration = Duration::from_secs(1);
/// When a scheduled backup that failed is tried again.
pub const BACKUP_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes of a refusal that a command shows.
pub const REFUSAL_BYTES: usize = 64 << 10;
/// The pieces in which a backup is sent.
pub const BACKUP_CHUNK_BYTES: usize = 64 << 10;
/// Pieces of a backup that wait for a client.
pub const BACKUP_CHUNKS: usize = 8;
/// For how long a backup works before it pauses, and how many times as long the pause is: so it takes a ninth of one processor, and
/// delays no request by much.
pub const BACKUP_WORK_STEP: Duration = Duration::from_micros(500);
pub const BACKUP_PAUSE_FACTOR: u32 = 8;
/// The longest of these pauses.
pub const BACKUP_MAX_PAUSE: Duration = Duration::from_millis(20);
/// How long a client may read nothing of a backup. Meanwhile the file cannot reuse the pages of the backup's moment, nor be opened again
/// when the disk is full.
pub const BACKUP_STALL: Duration = Duration::from_secs(10);
/// Bytes that a client of a backup must read in each second on average, for the same reason: a slow one may take hours.
pub const BACKUP_LEAST_RATE: u64 = 256 << 10;
/// How often a backup looks whether its client reads again.
pub const BACKUP_STALL_STEP: Duration = Duration::from_millis(5);
/// The maximum size of a TLS record.
pub const TLS_RECORD_BYTES: usize = 16 << 10;
/// The longest rest between counts of a quota, so that released usage becomes available again.
pub const MAX_QUOTA_REST: Duration = Duration::from_secs(60);
/// Tolerations that are compared with each other. Longer lists are only concatenated, which is equivalent: comparing takes
/// quadratic time, and clients choose the length.
pub const TOLERATIONS_COMPARED: usize = 1_000;
/// Values that one LimitRange may set in a pod. Two small bodies could otherwise make a far too large one together.
pub const LIMIT_DEFAULTS_PER_POD: usize = 100_000;
/// Pods that are checked when a namespace raises its Pod Security level; the reference's value.
pub const POD_WARNINGS_CHECKED: usize = 3_000;
/// How long that may take; the reference's value.
pub const POD_WARNINGS_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a continue token: longer than any encoded key. A larger one was not issued by this server.
pub const CONTINUE_TOKEN_BYTES: usize = 4 << 10;
/// Bytes of a client's audit ID; a longer one is replaced.
pub const AUDIT_ID_BYTES: usize = 128;
/// Larger bodies and objects are worked on by the threads for heavy work: up to here the worst of them, made of tiny fields, keeps
/// a worker busy for some milliseconds.
pub const HEAVY_BYTES: usize = 32 << 10;
/// CEL cost that one request may cause on a worker, about a millisecond; a request that needs more begins again on a thread for
/// heavy work.
pub const HEAVY_CEL_COST: u64 = 50_000;
/// How long a user's writes of a resource are carried out on a thread for heavy work at once, after one of them cost more CEL.
pub const COSTLY_CALL_MEMORY: Duration = Duration::from_secs(10);
/// Pairs of a user and a resource for which that is remembered.
pub const COSTLY_CALLS: usize = 1_024;
/// Heavy requests that wait for a thread, per lane. More than the seats of API Priority and Fairness by default.
pub const HEAVY_WAITING: usize = 512;
/// Heavy requests that one thread has begun: all but one of them wait for a store or a webhook. Each may hold a hundred megabytes,
/// because a decoded object takes far more memory than its text.
pub const HEAVY_RUNNING_PER_THREAD: usize = 8;
/// Users of one priority level whose share of heavy requests may run at a time: fewer than there are slots for.
pub const HEAVY_USERS_PER_LEVEL: usize = 3;
/// Heavy requests of one user that may run at a time, for each thread of the lane.
pub const HEAVY_RUNNING_PER_USER: usize = 2;
/// Larger metrics pages are encoded on a thread for heavy work.
pub const HEAVY_METRICS_BYTES: usize = 512 << 10;
/// Larger objects are indented, or turned into YAML, as the client reads them; YAML on another thread.
pub const STREAMED_OBJECT_BYTES: usize = 64 << 10;
/// How often a start tries to repair the records of node ports and cluster IPs that servers share, while etcd does not answer, and the
/// pause between.
pub const START_REPAIR_ATTEMPTS: u32 = 10;
/// See [`START_REPAIR_ATTEMPTS`].
pub const START_REPAIR_PAUSE: Duration = Duration::from_secs(1);
/// Events about node ports of one check of all Services; the rest is logged.
pub const PORT_REPAIR_EVENTS: usize = 100;
/// Bytes of the file of `--allow-metric-labels-manifest`.
pub const METRIC_LABELS_FILE_BYTES: usize = 1 << 20;
