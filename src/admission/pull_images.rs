//! AlwaysPullImages: a pod must not use a private image only because the node has it already.

use std::collections::BTreeSet;

use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::value::Value;

use super::{Operation, Outcome, Plugin, Write, done};

/// Sets imagePullPolicy Always on every container of a pod with new images.
pub struct AlwaysPullImages;

const ALWAYS: &str = "Always";
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

impl Plugin for AlwaysPullImages {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        if has_new_images(write, pod) {
            set_policies(pod);
        }
        done(Ok(()))
    }

    /// Another plug-in may have changed the policy in between.
    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        let errors = if has_new_images(write, pod) { policy_errors(pod) } else { Vec::new() };
        let message = match errors.as_slice() {
            [] => return done(Ok(())),
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        };
        done(Err(write.forbidden(pod, &message)))
    }
}

/// A pod from before the plug-in was enabled keeps its policies, which are immutable anyway.
fn has_new_images(write: &Write<'_>, pod: &Value) -> bool {
    write.old.is_none_or(|old| !images(pod).is_subset(&images(old)))
}

fn images(pod: &Value) -> BTreeSet<&str> {
    let lists = LISTS.iter().filter_map(|list| pod.get_path(&["spec", list]));
    lists.flat_map(Value::items).map(|container| container.str("image")).collect()
}

fn set_policies(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec") else { return };
    for list in LISTS {
        if let Some(Value::Array(containers)) = spec.get_mut(list) {
            containers.iter_mut().for_each(|container| container.set("imagePullPolicy", ALWAYS));
        }
    }
    if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
        for image in volumes.iter_mut().filter_map(|volume| volume.get_mut("image")) {
            image.set("pullPolicy", ALWAYS);
        }
    }
}

/// An error for each image with another policy.
fn policy_errors(pod: &Value) -> Vec<String> {
    let spec = FieldPath::new("spec");
    let mut errors = Vec::new();
    let mut check = |path: &FieldPath, policy: &str| {
        if policy != ALWAYS {
            errors.push(FieldError::not_supported(path, &quoted(policy), &[ALWAYS]).to_string());
        }
    };
    for list in LISTS {
        let containers = pod.get_path(&["spec", list]).map(Value::items).unwrap_or_default();
        for (index, container) in containers.iter().enumerate() {
            check(&spec.child(list).index(index).child("imagePullPolicy"), container.str("imagePullPolicy"));
        }
    }
    let volumes = pod.get_path(&["spec", "volumes"]).map(Value::items).unwrap_or_default();
    for (index, volume) in volumes.iter().enumerate() {
        if let Some(image) = volume.get("image") {
            let path = spec.child("volumes").index(index).child("image").child("pullPolicy");
            check(&path, image.str("pullPolicy"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_pull_images_sets_policy_of_every_container() {
        let mut container = Value::object();
        container.set("image", "i");
        let mut pod = Value::object();
        pod.entry("spec").set("containers", vec![container.clone()]);
        pod.entry("spec").set("initContainers", vec![container]);
        let mut volume = Value::object();
        volume.entry("image").set("pullPolicy", "Never");
        pod.entry("spec").set("volumes", vec![volume]);
        assert_eq!(
            policy_errors(&pod),
            [
                "spec.initContainers[0].imagePullPolicy: Unsupported value: \"\": supported values: \"Always\"",
                "spec.containers[0].imagePullPolicy: Unsupported value: \"\": supported values: \"Always\"",
                "spec.volumes[0].image.pullPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ]
        );
        assert_eq!(images(&pod), BTreeSet::from(["i"]));
        set_policies(&mut pod);
        assert!(policy_errors(&pod).is_empty());
        for list in ["containers", "initContainers"] {
            let containers = pod.get_path(&["spec", list]).map(Value::items).unwrap_or_default();
            assert!(
                containers.iter().all(|container| container.str("imagePullPolicy") == "Always"),
                "{list}"
            );
        }
    }
}
