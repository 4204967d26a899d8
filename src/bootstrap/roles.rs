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

use crate::registry::Backend;

use super::{ObjectAddress, OwnClient, Verb, join_steps};

/// Creates missing roles and bindings and restores missing rules and subjects. `enabled` tells which feature gates are on.
pub async fn roles(backend: &Backend, catalog: &Catalog, enabled: impl Fn(&str) -> bool) -> Result<()> {
    let client = OwnClient::new(backend, catalog);
    let all = roles::all(enabled);
    let reconcile_resource = |resource: &'static str| {
        let expected_objects: Vec<&BootstrapObject> =
            all.iter().filter(|expected| expected.resource == resource).collect();
        client.reconcile_all(expected_objects)
    };
    // Concurrently, so that they share a disk sync: no request is served yet, so nobody can see a binding before its role.
    join_steps(RESOURCES.map(reconcile_resource)).await
}

impl OwnClient<'_> {
    async fn reconcile_all(&self, expected_objects: Vec<&BootstrapObject>) -> Result<()> {
        let served =
            expected_objects.first().filter(|expected| self.serves(ObjectAddress::for_object(expected)));
        let Some(BootstrapObject { group, resource, .. }) = served else { return Ok(()) };
        let name = GroupResource { group, resource };
        let snapshot = self.backend.stores.snapshot(&TypeName::new(&name.to_string()), &Permit::none()).await;
        let snapshot = snapshot.map_err(|error| Status::from_store(&error, name, ""))?;
        join_steps(expected_objects.into_iter().map(|expected| self.reconcile(expected, &snapshot))).await
    }

    async fn reconcile(&self, expected: &BootstrapObject, snapshot: &Snapshot) -> Result<()> {
        let (name, namespace) =
            (meta::name(&expected.object), meta::metadata(&expected.object).str("namespace"));
        let address = ObjectAddress { namespace, ..ObjectAddress::for_object(expected) };
        let key = if namespace.is_empty() { Key::cluster(name) } else { Key::namespaced(namespace, name) };
        let version = GroupVersion::new(expected.group, "v1");
        let load = |stored| self.backend.objects.load_kind(&version, expected.object.str("kind"), stored);
        let Some(stored) = snapshot.get(key.as_str()) else {
            let origin = roles::origin(name).filter(|_| address.resource == "clusterrolebindings");
            let body = match origin.and_then(|origin| snapshot.get(Key::cluster(origin).as_str())) {
                Some(origin) => codec::to_json(&roles::split_off(&expected.object, &load(origin)?)),
                None => codec::to_json(&expected.object),
            };
            return self.create_from(address, "", body.into()).await.map(drop);
        };
        let current = load(stored)?;
        // A concurrent write of the object wins: the next start checks again.
        match roles::repair(&current, &expected.object) {
            Reconciliation::Nothing => Ok(()),
            Reconciliation::Replace(repaired) => {
                tracing::info!(resource = address.resource, name, "a default role or binding was repaired");
                let result = self.request(address, Verb::Update, "", codec::to_json(&repaired).into()).await;
                result.ignore_not_found_or_conflict()?;
                Ok(())
            }
            Reconciliation::Recreate => {
                tracing::info!(
                    resource = address.resource,
                    name,
                    "a default binding was recreated because its roleRef had changed"
                );
                self.request(address, Verb::Delete, "", bytes::Bytes::new())
                    .await
                    .ignore_not_found_or_conflict()?;
                self.create_from(address, "", codec::to_json(&expected.object).into()).await.map(drop)
            }
        }
    }
}
