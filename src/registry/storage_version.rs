//! The version that an object is stored in, and whether a stored object is still as it would be stored now.
//!
//! An update that changes nothing writes nothing, unless the stored object is stale. So a migration is a round of updates that
//! change nothing: it rewrites the objects that need it and no others.

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::stored_defaults::StoredDefaults;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::object::Object;

use super::{Backend, Call};

/// What precedes the apiVersion in the bytes of a stored object.
const API_VERSION: &[u8] = br#""apiVersion":""#;
/// Seconds after which a request whose definition has changed meanwhile should be repeated.
const RETRY_AFTER_SECONDS: u32 = 1;

/// The apiVersion that an object is stored in; `None` if it cannot be read.
pub fn stored_api_version(object: &Object) -> Option<&str> {
    // Stored objects begin with kind and apiVersion.
    let head = object.bytes.get(..object.item_offset())?;
    let start = memchr::memmem::find(head, API_VERSION)? + API_VERSION.len();
    let rest = head.get(start..)?;
    let end = memchr::memchr(b'"', rest)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

/// Whether objects of this resource are stored in this version now.
fn is_storage_version(resource: &Resource, api_version: &str) -> bool {
    match (&resource.custom, resource.stored()) {
        (Some(custom), _) => *custom.storage_api_version == *api_version,
        (None, Some(stored)) => {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            stored.version.is(group, version)
        }
        (None, None) => true,
    }
}

/// Whether an object would be stored in another way if it were written now: then an update that changes nothing is written all
/// the same. Whether it is encrypted as it would be now is known by the stores.
pub fn is_stale(resource: &Resource, object: &Object) -> bool {
    StoredDefaults::read(object).is_pending()
        || stored_api_version(object).is_some_and(|stored| !is_storage_version(resource, stored))
}

impl Backend {
    /// Refuses to store a custom object in a version that is no longer the storage version. A request keeps the resource that it
    /// has found, and may be slow; the versions that a migration has removed from `status.storedVersions` must not come back
    /// with it.
    pub(super) fn check_storage_version(&self, call: &Call<'_>) -> Result<()> {
        let Some(custom) = call.resource().custom.as_deref() else { return Ok(()) };
        // A version that is no longer served would say nothing; all versions have the same storage version.
        let current = (self.served_version)(call.resource());
        let current = current.as_deref().and_then(|current| current.custom.as_deref());
        // If none is served, its objects are being deleted with their definition: those with finalizers are written once more.
        // Nobody can migrate them, and `create` has refused new ones.
        match current.is_none_or(|current| current.storage_api_version == custom.storage_api_version) {
            true => Ok(()),
            false => Err(Status::too_many_requests(
                "the storage version of the resource was changed during the request, please try again",
                RETRY_AFTER_SECONDS,
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_api::catalog::runtime_config::RuntimeConfig;
    use pilothouse_types::object::{Draft, Key, Pairs, Revision, UnreadableReason};

    use super::*;

    fn stored(head: &str, fields: Pairs) -> Object {
        let draft = Draft {
            key: Key::namespaced("n", "x"),
            bytes: format!(r#"{head}"metadata":{{"resourceVersion":""}},"data":{{"apiVersion":"v9"}}}}"#)
                .into(),
            revision_offset: head.len() + r#""metadata":{"resourceVersion":""#.len(),
            item_offset: head.len(),
            labels: Pairs::default(),
            fields,
        };
        Object::new(draft, Revision(7))
    }

    #[test]
    fn stored_version_is_read_from_the_head_of_the_object() {
        let version = |head: &str| stored_api_version(&stored(head, Pairs::default())).map(str::to_owned);
        assert_eq!(
            version(r#"{"kind":"Kite","apiVersion":"toys.example/v1","#).as_deref(),
            Some("toys.example/v1")
        );
        assert_eq!(version(r#"{"kind":"ConfigMap","apiVersion":"v1","#).as_deref(), Some("v1"));
        assert_eq!(version("{"), None, "not that of a field");
        assert_eq!(
            stored_api_version(&Object::unreadable(
                Key::cluster("x"),
                Revision(1),
                UnreadableReason::Damaged
            )),
            None
        );
    }

    #[test]
    fn object_is_stale_in_another_version_or_with_pending_defaults() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let autoscalers = catalog.find("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
        let head = |version: &str| {
            format!(r#"{{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/{version}","#)
        };
        let storage = &autoscalers.stored().unwrap().version.version;
        assert!(!is_stale(autoscalers, &stored(&head(storage), Pairs::default())));
        assert!(is_stale(autoscalers, &stored(&head("v2beta9"), Pairs::default())));
        let pending: Pairs = [("~filled-in", "")].into_iter().collect();
        assert!(is_stale(autoscalers, &stored(&head(storage), pending)));
        let unreadable = Object::unreadable(Key::cluster("x"), Revision(1), UnreadableReason::Damaged);
        assert!(!is_stale(autoscalers, &unreadable), "nothing is known of it");
    }
}
