//! Volumes and their claims, which name each other: the volume has the UID of the claim, and the claim is marked as bound.
//!
//! The volume controller believes both. A claim that is marked as bound is lost if its volume does not name its UID, and a volume
//! that loses the UID of its claim is no longer bound. So new objects are created without either, and get them in the end, the volume
//! first; objects that are replaced keep what they have.

use std::collections::{HashMap, HashSet};

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::report::Outcome;
use crate::commands::object_stream::resource::{Resource, annotation};

/// Annotations of a claim by which the volume controller takes it for bound.
const BOUND_ANNOTATIONS: [&str; 2] =
    ["pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"];

/// One side of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Volume,
    Claim,
}

impl Side {
    /// The side of objects of a resource, if it is one.
    pub(super) fn for_resource(resource: &Resource) -> Option<Side> {
        match (resource.group.as_str(), resource.kind.as_str()) {
            ("", "PersistentVolume") => Some(Side::Volume),
            ("", "PersistentVolumeClaim") => Some(Side::Claim),
            _ => None,
        }
    }

    /// Takes from an object what binds it to one of the old cluster. Returns whether there was something.
    pub(super) fn unbind(self, object: &mut Value) -> bool {
        match self {
            Side::Volume => {
                let claim = object.get_mut("spec").and_then(|spec| spec.get_mut("claimRef"));
                let Some(claim) = claim else { return false };
                claim.remove("resourceVersion");
                claim.remove("uid").is_some()
            }
            Side::Claim => {
                let Some(annotations) = object.entry("metadata").get_mut("annotations") else { return false };
                let removed = BOUND_ANNOTATIONS.map(|name| annotations.remove(name).is_some());
                removed.contains(&true)
            }
        }
    }

    /// Gives the object that replaces `current` its binding, if both name the same other side.
    pub(super) fn keep(self, object: &mut Value, current: &Value) {
        match self {
            Side::Volume => {
                let (Some(claim), Some(current)) = (claim_of(object), claim_of(current)) else { return };
                if ["namespace", "name"].iter().all(|field| claim.str(field) == current.str(field)) {
                    let current = current.clone();
                    object.entry("spec").set("claimRef", current);
                }
            }
            Side::Claim if volume_name(object) == volume_name(current) => {
                for (name, value) in bound_annotations(current) {
                    object.entry("metadata").entry("annotations").set(name, value);
                }
            }
            Side::Claim => {}
        }
    }
}

fn claim_of(volume: &Value) -> Option<&Value> {
    volume.get_path(&["spec", "claimRef"])
}

fn claim_uid(volume: &Value) -> &str {
    claim_of(volume).map(|claim| claim.str("uid")).unwrap_or_default()
}

fn volume_name(claim: &Value) -> &str {
    claim.get("spec").map(|spec| spec.str("volumeName")).unwrap_or_default()
}

fn bound_annotations(claim: &Value) -> impl Iterator<Item = (&'static str, &str)> {
    BOUND_ANNOTATIONS
        .iter()
        .map(|name| (*name, annotation(claim, name)))
        .filter(|(_, value)| !value.is_empty())
}

/// The bindings so far, with the UIDs of the new cluster.
#[derive(Default)]
pub(super) struct Bindings {
    /// The UID of the claim that each imported volume names.
    claim_of_volume: HashMap<String, String>,
    /// Claims that were created.
    new_claims: HashSet<String>,
    /// Claims that were replaced and are still marked as bound.
    bound_claims: HashSet<String>,
}

impl Bindings {
    /// Notes an object that was created or replaced.
    pub(super) fn note_stored(&mut self, side: Side, object: &Value, outcome: Outcome) {
        let uid = || meta::metadata(object).str("uid").to_owned();
        match side {
            Side::Volume => self.note_volume(meta::name(object), claim_uid(object)),
            Side::Claim if outcome == Outcome::Created => _ = self.new_claims.insert(uid()),
            Side::Claim if bound_annotations(object).next().is_some() => _ = self.bound_claims.insert(uid()),
            Side::Claim => {}
        }
    }

    /// Notes that a volume has got this patch.
    pub(super) fn note_patched(&mut self, volume: &str, patch: &Value) {
        self.note_volume(volume, claim_uid(patch));
    }

    fn note_volume(&mut self, volume: &str, claim: &str) {
        if !claim.is_empty() {
            self.claim_of_volume.insert(volume.to_owned(), claim.to_owned());
        }
    }

    /// The patch that binds an object, from the object as it was in the stream; `None` if there is nothing to add. `new_uid` is
    /// the UID in the new cluster of an object that has been imported. Fails with the reason why a claim is not marked as bound.
    pub(super) fn late_patch(
        &self,
        side: Side,
        object: &Value,
        new_uid: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Value>, String> {
        match side {
            Side::Volume => Ok(self.volume_patch(object, new_uid)),
            Side::Claim => self.claim_patch(object, new_uid(meta::metadata(object).str("uid")).as_ref()),
        }
    }

    fn volume_patch(&self, volume: &Value, new_uid: &dyn Fn(&str) -> Option<String>) -> Option<Value> {
        let uid = new_uid(claim_uid(volume))?;
        // One that was replaced has kept its claim. Only a claim that was not there before takes the place of that.
        if self.claim_of_volume.contains_key(meta::name(volume)) && !self.new_claims.contains(&uid) {
            return None;
        }
        let mut patch = Value::object();
        patch.entry("spec").entry("claimRef").set("uid", uid);
        Some(patch)
    }

    fn claim_patch(&self, claim: &Value, uid: Option<&String>) -> Result<Option<Value>, String> {
        let mut patch = Value::object();
        for (name, value) in bound_annotations(claim) {
            patch.entry("metadata").entry("annotations").set(name, value);
        }
        let is_bound = uid.is_some_and(|uid| self.bound_claims.contains(uid));
        if is_bound || patch == Value::object() {
            return Ok(None);
        }
        let volume = volume_name(claim);
        match uid.is_some() && self.claim_of_volume.get(volume) == uid {
            true => Ok(Some(patch)),
            false => Err(format!(
                "its volume {volume} was not imported, or not bound to it: it is not marked as bound"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    const VOLUME: &str = "{metadata: {name: v}, spec: {claimRef: {namespace: n, name: c, uid: old}}}";
    const CLAIM: &str = "{metadata: {uid: old, annotations: {pv.kubernetes.io/bind-completed: 'yes', a: b}}, spec: {volumeName: v}}";

    fn read(text: &str) -> Value {
        yaml::read(text.as_bytes()).unwrap()
    }

    fn new_uid(uid: &str) -> Option<String> {
        (uid == "old").then(|| "new".to_owned())
    }

    fn patch(bindings: &Bindings, side: Side, text: &str) -> Result<Option<Value>, String> {
        bindings.late_patch(side, &read(text), &new_uid)
    }

    #[test]
    fn new_objects_are_bound_in_the_end() {
        let (mut volume, mut claim) = (read(VOLUME), read(CLAIM));
        assert!(Side::Volume.unbind(&mut volume) && Side::Claim.unbind(&mut claim));
        assert_eq!(volume, read("{metadata: {name: v}, spec: {claimRef: {namespace: n, name: c}}}"));
        assert_eq!(claim, read("{metadata: {uid: old, annotations: {a: b}}, spec: {volumeName: v}}"));
        let mut bindings = Bindings::default();
        bindings.note_stored(Side::Volume, &volume, Outcome::Created);
        let patched = patch(&bindings, Side::Volume, VOLUME).unwrap().unwrap();
        assert_eq!(patched, read("{spec: {claimRef: {uid: new}}}"));
        bindings.note_patched("v", &patched);
        let expected = read("{metadata: {annotations: {pv.kubernetes.io/bind-completed: 'yes'}}}");
        assert_eq!(patch(&bindings, Side::Claim, CLAIM), Ok(Some(expected)));
        assert_eq!(patch(&bindings, Side::Volume, "{metadata: {name: w}, spec: {}}"), Ok(None));
    }

    #[test]
    fn claim_is_not_marked_as_bound_without_its_volume() {
        let reason =
            "its volume v was not imported, or not bound to it: it is not marked as bound".to_owned();
        let mut bindings = Bindings::default();
        assert_eq!(patch(&bindings, Side::Claim, CLAIM), Err(reason.clone()));
        bindings.note_patched("v", &read("{spec: {claimRef: {uid: other}}}"));
        assert_eq!(patch(&bindings, Side::Claim, CLAIM), Err(reason));
        assert_eq!(patch(&bindings, Side::Claim, "{metadata: {uid: old}, spec: {volumeName: v}}"), Ok(None));
    }

    #[test]
    fn replaced_objects_keep_their_binding() {
        let (mut volume, mut claim) = (read(VOLUME), read(CLAIM));
        assert!(Side::Volume.unbind(&mut volume) && Side::Claim.unbind(&mut claim));
        for (current, uid) in [("{namespace: n, name: c, uid: live}", "live"), ("{name: d, uid: live}", "")] {
            let mut volume = volume.clone();
            Side::Volume.keep(&mut volume, &read(&format!("{{spec: {{claimRef: {current}}}}}")));
            assert_eq!(claim_uid(&volume), uid, "{current}");
        }
        for (name, value) in [("v", "yes"), ("w", "")] {
            let current = format!(
                "{{metadata: {{annotations: {{pv.kubernetes.io/bind-completed: 'yes'}}}}, spec: {{volumeName: {name}}}}}"
            );
            let mut claim = claim.clone();
            Side::Claim.keep(&mut claim, &read(&current));
            assert_eq!(annotation(&claim, BOUND_ANNOTATIONS[0]), value, "{name}");
        }
        let mut bindings = Bindings::default();
        let kept = "{metadata: {name: v}, spec: {claimRef: {uid: live}}}";
        bindings.note_stored(Side::Volume, &read(kept), Outcome::Replaced);
        bindings.note_stored(Side::Claim, &read(&CLAIM.replace("old", "new")), Outcome::Replaced);
        assert_eq!(patch(&bindings, Side::Volume, VOLUME), Ok(None));
        assert_eq!(patch(&bindings, Side::Claim, CLAIM), Ok(None));
        // The claim was gone: the volume that is left of it is bound to the new one.
        bindings.note_stored(Side::Claim, &read("{metadata: {uid: new}}"), Outcome::Created);
        assert_eq!(patch(&bindings, Side::Volume, VOLUME), Ok(Some(read("{spec: {claimRef: {uid: new}}}"))));
    }
}
