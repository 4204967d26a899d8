//! The place of a request in flight. It travels inside every command, so that a client that hangs up does not free its
//! place while its work goes on.

use tokio::sync::OwnedSemaphorePermit;

/// Held by whoever works on the request; the place is free again when the last holder drops it.
#[derive(Debug)]
pub struct Permit(Option<OwnedSemaphorePermit>);

impl Permit {
    /// For work that no client asked for, and for requests that are never counted.
    pub fn none() -> Permit {
        Permit(None)
    }

    /// Whether this permit holds a place.
    pub fn is_counted(&self) -> bool {
        self.0.is_some()
    }
}

impl From<OwnedSemaphorePermit> for Permit {
    fn from(permit: OwnedSemaphorePermit) -> Permit {
        Permit(Some(permit))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn the_place_is_held_until_the_permit_goes() {
        let places = Arc::new(Semaphore::new(1));
        let permit = Permit::from(Arc::clone(&places).try_acquire_owned().unwrap());
        assert!(permit.is_counted() && !Permit::none().is_counted());
        assert_eq!(places.available_permits(), 0);
        drop(permit);
        assert_eq!(places.available_permits(), 1);
    }
}
