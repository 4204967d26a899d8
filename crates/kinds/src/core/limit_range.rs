//! LimitRanges.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, fill, items_mut, present_mut, render_quantity};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::resources;
use crate::{
    DefaultingRules, KindRules, MetaRevalidation, MetadataRules, PreparationRules, Revalidation, UpdateRules,
    ValidationRules, WriteContext,
};

/// The rules of a LimitRange.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::Whole, ..MetadataRules::DEFAULT },
    update: UpdateRules::CREATE_ON_UPDATE,
    defaulting: DefaultingRules { default: default_range, ..DefaultingRules::DEFAULT },
    preparation: PreparationRules { prepare_create: prepare_range, ..PreparationRules::DEFAULT },
    validation: ValidationRules {
        validate: validate_range,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// Missing defaults of a LimitRange are derived from its maxima and minima.
fn default_range(range: &mut Value) {
    let Some(spec) = present_mut(range, "spec") else { return };
    for item in items_mut(spec, "limits").iter_mut().filter(|item| item.str("type") == "Container") {
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let amounts = item.get(from).cloned().unwrap_or_default();
            for (name, amount) in amounts.fields().into_iter().flatten() {
                fill(item.entry(to), name, amount.clone());
            }
        }
    }
}

/// A LimitRange without a name gets a random one, which equals its UID.
fn prepare_range(range: &mut Value, _: &WriteContext<'_>) {
    if meta::name(range).is_empty() {
        let uid = meta::metadata(range).str("uid").to_owned();
        range.entry("metadata").set("name", uid);
    }
}

/// Validates a LimitRange.
fn validate_range(range: &Value, errors: &mut ErrorList) {
    let mut types = BTreeSet::new();
    for item in FieldValue::top_level(range, "spec").child("limits").items() {
        let kind = item.child("type");
        let details = names::qualified_name(kind.text());
        if details.is_empty()
            && !kind.text().contains('/')
            && !matches!(kind.text(), "Pod" | "Container" | "PersistentVolumeClaim")
        {
            kind.invalid_text(errors, "must be a standard limit type or fully qualified");
        }
        meta::add_invalid(errors, &kind.path, kind.text(), details);
        if !types.insert(kind.text()) {
            kind.duplicate(errors);
        }
        validate_item(&item, errors);
    }
}

fn validate_item(item: &FieldValue<'_>, errors: &mut ErrorList) {
    let kind = item.str("type");
    let mut names = BTreeSet::new();
    let mut validate_names = |part: &str, errors: &mut ErrorList| {
        for (name, entry) in item.child(part).entries() {
            if matches!(kind, "Pod" | "Container") {
                resources::validate_container_resource(name, &entry, errors);
            } else {
                resources::validate_name(name, &entry, errors);
            }
            names.insert(name);
        }
    };
    validate_names("max", errors);
    validate_names("min", errors);
    for part in ["default", "defaultRequest"] {
        if kind != "Pod" {
            validate_names(part, errors);
        } else if !item.child(part).is_empty() {
            item.child(part).forbidden(errors, "may not be specified when `type` is 'Pod'");
        }
    }
    let has_storage = ["min", "max"].iter().any(|part| item.child(part).has("storage"));
    if kind == "PersistentVolumeClaim" && !has_storage {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        item.child("limits").required(errors, detail);
    }
    validate_names("maxLimitRequestRatio", errors);
    for name in names {
        validate_amounts(item, name, kind == "Pod", errors);
    }
}

/// Pairs of quantities that must be ordered: the smaller and the larger with their names in messages, and the field and value
/// that the error names.
const ORDERED: [(&str, &str, &str, &str, &str, &str); 6] = [
    ("min", "min", "max", "max", "min", "min"),
    ("min", "min", "defaultRequest", "default request", "defaultRequest", "defaultRequest"),
    ("defaultRequest", "default request", "max", "max", "defaultRequest", "defaultRequest"),
    ("defaultRequest", "default request", "default", "default limit", "defaultRequest", "defaultRequest"),
    ("min", "min", "default", "default", "default", "min"),
    ("default", "default", "max", "max", "default", "max"),
];

fn validate_amounts(item: &FieldValue<'_>, name: &str, is_pod: bool, errors: &mut ErrorList) {
    let part = |part: &str| {
        let ignored = is_pod && matches!(part, "default" | "defaultRequest");
        item.opt(part).filter(|_| !ignored).and_then(|part| part.opt(name))
    };
    let path = |part: &str| item.path.child(part).key(name);
    for (low, low_word, high, high_word, reported, rendered) in ORDERED {
        if let (Some(low), Some(high)) = (part(low), part(high))
            && low.amount() > high.amount()
        {
            let detail =
                format!("{low_word} value {} is greater than {high_word} value {}", low.text(), high.text());
            let rendered = part(rendered).map(|node| render_quantity(node.value)).unwrap_or_default();
            errors.push(FieldError::invalid(&path(reported), &rendered, &detail));
        }
    }
    if let Some(ratio) = part("maxLimitRequestRatio") {
        validate_ratio(&ratio, part("min"), part("max"), &path("maxLimitRequestRatio"), errors);
    }
    if let (Some(limit), Some(request)) = (part("default"), part("defaultRequest"))
        && !resources::may_overcommit(name)
        && limit.amount() != request.amount()
    {
        let detail = format!(
            "default value {} must equal to defaultRequest value {} in {name}",
            limit.text(),
            request.text()
        );
        errors.push(FieldError::invalid(&path("defaultRequest"), &render_quantity(request.value), &detail));
    }
}

fn validate_ratio(
    ratio: &FieldValue<'_>,
    min: Option<FieldValue<'_>>,
    max: Option<FieldValue<'_>>,
    path: &pilothouse_apimachinery::field::FieldPath,
    errors: &mut ErrorList,
) {
    let Some(amount) = ratio.amount() else { return };
    let rendered = render_quantity(ratio.value);
    if amount.thousandths() < 1_000 {
        errors.push(FieldError::invalid(path, &rendered, &format!("ratio {} is less than 1", ratio.text())));
    }
    let (Some(min), Some(max)) = (min.and_then(|min| min.amount()), max.and_then(|max| max.amount())) else {
        return;
    };
    let max_ratio = max.thousandths() as f64 / min.thousandths() as f64;
    if amount.thousandths() as f64 / 1_000.0 > max_ratio {
        let detail = format!("ratio {} is greater than max/min = {max_ratio:.6}", ratio.text());
        errors.push(FieldError::invalid(path, &rendered, &detail));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::super::super::testing::context;
    use super::*;

    #[test]
    fn limit_range_without_name_is_named_by_uid() {
        for (metadata, expected) in [(r#"{"uid":"u"}"#, "u"), (r#"{"uid":"u","name":"n"}"#, "n")] {
            let mut range = object(&format!(r#"{{"metadata":{metadata}}}"#));
            prepare_range(&mut range, &context(""));
            assert_eq!(meta::name(&range), expected);
        }
    }

    #[test]
    fn limit_range_defaults_are_derived_from_bounds() {
        let mut range =
            object(r#"{"spec":{"limits":[{"type":"Container","max":{"cpu":"2"},"min":{"memory":"1Mi"}}]}}"#);
        default_range(&mut range);
        let expected = object(
            r#"{"spec":{"limits":[{"type":"Container","max":{"cpu":"2"},"min":{"memory":"1Mi"},
                "default":{"cpu":"2"},"defaultRequest":{"cpu":"2","memory":"1Mi"}}]}}"#,
        );
        assert_eq!(range, expected);
    }

    #[test]
    fn limit_range_validation_refuses_each_violation() {
        let base = object(
            r#"{"spec":{"limits":[{"type":"Container","max":{"cpu":"4"},"min":{"cpu":"1"},"default":{"cpu":"3"},
                    "defaultRequest":{"cpu":"2"},"maxLimitRequestRatio":{"cpu":"2"}},
                {"type":"Pod","max":{"cpu":"1"}},{"type":"PersistentVolumeClaim","max":{"storage":"1Gi"}}]}}"#,
        );
        each_refused(
            &base,
            validate_range,
            &[
                (
                    "spec.limits.0.type",
                    r#""X""#,
                    "spec.limits[0].type: Invalid value: \"X\": must be a standard limit type or fully qualified",
                ),
                (
                    "spec.limits.1.type",
                    r#""Container""#,
                    "spec.limits[1].type: Duplicate value: \"Container\"",
                ),
                (
                    "spec.limits.0.max.storage",
                    r#""1""#,
                    "spec.limits[0].max[storage]: Invalid value: storage: must be a standard resource for containers",
                ),
                (
                    "spec.limits.1.default",
                    r#"{"cpu":"1"}"#,
                    "spec.limits[1].default: Forbidden: may not be specified when `type` is 'Pod'",
                ),
                (
                    "spec.limits.2.max",
                    r#"{"cpu":"1"}"#,
                    "spec.limits[2].limits: Required value: either minimum or maximum storage",
                ),
                (
                    "spec.limits.1.min",
                    r#"{"cpu":"2"}"#,
                    "spec.limits[1].min[cpu]: Invalid value: resource.Quantity{s:\"2\"}: min value 2 is greater than max value 1",
                ),
                (
                    "spec.limits.0.defaultRequest.cpu",
                    r#""500m""#,
                    "spec.limits[0].defaultRequest[cpu]: Invalid value: resource.Quantity{s:\"500m\"}: min value 1 is greater than default request value 500m",
                ),
                (
                    "spec.limits.0.default.cpu",
                    r#""5""#,
                    "spec.limits[0].default[cpu]: Invalid value: resource.Quantity{s:\"4\"}: default value 5 is greater than max value 4",
                ),
                (
                    "spec.limits.0.defaultRequest.cpu",
                    r#""3500m""#,
                    "default request value 3500m is greater than default limit value 3",
                ),
                ("spec.limits.0.maxLimitRequestRatio.cpu", r#""500m""#, "ratio 500m is less than 1"),
                (
                    "spec.limits.0.maxLimitRequestRatio.cpu",
                    r#""5""#,
                    "ratio 5 is greater than max/min = 4.000000",
                ),
                (
                    "spec.limits.0",
                    r#"{"type":"Container","default":{"a.b/c":"2"},"defaultRequest":{"a.b/c":"1"}}"#,
                    "default value 2 must equal to defaultRequest value 1 in a.b/c",
                ),
            ],
        );
    }
}
