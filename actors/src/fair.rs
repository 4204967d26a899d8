//! Who is served next when not all can be: levels of priority, and within each of them queues that are fair to flows.
//!
//! A *level* has a number of *seats*; a request takes one or more for as long as it is worked on. What finds no seat waits in
//! one of the queues of its level, or is refused. Levels do not disturb each other; what one does not need is lent to the
//! others for a while ([`levels`]). Within a level a *flow* is dealt a small hand of the queues and uses the emptiest of
//! them, so a flow that floods fills its own hand, and most others have a queue that it does not reach ([`hand`]). The
//! queues share the seats evenly ([`queues`]).
//!
//! All but [`level`] is pure: whoever asks says what time it is. A level is that behind a lock, which is held for a few
//! steps, and never across a wait.

pub mod alarm;
pub mod demand;
pub mod drops;
pub mod guests;
pub mod hand;
pub mod level;
pub mod levels;
pub mod queues;
pub mod shares;
