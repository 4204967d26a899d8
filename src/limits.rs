//! The bounds that a client or another server can reach, by name, with their reasons. `docs/queues.md` says what happens when one is
//! reached. What an object may look like (lengths of names, numbers of entries) stands beside its kind, and the pace of a control loop in
//! the file of that loop. The lower crate has bounds of its own.

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
/// Bytes that a flag may be changed to while the server runs.
pub const FLAG_BYTES: usize = 64;
/// How long a writer that lost to another waits for its turn at the object. Past it the writer tries without one: somebody
/// whose admission takes its time shall not keep the others.
pub const TURN: Duration = Duration::from_millis(500);
/// How long history is kept that is kept for ever.
pub const LONGEST_HISTORY: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How long a request waits for a seat at most, if a quarter of the time that it has is not less; the reference server's value.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Queues of a priority level up to which also those are shown that are empty, to whoever asks what is in them.
pub const EMPTY_QUEUES_TOLD: u32 = 1_024;
/// Characters of what a client chose (paths, names) in a table of the requests that are in the priority levels.
pub const VISIT_CHARS: usize = 256;
/// Bytes that all lists in flight may hold together before they are sent.
pub const LIST_BYTES: usize = 256 << 20;
/// Warning headers of one answer.
pub const WARNINGS: usize = 64;
/// Characters of all warnings of one answer before they are cut; the reference server's value.
pub const WARNING_CHARS: usize = 4_096;
/// Characters that are left of a warning that is cut; the reference server's value.
pub const CUT_WARNING_CHARS: usize = 256;
/// How long a connection may be silent before the kernel asks whether the other end still lives. The kernel and not HTTP/2, whose
/// pings only tell who reads at the moment: a client that is held in a debugger, or takes a long time over what it has got, lives.
pub const KEEPALIVE: Duration = Duration::from_secs(60);
/// How often it asks again.
pub const KEEPALIVE_AGAIN: Duration = Duration::from_secs(10);
/// After as many questions without an answer the other end is gone.
pub const KEEPALIVE_QUESTIONS: u32 = 3;
/// How long a connection without requests stays open; the reference server's value.
pub const IDLE: Duration = Duration::from_secs(90);
/// How often an HTTP/2 connection is looked at, whether it has had streams.
pub const IDLE_LOOK: Duration = Duration::from_secs(30);
/// Bytes that a client may say over HTTP/1.1 while it is told of events; more ends the connection.
pub const OVERHEARD_BYTES: usize = 16 << 10;
/// How long a response may wait for a client that reads nothing of it.
pub const RESPONSE_STALL: Duration = Duration::from_secs(300);
/// How long a closing TLS connection may take.
pub const DISCONNECT: Duration = Duration::from_secs(5);
/// How long a connection that was told to go and has nothing in flight may linger before it is cut; up to twice as long over HTTP/2.
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
/// A frame of a response with less than this is sent only if there is no more to send, or no more room after a while.
pub const SMALLEST_FRAME_BYTES: usize = 1 << 10;
/// How long a client that takes less may take to take more.
pub const SMALL_FRAME_WAIT: Duration = Duration::from_millis(20);
/// Streams that a client may open and reset before they were even looked at; past it the connection ends. As many as a
/// client may have open, so that one that gives up on everything at once is not punished.
pub const RESETS_BEFORE_ACCEPT: usize = 100;
/// Streams that this server reset and still remembers, so that late frames of them are no protocol error.
pub const RESETS_REMEMBERED: usize = 64;
/// Streams that this server may have to reset for a client's protocol errors; past it the connection ends.
pub const RESETS_FOR_ERRORS: usize = 1_024;
/// The largest `--goaway-chance`: one request in fifty.
pub const GOAWAY_CHANCE: f64 = 0.02;

/// Connections to kubelets, pods and services that may be open at once, conversations and logs that are followed included.
pub const UPSTREAM_CONNECTIONS: usize = 4_096;
/// The same to servers that extend this API.
pub const EXTENSION_CONNECTIONS: usize = 4_096;
/// Of either, those on behalf of one user.
pub const CONNECTIONS_OF_ONE: usize = 1_024;
/// Connections to others that wait for the next question, to one of them; the reference server's value.
pub const CONNECTIONS_KEPT_EACH: usize = 25;
/// The same to all of them; past it the one goes that waited longest.
pub const CONNECTIONS_KEPT: usize = 1_024;
/// How long such a connection waits. Clearly less than the 90 s after which many servers close one themselves: a question that meets
/// its end on the way cannot always be asked again.
pub const CONNECTION_KEPT: Duration = Duration::from_secs(60);
/// How long a connection may take after an answer to become free; one that takes longer is cut.
pub const CONNECTION_SETTLES: Duration = Duration::from_secs(1);
/// Addresses of one host that are tried.
pub const UPSTREAM_ADDRESSES: usize = 8;
/// Bytes that are read from such a connection before somebody takes them; the head of an answer has to fit.
pub const UPSTREAM_BUFFER_BYTES: usize = 64 << 10;
/// Headers of one answer.
pub const UPSTREAM_HEADERS: usize = 128;
/// How long a kubelet may take to begin its answer. It has to ask its container runtime first.
pub const KUBELET_HEAD: Duration = Duration::from_secs(60);
/// How long whoever is behind a proxy may take to begin an answer.
pub const PROXY_HEAD: Duration = Duration::from_secs(600);
/// Bytes of a page whose links are led back through the proxy; a larger one passes as it is.
pub const PROXY_PAGE_BYTES: usize = 4 << 20;
/// How long such a page may take to come; one that takes longer passes as it is.
pub const PROXY_PAGE: Duration = Duration::from_secs(30);
/// Bytes that all such pages in flight may hold together.
pub const PROXY_PAGES_BYTES: usize = 128 << 20;
/// Bytes that are read of a kubelet's refusal; the reference server's value.
pub const KUBELET_REFUSAL_BYTES: usize = 50_000;
/// How long they are waited for.
pub const KUBELET_REFUSAL: Duration = Duration::from_secs(10);
/// Pods that are looked at to find one that answers for a service.
pub const SERVICE_CANDIDATES: usize = 64;
/// Bytes that are copied at a time between the two ends of a conversation.
pub const CONVERSATION_BYTES: usize = 16 << 10;
/// Bytes of a log that stand in one message of WebSocket; the reference server's value.
pub const LOG_MESSAGE_BYTES: usize = 2 << 10;
/// Bytes of a WebSocket frame that is no data; the standard's value.
pub const WEBSOCKET_CONTROL_BYTES: usize = 125;
/// Pings of one end of a conversation that wait to be answered; more are not.
pub const PINGS_WAITING: usize = 16;
/// Bytes of a SPDY frame that is no data.
pub const SPDY_CONTROL_BYTES: usize = 64 << 10;
/// Bytes of the last word of a command: a Status.
pub const LAST_WORD_BYTES: usize = 64 << 10;
/// How long a kubelet may take to open the streams of a command; the reference server's value.
pub const STREAMS_OPEN: Duration = Duration::from_secs(30);

/// Servers that extend this API whose ways to be made sure of are remembered; past it all are made anew.
pub const EXTENSIONS_REMEMBERED: usize = 256;
/// How long such a server may take to say what it serves, connection included; the reference server's value.
pub const EXTENSION_DISCOVERY: Duration = Duration::from_secs(5);
/// How long it may take to list the descriptions of its API; the reference server's value.
pub const EXTENSION_OPENAPI: Duration = Duration::from_secs(60);
/// How long it may take to delete or to list what it keeps in a namespace that goes.
pub const EXTENSION_DELETION: Duration = Duration::from_secs(30);
/// How long one round may take in which an extension server deletes what it keeps of a resource in a namespace that goes.
pub const EXTENSION_CLEARING: Duration = Duration::from_secs(60);
/// Bytes of a list of what it keeps in such a namespace; a larger one counts as a failure.
pub const EXTENSION_LIST_BYTES: usize = 16 << 20;
/// Bytes of a document by which such a server says what it serves; a larger one counts as none.
pub const EXTENSION_DOCUMENT_BYTES: usize = 4 << 20;
/// Bytes that the documents of all of them may hold together; past it further ones are left out.
pub const EXTENSION_DOCUMENTS_BYTES: usize = 32 << 20;
/// How often they are asked whether they still answer; the reference server's value.
pub const EXTENSION_PROBED_EVERY: Duration = Duration::from_secs(30);
/// How often they are asked what they serve; the reference server's value.
pub const EXTENSION_READ_EVERY: Duration = Duration::from_secs(60);
/// Questions of one look whether a server answers: of several endpoints one may be gone. The reference server's value.
pub const EXTENSION_PROBES: usize = 5;
/// APIServices that metrics know by name; whoever makes more is counted under one.
pub const EXTENSIONS_COUNTED: usize = 1_024;

/// How long a certificate authority made here lives.
pub const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How long a certificate made here lives.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(365 * 86_400);
/// A certificate with less life than this is made anew at start.
pub const CERTIFICATE_MARGIN: Duration = Duration::from_secs(90 * 86_400);
/// How far certificates are dated back, so that clients with a slow clock accept them.
pub const CERTIFICATE_BACKDATE: Duration = Duration::from_secs(3_600);
/// How often the server looks whether key or certificate files have changed.
pub const PKI_LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often it reads them though they have not: a certificate of its own may have grown old.
pub const PKI_RENEW_EVERY: Duration = Duration::from_secs(12 * 3_600);
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

/// Bytes of a bearer token that is looked at as a service account token; longer ones are nobody's.
pub const TOKEN_BYTES: usize = 16 << 10;
/// Service account tokens whose signature is remembered. When it is full it starts anew.
pub const TOKENS_REMEMBERED: usize = 4_096;
/// What one key keeps at hand to check signatures with: as many may be checked at once at no further cost.
pub const CHECKS_KEPT: usize = 16;
/// The smallest RSA key of a published document that verifies tokens; the reference's language uses no smaller ones.
pub const RSA_LEAST_BITS: u32 = 1_024;
/// The largest RSA key of a published document: OpenSSL verifies nothing with larger ones.
pub const RSA_MOST_BITS: u32 = 16_384;
/// How long a verifier waits for a store before it refuses a token that it cannot look up.
pub const TOKEN_LOOKUP: Duration = Duration::from_secs(10);
/// Lookups of verifiers that the stores have at once. Those who show tokens have no place among the requests yet.
pub const TOKEN_LOOKUPS: usize = 256;
/// The longest life that a service account token can be asked for; the reference server's value.
pub const TOKEN_LIFE: Duration = Duration::from_secs(1 << 32);
/// The life of the tokens that pods are given by default. Issuers recognise those by it, so that it is a little odd; the
/// reference server's value.
pub const POD_TOKEN_LIFE: Duration = Duration::from_secs(3_607);
/// How long the default tokens of pods live where that is extended; the reference server's value.
pub const TOKEN_EXTENDED_LIFE: Duration = Duration::from_secs(365 * 86_400);
/// How far the clocks of those who make and show tokens may lie apart; the reference server's value.
pub const TOKEN_LEEWAY: Duration = Duration::from_secs(60);
/// Bytes of a bearer token that is looked at as an OpenID Connect token: room for some thousand groups.
pub const OIDC_TOKEN_BYTES: usize = 64 << 10;
/// OpenID Connect tokens that are remembered as good. When none of them has run out and it is full it starts anew.
pub const OIDC_TOKENS_REMEMBERED: usize = 4_096;
/// How long such a token is remembered; the reference server's value for all tokens.
pub const OIDC_TOKEN_REMEMBERED: Duration = Duration::from_secs(10);
/// Bytes of a document of an OpenID provider; a longer one is not taken, and what was known before still counts.
pub const OIDC_DOCUMENT_BYTES: usize = 512 << 10;
/// How long a document of an OpenID provider may take to come, connection included.
pub const OIDC_DOCUMENT: Duration = Duration::from_secs(10);
/// Keys of an OpenID provider that are kept; a token that names none is held against all of them.
pub const OIDC_KEYS: usize = 128;
/// How old the keys of an OpenID provider may become before they are fetched again, so that those it gave up end.
pub const OIDC_KEYS_AGE: Duration = Duration::from_secs(600);
/// The pause after a first failure to fetch keys; each later one is twice as long.
pub const OIDC_FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause; the reference server's value for all of them.
pub const OIDC_LAST_PAUSE: Duration = Duration::from_secs(10);
/// How often unknown tokens can have keys fetched at once before they have to wait.
pub const OIDC_REFETCHES: u32 = 3;
/// How often they can in the long run.
pub const OIDC_REFETCH_EVERY: Duration = Duration::from_secs(10);
/// How long a token waits for the keys to be fetched.
pub const OIDC_WAIT: Duration = Duration::from_secs(10);
/// Tokens that wait for that at once; more are refused.
pub const OIDC_WAITING: usize = 256;
/// Bytes of a kubeconfig, and of each file that it names.
pub const KUBECONFIG_BYTES: u64 = 1 << 20;
/// How long a program that makes credentials may take. It has a connection still to be made after it.
pub const EXEC_PLUGIN: Duration = Duration::from_secs(25);
/// Bytes that such a program may print.
pub const EXEC_OUTPUT_BYTES: u64 = 1 << 20;
/// Bytes of what a proxy answers before the way is free.
pub const PROXY_ANSWER_BYTES: usize = 16 << 10;
/// Bytes of an answer of a server that was asked for a decision; more is a mistake or an attack.
pub const WEBHOOK_ANSWER_BYTES: usize = 1 << 20;
/// How long one question to another server may take, connection included; the reference server's value.
pub const WEBHOOK_QUESTION: Duration = Duration::from_secs(30);
/// Questions to one other server that may be under way; more fail at once.
pub const WEBHOOK_QUESTIONS: usize = 256;
/// Bytes of the file that says who decides.
pub const AUTHORIZATION_FILE_BYTES: usize = 1 << 20;
/// How often a worker tells the log of credentials that are not accepted.
pub const REFUSAL_TOLD_EVERY: Duration = Duration::from_secs(1);
/// Characters of the reason that it tells.
pub const REFUSAL_CHARS: usize = 512;
/// Bytes of the file that says whose tokens are accepted.
pub const AUTHENTICATION_FILE_BYTES: usize = 3 << 20;
/// Providers that it may name; the reference server's value.
pub const JWT_AUTHENTICATORS: usize = 64;
/// How long the keys of providers that a changed file names are waited for before it counts; the reference server's value.
pub const JWT_RELOAD: Duration = Duration::from_secs(60);
/// How often the server looks whether one of these files has changed.
pub const AUTHORIZATION_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it reads it whatever its times say; the reference server's value.
pub const AUTHORIZATION_READ_EVERY: Duration = Duration::from_secs(60);
/// Conditions under which one other server is asked; the reference server's value.
pub const MATCH_CONDITIONS: usize = 64;
/// Answers of another server that are remembered; past it the oldest half goes.
pub const WEBHOOK_ANSWERS_KEPT: usize = 8_192;
/// Bytes of what a client can choose of a question whose answer is remembered; the reference server's value.
pub const WEBHOOK_CACHED_BYTES: usize = 10_000;
/// Writes that one control loop has under way: enough to share syncs of the disk, few enough that the writes of clients
/// never wait behind many.
pub const DELETIONS_IN_FLIGHT: usize = 32;
/// Uses of tokens that lie in Secrets on their way to whoever writes the day onto them.
pub const TOKEN_USES_WAITING: usize = 256;
/// Events of one type that control loops are told of in one message.
pub const CONTROLLER_EVENTS_PER_TURN: usize = 512;
/// Messages to the informer of the control loops; each loop sends one when it starts.
pub const INFORMER_MAILBOX: usize = 64;
/// Bells of the actor that follows definitions: one rings at a time.
pub const DEFINITIONS_MAILBOX: usize = 16;
/// Objects of definitions that go which are deleted at the same time.
pub const DELETIONS_AT_ONCE: usize = 64;
/// Definitions whose status is written at the same time.
pub const DEFINITIONS_WRITTEN_AT_ONCE: usize = 64;
/// Changes of definitions that are followed one by one; after more of them all definitions are looked at.
pub const DEFINITIONS_PER_READ: usize = 4096;
/// Webhooks whose ways to be made sure of a worker remembers; past it all are made anew. The reference server's value.
pub const HOOK_PEERS: usize = 200;
/// Bytes of an answer of an admission webhook: a patch that puts a whole object into another one, in base64, fits.
pub const HOOK_ANSWER_BYTES: usize = 8 << 20;
/// Questions to admission webhooks that one worker has under way; more wait for their turn as long as an answer may take.
pub const HOOK_QUESTIONS: usize = 1_024;
/// Things that are noted for the record of one request.
pub const REQUEST_NOTES: usize = 64;
/// Bytes of one note of a policy; the reference server's value.
pub const POLICY_NOTE_BYTES: usize = 10 << 10;
/// How often a policy is asked anew because it wants to know who may do what. Each question costs it so much that it never
/// comes this far.
pub const POLICY_QUESTIONS: usize = 256;
/// How long a webhook may take that turns custom objects into another version; the reference server's value.
pub const CONVERSION_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects that one question to such a webhook holds at most.
pub const CONVERSION_OBJECTS: usize = 256;
/// Bytes of stored objects after which the next question begins: its answer must fit into [`HOOK_ANSWER_BYTES`].
pub const CONVERSION_BYTES: usize = 2 << 20;
/// How often the owners of an object are worked out anew because somebody owns fields in one more version.
pub const CONVERSION_ROUNDS: usize = 64;
/// Questions to such webhooks that one worker has under way; more wait for their turn.
pub const CONVERSION_QUESTIONS: usize = 256;
/// Bytes of the file that says what is written down of requests.
pub const AUDIT_POLICY_BYTES: usize = 1 << 20;
/// Records of requests that may wait for one place where they are written, whatever the flags say.
pub const AUDIT_EVENTS_WAITING: usize = 1 << 20;
/// Bytes of all records that wait, their bodies apart; past it records are lost.
pub const AUDIT_HEADS_BYTES: usize = 32 << 20;
/// Last records of requests that may wait for room after whoever asked has gone; more go with whoever asked.
pub const AUDIT_UNATTENDED: usize = 1_024;
/// Bytes of the bodies of records that wait, and of those that are kept for one; past it records lose theirs.
pub const AUDIT_BODIES_BYTES: usize = 32 << 20;
/// Bytes of one body that is kept for a record; a larger one is left out.
pub const AUDIT_BODY_BYTES: usize = 16 << 20;
/// Records that are written to the log at once where answers wait for them.
pub const AUDIT_LINES_AT_ONCE: usize = 256;
/// Bytes of records after which the next batch begins.
pub const AUDIT_BATCH_BYTES: usize = 10 << 20;
/// Batches that are on their way to the webhook; the rest waits.
pub const AUDIT_BATCHES_SENT: usize = 16;
/// How long a server that stops waits for its last records to be written.
pub const AUDIT_CLOSING: Duration = Duration::from_secs(5);
/// Bytes of the log file before another is begun, if nothing is said; the reference server's value.
pub const AUDIT_LOG_BYTES: u64 = 100 << 20;
/// Bytes of what a client says it is that a record repeats; the reference server's value.
pub const AUDIT_AGENT_BYTES: usize = 1_024;

/// How often what needs the present state of an object is tried again when others were quicker to write it.
pub const CONFLICT_ATTEMPTS: usize = 16;
/// How often an eviction is tried again when others write the same pod or budget; the reference server's value.
pub const EVICTION_ATTEMPTS: usize = 20;
/// How often a write is tried again when others write the same object. One of those who contend always gets through,
/// so this is also how many may contend before one of them is refused.
pub const WRITE_ATTEMPTS: usize = 64;
/// How often the objects of a type that a table follows are read anew before the asker is told that nobody knows.
pub const READ_ANEW_ATTEMPTS: usize = 3;
/// How often another server is asked the same question.
pub const QUESTION_ATTEMPTS: u32 = 5;
/// How often a generated name is drawn anew when it is taken.
pub const GENERATED_NAME_ATTEMPTS: usize = 8;
/// How often the removal of the address of a service is tried again when others change its object.
pub const RELEASE_ATTEMPTS: usize = 4;
/// How often the default account of a namespace is looked for: a loop makes it soon after the namespace.
pub const DEFAULT_ACCOUNT_ATTEMPTS: usize = 10;
/// Bytes of OpenAPI documents that are kept; the oldest go.
pub const OPENAPI_KEPT_BYTES: usize = 4 << 20;
/// How much of a list is encoded at a time: large enough to fill the network, small enough that thousands of lists in
/// flight hold little.
pub const LIST_CHUNK_BYTES: usize = 64 << 10;
/// Bytes of events that leave together over WebSocket.
pub const WEBSOCKET_CHUNK_BYTES: usize = 64 << 10;
/// The most that one TLS record holds.
pub const TLS_RECORD_BYTES: usize = 16 << 10;
/// How long the counting of a quota rests at most, so that what was given back can be used again.
pub const QUOTA_REST: Duration = Duration::from_secs(60);
/// How many tolerations are compared with each other. Longer lists are only joined, which means the same: the work grows
/// with the square of the length, and the length is the client's.
pub const TOLERATIONS_COMPARED: usize = 1_000;
/// How much one range may fill in. Two bodies that are small enough each could together make one that is far too large.
pub const LIMITS_FILLED_IN: usize = 100_000;
/// Pods that are looked at when a namespace asks for more security; the reference server's value.
pub const PODS_WARNED_ABOUT: usize = 3_000;
/// How long that may take; the reference server's value.
pub const PODS_WARNED_ABOUT_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of a continue token: longer than any key with its wrapping can be. A larger one was not made here.
pub const CONTINUE_TOKEN_BYTES: usize = 4 << 10;
/// Bytes of an id that a client gives its request; a longer one is replaced.
pub const AUDIT_ID_BYTES: usize = 128;
/// What is larger than this is not laid out for people on a thread that serves others too.
pub const LAID_OUT_ASIDE_BYTES: usize = 64 << 10;
