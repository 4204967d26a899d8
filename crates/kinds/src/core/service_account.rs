//! ServiceAccounts.

use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::field_value::items_mut;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::ENFORCE_MOUNTABLE_SECRETS;

use crate::{DeletionRules, KindRules, PreparationRules, WarningRules, WriteContext};

/// The rules of a ServiceAccount.
pub const RULES: KindRules = KindRules {
    preparation: PreparationRules { prepare_create, prepare_update },
    warnings: WarningRules { warn, ..WarningRules::DEFAULT },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// Only the names of `secrets` are kept.
fn prepare_create(account: &mut Value, _: &WriteContext<'_>) {
    for secret in items_mut(account, "secrets") {
        secret.fields_mut().retain(|field, _| field == "name");
    }
}

/// The same in an update.
fn prepare_update(new: &mut Value, _old: &Value, context: &WriteContext<'_>) {
    prepare_create(new, context);
}

/// Warns about a deprecated annotation, unless the old object had it.
fn warn(account: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    let has_annotation = |account: &Value| {
        meta::metadata(account).get_path(&["annotations", ENFORCE_MOUNTABLE_SECRETS]).is_some()
    };
    if has_annotation(account) && !old.is_some_and(has_annotation) {
        warnings.push(format!(
            "metadata.annotations[{ENFORCE_MOUNTABLE_SECRETS}]: deprecated in v1.32+; prefer separate namespaces to isolate access to \
             mounted secrets"
        ));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::super::testing::context;
    use super::*;

    #[test]
    fn service_account_keeps_only_secret_names() {
        let mut account = object(r#"{"secrets":[{"name":"s","namespace":"x","uid":"u"}]}"#);
        prepare_create(&mut account, &context(""));
        assert_eq!(account, object(r#"{"secrets":[{"name":"s"}]}"#));
        let annotated =
            object(r#"{"metadata":{"annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}}}"#);
        let mut warnings = WarningList::new();
        warn(&annotated, Some(&annotated), &mut warnings);
        assert_eq!(warnings, WarningList::new());
        warn(&annotated, Some(&account), &mut warnings);
        assert!(warnings[0].contains("deprecated in v1.32+; prefer separate namespaces"));
    }
}
