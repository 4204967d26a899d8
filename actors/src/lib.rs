//! State, order, time, durability and delivery.
//!
//! This crate knows keys, bytes, labels, indexed fields, revisions and identities. It does not know what a Pod is, and it does
//! not know HTTP. Suggested reading order:
//!
//! - [`pilothouse_types`] has the plain data, such as the stored object; [`event`] is a change, [`window`] holds recent ones, [`archive`] and
//!   [`point_in_time`] older ones;
//! - [`engine`] is the log, [`log_time`] its clock, [`encryption`] what it knows of encryption at rest, [`committer`] writes it, [`store`] owns the objects of a type, [`directory`] finds stores;
//! - [`shared_log`] is a log that several servers share, instead of engine and committer; [`shared_storage`] starts stores over it;
//! - [`notifier`] announces a change, [`broadcaster`] and [`watch_index`] find the watches that it concerns, [`session_waker`] calls a
//!   session, [`session`] and [`watch_event`] make its events, [`session::feed`] is what the client reads;
//! - [`authenticator`] and [`authorizer`] check requests;
//! - [`ports`] allocates node ports; [`range_allocator`] allocates by a [`shared_range`], a record that several servers share; [`rates`]
//!   limits event rates;
//! - [`start_steps`] are the steps of a start;
//! - [`describe`] asks an actor what it does;
//! - [`batcher`] batches concurrent changes of one object; [`fair_queuing`] is API Priority and Fairness.

pub mod answer;
pub mod archive;
pub mod authenticator;
pub mod authorizer;
pub mod backup;
pub mod batcher;
pub mod broadcaster;
pub mod checkpoints;
pub mod committer;
pub mod describe;
pub mod directory;
pub mod disk_bytes;
pub mod encryption;
pub mod engine;
pub mod event;
pub mod event_limits;
pub mod fair_queuing;
pub mod fatal;
pub mod history_bounds;
mod key_queue;
pub mod limits;
mod live_sessions;
pub mod log_time;
pub mod notifier;
pub mod permit;
pub mod point_in_time;
pub mod ports;
pub mod range_allocator;
pub mod rates;
pub mod recover;
pub mod session;
pub mod session_waker;
pub mod shared_log;
pub mod shared_range;
pub mod shared_storage;
pub mod snapshot;
pub mod space;
pub mod start_steps;
pub mod storage_health;
pub mod store;
pub mod throttle;
pub mod trim_queue;
pub mod watch_event;
pub mod watch_index;
pub mod watch_memory;
pub mod window;
pub mod write_limiter;
pub mod write_times;
pub mod yield_every;
