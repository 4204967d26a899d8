//! Shuffle sharding: the queues that a flow may use. Two flows seldom have the same hand, so a flow that fills all its queues
//! seldom leaves another flow without one.

/// The maximum size of a hand: more would need more bits than the hash of a flow has.
pub const LARGEST_HAND: usize = 15;

/// Some of the queues of a level, all different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hand {
    cards: [u32; LARGEST_HAND],
    size: usize,
}

impl Hand {
    /// Deals `size` of `queues` queues to a flow, always the same ones. At least one, whatever the arguments.
    pub fn deal(mut flow: u64, queues: u32, size: usize) -> Hand {
        let deck = queues.max(1);
        let size = size.clamp(1, LARGEST_HAND).min(deck as usize);
        let mut cards = [0; LARGEST_HAND];
        // The cards dealt so far, sorted: the next one is drawn from the rest.
        let mut drawn = [0; LARGEST_HAND];
        let mut left = deck;
        for (at, dealt) in cards.iter_mut().enumerate().take(size) {
            let mut card = (flow % u64::from(left)) as u32;
            flow /= u64::from(left);
            left -= 1;
            let mut place = 0;
            while place < at && drawn[place] <= card {
                card += 1;
                place += 1;
            }
            drawn.copy_within(place..at, place + 1);
            drawn[place] = card;
            *dealt = card;
        }
        Hand { cards, size }
    }

    /// The queues, starting at a different one each turn: flows that share a queue must not all prefer it.
    pub fn from(&self, turn: usize) -> impl Iterator<Item = u32> {
        let (cards, size) = (self.cards, self.size);
        (0..size).map(move |at| cards[(at + turn % size) % size])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_hand_has_different_queues_of_the_level(flow: u64, queues in 1_u32..300, size in 0_usize..20, turn: usize) {
            let hand = Hand::deal(flow, queues, size);
            let cards: BTreeSet<u32> = hand.from(turn).collect();
            prop_assert_eq!(cards.len(), size.clamp(1, LARGEST_HAND).min(queues as usize));
            prop_assert!(cards.iter().all(|card| *card < queues));
            prop_assert_eq!(hand, Hand::deal(flow, queues, size));
        }
    }

    #[test]
    fn every_hand_is_dealt_equally_often() {
        let mut dealt: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        for flow in 0..5 * 4 * 3 * 7 {
            *dealt.entry(Hand::deal(flow, 5, 3).from(0).collect()).or_default() += 1;
        }
        assert_eq!((dealt.len(), dealt.values().all(|times| *times == 7)), (60, true));
    }
}
