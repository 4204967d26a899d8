//! Warnings about finalizers.

use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// Warnings about new finalizers.
pub(super) fn warn_about_finalizers(new: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let finalizers = |object: &Value| -> Vec<String> {
        let items = meta::metadata(object).get("finalizers").map(Value::items).unwrap_or_default();
        items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let old_finalizers = old.map(finalizers).unwrap_or_default();
    let mut added: Vec<String> =
        finalizers(new).into_iter().filter(|name| !old_finalizers.contains(name)).collect();
    added.sort();
    added.dedup();
    for name in added {
        let finalizer = quoted(&name);
        for detail in names::qualified_name(&name) {
            warnings.push(format!("metadata.finalizers: {finalizer}: {detail}"));
        }
        if !name.contains('/') && !STANDARD.contains(&name.as_str()) {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            warnings.push(format!(
                "metadata.finalizers: {finalizer}: prefer a domain-qualified finalizer name{path} to avoid accidental \
                 conflicts with other finalizer writers"
            ));
        }
    }
}
