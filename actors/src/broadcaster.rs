//! Who hears of a change: one broadcaster per HTTP worker thread knows the sessions of that thread and wakes those that
//! an event may interest.
//!
//! It holds no event and sends none. A store rings its [`Bell`]; it reads the window from a cursor of its own, looks the
//! event up among those who follow the type (`audience.rs`) and calls the sessions it finds; they read the window themselves. Sessions talk to it
//! ([`Subscribe`], [`Unsubscribe`]), and whoever stops the server ([`CloseAll`]) or changes what a type means ([`CloseType`]).
//!
//! Sessions are called a few at a time, and the other tasks of the thread have their turn in between. So a write is answered while
//! thousands still wait to hear of the last one, and who is called late finds more to tell at once: the busier the server, the
//! less each event costs. For the same reason a type whose news call a crowd rests after them if there are more by then, for as long
//! as its share of the thread asks: what happens meanwhile is one call with more to tell. Other types do not wait for it.
//!
//! Invariants: events of one type are looked up in order, none is left out, and a session is called for each that its
//! place in the index matches, before or after the change. Each message drains the bell first, so a ring that found the
//! mailbox full is not lost. A session waits at most once to be called.

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

/// Finds and wakes the sessions of one thread. See the module text.
pub struct Broadcaster {
    bell: Arc<Bell>,
    /// Where the bell hangs, to take it down at the end.
    bells: Bells,
    fatal: Fatal,
    audiences: HashMap<TypeName, Audience>,
    /// Those who have news and were not called yet.
    to_call: Calls,
    /// Whether the next turn of calls is under way.
    is_calling: bool,
    phase: Phase,
    /// Whose turn it is to get a bookmark.
    slot: u32,
}

/// Whether watches may still begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// They may.
    Serving,
    /// The server stops; a watch that begins now is closed at once.
    Closing,
}

impl Broadcaster {
    /// Starts the broadcaster of this thread and hangs up its bell. `fatal` is raised if it dies: without it the watches
    /// of the thread would stay open and hear of nothing.
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
        // Whoever waits to be called would not be called for that.
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
    /// Drains the bell. What is more than a turn may do is rung again, after the thread's other tasks had theirs.
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

    /// Calls some of those who have news, and the others in turns to come.
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

    /// Looks up the events of the types that were rung; returns those types that have more of them.
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

    /// Whether a type rests whose crowd was called: only if there are news already. Else those that come next need not wait.
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
            // The type went and came again: nothing will ever be appended to the window of those who are here.
            audience.each(|member| member.summons.close());
            *audience = Audience::new(window);
        }
        if cursor < audience.cursor {
            // Those events were looked up before this session stood in the index.
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

/// How long a type rests whose news call so many. Those who are called in one turn are no crowd.
fn rest_after(calls: usize) -> Option<Duration> {
    let rest = REST_PER_CALL.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX));
    (calls > CALLS_PER_TURN).then_some(rest.min(LONGEST_REST))
}

#[cfg(test)]
mod tests;
