//! Declarative validation: the rules of the schema table run beside the handwritten ones. Feature gates decide what happens if
//! they disagree.

use std::sync::Arc;

use pilothouse_api::custom_resource::CustomResource;
use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::schema::validate::{self, Unchanged};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::validation_engines::{Authority, combine};

use crate::metrics::Metrics;

use super::objects::Objects;
use super::{Call, csr_signature};

/// The validation settings.
#[derive(Clone)]
pub struct DeclarativeValidation {
    /// Which of the two validations decides.
    pub authority: Authority,
    /// Counts disagreements.
    pub metrics: Arc<Metrics>,
}

impl Objects {
    /// Runs declarative validation after the handwritten one. Only for whole objects: the reference has no rules for
    /// subresources.
    pub fn check_rules(
        &self,
        call: &Call<'_>,
        new: &Value,
        old: Option<&Value>,
        handwritten_result: Result<WarningList, ErrorList>,
    ) -> Result<WarningList, ErrorList> {
        if let Some(custom) = &call.resource().custom {
            let evaluated = call
                .work()
                .metered(|| self.check_schema(custom, call.subresource(), new, old, handwritten_result));
            // The work limit was exceeded: the call is repeated on another thread, and this result is dropped.
            let Ok((warnings, errors)) = evaluated else { return Err(ErrorList::new()) };
            if errors.is_empty() {
                return Ok(warnings);
            }
            // Warnings are sent even if there are errors.
            call.warn(warnings);
            return Err(errors);
        }
        let is_certificate_request =
            (&*call.resource().gv.group, &*call.resource().kind) == CERTIFICATE_REQUEST;
        let handwritten_result = if is_certificate_request && old.is_none() {
            with_signature(new, handwritten_result)
        } else {
            handwritten_result
        };
        let authority = self.validation.authority;
        let version = &call.stored().version;
        let ty = self.registry.kind(&version.group, &version.version, &call.resource().kind);
        let with_rules = ty.filter(|ty| validate::has_rules(&self.registry, *ty));
        let (Some(ty), true) =
            (with_rules, call.subresource().is_empty() && authority != Authority::Handwritten)
        else {
            return handwritten_result;
        };
        let declarative = validate::validate(&self.registry, ty, new, old, Unchanged::Checked);
        let (handwritten, warnings) = match handwritten_result {
            Ok(warnings) => (ErrorList::new(), warnings),
            Err(errors) => (errors, WarningList::new()),
        };
        let result = combine(handwritten, declarative, authority);
        for mismatch in &result.mismatches {
            tracing::error!(
                kind = &*call.resource().kind,
                mismatch,
                "declarative validation differs from the hand-written rules"
            );
        }
        self.validation.metrics.count_mismatches(result.mismatches.len() as u64);
        if result.errors.is_empty() { Ok(warnings) } else { Err(result.errors) }
    }

    /// Validates a custom resource against its schema as well.
    fn check_schema(
        &self,
        custom: &CustomResource,
        subresource: &str,
        new: &Value,
        old: Option<&Value>,
        result: Result<WarningList, ErrorList>,
    ) -> (WarningList, ErrorList) {
        let (mut warnings, mut errors) = match result {
            Ok(warnings) => (warnings, ErrorList::new()),
            Err(errors) => (WarningList::new(), errors),
        };
        match old {
            None => custom.check_new(new, &mut errors),
            Some(old) if subresource == "status" => custom.check_status(new, old, &mut errors),
            Some(old) => custom.check_change(new, old, &mut errors),
        }
        if custom.rules.is_some() {
            let began = self.clock.moment();
            custom.check_rules(new, old, &mut errors, &mut warnings);
            self.validation.metrics.cel.count_evaluation(self.clock.elapsed(began));
        }
        (warnings, errors)
    }
}

/// The kind whose signature is verified here.
const CERTIFICATE_REQUEST: (&str, &str) = ("certificates.k8s.io", "CertificateSigningRequest");

/// Verifies the signature of a CertificateSigningRequest as well.
fn with_signature(request: &Value, result: Result<WarningList, ErrorList>) -> Result<WarningList, ErrorList> {
    let (warnings, errors) = match result {
        Ok(warnings) => (warnings, ErrorList::new()),
        Err(errors) => (WarningList::new(), errors),
    };
    let errors = csr_signature::check(request, errors);
    if errors.is_empty() { Ok(warnings) } else { Err(errors) }
}
