//! PodNodeSelector: the node selector of a namespace, from its annotation or from the operator's configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use super::lookup;
use super::plugin_document::Document;
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
    let document = Document::untyped(document);
    document.has_only("", &["podNodeSelectorPluginConfig"])?;
    let pairs = document.pairs(&["podNodeSelectorPluginConfig"])?;
    let selector = |(namespace, text): (String, String)| {
        let labels = labels(&text).map_err(|why| format!("{namespace}: {why}"))?;
        Ok((namespace, labels))
    };
    pairs.into_iter().map(selector).collect()
}

/// Reads `a=b,c=d`.
fn labels(text: &str) -> std::result::Result<Labels, String> {
    let label = |pair: &str| {
        let wrong = || format!("invalid selector: [{}]", pair.split('=').collect::<Vec<_>>().join(" "));
        let (key, value) =
            pair.split_once('=').filter(|(_, value)| !value.contains('=')).ok_or_else(wrong)?;
        let (key, value) = (key.trim(), value.trim());
        let complaints = names::qualified_name(key).into_iter().chain(names::label_value(value));
        match complaints.into_iter().next() {
            Some(why) => Err(format!("{pair:?}: {why}")),
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
            let of_namespace = self.of_namespace(write).await?;
            merge(pod, &of_namespace).map_err(|why| write.forbidden(pod, why))?;
            self.check(write, pod, &of_namespace)
        })
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        Box::pin(async {
            let of_namespace = self.of_namespace(write).await?;
            self.check(write, pod, &of_namespace)
        })
    }
}

impl PodNodeSelector {
    async fn of_namespace(&self, write: &Write<'_>) -> Result<Labels> {
        let namespace = lookup::namespace(write).await?;
        match meta::of(&namespace).at(&["annotations", ANNOTATION]).and_then(Value::as_str) {
            // 400: the mistake is in the namespace's annotation, which its owner can fix.
            Some(text) => labels(text).map_err(Status::bad_request),
            None => Ok(self.0.get(DEFAULT).cloned().unwrap_or_default()),
        }
    }

    fn check(&self, write: &Write<'_>, pod: &Value, of_namespace: &Labels) -> Result<()> {
        let allowed = self.0.get(write.call.namespace);
        let checked = agrees(pod, of_namespace).and_then(|()| is_within(pod, allowed));
        checked.map_err(|why| write.forbidden(pod, why))
    }
}

fn selector(pod: &Value) -> impl Iterator<Item = (&str, &str)> {
    let said = pod.at(&["spec", "nodeSelector"]).and_then(Value::fields).into_iter().flatten();
    said.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

fn agrees(pod: &Value, wanted: &Labels) -> std::result::Result<(), &'static str> {
    let differs = |(key, value): (&str, &str)| wanted.get(key).is_some_and(|wanted| wanted != value);
    if selector(pod).any(differs) {
        return Err("pod node label selector conflicts with its namespace node label selector");
    }
    Ok(())
}

fn merge(pod: &mut Value, wanted: &Labels) -> std::result::Result<(), &'static str> {
    agrees(pod, wanted)?;
    for (key, value) in wanted {
        pod.entry("spec").entry("nodeSelector").set(key, value.as_str());
    }
    Ok(())
}

/// Checks a pod's selector against the labels that the configuration allows for its namespace.
fn is_within(pod: &Value, allowed: Option<&Labels>) -> std::result::Result<(), &'static str> {
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

    fn of(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn selectors_are_read() {
        assert_eq!(labels("a=b, c = d").unwrap(), of(&[("a", "b"), ("c", "d")]));
        assert_eq!(labels("").unwrap(), Labels::new());
        assert_eq!(labels("a").unwrap_err(), "invalid selector: [a]");
        assert_eq!(labels("a=b=c").unwrap_err(), "invalid selector: [a b c]");
        assert!(labels("a=-").is_err());
        let config =
            yaml::read(b"podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b, n: c=d}").unwrap();
        assert_eq!(read(Some(&config)).unwrap().len(), 2);
        assert!(read(Some(&yaml::read(b"podNodeSelector: {}").unwrap())).is_err());
    }

    #[test]
    fn pods_get_the_selector_of_their_namespace() {
        let mut pod = yaml::read(b"spec: {nodeSelector: {own: x, a: b}}").unwrap();
        merge(&mut pod, &of(&[("a", "b"), ("c", "d")])).unwrap();
        assert_eq!(selector(&pod).collect::<Vec<_>>(), [("a", "b"), ("c", "d"), ("own", "x")]);
        assert!(
            agrees(&pod, &of(&[("a", "other")])).unwrap_err().contains("conflicts with its namespace node")
        );
        assert_eq!(is_within(&pod, None), Ok(()));
        assert_eq!(is_within(&pod, Some(&of(&[("a", "b"), ("c", "d"), ("own", "x"), ("z", "")]))), Ok(()));
        assert!(is_within(&pod, Some(&of(&[("a", "b")]))).unwrap_err().contains("whitelist"));
    }
}
