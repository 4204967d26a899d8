//! PodNodeSelector: the node selector of a namespace, from its annotation or from the operator's configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::document::FieldReader;
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use super::lookup;
use super::{Operation, Outcome, Plugin, Write};

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
/// The configuration's key for namespaces without a selector.
const DEFAULT: &str = "clusterDefaultNodeSelector";

/// Node labels and their values.
type Labels = BTreeMap<String, String>;
/// The configured selectors by namespace.
pub type Selectors = BTreeMap<String, Labels>;

/// Reads the configuration.
pub fn read(document: Option<&Value>) -> std::result::Result<Selectors, String> {
    let Some(document) = document else { return Ok(Selectors::new()) };
    let (mut reader, root) = (FieldReader::default(), FieldPath::root());
    reader.check_fields(document, &root, &["podNodeSelectorPluginConfig"]);
    let pairs = reader.pairs(document, "podNodeSelectorPluginConfig", &root);
    reader.result()?;
    let selector = |(namespace, text): (String, String)| {
        let labels = parse_labels(&text).map_err(|reason| format!("{namespace}: {reason}"))?;
        Ok((namespace, labels))
    };
    pairs.into_iter().map(selector).collect()
}

/// Reads `a=b,c=d`.
fn parse_labels(text: &str) -> std::result::Result<Labels, String> {
    let label = |pair: &str| {
        let invalid = || format!("invalid selector: [{}]", pair.split('=').collect::<Vec<_>>().join(" "));
        let (key, value) =
            pair.split_once('=').filter(|(_, value)| !value.contains('=')).ok_or_else(invalid)?;
        let (key, value) = (key.trim(), value.trim());
        let errors = names::qualified_name(key).into_iter().chain(names::label_value(value));
        match errors.into_iter().next() {
            Some(reason) => Err(format!("{pair:?}: {reason}")),
            None => Ok((key.to_owned(), value.to_owned())),
        }
    };
    if text.is_empty() { Ok(Labels::new()) } else { text.split(',').map(label).collect() }
}

/// Merges the namespace's node selector into pods.
pub struct PodNodeSelector(pub Arc<Selectors>);

impl Plugin for PodNodeSelector {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        Box::pin(async {
            let namespace_selector = self.namespace_selector(write).await?;
            merge(pod, &namespace_selector).map_err(|reason| write.forbidden(pod, reason))?;
            self.check(write, pod, &namespace_selector)
        })
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        Box::pin(async {
            let namespace_selector = self.namespace_selector(write).await?;
            self.check(write, pod, &namespace_selector)
        })
    }
}

impl PodNodeSelector {
    async fn namespace_selector(&self, write: &Write<'_>) -> Result<Labels> {
        let namespace = lookup::namespace(write).await?;
        match meta::metadata(&namespace).get_path(&["annotations", ANNOTATION]).and_then(Value::as_str) {
            // 400: the mistake is in the namespace's annotation, which its owner can fix.
            Some(text) => parse_labels(text).map_err(Status::bad_request),
            None => Ok(self.0.get(DEFAULT).cloned().unwrap_or_default()),
        }
    }

    fn check(&self, write: &Write<'_>, pod: &Value, namespace_selector: &Labels) -> Result<()> {
        let allowed = self.0.get(write.call.namespace());
        let checked = check_conflicts(pod, namespace_selector).and_then(|()| check_allowed(pod, allowed));
        checked.map_err(|reason| write.forbidden(pod, reason))
    }
}

fn selector(pod: &Value) -> impl Iterator<Item = (&str, &str)> {
    let labels = pod.get_path(&["spec", "nodeSelector"]).and_then(Value::fields).into_iter().flatten();
    labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

fn check_conflicts(pod: &Value, required: &Labels) -> std::result::Result<(), &'static str> {
    let conflicts = |(key, value): (&str, &str)| required.get(key).is_some_and(|required| required != value);
    if selector(pod).any(conflicts) {
        return Err("pod node label selector conflicts with its namespace node label selector");
    }
    Ok(())
}

fn merge(pod: &mut Value, required: &Labels) -> std::result::Result<(), &'static str> {
    check_conflicts(pod, required)?;
    for (key, value) in required {
        pod.entry("spec").entry("nodeSelector").set(key, value.as_str());
    }
    Ok(())
}

/// Checks a pod's selector against the labels that the configuration allows for its namespace.
fn check_allowed(pod: &Value, allowed: Option<&Labels>) -> std::result::Result<(), &'static str> {
    let Some(allowed) = allowed.filter(|allowed| !allowed.is_empty()) else { return Ok(()) };
    if selector(pod).any(|(key, value)| allowed.get(key).is_none_or(|allowed| allowed != value)) {
        return Err("pod node label selector labels conflict with its namespace whitelist");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn node_selector_config_is_parsed() {
        assert_eq!(parse_labels("a=b, c = d").unwrap(), labels(&[("a", "b"), ("c", "d")]));
        assert_eq!(parse_labels("").unwrap(), Labels::new());
        assert_eq!(parse_labels("a").unwrap_err(), "invalid selector: [a]");
        assert_eq!(parse_labels("a=b=c").unwrap_err(), "invalid selector: [a b c]");
        assert!(parse_labels("a=-").is_err());
        let config =
            yaml::read(b"podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b, n: c=d}").unwrap();
        assert_eq!(read(Some(&config)).unwrap().len(), 2);
        assert!(read(Some(&yaml::read(b"podNodeSelector: {}").unwrap())).is_err());
    }

    #[test]
    fn pod_node_selector_merges_and_checks_selectors() {
        let mut pod = yaml::read(b"spec: {nodeSelector: {own: x, a: b}}").unwrap();
        merge(&mut pod, &labels(&[("a", "b"), ("c", "d")])).unwrap();
        assert_eq!(selector(&pod).collect::<Vec<_>>(), [("a", "b"), ("c", "d"), ("own", "x")]);
        assert!(
            check_conflicts(&pod, &labels(&[("a", "other")]))
                .unwrap_err()
                .contains("conflicts with its namespace node")
        );
        assert_eq!(check_allowed(&pod, None), Ok(()));
        assert_eq!(
            check_allowed(&pod, Some(&labels(&[("a", "b"), ("c", "d"), ("own", "x"), ("z", "")]))),
            Ok(())
        );
        assert!(check_allowed(&pod, Some(&labels(&[("a", "b")]))).unwrap_err().contains("whitelist"));
    }
}
