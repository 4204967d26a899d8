//! How often the sessions of a type are woken, if an event concerns many of them.
//!
//! Waking a session costs about the same for one event as for ten. So a type whose events come fast rests after each round of
//! wakes, and the next round announces everything that came meanwhile. A type whose events come one by one does not: its next
//! event is announced at once. Events come fast if one comes during a round, or during the rest after it.

/// The pace of one type.
#[derive(Debug, Default)]
pub(super) struct Pace {
    state: State,
    /// The number of the current round, which tells the ends of rests apart.
    round: Round,
    /// Whether events come fast.
    is_fast: bool,
}

/// Identifies a round of wakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round(u64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The next event is announced at once.
    #[default]
    Ready,
    /// Sessions are being woken, and new events wait.
    Waking { has_waiting: bool },
    /// The rest after a round. The next event is announced at once, but counts as fast.
    Watchful,
    /// The rest after a round of a type whose events come fast. New events wait.
    Resting { has_waiting: bool },
}

impl Pace {
    /// Notes that there are new events. Returns whether they are announced now; otherwise they wait.
    pub(super) fn announces_now(&mut self) -> bool {
        match &mut self.state {
            State::Ready => true,
            State::Watchful => {
                self.is_fast = true;
                true
            }
            State::Waking { has_waiting } | State::Resting { has_waiting } => {
                *has_waiting = true;
                false
            }
        }
    }

    /// Begins a round of many wakes. `has_waiting`: whether there are events that it does not announce.
    pub(super) fn begin_round(&mut self, has_waiting: bool) {
        self.round.0 = self.round.0.wrapping_add(1);
        self.state = State::Waking { has_waiting };
    }

    /// All sessions of the round were woken. The caller ends the rest of this round after a while.
    pub(super) fn begin_rest(&mut self) -> Round {
        // A type whose last session left and whose next one came during a round may rest already.
        let has_waiting =
            matches!(self.state, State::Waking { has_waiting: true } | State::Resting { has_waiting: true });
        self.is_fast |= has_waiting;
        self.state = if self.is_fast { State::Resting { has_waiting } } else { State::Watchful };
        self.round
    }

    /// Ends the rest after a round. Returns whether events wait.
    pub(super) fn end_rest(&mut self, round: Round) -> bool {
        // A watchful type may have begun its next round in the meantime.
        let is_over = matches!(self.state, State::Watchful | State::Resting { .. }) && round == self.round;
        if !is_over {
            return false;
        }
        let has_waiting = self.state == State::Resting { has_waiting: true };
        self.is_fast = has_waiting;
        self.state = State::Ready;
        has_waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round during which no event comes.
    fn quiet_round(pace: &mut Pace) -> Round {
        assert!(pace.announces_now());
        pace.begin_round(false);
        pace.begin_rest()
    }

    #[test]
    fn slow_events_are_announced_at_once() {
        let mut pace = Pace::default();
        for _ in 0..3 {
            let round = quiet_round(&mut pace);
            assert!(!pace.end_rest(round), "nothing waits");
        }
    }

    #[test]
    fn event_during_a_round_waits_until_its_rest_is_over() {
        let mut pace = Pace::default();
        assert!(pace.announces_now());
        pace.begin_round(false);
        assert!(!pace.announces_now());
        let round = pace.begin_rest();
        assert!(!pace.announces_now(), "the type rests");
        assert!(pace.end_rest(round));
        assert!(pace.announces_now());
    }

    #[test]
    fn events_that_follow_each_other_soon_are_announced_together() {
        let mut pace = Pace::default();
        let first = quiet_round(&mut pace);
        let second = quiet_round(&mut pace);
        assert!(!pace.announces_now(), "the second came during the rest of the first, so the third waits");
        assert!(!pace.end_rest(first), "that rest was over when the second round began");
        assert!(pace.end_rest(second));
        let third = quiet_round(&mut pace);
        assert!(!pace.end_rest(third), "nothing came during this rest");
        quiet_round(&mut pace);
        assert!(pace.announces_now(), "so events come slowly again");
    }

    #[test]
    fn second_rest_keeps_waiting_events() {
        let mut pace = Pace::default();
        pace.begin_round(false);
        assert!(!pace.announces_now());
        pace.begin_rest();
        let round = pace.begin_rest();
        assert!(pace.end_rest(round));
    }

    #[test]
    fn events_left_over_by_a_round_wait_for_the_next() {
        let mut pace = Pace::default();
        assert!(pace.announces_now());
        pace.begin_round(true);
        let round = pace.begin_rest();
        assert!(pace.end_rest(round));
    }
}
