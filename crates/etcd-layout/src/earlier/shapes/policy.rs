//! Disruption budgets and certificate signing requests.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::signers;

use super::{each_item, fill};

/// The key of requirements that stand for selectors which one of the two versions cannot express.
const SELECTOR_MARK: &str = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";

/// A PodDisruptionBudget of v1beta1: an empty selector selects nothing there, and everything in v1.
pub(super) fn disruption_budget(mut budget: Value) -> Value {
    let Some(selector) = budget.get_mut("spec").and_then(|spec| spec.get_mut("selector")) else {
        return budget;
    };
    let is_empty = |selector: &Value, field: &str| {
        selector.get(field).is_none_or(|value| {
            value.items().is_empty() && value.fields().is_none_or(|fields| fields.is_empty())
        })
    };
    let has_labels = !is_empty(selector, "matchLabels");
    if !has_labels && is_empty(selector, "matchExpressions") {
        let mut nothing = Value::object();
        nothing.set("key", SELECTOR_MARK);
        nothing.set("operator", "Exists");
        selector.set("matchExpressions", vec![nothing]);
        return budget;
    }
    // The mark of a selector for everything is dropped, and so is one that somebody has set.
    let expressions = selector.get("matchExpressions").map(Value::items).unwrap_or_default();
    let kept: Vec<Value> =
        expressions.iter().filter(|expression| expression.str("key") != SELECTOR_MARK).cloned().collect();
    match kept.is_empty() {
        true => drop(selector.remove("matchExpressions")),
        false => selector.set("matchExpressions", kept),
    }
    budget
}

/// A CertificateSigningRequest of v1beta1, which may be from before there were signers.
pub(super) fn signing_request(mut request: Value) -> Value {
    if let Some(spec) = request.get_mut("spec") {
        fill(spec, "signerName", signers::LEGACY);
    }
    each_item(&mut request, &["status", "conditions"], |condition| fill(condition, "status", "True"));
    request
}
