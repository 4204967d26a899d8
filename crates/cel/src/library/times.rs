//! Accessors of timestamps and durations.

use super::context::CallContext;
use crate::timestamps;
use crate::value::{Fault, Outcome, Val};

/// `time.getHours()` and its like.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    let component = match args {
        [Val::Timestamp(instant)] => instant.component(name, 0),
        [Val::Timestamp(instant), Val::String(zone)] => {
            instant.component(name, timestamps::offset(zone, *instant).map_err(Fault::Error)?)
        }
        [Val::Duration(nanos)] => match name {
            "getHours" => Some(nanos / 3_600_000_000_000),
            "getMinutes" => Some(nanos / 60_000_000_000),
            "getSeconds" => Some(nanos / 1_000_000_000),
            "getMilliseconds" => Some(nanos / 1_000_000),
            _ => None,
        },
        _ => None,
    };
    component.map(Val::Int).ok_or_else(Fault::no_overload)
}
