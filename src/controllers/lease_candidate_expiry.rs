//! Deletes LeaseCandidates that have not renewed themselves for long, with the gate CoordinatedLeaderElection.

use std::time::Duration;

use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::well_known::stores::LEASE_CANDIDATES;
use pilothouse_types::clock::Clock;
use pilothouse_types::object::{Key, Object};

use super::client::{Client, ObjectRef};
use super::coordinated_election::{Candidate, TICK};
use super::object_meta::ObjectMeta;
use super::per_object::PerObject;
use super::queue::Outcome;

/// The name in health checks and metrics.
pub const NAME: &str = "leasecandidate-garbage-collector";

/// Deletes LeaseCandidates.
pub struct CandidateExpiry {
    /// Reads and deletes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
}

impl CandidateExpiry {
    /// How long an object stays; zero if it may go.
    fn lifetime(&self, object: &Object) -> Duration {
        Candidate::read(&object.bytes)
            .map(|(_, candidate)| candidate.expiry().plus(TICK).since(self.clock.now()))
            .unwrap_or_default()
    }
}

impl PerObject for CandidateExpiry {
    const WATCHED_TYPES: &'static [&'static str] = &[LEASE_CANDIDATES];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let Ok(resource) = self.client.resource(LEASE_CANDIDATES) else { return Ok(Outcome::Done) };
        let target = ObjectRef::new(&resource, key);
        let Some(object) = self.client.cached(target).await? else { return Ok(Outcome::Done) };
        let lifetime = self.lifetime(&object);
        if !lifetime.is_zero() {
            return Ok(Outcome::RequeueAfter(lifetime));
        }
        // Only this version: one that renews itself stays.
        let options = DeleteOptions {
            uid: Some(ObjectMeta::from_object(&object).uid.into_owned()),
            resource_version: Some(object.revision.0.to_string()),
            ..DeleteOptions::default()
        };
        self.client.delete(&resource, object, &options).await.ignore_not_found_or_conflict()?;
        Ok(Outcome::Done)
    }
}
