//! What a store does with the messages of a shared log.

use actix::{Handler, Message};
use pilothouse_types::object::Key;

use super::{Order, Store};
use crate::shared_log::ProposalOutcome;
use crate::shared_log::messages::{Adopt, ApplyChanges, BarrierPassed, Resynchronize};

/// The log has answered a proposal. The store sends it to itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ProposalEnded {
    pub(super) key: Key,
    pub(super) outcome: ProposalOutcome,
}

impl Handler<ApplyChanges> for Store {
    type Result = ();

    fn handle(&mut self, arrived: ApplyChanges, _: &mut Self::Context) {
        if let Order::Shared(order) = &mut self.order {
            order.apply(&mut self.state, arrived.revision, arrived.changes, arrived.decoded);
        }
    }
}

impl Handler<Resynchronize> for Store {
    type Result = ();

    fn handle(&mut self, arrived: Resynchronize, _: &mut Self::Context) {
        if let Order::Shared(order) = &mut self.order {
            order.resynchronize(&mut self.state, arrived);
        }
    }
}

impl Handler<Adopt> for Store {
    type Result = ();

    fn handle(&mut self, arrived: Adopt, _: &mut Self::Context) {
        if let Order::Shared(order) = &mut self.order {
            order.adopt(&mut self.state, arrived);
        }
    }
}

impl Handler<BarrierPassed> for Store {
    type Result = ();

    fn handle(&mut self, BarrierPassed(passed): BarrierPassed, _: &mut Self::Context) {
        if let Order::Shared(order) = &mut self.order {
            order.pass_barrier(&mut self.state, &passed);
        }
    }
}

impl Handler<ProposalEnded> for Store {
    type Result = ();

    fn handle(&mut self, ended: ProposalEnded, _: &mut Self::Context) {
        if let Order::Shared(order) = &mut self.order {
            order.end_proposal(&self.state, ended);
        }
    }
}
