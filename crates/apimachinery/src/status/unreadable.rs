//! Statuses for corrupt objects, with the texts of the reference's storage, which names objects by their keys.

use std::sync::Arc;

use pilothouse_types::object::{Object, UnreadableReason};

use crate::field::quoted;

use super::{Cause, Details, GroupResource, Status};

/// The most corrupt objects that one Status names.
const MAX_UNREADABLE_CAUSES: usize = 100;

impl Status {
    /// 500: the object exists, but its stored data cannot be decoded or decrypted.
    pub fn unreadable(resource: GroupResource<'_>, object: &Object) -> Box<Status> {
        Status::internal(unreadable_message(resource, object))
    }

    /// 500: a list includes corrupt objects. Names each of them, up to a bound.
    pub fn unreadable_list<'a>(
        resource: GroupResource<'_>,
        objects: impl Iterator<Item = &'a Arc<Object>>,
    ) -> Box<Status> {
        let mut causes: Vec<Cause> = objects
            .take(MAX_UNREADABLE_CAUSES + 1)
            .map(|object| Cause {
                reason: "UnexpectedServerResponse".to_owned(),
                message: unreadable_message(resource, object),
                field: storage_key(resource, object.key.as_str()),
            })
            .collect();
        if let Some(last) = causes.get_mut(MAX_UNREADABLE_CAUSES) {
            let message = "too many errors, the list is truncated".to_owned();
            *last = Cause { reason: "FieldValueTooMany".to_owned(), message, field: String::new() };
        }
        let details = Details {
            name: "list".to_owned(),
            group: resource.group.to_owned(),
            kind: resource.resource.to_owned(),
            causes,
            ..Details::default()
        };
        let message = format!("failed to read one or more {resource} from the storage");
        Box::new(Status {
            code: 500,
            reason: "StorageReadError",
            message,
            details: Some(details),
            foreign_reason: None,
        })
    }

    /// 500: policies or webhook configurations that cannot be read might refuse or change the request. Names each of them, up to a
    /// bound.
    pub fn unreadable_guard<'a>(
        resource: GroupResource<'_>,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Box<Status> {
        let first = names.clone().next().unwrap_or_default();
        let suffix = match names.clone().count() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let mut status = Status::internal(format!(
            "{resource} {}{suffix} cannot be read and might refuse this request",
            quoted(first)
        ));
        let causes = names.take(MAX_UNREADABLE_CAUSES).map(|name| Cause {
            reason: "UnexpectedServerResponse".to_owned(),
            message: format!("{resource} {} cannot be read", quoted(name)),
            field: storage_key(resource, name),
        });
        status.details = Some(Details { causes: causes.collect(), ..Details::default() });
        status
    }

    /// 500: ends a watch when a corrupt object was deleted.
    pub fn unreadable_deleted(object: &Object) -> Box<Status> {
        let detail = unreadable_detail(object);
        Status::bare(
            500,
            "StorageReadError",
            format!("saw a DELETED event, but object data is corrupt - {detail}"),
        )
    }
}

/// The storage prefix of a built-in resource, as messages spell it.
pub fn storage_folder(resource: GroupResource<'_>) -> &str {
    match (resource.group, resource.resource) {
        ("", "services") => "services/specs",
        ("", "endpoints") => "services/endpoints",
        ("", "nodes") => "minions",
        ("", "replicationcontrollers") => "controllers",
        ("networking.k8s.io", "ingresses") => "ingress",
        ("apiregistration.k8s.io", "apiservices") => "apiregistration.k8s.io/apiservices",
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            "apiextensions.k8s.io/customresourcedefinitions"
        }
        (_, resource) => resource,
    }
}

fn storage_key(resource: GroupResource<'_>, key: &str) -> String {
    format!("/registry/{}/{key}", storage_folder(resource))
}

/// What is wrong with an object. One that has a reason of another kind, or none, was read and could not be decoded.
fn unreadable_detail(object: &Object) -> String {
    let (revision, reason) =
        (object.revision, object.unreadable_reason().unwrap_or(&UnreadableReason::Damaged));
    let problem = match reason {
        UnreadableReason::Damaged => "object not decodable",
        UnreadableReason::Undecryptable(_) => "data from the storage is not transformable",
    };
    format!("{problem} revision={revision}: {reason}")
}

fn unreadable_message(resource: GroupResource<'_>, object: &Object) -> String {
    let (key, detail) = (storage_key(resource, object.key.as_str()), unreadable_detail(object));
    format!(
        "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {detail}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_keys_have_the_historical_prefixes() {
        for (group, resource, expected) in [
            ("", "services", "/registry/services/specs/n/a"),
            ("", "endpoints", "/registry/services/endpoints/n/a"),
            ("", "nodes", "/registry/minions/n/a"),
            ("", "replicationcontrollers", "/registry/controllers/n/a"),
            ("networking.k8s.io", "ingresses", "/registry/ingress/n/a"),
            ("apps", "deployments", "/registry/deployments/n/a"),
        ] {
            assert_eq!(storage_key(GroupResource { group, resource }, "n/a"), expected);
        }
    }
}
