//! The seat of a request in flight. It travels inside every command, so that a client that disconnects does not free its seat
//! while its work goes on.

use std::any::Any;
use std::sync::Arc;

/// Held by all parts that work on the request; the seat is freed when the last copy is dropped.
#[derive(Clone, Debug)]
pub struct Permit {
    /// Only held: its drop frees the seat.
    _place: Option<Arc<dyn Any + Send + Sync>>,
}

impl Permit {
    /// For work without a client request, and for requests that are not counted.
    pub fn none() -> Permit {
        Permit { _place: None }
    }

    /// Holds any value until the last copy is dropped.
    pub fn holding(place: impl Any + Send + Sync) -> Permit {
        Permit { _place: Some(Arc::new(place)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_held_until_the_permit_goes() {
        let place = Arc::new(());
        let permit = Permit::holding(place.clone());
        let copy = permit.clone();
        drop(permit);
        assert_eq!(Arc::strong_count(&place), 2);
        drop(copy);
        assert_eq!(Arc::strong_count(&place), 1);
    }
}
