//! No expression makes the compiler panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_cel::Environment;

fuzz_target!(|text: &str| {
    let _ = Environment::standard().with_bind_macro().with_object_construction().compile(text, &mut Patterns::default());
});
