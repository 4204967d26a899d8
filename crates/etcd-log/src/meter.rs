//! What can be counted of the traffic with etcd, for metrics.

use std::sync::Arc;
use std::time::Duration;

use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_etcd::Error;
use pilothouse_types::clock::Clock;
use pilothouse_types::object::{TypeName, UnreadableReason};

/// The resource of requests that concern no resource, or all of them.
pub(crate) const NO_RESOURCE: &str = "";

/// What a request does, in the reference's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads one key.
    Get,
    /// Reads a page of keys.
    List,
    /// Puts a key that must not be there.
    Create,
    /// Puts a key that must be as it was.
    Update,
    /// Deletes a key.
    Delete,
}

impl Operation {
    /// Its name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::List => "list",
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete => "delete",
        }
    }
}

/// Counts. It is called on every thread, for every request: it must not wait.
pub trait Observer: Send + Sync + 'static {
    /// A request about a resource, such as `deployments.apps`, was answered after so long, or has failed. A condition that does not
    /// hold is an answer. The resource is empty if the request concerns none, or all.
    fn request(&self, operation: Operation, resource: &str, elapsed: Duration, is_answered: bool);

    /// So many changes of objects of a resource have arrived.
    fn events(&self, resource: &str, count: u64);

    /// The member has told how far it is, without a change.
    fn progress(&self);

    /// An object of a resource cannot be decoded.
    fn decode_error(&self, resource: &str);

    /// A lease that gets no more objects has so many.
    fn lease_objects(&self, count: u32);
}

/// Measures, if anybody counts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Meter {
    clock: Clock,
    observer: Option<Arc<dyn Observer>>,
}

impl Meter {
    pub(crate) fn new(clock: Clock, observer: Option<Arc<dyn Observer>>) -> Meter {
        Meter { clock, observer }
    }

    /// Measures a request.
    pub(crate) async fn measure<T>(
        &self,
        operation: Operation,
        resource: &str,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(observer) = &self.observer else { return request.await };
        let began = self.clock.moment();
        let result = request.await;
        observer.request(operation, resource, self.clock.elapsed(began), result.is_ok());
        result
    }

    /// Counts changes of these types, which have arrived in this order.
    pub(crate) fn count_events<'a>(&self, types: impl Iterator<Item = &'a TypeName>) {
        let Some(observer) = &self.observer else { return };
        let mut types = types.peekable();
        while let Some(first) = types.next() {
            let mut count = 1;
            while types.next_if_eq(&first).is_some() {
                count += 1;
            }
            observer.events(resource_of_store(first), count);
        }
    }

    pub(crate) fn count_progress(&self) {
        if let Some(observer) = &self.observer {
            observer.progress();
        }
    }

    /// Counts a value of this type if it cannot be decoded. One that cannot be decrypted does not count.
    pub(crate) fn count_decoded<T>(&self, type_name: &TypeName, decoded: &Result<T, UnreadableReason>) {
        if let (Some(observer), Err(UnreadableReason::Damaged)) = (&self.observer, decoded) {
            observer.decode_error(resource_of_store(type_name));
        }
    }

    pub(crate) fn count_lease(&self, objects: u32) {
        if let Some(observer) = &self.observer {
            observer.lease_objects(objects);
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::lock::Lock;

    use super::*;

    #[derive(Default)]
    struct Lines(Lock<Vec<String>>);

    impl Observer for Lines {
        fn request(&self, operation: Operation, resource: &str, _: Duration, is_answered: bool) {
            self.0.lock().push(format!("{} {resource} {is_answered}", operation.label()));
        }

        fn events(&self, resource: &str, count: u64) {
            self.0.lock().push(format!("{resource} {count}"));
        }

        fn progress(&self) {}

        fn decode_error(&self, resource: &str) {
            self.0.lock().push(format!("{resource} is damaged"));
        }

        fn lease_objects(&self, _: u32) {}
    }

    #[tokio::test]
    async fn what_happens_is_counted_by_resource() {
        let lines = Arc::new(Lines::default());
        let meter = Meter::new(Clock::system(), Some(lines.clone()));
        let [pods, kites] = ["pods", "custom/kites.toys.example"].map(TypeName::new);
        meter.count_events([&pods, &pods, &kites, &pods].into_iter());
        assert_eq!(meter.measure(Operation::Create, "pods", async { Ok(7) }).await, Ok(7));
        let failed = meter.measure(Operation::Get, "", async { Err::<(), _>(Error::NoSpace) }).await;
        assert_eq!(failed, Err(Error::NoSpace));
        let undecryptable = UnreadableReason::Undecryptable(String::new());
        for decoded in [Ok(()), Err(undecryptable), Err(UnreadableReason::Damaged)] {
            meter.count_decoded(&kites, &decoded);
        }
        let lines = lines.0.lock().clone();
        let expected = ["pods 2", "kites.toys.example 1", "pods 1", "create pods true", "get  false"];
        assert_eq!(lines[..5], expected);
        assert_eq!(lines[5..], ["kites.toys.example is damaged"]);
    }
}
