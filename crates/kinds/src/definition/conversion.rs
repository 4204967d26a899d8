//! The conversion settings of a definition.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;

use super::super::admission::validate_review_version_list;
use super::super::{pem, webhook};
use super::Tolerance;

/// Validates the conversion strategy.
pub(super) fn validate_conversion(
    conversion: &FieldValue<'_>,
    preserves_unknown: bool,
    tolerance: Tolerance<'_>,
    errors: &mut ErrorList,
) {
    const WEBHOOK_ONLY: &str = "should not be set when strategy is not set to Webhook";
    if !conversion.is_set() {
        return;
    }
    let strategy = conversion.child("strategy");
    if strategy.text() != "None" && preserves_unknown {
        strategy.invalid(errors, "must be None if spec.preserveUnknownFields is true");
    }
    strategy.need_one_of(errors, &["None", "Webhook"]);
    let hook = conversion.child("webhook");
    let config = FieldValue {
        value: hook.child("clientConfig").value,
        path: conversion.path.child("webhookClientConfig"),
    };
    let versions = FieldValue {
        value: hook.child("conversionReviewVersions").value,
        path: conversion.path.child("conversionReviewVersions"),
    };
    if strategy.text() != "Webhook" {
        if config.is_set() {
            config.forbidden(errors, WEBHOOK_ONLY);
        }
        if !versions.is_empty() {
            versions.forbidden(errors, WEBHOOK_ONLY);
        }
        return;
    }
    let (url, service) = (config.child("url"), config.child("service"));
    if !config.is_set() {
        config.required(errors, "required when strategy is set to Webhook");
    } else if url.is_set() == service.is_set() {
        config.required(errors, "exactly one of url or service is required");
    } else if url.is_set() {
        webhook::validate_url(&url, errors);
    } else {
        webhook::validate_service(&service, true, errors);
    }
    if !tolerance.allows_invalid_bundle {
        validate_bundle(&config.child("caBundle"), errors);
    }
    validate_review_versions(&versions, tolerance.needs_known_review, errors);
}

/// Whether the CA bundle of the webhook contains no certificate.
pub(super) fn has_invalid_ca_bundle(conversion: &FieldValue<'_>) -> bool {
    bundle_error(&conversion.child("webhook").child("clientConfig").child("caBundle")).is_some()
}

fn validate_bundle(bundle: &FieldValue<'_>, errors: &mut ErrorList) {
    if let Some((bytes, detail)) = bundle_error(bundle) {
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:#x}")).collect();
        let rendered = format!("[]byte{{{}}}", bytes.join(", "));
        errors.push(FieldError::invalid(&bundle.path, &rendered, &detail));
    }
}

fn bundle_error(bundle: &FieldValue<'_>) -> Option<(Vec<u8>, String)> {
    let bytes = STANDARD.decode(bundle.text()).unwrap_or_default();
    let detail = pem::bundle_error(&bytes)?;
    Some((bytes, format!("unable to load root certificates: {detail}")))
}

fn validate_review_versions(versions: &FieldValue<'_>, needs_known: bool, errors: &mut ErrorList) {
    if versions.need(errors) {
        validate_review_version_list(versions, needs_known, errors);
    }
}
