//! No selector makes a parser panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pilothouse_apimachinery::selectors::{FieldSelector, parse_labels};

fuzz_target!(|text: &str| {
    let _ = FieldSelector::parse(text);
    let _ = parse_labels(text);
});
