//! TaintNodesByCondition: a new node is tainted until the node controller finds it ready.

use pilothouse_apimachinery::value::Value;

use super::tolerations::NOT_READY;
use super::{Operation, Outcome, Plugin, Write, done};

/// Taints new nodes as not ready until the node controller finds them ready. Without the taint, a pod could be scheduled in
/// between.
pub struct TaintNodesByCondition;

impl Plugin for TaintNodesByCondition {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.is_of("", "nodes")
    }

    fn mutate<'a>(&'a self, _: &'a Write<'a>, node: &'a mut Value) -> Outcome<'a> {
        taint(node);
        done(Ok(()))
    }
}

fn taint(node: &mut Value) {
    let spec = node.entry("spec");
    let mut taints = spec.get("taints").map(Value::items).unwrap_or_default().to_vec();
    if taints.iter().any(|taint| taint.str("key") == NOT_READY && taint.str("effect") == "NoSchedule") {
        return;
    }
    let mut taint = Value::object();
    taint.set("key", NOT_READY);
    taint.set("effect", "NoSchedule");
    taints.push(taint);
    spec.set("taints", taints);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taint_is_added_once() {
        let mut node = Value::object();
        taint(&mut node);
        let tainted = node.clone();
        assert_eq!(tainted.get_path(&["spec", "taints"]).map(|taints| taints.items().len()), Some(1));
        taint(&mut node);
        assert_eq!(node, tainted);
    }
}
