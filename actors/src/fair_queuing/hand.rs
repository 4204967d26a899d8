//! Shuffle sharding: the queues that a flow may use. Two flows seldom have the same hand, so a flow that fills all its queues
//! seldom leaves another flow without one.

/// The maximum size of a hand: more would need more bits than the hash of a flow has.
pub const MAX_HAND_SIZE: usize = 15;

/// Some of the queues of a level, all different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hand {
    cards: [u32; MAX_HAND_SIZE],
    size: usize,
}

impl Hand {
    /// Deals `size` of `queues` queues to a flow, always the same ones. At least one, whatever the arguments.
    pub fn deal(mut flow: u64, queues: u32, size: usize) -> Hand {
        let deck = queues.max(1);
        let size = size.clamp(1, MAX_HAND_SIZE).min(deck as usize);
        let mut cards = [0; MAX_HAND_SIZE];
        // The cards dealt so far, sorted: the next one is dealt from the rest.
        let mut sorted = [0; MAX_HAND_SIZE];
        let mut remaining = deck;
        for (count, dealt) in cards.iter_mut().enumerate().take(size) {
            let mut card = (flow % u64::from(remaining)) as u32;
            flow /= u64::from(remaining);
            remaining -= 1;
            let mut position = 0;
            while position < count && sorted[position] <= card {
                card += 1;
                position += 1;
            }
            sorted.copy_within(position..count, position + 1);
            sorted[position] = card;
            *dealt = card;
        }
        Hand { cards, size }
    }

    /// The queues, starting at a different one each turn: flows that share a queue must not all prefer it.
    pub fn iter_from(&self, turn: usize) -> impl Iterator<Item = u32> {
        let (cards, size) = (self.cards, self.size);
        (0..size).map(move |index| cards[(index + turn % size) % size])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hand_has_distinct_queues_of_the_level(flow: u64, queues in 1_u32..300, size in 0_usize..20, turn: usize) {
            let hand = Hand::deal(flow, queues, size);
            let cards: BTreeSet<u32> = hand.iter_from(turn).collect();
            prop_assert_eq!(cards.len(), size.clamp(1, MAX_HAND_SIZE).min(queues as usize));
            prop_assert!(cards.iter().all(|card| *card < queues));
            prop_assert_eq!(hand, Hand::deal(flow, queues, size));
        }
    }

    #[test]
    fn deal_gives_every_hand_equally_often() {
        let mut dealt: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        for flow in 0..5 * 4 * 3 * 7 {
            *dealt.entry(Hand::deal(flow, 5, 3).iter_from(0).collect()).or_default() += 1;
        }
        assert_eq!((dealt.len(), dealt.values().all(|times| *times == 7)), (60, true));
    }
}
