//! The seat of a request in flight. It travels inside every command, so that a client that disconnects does not free its seat
//! while its work goes on.

use std::any::Any;
use std::sync::Arc;

/// Held by all parts that work on the request; the seat is freed when the last copy is dropped.
#[derive(Clone, Debug)]
pub struct Permit {
    /// Only held: its drop frees the seat.
    _seat: Option<Arc<dyn Any + Send + Sync>>,
}

impl Permit {
    /// For work without a client request, and for requests that are not counted.
    pub fn none() -> Permit {
        Permit { _seat: None }
    }

    /// Holds any value until the last copy is dropped.
    pub fn holding(seat: impl Any + Send + Sync) -> Permit {
        Permit { _seat: Some(Arc::new(seat)) }
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
