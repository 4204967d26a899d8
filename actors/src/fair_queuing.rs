//! API Priority and Fairness: priority levels, and within each of them queues that are fair to flows.
//!
//! A *level* has a number of *seats*; a request occupies one or more while it executes. A request without a seat waits in one of
//! the queues of its level, or is rejected. Levels are isolated from each other; unused seats are lent to other levels for a
//! while ([`levels`]). Within a level a *flow* is dealt a small hand of the queues and uses the emptiest of them. So a flow that
//! floods fills only its own hand, and most other flows have a queue that it does not reach ([`hand`]). The queues share the
//! seats evenly ([`queues`]).
//!
//! Everything but [`level`] is pure: the caller passes the time. A level wraps that in a lock, which is held for a few steps and
//! never across a wait.

pub mod alarm;
pub mod demand;
pub mod drops;
pub mod hand;
pub mod level;
pub mod levels;
pub mod queues;
pub mod requests;
pub mod shares;
pub mod utilization;
