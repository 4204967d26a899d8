//! No body makes a decoder panic, and what one accepts can be written and read again.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pilothouse_apimachinery::codec::{cbor, decode_object, protobuf, yaml};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().expect("the built-in kinds"));

fuzz_target!(|data: &[u8]| {
    let Some((form, body)) = data.split_first() else { return };
    let kind = GroupVersionKind::new("", "v1", "Pod");
    let decoded = match form % 4 {
        0 => decode_object(body, &kind, &REGISTRY),
        1 => yaml::decode_object(body, &kind, &REGISTRY),
        2 => protobuf::decode_object(body, &kind, &REGISTRY),
        _ => cbor::decode_object(body, &kind, &REGISTRY),
    };
    if let Ok(decoded) = decoded {
        let written = json::to_json(&decoded.value);
        assert!(json::read(&written).is_ok(), "cannot be read again: {}", String::from_utf8_lossy(&written));
    }
});
