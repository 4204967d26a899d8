//! ComponentStatus: an old way to ask how the parts of a control plane are. Nothing stores it; asking is looking.

use actix::Addr;
use bytes::Bytes;
use pilothouse_actors::committer::{Check, Committer};
use pilothouse_actors::object::{Draft, Key, Object, Pairs, Revision};

use crate::api::catalog::resource::Resource;
use crate::api::codec;
use crate::api::options::ListOptions;
use crate::api::query::Query;
use crate::api::select;
use crate::api::status::{GroupResource, Status};
use crate::api::value::Value;

use super::{Answered, Reply};

/// The parts that clients expect to find. The storage is ours, whatever its name says.
const PARTS: [&str; 3] = ["controller-manager", "etcd-0", "scheduler"];
/// The part that is the storage.
const STORAGE: &str = "etcd-0";
/// The name that an error gives the resource: not its plural, as in the reference.
const OF: GroupResource<'_> = GroupResource { group: "", resource: "componentstatus" };

/// Whether a resource is this one.
pub fn is(resource: &Resource) -> bool {
    resource.gv.group.is_empty() && &*resource.plural == "componentstatuses"
}

/// Answers one part, or all that match if no name is given.
pub async fn answer(storage: &Addr<Committer>, of: &Resource, name: &str, query: &Query<'_>) -> Answered {
    if name.is_empty() {
        return list(storage, of, query).await;
    }
    if !PARTS.contains(&name) {
        return Err(Status::not_found(OF, name));
    }
    let mut part = look(storage, name).await;
    part.set("kind", &*of.kind);
    part.set("apiVersion", &*of.api_version);
    Ok(Reply::Object(200, Bytes::from(codec::to_json(&part))))
}

async fn list(storage: &Addr<Committer>, of: &Resource, query: &Query<'_>) -> Answered {
    let options = ListOptions::parse(query)?;
    options.validate(false)?;
    let filter = select::filter(of, &options, "", "")?;
    let mut items = Vec::new();
    for name in PARTS {
        let draft = Draft {
            key: Key::cluster(name),
            bytes: Bytes::new(),
            revision_at: 0,
            item_at: 0,
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        if filter.matches(&Object::new(draft, Revision::FIRST)) {
            items.push(look(storage, name).await);
        }
    }
    let mut list = Value::object();
    list.set("kind", &*of.list_kind);
    list.set("apiVersion", &*of.api_version);
    list.set("metadata", Value::object());
    list.set("items", items);
    Ok(Reply::Object(200, Bytes::from(codec::to_json(&list))))
}

/// How a part is. Only the storage is here to be asked.
async fn look(storage: &Addr<Committer>, name: &str) -> Value {
    let health = match name {
        STORAGE => match storage.send(Check).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(("False", error.to_string())),
            Err(error) => Err(("False", error.to_string())),
        },
        _ => Err(("Unknown", "not a part of this server".to_owned())),
    };
    shown(name, &health)
}

fn shown(name: &str, health: &Result<(), (&str, String)>) -> Value {
    let mut condition = Value::object();
    condition.set("type", "Healthy");
    match health {
        Ok(()) => {
            condition.set("status", "True");
            condition.set("message", "ok");
        }
        Err((status, error)) => {
            condition.set("status", *status);
            condition.set("error", error.as_str());
        }
    }
    let mut part = Value::object();
    part.entry("metadata").set("name", name);
    part.set("conditions", vec![condition]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sick_part_says_why() {
        let sick = shown("a", &Err(("False", "broken".to_owned())));
        let condition = &sick.get("conditions").unwrap().items()[0];
        assert_eq!((condition.str("status"), condition.str("error")), ("False", "broken"));
        assert_eq!(condition.get("message"), None);
    }
}
