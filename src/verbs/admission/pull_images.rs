//! Images are pulled for every pod, so that nobody runs a private image because it happens to lie on the node.

use std::collections::BTreeSet;

use crate::api::value::Value;

use super::{Operation, Outcome, Plugin, Write, done};

/// Makes every container of a pod with new images pull its image.
pub struct AlwaysPullImages;

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

impl Plugin for AlwaysPullImages {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        // A pod that was there before the plug-in may keep its policies, which cannot be changed anyway.
        if write.old.is_none_or(|old| !images(pod).is_subset(&images(old))) {
            pull(pod);
        }
        done(Ok(()))
    }
}

fn images(pod: &Value) -> BTreeSet<&str> {
    let lists = LISTS.iter().filter_map(|list| pod.at(&["spec", list]));
    lists.flat_map(Value::items).map(|container| container.str("image")).collect()
}

fn pull(pod: &mut Value) {
    for list in LISTS {
        if let Some(Value::Array(containers)) = pod.get_mut("spec").and_then(|spec| spec.get_mut(list)) {
            containers.iter_mut().for_each(|container| container.set("imagePullPolicy", "Always"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_container_pulls() {
        let mut container = Value::object();
        container.set("image", "i");
        let mut pod = Value::object();
        pod.entry("spec").set("containers", vec![container.clone()]);
        pod.entry("spec").set("initContainers", vec![container]);
        assert_eq!(images(&pod), BTreeSet::from(["i"]));
        pull(&mut pod);
        for list in ["containers", "initContainers"] {
            let containers = pod.at(&["spec", list]).map(Value::items).unwrap_or_default();
            assert!(
                containers.iter().all(|container| container.str("imagePullPolicy") == "Always"),
                "{list}"
            );
        }
    }
}
