//! Statuses for corrupt objects, in the words of the reference's storage, which names them by their keys.

use crate::field::quoted;

use super::{Cause, Details, GroupResource, Status};

/// The most corrupt objects that one Status names.
const UNREADABLE_NAMED: usize = 100;

impl Status {
    /// 500: the object exists, but its stored data cannot be decoded.
    pub fn unreadable(of: GroupResource<'_>, key: &str, revision: u64) -> Box<Status> {
        Status::internal(unreadable_text(of, key, revision))
    }

    /// 500: a list includes corrupt objects. Names each of them, up to a bound.
    pub fn unreadable_list<'a>(
        of: GroupResource<'_>,
        objects: impl Iterator<Item = (&'a str, u64)>,
    ) -> Box<Status> {
        let mut causes: Vec<Cause> = objects
            .take(UNREADABLE_NAMED + 1)
            .map(|(key, revision)| Cause {
                reason: "UnexpectedServerResponse".to_owned(),
                message: unreadable_text(of, key, revision),
                field: storage_key(of, key),
            })
            .collect();
        if let Some(last) = causes.get_mut(UNREADABLE_NAMED) {
            let message = "too many errors, the list is truncated".to_owned();
            *last = Cause { reason: "FieldValueTooMany".to_owned(), message, field: String::new() };
        }
        let details = Details {
            name: "list".to_owned(),
            group: of.group.to_owned(),
            kind: of.resource.to_owned(),
            causes,
            ..Details::default()
        };
        let message = format!("failed to read one or more {of} from the storage");
        Box::new(Status {
            code: 500,
            reason: "StorageReadError",
            message,
            details: Some(details),
            said: None,
        })
    }

    /// 500: a request that objects might refuse or change which cannot be read. Names each of them, up to a bound.
    pub fn unreadable_guard<'a>(
        of: GroupResource<'_>,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Box<Status> {
        let first = names.clone().next().unwrap_or_default();
        let more = match names.clone().count() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let mut status = Status::internal(format!(
            "{of} {}{more} cannot be read and might refuse this request",
            quoted(first)
        ));
        let causes = names.take(UNREADABLE_NAMED).map(|name| Cause {
            reason: "UnexpectedServerResponse".to_owned(),
            message: format!("{of} {} cannot be read", quoted(name)),
            field: storage_key(of, name),
        });
        status.details = Some(Details { causes: causes.collect(), ..Details::default() });
        status
    }

    /// 500: ends a watch when a corrupt object was deleted.
    pub fn unreadable_gone(revision: u64) -> Box<Status> {
        let why = undecodable(revision);
        Status::bare(
            500,
            "StorageReadError",
            format!("saw a DELETED event, but object data is corrupt - {why}"),
        )
    }
}

/// The storage prefix of a built-in resource, as messages spell it.
pub fn storage_folder(of: GroupResource<'_>) -> &str {
    match (of.group, of.resource) {
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

fn storage_key(of: GroupResource<'_>, key: &str) -> String {
    format!("/registry/{}/{key}", storage_folder(of))
}

fn undecodable(revision: u64) -> String {
    format!("object not decodable revision={revision}: the record has a wrong checksum")
}

fn unreadable_text(of: GroupResource<'_>, key: &str, revision: u64) -> String {
    let (key, why) = (storage_key(of, key), undecodable(revision));
    format!(
        "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_kinds_lie_elsewhere_for_historical_reasons() {
        for (group, resource, wanted) in [
            ("", "services", "/registry/services/specs/n/a"),
            ("", "endpoints", "/registry/services/endpoints/n/a"),
            ("", "nodes", "/registry/minions/n/a"),
            ("", "replicationcontrollers", "/registry/controllers/n/a"),
            ("networking.k8s.io", "ingresses", "/registry/ingress/n/a"),
            ("apps", "deployments", "/registry/deployments/n/a"),
        ] {
            assert_eq!(storage_key(GroupResource { group, resource }, "n/a"), wanted);
        }
    }
}
