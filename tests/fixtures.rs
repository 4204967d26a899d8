//! Objects of every kind as the reference writes them: the same in JSON, YAML and Protobuf, and with CBOR between any
//! two of them.
//!
//! The objects do not belong to this repository: they lie in `../shared/fixtures/roundtrip-1.33` beside the checkout, or
//! where `PILOTHOUSE_FIXTURES` says. Without them there is nothing to compare and the test says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use pilothouse_apimachinery::codec::transcode::{Encoding, transcode};
use pilothouse_apimachinery::codec::{self, protobuf, yaml};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};

fn folder() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/roundtrip-1.33");
    std::env::var_os("PILOTHOUSE_FIXTURES").map_or_else(beside, PathBuf::from)
}

/// The kind that a file is named after: group, version and kind, with dots between.
fn kind(stem: &str) -> GroupVersionKind {
    let mut parts = stem.rsplitn(3, '.');
    let (kind, version, group) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    GroupVersionKind::new(if group == "core" { "" } else { group }, version, kind)
}

/// What is wrong with the three forms of one object.
fn faults(folder: &Path, stem: &str, registry: &Registry) -> Vec<String> {
    let read = |ext: &str| fs::read(folder.join(format!("{stem}.{ext}"))).unwrap();
    let (text, binary, plain) = (read("json"), read("pb"), read("yaml"));
    let kind = kind(stem);
    let Some(ty) = registry.lookup(&kind) else { return vec![format!("{stem}: no such kind")] };
    let mut faults = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            faults.push(format!("{stem}: {what}"));
        }
    };

    let decoded = codec::decode_object(&text, &kind, registry).unwrap();
    must(decoded.strict.is_empty(), format!("JSON has {:?}", decoded.strict));
    let canonical = codec::encode(registry, ty, &decoded.value);
    must(json::read(&canonical).unwrap() == json::read(&text).unwrap(), "JSON does not come back".to_owned());

    // An event of a watch is no object: its envelope names no kind.
    let mut unnamed = decoded.value.clone();
    if !registry.structure(ty).unwrap().object {
        unnamed.remove("kind");
        unnamed.remove("apiVersion");
    }
    let written = protobuf::encode_object(registry, ty, &unnamed);
    must(written == binary, format!("Protobuf differs from byte {}", differs_at(&written, &binary)));
    let transcoded = protobuf::transcode(registry, ty, &canonical).unwrap();
    must(
        transcoded == protobuf::message(registry, ty, &decoded.value),
        "transcoding is not decoding and encoding".to_owned(),
    );
    match protobuf::decode_object(&binary, &kind, registry) {
        Ok(read) => must(read.value == decoded.value, "Protobuf is read as something else".to_owned()),
        Err(error) => must(false, error.message),
    }
    match yaml::decode_object(&plain, &kind, registry) {
        Ok(read) => must(read.value == decoded.value, "YAML is read as something else".to_owned()),
        Err(error) => must(false, error.message),
    }
    faults
}

fn differs_at(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).position(|(one, other)| one != other).unwrap_or(one.len().min(other.len()))
}

#[test]
fn every_kind_in_every_encoding() {
    let folder = folder();
    let Ok(files) = fs::read_dir(&folder) else {
        // Past the test runner, which shows what a test prints only when it fails.
        let _ = writeln!(std::io::stderr(), "fixtures: skipped: there is no {}", folder.display());
        return;
    };
    let registry = Registry::complete().unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut stems: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".pb").map(str::to_owned)).collect();
    stems.sort();
    assert!(stems.len() >= 184, "only {} kinds", stems.len());
    let faults: Vec<String> = stems.iter().flat_map(|stem| faults(&folder, stem, &registry)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What is wrong with the conversions of one object from each form to each.
fn wrong_conversions(folder: &Path, stem: &str, registry: &Registry) -> Vec<String> {
    let read = |ext: &str| fs::read(folder.join(format!("{stem}.{ext}"))).unwrap();
    let (text, binary, plain) = (read("json"), read("pb"), read("yaml"));
    let mut wrong = Vec::new();
    // The file is for people to read, so the line is compared by what it looks like then.
    let line = transcode(registry, Encoding::Json, Encoding::Json, &text).unwrap_or_default();
    if codec::pretty(line.trim_ascii_end()) != text.trim_ascii_end() || !line.ends_with(b"\n") {
        wrong.push(format!("{stem}: JSON to JSON differs"));
    }
    let packed = transcode(registry, Encoding::Json, Encoding::Cbor, &text).unwrap_or_default();
    let forms = [
        (Encoding::Json, &text, &line),
        (Encoding::Yaml, &plain, &plain),
        (Encoding::Protobuf, &binary, &binary),
        (Encoding::Cbor, &packed, &packed),
    ];
    for (from, input, _) in &forms {
        for (to, _, expected) in &forms {
            match transcode(registry, *from, *to, input) {
                Ok(output) if output == **expected => {}
                Ok(output) => {
                    let at = differs_at(&output, expected);
                    wrong.push(format!("{stem}: {from:?} to {to:?} differs from byte {at}"));
                }
                Err(why) => wrong.push(format!("{stem}: {from:?} to {to:?}: {why}")),
            }
        }
    }
    wrong
}

#[test]
fn every_form_is_converted_to_every_other() {
    let folder = folder();
    let Ok(files) = fs::read_dir(&folder) else {
        let _ = writeln!(std::io::stderr(), "fixtures: skipped: there is no {}", folder.display());
        return;
    };
    let registry = Registry::complete().unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut stems: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".json")?.to_owned())).collect();
    stems.sort();
    let wrong: Vec<String> =
        stems.iter().flat_map(|stem| wrong_conversions(&folder, stem, &registry)).collect();
    assert!(wrong.is_empty(), "{} conversions:\n{}", wrong.len(), wrong.join("\n"));
}
