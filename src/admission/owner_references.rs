//! OwnerReferencesPermissionEnforcement: who may set owners, and who may block the deletion of an owner.

use std::collections::HashMap;
use std::sync::Arc;

use actix::Addr;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::authorization::{Decision, Target};
use pilothouse_types::identity::Identity;

use crate::registry::authorization;

use super::{Kinds, Operation, Outcome, Plugin, Write, done};

/// Changing owner references requires the right to delete the object. Setting blockOwnerDeletion requires the right to update the
/// owner's finalizers.
pub struct OwnerReferences {
    /// Finds the resource of an owner's kind.
    pub kinds: Kinds,
}

impl Plugin for OwnerReferences {
    fn handles(&self, write: &Write<'_>) -> bool {
        // A status update of a pod never changes its owners, and some kubelets send it without them.
        write.operation != Operation::Delete && !write.is_of_subresource("", "pods", "status")
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        let (new, old) = (owners(object), write.old.map(owners).unwrap_or_default());
        if new == old {
            return done(Ok(()));
        }
        Box::pin(async move {
            let call = write.call;
            let target = Target::Resource {
                group: call.resource().gv.group.to_string(),
                version: call.resource().gv.version.to_string(),
                resource: call.resource().plural.to_string(),
                subresource: call.subresource().to_owned(),
                namespace: call.namespace().to_owned(),
                name: call.name().to_owned(),
            };
            // A user who creates an object may set its owners.
            let target = Some(target).filter(|_| write.operation != Operation::Create);
            let writer = Writer { user: call.user(), authorizer: &write.backend.access.authorizer };
            match self.refusal(writer, target, call.namespace(), newly_blocked(new, old)).await? {
                None => Ok(()),
                Some(reason) => Err(write.forbidden(object, &reason)),
            }
        })
    }
}

fn owners(object: &Value) -> &[Value] {
    meta::metadata(object).get("ownerReferences").map(Value::items).unwrap_or_default()
}

/// Owners whose deletion the object newly blocks.
fn newly_blocked<'a>(new: &'a [Value], old: &[Value]) -> Vec<&'a Value> {
    let blocks = |owner: &Value| owner.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true);
    let was_blocked: HashMap<&str, bool> =
        old.iter().map(|owner| (owner.str("uid"), blocks(owner))).collect();
    new.iter().filter(|owner| blocks(owner) && was_blocked.get(owner.str("uid")) != Some(&true)).collect()
}

/// The user who changes owner references, and the authorizer.
#[derive(Clone, Copy)]
struct Writer<'a> {
    user: &'a Identity,
    authorizer: &'a Addr<Authorizer>,
}

impl Writer<'_> {
    /// The reason for which the authorizer denies an action; `None` if it allows it.
    async fn denied(self, verb: &str, target: Target) -> Result<Option<String>> {
        match authorization::authorize(self.authorizer, self.user, verb, target).await? {
            Decision::Allowed => Ok(None),
            Decision::Denied(reason) | Decision::NoOpinion(reason) => Ok(Some(reason)),
        }
    }
}

impl OwnerReferences {
    /// The reason for which a user must not change these owners. `changed` is the object if it exists already; `newly_blocked`
    /// are the owners whose deletion it newly blocks.
    async fn refusal(
        &self,
        writer: Writer<'_>,
        changed: Option<Target>,
        namespace: &str,
        newly_blocked: Vec<&Value>,
    ) -> Result<Option<String>> {
        if let Some(target) = changed
            && let Some(reason) = writer.denied("delete", target).await?
        {
            let reason = format!("cannot set an ownerRef on a resource you can't delete: {reason}, <nil>");
            return Ok(Some(reason));
        }
        let any = || "*".to_owned();
        let anything = finalizers(any(), any(), any(), String::new(), any());
        if newly_blocked.is_empty() || writer.denied("update", anything).await?.is_none() {
            return Ok(None);
        }
        for owner in newly_blocked {
            let resources = match self.resources_of(owner) {
                Ok(resources) => resources,
                Err(reason) => {
                    let (version, kind) = (owner.str("apiVersion"), owner.str("kind"));
                    return Ok(Some(format!(
                        "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion \
                         {version} Kind {kind}: {reason}"
                    )));
                }
            };
            for resource in resources {
                let target = finalizers(
                    resource.gv.group.to_string(),
                    resource.gv.version.to_string(),
                    resource.plural.to_string(),
                    if resource.namespaced { namespace.to_owned() } else { String::new() },
                    owner.str("name").to_owned(),
                );
                if let Some(reason) = writer.denied("update", target).await? {
                    return Ok(Some(format!(
                        "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set \
                         finalizers on: {reason}, <nil>"
                    )));
                }
            }
        }
        Ok(None)
    }

    /// The resources of the kind of an owner reference.
    fn resources_of(&self, owner: &Value) -> std::result::Result<Vec<Arc<Resource>>, String> {
        let (api_version, kind) = (owner.str("apiVersion"), owner.str("kind"));
        let (group, version) = match api_version.split_once('/') {
            None => ("", api_version),
            Some((_, version)) if version.contains('/') => {
                return Err(format!("unexpected GroupVersion string: {api_version}"));
            }
            Some(parts) => parts,
        };
        let resources = (self.kinds)(group, version, kind);
        if resources.is_empty() {
            return Err(format!("no matches for kind {kind:?} in version {api_version:?}"));
        }
        Ok(resources)
    }
}

fn finalizers(group: String, version: String, resource: String, namespace: String, name: String) -> Target {
    Target::Resource { group, version, resource, subresource: "finalizers".to_owned(), namespace, name }
}

#[cfg(test)]
mod tests {
    use actix::Actor as _;
    use pilothouse_actors::answer::Answer;
    use pilothouse_actors::authorizer::Policy;
    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_types::authorization::Action;

    use super::*;

    /// Allows the listed rights, as `verb group/resource/part namespace/name`.
    struct Grants(&'static [&'static str]);

    impl Policy for Grants {
        fn decide(&self, _: &Identity, action: &Action) -> Answer<Decision> {
            let Target::Resource { group, resource, subresource, namespace, name, .. } = &action.target
            else {
                return Answer::Now(Decision::NoOpinion(String::new()));
            };
            let right = format!("{} {group}/{resource}/{subresource} {namespace}/{name}", action.verb);
            Answer::Now(if self.0.contains(&right.as_str()) {
                Decision::Allowed
            } else {
                Decision::NoOpinion("no grant".to_owned())
            })
        }
    }

    async fn refusal(grants: &'static [&'static str], is_update: bool, owner: &str) -> Option<String> {
        let policies: Vec<Arc<dyn Policy>> = vec![Arc::new(Grants(grants))];
        let builtin = Builtin::load().unwrap();
        let plugin = OwnerReferences {
            kinds: Arc::new(move |group, version, kind| {
                let matches_kind = |resource: &&Arc<Resource>| {
                    &*resource.gv.group == group
                        && &*resource.gv.version == version
                        && &*resource.kind == kind
                };
                builtin.resources().iter().filter(matches_kind).cloned().collect()
            }),
        };
        let (version, kind) = owner.split_once(' ').unwrap();
        let mut owner = Value::object();
        for (field, text) in [("apiVersion", version), ("kind", kind), ("name", "o"), ("uid", "u")] {
            owner.set(field, text);
        }
        let target = Target::Resource {
            group: String::new(),
            version: "v1".to_owned(),
            resource: "configmaps".to_owned(),
            subresource: String::new(),
            namespace: "n".to_owned(),
            name: "m".to_owned(),
        };
        let (user, authorizer) = (Identity::default(), Authorizer::new(Arc::new(policies)).start());
        let writer = Writer { user: &user, authorizer: &authorizer };
        plugin.refusal(writer, Some(target).filter(|_| is_update), "n", vec![&owner]).await.unwrap()
    }

    #[test]
    fn owner_reference_changes_need_delete_and_finalizers_rights() {
        const DELETE: &str = "delete /configmaps/ n/m";
        const ANYTHING: &str = "update */*/finalizers /*";
        const ROLE: &str = "update apps/replicasets/finalizers n/o";
        const NODE: &str = "update /nodes/finalizers /o";
        let (set, node) = ("apps/v1 ReplicaSet", "v1 Node");
        let no_delete_right = "cannot set an ownerRef on a resource you can't delete: no grant, <nil>";
        let no_finalizers_right = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers \
             on: no grant, <nil>";
        let unknown = "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion x/v1 Kind \
             Y: no matches for kind \"Y\" in version \"x/v1\"";
        let table: [(&'static [&'static str], bool, &str, Option<&str>); 8] = [
            (&[], true, set, Some(no_delete_right)),
            (&[DELETE], true, set, Some(no_finalizers_right)),
            (&[DELETE, ROLE], true, set, None),
            (&[ROLE], false, set, None),
            (&[ROLE], false, node, Some(no_finalizers_right)),
            (&[NODE], false, node, None),
            (&[NODE], false, "x/v1 Y", Some(unknown)),
            (&[ANYTHING], false, "x/v1 Y", None),
        ];
        actix::System::new().block_on(async {
            for (row, (grants, is_update, owner, expected)) in table.into_iter().enumerate() {
                assert_eq!(refusal(grants, is_update, owner).await.as_deref(), expected, "row {row}");
            }
        });
    }

    fn owner(uid: &str, blocks: Option<bool>) -> Value {
        let mut owner = Value::object();
        owner.set("uid", uid);
        if let Some(blocks) = blocks {
            owner.set("blockOwnerDeletion", blocks);
        }
        owner
    }

    #[test]
    fn only_newly_blocked_owners_are_checked() {
        let old = [owner("a", Some(true)), owner("b", Some(false)), owner("c", None), owner("d", None)];
        let new = [
            owner("a", Some(true)),
            owner("b", Some(true)),
            owner("c", Some(true)),
            owner("d", Some(false)),
            owner("e", Some(true)),
            owner("f", None),
        ];
        let uids: Vec<&str> = newly_blocked(&new, &old).iter().map(|owner| owner.str("uid")).collect();
        assert_eq!(uids, ["b", "c", "e"]);
    }
}
