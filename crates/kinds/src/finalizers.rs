//! Warnings about finalizers.

use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// Warnings about new finalizers.
pub(super) fn warn_of_finalizers(new: &Value, old: Option<&Value>, warned: &mut WarningList) {
    const KNOWN: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let all = |object: &Value| -> Vec<String> {
        let items = meta::of(object).get("finalizers").map(Value::items).unwrap_or_default();
        items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let before = old.map(all).unwrap_or_default();
    let mut added: Vec<String> = all(new).into_iter().filter(|name| !before.contains(name)).collect();
    added.sort();
    added.dedup();
    for name in added {
        let finalizer = quoted(&name);
        for wrong in names::qualified_name(&name) {
            warned.push(format!("metadata.finalizers: {finalizer}: {wrong}"));
        }
        if !name.contains('/') && !KNOWN.contains(&name.as_str()) {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            warned.push(format!(
                "metadata.finalizers: {finalizer}: prefer a domain-qualified finalizer name{path} to avoid accidental \
                 conflicts with other finalizer writers"
            ));
        }
    }
}
