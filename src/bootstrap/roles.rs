//! The default RBAC roles and bindings. Unlike other bootstrap objects they are reconciled at every start: control plane
//! components cannot work without them.

use pilothouse_actors::permit::Permit;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::bootstrap::BootstrapObject;
use pilothouse_api::bootstrap::roles::{self, Reconciliation};
use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::status::{GroupResource, IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::{codec, meta};
use pilothouse_authorization::rbac::RESOURCES;
use pilothouse_types::object::{Key, TypeName};

use crate::backend::Backend;

use super::{ObjectAddress, Own, Verb, all_of};

/// Creates missing roles and bindings and restores missing rules and subjects. `enabled` tells which feature gates are on.
pub async fn roles(backend: &Backend, catalog: &Catalog, enabled: impl Fn(&str) -> bool) -> Result<()> {
    let own = Own::new(backend, catalog);
    let all = roles::all(enabled);
    let of_resource = |resource: &'static str| {
        let ours: Vec<&BootstrapObject> = all.iter().filter(|wanted| wanted.resource == resource).collect();
        own.look_after_all(ours)
    };
    // All at once, so that they share a sync of the disk: nobody is served yet who could see a binding before its role.
    all_of(RESOURCES.map(of_resource)).await
}

impl Own<'_> {
    async fn look_after_all(&self, ours: Vec<&BootstrapObject>) -> Result<()> {
        let served = ours.first().filter(|wanted| self.serves(ObjectAddress::of(wanted)));
        let Some(BootstrapObject { group, resource, .. }) = served else { return Ok(()) };
        let of = GroupResource { group, resource };
        let snapshot = self.backend.stores.snapshot(&TypeName::new(&of.to_string()), &Permit::none()).await;
        let snapshot = snapshot.map_err(|error| Status::from_store(&error, of, ""))?;
        all_of(ours.into_iter().map(|wanted| self.look_after(wanted, &snapshot))).await
    }

    async fn look_after(&self, wanted: &BootstrapObject, snapshot: &Snapshot) -> Result<()> {
        let (name, namespace) = (meta::name(&wanted.object), meta::of(&wanted.object).str("namespace"));
        let place = ObjectAddress { namespace, ..ObjectAddress::of(wanted) };
        let key = if namespace.is_empty() { Key::cluster(name) } else { Key::namespaced(namespace, name) };
        let version = GroupVersion::new(wanted.group, "v1");
        let load = |stored| self.backend.objects.load_kind(&version, wanted.object.str("kind"), stored);
        let Some(stored) = snapshot.get(key.as_str()) else {
            let origin = roles::origin(name).filter(|_| place.resource == "clusterrolebindings");
            let body = match origin.and_then(|origin| snapshot.get(Key::cluster(origin).as_str())) {
                Some(origin) => codec::to_json(&roles::split_off(&wanted.object, &load(origin)?)),
                None => codec::to_json(&wanted.object),
            };
            return self.make_from(place, "", body.into()).await.map(drop);
        };
        let found = load(stored)?;
        // Whoever writes the object in the same moment means it: the next start looks again.
        match roles::repair(&found, &wanted.object) {
            Reconciliation::Nothing => Ok(()),
            Reconciliation::Replace(repaired) => {
                tracing::info!(resource = place.resource, name, "repaired");
                let written = self.ask(place, Verb::Update, "", codec::to_json(&repaired).into()).await;
                written.ignore_not_found_or_conflict()?;
                Ok(())
            }
            Reconciliation::Remake => {
                tracing::info!(resource = place.resource, name, "recreated: its roleRef had changed");
                self.ask(place, Verb::Delete, "", bytes::Bytes::new())
                    .await
                    .ignore_not_found_or_conflict()?;
                self.make_from(place, "", codec::to_json(&wanted.object).into()).await.map(drop)
            }
        }
    }
}
