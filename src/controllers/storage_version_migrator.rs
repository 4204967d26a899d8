//! storage-version-migrator-controller: rewrites the objects of the resource that a StorageVersionMigration names, so that all of
//! them are stored in the current storage version and with whatever else is current.
//!
//! Each object gets an apply without fields. It changes nothing, and an object that is stale is written all the same
//! (`registry/storage_version.rs`). Writes of others meanwhile do no harm: they store the current version themselves.
//!
//! The reference has two controllers for this, one for `status.resourceVersion` and one for the rest, because it must wait until
//! the cache of its garbage collector is as new as that version. Here a snapshot of the store is.

mod conditions;
mod stored_versions;

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::STORAGE_VERSION_MIGRATIONS;
use pilothouse_types::object::{Key, Object, Revision, TypeName};

use self::conditions::Condition;
use self::stored_versions::Definition;
use super::client::{Client, ObjectRef};
use super::object_meta::ObjectMeta;
use super::per_object::PerObject;
use super::queue::Outcome;
use crate::aggregation::Extensions;
use crate::limits::MIGRATIONS_IN_FLIGHT;

/// The name in flags, health checks and metrics; also the service account and the field manager.
pub const NAME: &str = "storage-version-migrator-controller";
/// How long a migration waits for a resource that is defined and not served yet; the reference's value for its caches.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How often it looks for such a resource.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);
/// Messages of failed migrations, in the reference's words.
const UNKNOWN_RESOURCE: &str = "resource does not exist in discovery";
const UNHANDLED_ERROR: &str = "migration encountered unhandled error";
/// The message if another server stores the objects.
const FOREIGN_RESOURCE: &str =
    "resource is served by an aggregated API server, which stores its objects itself";

/// Carries out StorageVersionMigrations.
pub struct StorageVersionMigrator {
    /// Reads and writes objects.
    pub client: Client,
    /// The group versions that aggregated API servers serve.
    pub extensions: Arc<Extensions>,
}

/// The resource of a migration.
enum Lookup {
    /// It is served and stored here.
    Found(Arc<Resource>),
    /// It is defined, and will be served in a moment.
    Pending,
    /// It cannot be migrated, for this reason.
    Missing(&'static str),
}

/// The result of rewriting all objects.
enum Rewritten {
    /// All objects are current.
    All,
    /// One could not be rewritten, for this reason.
    Refused(String),
}

impl PerObject for StorageVersionMigrator {
    const WATCHED_TYPES: &'static [&'static str] = &[STORAGE_VERSION_MIGRATIONS];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        // Migrations may be left from a time when their API was served.
        let Ok(resource) = self.client.resource(STORAGE_VERSION_MIGRATIONS) else { return Ok(Outcome::Done) };
        let target = ObjectRef::new(&resource, key);
        let Some(migration) = self.client.read_cached(target).await? else { return Ok(Outcome::Done) };
        if conditions::is_finished(&migration) {
            return Ok(Outcome::Done);
        }
        let run = Run { controller: self, target, migration: &migration };
        run.migrate().await
    }
}

/// The work on one migration.
struct Run<'a> {
    controller: &'a StorageVersionMigrator,
    target: ObjectRef<'a>,
    migration: &'a Value,
}

impl Run<'_> {
    async fn migrate(&self) -> Result<Outcome> {
        let resource = match self.lookup().await? {
            Lookup::Found(resource) => resource,
            Lookup::Pending => return Ok(Outcome::RequeueAfter(WAIT_INTERVAL)),
            Lookup::Missing(message) => return self.finish(Condition::Failed, message).await,
        };
        let client = &self.controller.client;
        let store = &resource.stored().ok_or_else(Status::no_such_resource)?.store;
        let definition = match &resource.custom {
            Some(_) => Some(Definition::new(client, &resource.gv.group, &resource.plural)?),
            None => None,
        };
        if let Some(definition) = &definition {
            definition.check_published(&resource).await?;
        }
        self.set_resource_version(client.snapshot(store).await?.revision).await?;
        self.set_condition(Condition::Running, "").await?;
        if let Rewritten::Refused(message) = self.rewrite_all(&resource, store).await? {
            return self.finish(Condition::Failed, &message).await;
        }
        let message = match definition {
            Some(definition) => warning(definition.remove_unused_versions(&resource, store).await)?,
            None => String::new(),
        };
        self.finish(Condition::Succeeded, &message).await
    }

    /// Finds the resource to migrate.
    async fn lookup(&self) -> Result<Lookup> {
        let client = &self.controller.client;
        let field = |name| {
            let resource = self.migration.get_path(&["spec", "resource"]);
            resource.map_or("", |resource| resource.str(name))
        };
        let (group, version, plural) = (field("group"), field("version"), field("resource"));
        let known = client.resource_index();
        if let Some(resource) = known.plural(group, version, plural) {
            return Ok(Lookup::Found(resource.clone()));
        }
        if known.has_unreadable(group) {
            return Err(Status::unavailable(format!("a definition of {group} cannot be read")));
        }
        let extension = self.controller.extensions.find(group, version).await;
        let extension = extension
            .map_err(|error| Status::from_store(&error, self.target.resource.name(), self.target.name))?;
        if extension.is_some() {
            return Ok(Lookup::Missing(FOREIGN_RESOURCE));
        }
        let is_defined = Definition::new(client, group, plural)?.read().await?.is_some();
        Ok(match is_defined && !self.has_waited() {
            true => Lookup::Pending,
            false => Lookup::Missing(UNKNOWN_RESOURCE),
        })
    }

    /// Whether the migration is too old to wait for its resource.
    fn has_waited(&self) -> bool {
        let created = meta::metadata(self.migration).str("creationTimestamp");
        let age = self.controller.client.seconds().saturating_sub(time::parse_seconds(created).unwrap_or(0));
        u64::try_from(age).is_ok_and(|age| age >= MAX_WAIT.as_secs())
    }

    /// Rewrites all objects, several at a time and in the order of their keys, until one is refused. Objects that cannot be read refuse
    /// it at the end, because the others may still need a new key. Each group comes from a new
    /// snapshot: an old one would keep the replaced objects in memory, and what is new since needs no migration.
    async fn rewrite_all(&self, resource: &Arc<Resource>, store: &TypeName) -> Result<Rewritten> {
        let (mut last, mut unreadable): (Option<Key>, Option<String>) = (None, None);
        loop {
            let snapshot = self.controller.client.snapshot(store).await?;
            let start = last.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_str()));
            let objects: Vec<Arc<Object>> =
                snapshot.scan(None, start).take(MIGRATIONS_IN_FLIGHT).cloned().collect();
            drop(snapshot);
            let Some(end) = objects.last() else {
                return Ok(unreadable.map_or(Rewritten::All, Rewritten::Refused));
            };
            last = Some(end.key.clone());
            let results = join_all(objects.iter().map(|object| self.rewrite(resource, object))).await;
            for (result, object) in results.into_iter().zip(&objects) {
                match result {
                    Ok(()) => {}
                    // Nothing is wrong with the object: the migration starts over after a pause.
                    Err(status) if matches!(status.code, 429 | 503 | 504) => return Err(status),
                    Err(status) => {
                        let message = format!("{UNHANDLED_ERROR}: {}: {status}", object.key.as_str());
                        if object.is_readable() {
                            return Ok(Rewritten::Refused(message));
                        }
                        unreadable.get_or_insert(message);
                    }
                }
            }
        }
    }

    /// Rewrites one object, if it is stale and still exists.
    async fn rewrite(&self, resource: &Arc<Resource>, object: &Object) -> Result<()> {
        let mut body = Value::object();
        body.set("apiVersion", &*resource.api_version);
        body.set("kind", &*resource.kind);
        let metadata = body.entry("metadata");
        // So that an object that was deleted meanwhile is not created.
        metadata.set("uid", &*ObjectMeta::from_object(object).uid);
        metadata.set("resourceVersion", object.revision.to_string());
        let applied =
            self.controller.client.apply_nothing(ObjectRef::new(resource, &object.key), NAME, &body).await;
        match applied {
            // It was deleted, or changed and thereby stored in the current version.
            Err(status) if status.is_conflict() => Ok(()),
            result => result,
        }
    }

    /// Records the version of the list that is migrated. It is set once.
    async fn set_resource_version(&self, revision: Revision) -> Result<()> {
        self.edit_status(|migration| {
            let status = migration.entry("status");
            let is_unset = status.str("resourceVersion").is_empty();
            if is_unset {
                status.set("resourceVersion", revision.to_string());
            }
            is_unset
        })
        .await
    }

    async fn set_condition(&self, condition: Condition, message: &str) -> Result<()> {
        let now = self.controller.client.now();
        self.edit_status(|migration| conditions::set(migration, condition, message, &now)).await
    }

    async fn finish(&self, condition: Condition, message: &str) -> Result<Outcome> {
        self.set_condition(condition, message).await?;
        Ok(Outcome::Done)
    }

    /// Changes the status of the migration, unless it was deleted, finished by somebody else, or replaced by another one.
    async fn edit_status(&self, change: impl Fn(&mut Value) -> bool) -> Result<()> {
        let uid = |migration: &Value| meta::metadata(migration).str("uid").to_owned();
        let change = |migration: &mut Value| {
            let is_open = uid(migration) == uid(self.migration) && !conditions::is_finished(migration);
            Ok(is_open && change(migration))
        };
        self.controller.client.edit(self.target, "status", change).await.ignore_not_found()?;
        Ok(())
    }
}

/// The objects are migrated, even if somebody refuses to change the definition: then the message of the migration says so.
fn warning(result: Result<()>) -> Result<String> {
    match result {
        Err(status) if matches!(status.code, 400 | 403 | 422) => {
            tracing::warn!(%status, "status.storedVersions of a CustomResourceDefinition cannot be changed");
            Ok(format!("status.storedVersions of the definition was not changed: {status}"))
        }
        Err(status) if status.is_not_found() => Ok(String::new()),
        result => result.map(|()| String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refused_change_of_the_definition_ends_the_migration() {
        assert_eq!(warning(Ok(())).unwrap(), "");
        let refused = warning(Err(Status::bad_request("no"))).unwrap();
        assert!(
            refused.starts_with("status.storedVersions of the definition was not changed: "),
            "{refused}"
        );
        assert!(warning(Err(Status::unavailable("later"))).is_err());
        let resource = pilothouse_apimachinery::status::GroupResource { group: "g", resource: "r" };
        assert!(warning(Err(Status::stale(resource, "x"))).is_err());
        assert_eq!(warning(Err(Status::not_found(resource, "x"))).unwrap(), "", "the definition is deleted");
    }
}
