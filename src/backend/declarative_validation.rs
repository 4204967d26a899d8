//! Declarative validation: the rules of the schema table run beside the handwritten ones. Feature gates decide what happens if
//! they disagree.

use std::sync::Arc;

use pilothouse_api::custom_resource::CustomResource;
use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::schema::validate::{self, Unchanged};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::validation_engines::{Authority, judge};

use crate::metrics::Metrics;

use super::objects::Objects;
use super::{Call, csr_signature};

/// The validation settings.
#[derive(Clone)]
pub struct DeclarativeValidation {
    /// Which of the two decides.
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
        checked: Result<WarningList, ErrorList>,
    ) -> Result<WarningList, ErrorList> {
        if let Some(custom) = &call.resource.custom {
            let evaluated = call.work.metered(|| by_schema(custom, call.subresource, new, old, checked));
            // The call begins again on another thread, whatever is answered here.
            let Ok((warned, errors)) = evaluated else { return Err(ErrorList::new()) };
            if errors.is_empty() {
                return Ok(warned);
            }
            // Warnings are sent even if there are errors.
            call.warn(warned);
            return Err(errors);
        }
        let is_request = (&*call.resource.gv.group, &*call.resource.kind) == CERTIFICATE_REQUEST;
        let checked = if is_request && old.is_none() { proven(new, checked) } else { checked };
        let authority = self.validation.authority;
        let version = &call.stored.version;
        let ty = self.registry.kind(&version.group, &version.version, &call.resource.kind);
        let ruled = ty.filter(|ty| validate::has_rules(&self.registry, *ty));
        let (Some(ty), true) = (ruled, call.subresource.is_empty() && authority != Authority::Alone) else {
            return checked;
        };
        let by_rule = validate::validate(&self.registry, ty, new, old, Unchanged::Checked);
        let (by_function, warned) = match checked {
            Ok(warned) => (ErrorList::new(), warned),
            Err(errors) => (errors, WarningList::new()),
        };
        let judged = judge(by_function, by_rule, authority);
        for mismatch in &judged.mismatches {
            tracing::error!(
                kind = &*call.resource.kind,
                mismatch,
                "declarative validation differs from the hand-written rules"
            );
        }
        self.validation.metrics.count_mismatches(judged.mismatches.len() as u64);
        if judged.errors.is_empty() { Ok(warned) } else { Err(judged.errors) }
    }
}

/// The kind whose signature is verified here.
const CERTIFICATE_REQUEST: (&str, &str) = ("certificates.k8s.io", "CertificateSigningRequest");

/// Verifies the signature of a CertificateSigningRequest as well.
fn proven(request: &Value, checked: Result<WarningList, ErrorList>) -> Result<WarningList, ErrorList> {
    let (warned, errors) = match checked {
        Ok(warned) => (warned, ErrorList::new()),
        Err(errors) => (WarningList::new(), errors),
    };
    let errors = csr_signature::check(request, errors);
    if errors.is_empty() { Ok(warned) } else { Err(errors) }
}

/// Validates a custom resource against its schema as well.
fn by_schema(
    custom: &CustomResource,
    subresource: &str,
    new: &Value,
    old: Option<&Value>,
    checked: Result<WarningList, ErrorList>,
) -> (WarningList, ErrorList) {
    let (mut warned, mut errors) = match checked {
        Ok(warned) => (warned, ErrorList::new()),
        Err(errors) => (WarningList::new(), errors),
    };
    match old {
        None => custom.check_new(new, &mut errors, &mut warned),
        Some(old) if subresource == "status" => custom.check_status(new, old, &mut errors, &mut warned),
        Some(old) => custom.check_change(new, old, &mut errors, &mut warned),
    }
    (warned, errors)
}
