//! Helpers for tests of kind rules.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::default;
use pilothouse_apimachinery::testing::{REGISTRY, object};
use pilothouse_apimachinery::value::Value;

use super::{UserInfo, WriteContext, rules};

/// A user without a name.
pub static NOBODY: UserInfo =
    UserInfo { name: String::new(), uid: String::new(), groups: Vec::new(), extra: Vec::new() };

/// A write by [`NOBODY`] at this time, with the default features.
pub const fn context(now: &str) -> WriteContext<'_> {
    WriteContext { now, user: &NOBODY, features: EnabledFeatures::RELEASE }
}

/// An object with the defaults of its kind, as validation sees it.
pub fn filled(gv: (&str, &str), kind: &str, json: &str) -> Value {
    let mut value = object(json);
    (rules(gv.0, kind).defaulting.default)(&mut value);
    default::apply(&REGISTRY, REGISTRY.kind(gv.0, gv.1, kind).unwrap(), &mut value);
    value
}
