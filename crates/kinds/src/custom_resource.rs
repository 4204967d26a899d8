//! Custom resources: the rules that they have in addition to their schemas.

use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::{
    Generation, KindRules, MetaRevalidation, MetadataRules, PreparationRules, StatusMeta, StatusRules,
    UpdateRules, WarningRules, WriteContext,
};

/// The rules of custom resources, in addition to their schemas.
pub static RULES: KindRules = KindRules {
    metadata: MetadataRules {
        requires_standard_finalizers: false,
        generation: Generation::FIRST,
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules::CONDITIONAL,
    preparation: PreparationRules { prepare_update, ..PreparationRules::DEFAULT },
    warnings: WarningRules { warn: warn_about_finalizers, ..WarningRules::DEFAULT },
    status: StatusRules { metadata: StatusMeta::ResetForStatus, ..StatusRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// Increases the generation if anything but the metadata has changed.
fn prepare_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    if !same_but_metadata(new, old) {
        new.entry("metadata").set("generation", meta::generation(old) + 1);
    }
}

/// Whether two objects are equal except for their metadata.
fn same_but_metadata(first: &Value, second: &Value) -> bool {
    fn rest(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
        object.fields().into_iter().flatten().filter(|(name, _)| *name != "metadata")
    }
    rest(first).eq(rest(second))
}

/// Warnings about new finalizers.
fn warn_about_finalizers(new: &Value, old: Option<&Value>, warnings: &mut WarningList) {
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
