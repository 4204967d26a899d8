//! ServiceAccounts.

use crate::api::kinds::Occasion;
use crate::api::kinds::check::items_mut;
use crate::api::value::Value;

/// Of the secrets of an account only the names count.
pub fn prepare_create(account: &mut Value, _: &Occasion<'_>) {
    for secret in items_mut(account, "secrets") {
        secret.fields_mut().retain(|field, _| field == "name");
    }
}

/// The same when it changes.
pub fn prepare_update(new: &mut Value, _old: &Value, occasion: &Occasion<'_>) {
    prepare_create(new, occasion);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOBODY, object};
    use super::*;

    #[test]
    fn only_names_of_secrets_are_kept() {
        let mut account = object(r#"{"secrets":[{"name":"s","namespace":"x","uid":"u"}]}"#);
        prepare_create(&mut account, &Occasion { now: "", user: &NOBODY });
        assert_eq!(account, object(r#"{"secrets":[{"name":"s"}]}"#));
    }
}
