//! The place of a request in flight. It travels inside every command, so that a client that hangs up does not free its
//! place while its work goes on.

use std::any::Any;
use std::sync::Arc;

/// Held by whoever works on the request; the place is free again when the last holder drops it.
#[derive(Clone, Debug)]
pub struct Permit {
    /// Only held: dropping it is what counts.
    _place: Option<Arc<dyn Any + Send + Sync>>,
}

impl Permit {
    /// For work that no client asked for, and for requests that are never counted.
    pub fn none() -> Permit {
        Permit { _place: None }
    }

    /// Holds this place, whatever it is, until the last copy is dropped.
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
