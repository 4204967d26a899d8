//! DefaultTolerationSeconds: how long pods stay on a node that is not ready or unreachable.

use pilothouse_apimachinery::value::Value;

use super::tolerations::{NO_EXECUTE, NOT_READY, UNREACHABLE};
use super::{Operation, Outcome, Plugin, Write, done};

/// Adds default tolerations with a time limit, so that a short outage of a node does not evict its pods.
pub struct DefaultTolerationSeconds {
    /// Seconds on a node that is not ready.
    pub not_ready: i64,
    /// Seconds on a node that is unreachable.
    pub unreachable: i64,
}

impl Plugin for DefaultTolerationSeconds {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, _: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        tolerate(pod, [(NOT_READY, self.not_ready), (UNREACHABLE, self.unreachable)]);
        done(Ok(()))
    }
}

fn tolerate(pod: &mut Value, defaults: [(&str, i64); 2]) {
    let spec = pod.entry("spec");
    let mut tolerations = spec.get("tolerations").map(Value::items).unwrap_or_default().to_vec();
    let before = tolerations.len();
    for (key, seconds) in defaults {
        let is_tolerated = tolerations.iter().take(before).any(|toleration| {
            ["", key].contains(&toleration.str("key")) && ["", NO_EXECUTE].contains(&toleration.str("effect"))
        });
        if !is_tolerated {
            let mut toleration = Value::object();
            toleration.set("key", key);
            toleration.set("operator", "Exists");
            toleration.set("effect", NO_EXECUTE);
            toleration.set("tolerationSeconds", seconds);
            tolerations.push(toleration);
        }
    }
    if tolerations.len() > before {
        spec.set("tolerations", tolerations);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: [(&str, i64); 2] = [(NOT_READY, 300), (UNREACHABLE, 60)];

    fn keys(pod: &Value) -> Vec<&str> {
        let tolerations = pod.get_path(&["spec", "tolerations"]).map(Value::items).unwrap_or_default();
        tolerations.iter().map(|toleration| toleration.str("key")).collect()
    }

    #[test]
    fn default_tolerations_are_added_once() {
        let mut pod = Value::object();
        tolerate(&mut pod, DEFAULTS);
        assert_eq!(keys(&pod), [NOT_READY, UNREACHABLE]);
        let seconds = |pod: &Value, index: usize| {
            pod.get_path(&["spec", "tolerations"])?.items().get(index)?.get("tolerationSeconds")?.as_int()
        };
        assert_eq!((seconds(&pod, 0), seconds(&pod, 1)), (Some(300), Some(60)));
        let before = pod.clone();
        tolerate(&mut pod, DEFAULTS);
        assert_eq!(pod, before);
    }

    #[test]
    fn default_tolerations_respect_existing_keys_and_effects() {
        let tolerations_after = |effect: &str, key: &str| {
            let mut toleration = Value::object();
            toleration.set("operator", "Exists");
            for (field, text) in [("effect", effect), ("key", key)] {
                if !text.is_empty() {
                    toleration.set(field, text);
                }
            }
            let mut pod = Value::object();
            pod.entry("spec").set("tolerations", vec![toleration]);
            tolerate(&mut pod, DEFAULTS);
            keys(&pod).len()
        };
        assert_eq!((tolerations_after("", ""), tolerations_after(NO_EXECUTE, "")), (1, 1));
        assert_eq!(
            (
                tolerations_after("NoSchedule", ""),
                tolerations_after("", NOT_READY),
                tolerations_after("NoSchedule", NOT_READY)
            ),
            (3, 2, 3)
        );
    }
}
