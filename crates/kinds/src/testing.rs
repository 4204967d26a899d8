//! Helpers of the rules' tests.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::default;
use pilothouse_apimachinery::testing::{REGISTRY, object};
use pilothouse_apimachinery::value::Value;

use super::{UserInfo, WriteContext, rules};

/// A user without a name.
pub static NOBODY: UserInfo =
    UserInfo { name: String::new(), uid: String::new(), groups: Vec::new(), extra: Vec::new() };

/// Such a user writes at this time, to a server of which nothing was said.
pub const fn context(now: &str) -> WriteContext<'_> {
    WriteContext { now, user: &NOBODY, features: EnabledFeatures::RELEASE }
}

/// What a client wrote of a kind, by its group and version, filled in as it is before it is checked.
pub fn filled(gv: (&str, &str), kind: &str, json: &str) -> Value {
    let mut value = object(json);
    (rules(gv.0, kind).default)(&mut value);
    default::apply(&REGISTRY, REGISTRY.kind(gv.0, gv.1, kind).unwrap(), &mut value);
    value
}
