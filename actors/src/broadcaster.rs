//! Delivery of changes: one broadcaster per HTTP worker thread knows the watch sessions of that thread, and wakes those that an
//! event may concern.
//!
//! It neither holds nor sends events. A store rings its [`Bell`]. The broadcaster then reads the window from its own cursor,
//! looks each event up in the index of the type (`audience.rs`) and calls the matching sessions, which read the window
//! themselves. Sessions send it [`Subscribe`] and [`Unsubscribe`]. The server sends it [`CloseAll`] at shutdown, and
//! [`CloseType`] when a resource changes.
//!
//! Sessions are called a few at a time, and other tasks of the thread run in between. So a write is answered while thousands of
//! sessions still wait for the last event, and a session that is called late finds several events at once: the busier the server,
//! the less each event costs. For the same reason a type with many concerned sessions rests after calling them if there are more
//! events by then, in proportion to their number. Other types do not wait for it.
//!
//! Invariants: events of one type are looked up in order and none is skipped. A session is called for each event that its place
//! in the index matches, before or after the change. Each message drains the bell first, so a ring that found the mailbox full is
//! not lost. A session waits at most once to be called.

mod audience;
mod messages;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use self::audience::{Audience, Call, Calls, Member};
pub use self::messages::{CloseAll, CloseType, Subscribe, SubscriptionId, Unsubscribe};
use crate::bell::{Bell, Bells, Published};
use crate::fatal::Fatal;
use crate::limits::{
    BOOKMARK_EVERY, BOOKMARK_SLOTS, BROADCAST_EVENTS_PER_TURN, BROADCASTER_MAILBOX, CALLS_PER_TURN,
    LONGEST_REST, REST_PER_CALL,
};
use crate::object::TypeName;

/// The actor. See the module documentation.
pub struct Broadcaster {
    bell: Arc<Bell>,
    /// The list that holds the bell, to remove it at the end.
    bells: Bells,
    fatal: Fatal,
    audiences: HashMap<TypeName, Audience>,
    /// Sessions that have events and were not called yet.
    to_call: Calls,
    /// Whether the next turn of calls is scheduled.
    is_calling: bool,
    phase: Phase,
    /// The slot of sessions that get a bookmark next.
    slot: u32,
}

/// Whether new watches are accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// New watches are accepted.
    Serving,
    /// The server stops: a new watch is closed at once.
    Closing,
}

impl Broadcaster {
    /// Starts the broadcaster of this thread and adds its bell. `fatal` is raised if it dies: otherwise the watches of the thread
    /// would stay open without events.
    pub fn begin(bells: &Bells, fatal: &Fatal) -> Addr<Broadcaster> {
        Broadcaster::create(|context| {
            let bell = bells.add(Bell::new(context.address().recipient()));
            Broadcaster::new(bell, bells.clone(), fatal.clone())
        })
    }

    fn new(bell: Arc<Bell>, bells: Bells, fatal: Fatal) -> Broadcaster {
        Broadcaster {
            bell,
            bells,
            fatal,
            audiences: HashMap::new(),
            to_call: Calls::new(),
            is_calling: false,
            phase: Phase::Serving,
            slot: 0,
        }
    }
}

impl Drop for Broadcaster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("a broadcaster panicked".to_owned());
        }
    }
}

impl Actor for Broadcaster {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(BROADCASTER_MAILBOX);
        context.run_interval(BOOKMARK_EVERY / BOOKMARK_SLOTS, |broadcaster, context| {
            broadcaster.hear(context);
            broadcaster.ask_for_bookmarks();
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.bells.remove(&self.bell);
        self.close_all();
        // Waiting calls would be lost with the broadcaster.
        for call in self.to_call.drain(..) {
            if let Call::Session(summons) = call {
                summons.call();
            }
        }
    }
}

impl Handler<Published> for Broadcaster {
    type Result = ();

    fn handle(&mut self, _: Published, context: &mut Self::Context) {
        self.hear(context);
    }
}

impl Handler<Subscribe> for Broadcaster {
    type Result = ();

    fn handle(&mut self, subscribe: Subscribe, context: &mut Self::Context) {
        self.hear(context);
        self.subscribe(subscribe);
    }
}

impl Handler<Unsubscribe> for Broadcaster {
    type Result = ();

    fn handle(&mut self, unsubscribe: Unsubscribe, context: &mut Self::Context) {
        self.hear(context);
        self.unsubscribe(&unsubscribe);
    }
}

impl Handler<CloseAll> for Broadcaster {
    type Result = ();

    fn handle(&mut self, _: CloseAll, context: &mut Self::Context) {
        self.hear(context);
        self.close_all();
    }
}

impl Handler<CloseType> for Broadcaster {
    type Result = ();

    fn handle(&mut self, CloseType(type_name): CloseType, context: &mut Self::Context) {
        self.hear(context);
        if let Some(audience) = self.audiences.get(&type_name) {
            audience.each(|member| member.summons.close());
        }
    }
}

impl Broadcaster {
    /// Drains the bell. Work beyond one turn is rung again, after other tasks of the thread have run.
    fn hear(&mut self, context: &mut Context<Self>) {
        let unfinished = self.find_interested();
        self.call_some(context);
        if !unfinished.is_empty() {
            let later = tokio::task::yield_now().into_actor(self).map(move |(), broadcaster, _| {
                for type_name in &unfinished {
                    broadcaster.bell.ring(type_name);
                }
            });
            context.spawn(later);
        }
    }

    /// Calls some of the waiting sessions, and the others in later turns.
    fn call_some(&mut self, context: &mut Context<Self>) {
        if self.is_calling {
            return;
        }
        for _ in 0..CALLS_PER_TURN {
            match self.to_call.pop_front() {
                None => break,
                Some(Call::Session(summons)) => summons.call(),
                Some(Call::Rest(type_name, _)) if !self.begin_rest(&type_name) => {}
                Some(Call::Rest(type_name, rest)) => {
                    context.run_later(rest, move |broadcaster, context| {
                        broadcaster.end_rest(&type_name);
                        broadcaster.hear(context);
                    });
                }
            }
        }
        if !self.to_call.is_empty() {
            self.is_calling = true;
            let later = tokio::task::yield_now().into_actor(self).map(|(), broadcaster, context| {
                broadcaster.is_calling = false;
                broadcaster.call_some(context);
            });
            context.spawn(later);
        }
    }

    /// Looks up the events of the types that rang; answers the types that have more events.
    fn find_interested(&mut self) -> Vec<TypeName> {
        let mut rung = self.bell.drain();
        rung.retain(|type_name| {
            let Some(audience) = self.audiences.get_mut(type_name) else { return false };
            if audience.is_resting {
                audience.is_rung = true;
                return false;
            }
            let before = self.to_call.len();
            let is_all = audience.advance(BROADCAST_EVENTS_PER_TURN, &mut self.to_call);
            if let Some(rest) = rest_after(self.to_call.len() - before) {
                self.to_call.push_back(Call::Rest(type_name.clone(), rest));
                (audience.is_resting, audience.is_rung) = (true, !is_all);
                return false;
            }
            !is_all
        });
        rung
    }

    /// Decides whether a type rests after its sessions were called: only if there are new events already. Otherwise the next
    /// event need not wait.
    fn begin_rest(&mut self, type_name: &TypeName) -> bool {
        let Some(audience) = self.audiences.get_mut(type_name) else { return false };
        audience.is_resting = audience.is_rung;
        audience.is_rung
    }

    fn end_rest(&mut self, type_name: &TypeName) {
        let Some(audience) = self.audiences.get_mut(type_name) else { return };
        audience.is_resting = false;
        if std::mem::take(&mut audience.is_rung) {
            self.bell.ring(type_name);
        }
    }

    fn subscribe(&mut self, subscribe: Subscribe) {
        if self.phase == Phase::Closing {
            subscribe.summons.close();
            return;
        }
        let Subscribe { id, type_name, window, cursor, interest, summons, bookmarks } = subscribe;
        let audience = self.audiences.entry(type_name).or_insert_with(|| Audience::new(Arc::clone(&window)));
        if !Arc::ptr_eq(&audience.window, &window) {
            // The type was removed and created again: the old window gets no more events.
            audience.each(|member| member.summons.close());
            *audience = Audience::new(window);
        }
        if cursor < audience.cursor {
            // These events were looked up before this session was in the index.
            summons.announce(cursor);
        }
        audience.index.insert(id.0, &interest, Arc::clone(&summons));
        audience.members.insert(id, Member { interest, summons, bookmarks });
    }

    fn unsubscribe(&mut self, unsubscribe: &Unsubscribe) {
        let Some(audience) = self.audiences.get_mut(&unsubscribe.type_name) else { return };
        if let Some(member) = audience.members.remove(&unsubscribe.id) {
            audience.index.remove(unsubscribe.id.0, &member.interest);
        }
        if audience.members.is_empty() {
            self.audiences.remove(&unsubscribe.type_name);
        }
    }

    fn close_all(&mut self) {
        self.phase = Phase::Closing;
        for audience in self.audiences.values() {
            audience.each(|member| member.summons.close());
        }
    }

    fn ask_for_bookmarks(&mut self) {
        self.slot = (self.slot + 1) % BOOKMARK_SLOTS;
        let slot = u64::from(self.slot);
        for audience in self.audiences.values() {
            let due = |id: &SubscriptionId| id.0 % u64::from(BOOKMARK_SLOTS) == slot;
            for member in audience.members.iter().filter(|(id, m)| m.bookmarks && due(id)).map(|(_, m)| m) {
                member.summons.ask_for_bookmark(audience.cursor);
            }
        }
    }
}

/// How long a type rests after so many calls. If all fit into one turn, it does not rest.
fn rest_after(calls: usize) -> Option<Duration> {
    let rest = REST_PER_CALL.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX));
    (calls > CALLS_PER_TURN).then_some(rest.min(LONGEST_REST))
}

#[cfg(test)]
mod tests;
