//! No patch makes the server panic.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::media::PatchType;
use pilothouse_apimachinery::options::FieldValidation;
use pilothouse_apimachinery::patch::{Target, apply};
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().expect("the built-in kinds"));

const POD: &[u8] = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","labels":{"x":"1"}},"spec":{"containers":[
    {"name":"c","image":"i","ports":[{"containerPort":80},{"containerPort":81}],"env":[{"name":"A","value":"1"}]}]}}"#;

fuzz_target!(|data: &[u8]| {
    let Some((language, body)) = data.split_first() else { return };
    let language = match language % 3 {
        0 => PatchType::Json,
        1 => PatchType::Merge,
        _ => PatchType::Strategic,
    };
    let kind = GroupVersionKind::new("", "v1", "Pod");
    let target = Target { registry: &REGISTRY, kind: &kind, custom: None };
    let current = json::read(POD).expect("a pod");
    let _ = apply(language, body, FieldValidation::Strict, target, &current);
});
