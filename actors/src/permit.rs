//! The seat of a request in flight, and its trace. It travels inside every command, so that a client that disconnects does not free its
//! seat while its work goes on.

use std::any::Any;
use std::sync::Arc;

use pilothouse_types::trace::{OpenSpan, RequestTrace};

/// Held by all parts that work on the request; the seat is freed when the last copy is dropped.
#[derive(Clone, Debug)]
pub struct Permit {
    /// Only held: its drop frees the seat.
    _seat: Option<Arc<dyn Any + Send + Sync>>,
    /// Where the steps of the work are recorded. It goes wherever the permit goes, and no further.
    trace: RequestTrace,
}

impl Permit {
    /// For work without a client request, and for requests that are not counted.
    pub fn none() -> Permit {
        Permit { _seat: None, trace: RequestTrace::none() }
    }

    /// Holds any value until the last copy is dropped.
    pub fn holding(seat: impl Any + Send + Sync) -> Permit {
        Permit { _seat: Some(Arc::new(seat)), trace: RequestTrace::none() }
    }

    /// The same for a request whose steps are recorded.
    #[must_use]
    pub fn traced(self, trace: RequestTrace) -> Permit {
        Permit { trace, ..self }
    }

    /// The trace of the request.
    pub fn trace(&self) -> &RequestTrace {
        &self.trace
    }

    /// For work on another thread, whose steps belong to this span, or to the current one if there is none.
    #[must_use]
    pub fn for_other_thread(&self, span: &OpenSpan) -> Permit {
        Permit { _seat: self._seat.clone(), trace: self.trace.branch(span) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_holds_seat_until_last_copy_is_dropped() {
        let seat = Arc::new(());
        let permit = Permit::holding(seat.clone());
        let copy = permit.clone();
        drop(permit);
        assert_eq!(Arc::strong_count(&seat), 2);
        drop(copy);
        assert_eq!(Arc::strong_count(&seat), 1);
    }
}
