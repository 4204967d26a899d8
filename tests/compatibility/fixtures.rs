//! Round trips of the reference's fixtures of every kind in JSON, YAML and Protobuf, and conversions between all encodings.
//!
//! The fixtures are not part of this repository: they are in `../shared/fixtures/roundtrip-1.33` beside the checkout, or in
//! `PILOTHOUSE_FIXTURES`. Without them the tests are ignored.

use std::fs;
use std::path::{Path, PathBuf};

use pilothouse_apimachinery::codec::transcode::{Encoding, transcode};
use pilothouse_apimachinery::codec::{self, protobuf, yaml};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};

fn folder() -> PathBuf {
    let default_folder = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/roundtrip-1.33");
    std::env::var_os("PILOTHOUSE_FIXTURES").map_or_else(default_folder, PathBuf::from)
}

/// The kind that a file is named after: group, version and kind, with dots between.
fn kind(stem: &str) -> GroupVersionKind {
    let mut parts = stem.rsplitn(3, '.');
    let (kind, version, group) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    GroupVersionKind::new(if group == "core" { "" } else { group }, version, kind)
}

/// The round-trip errors of one fixture.
fn round_trip_errors(folder: &Path, stem: &str, registry: &Registry) -> Vec<String> {
    let read = |ext: &str| fs::read(folder.join(format!("{stem}.{ext}"))).unwrap();
    let (json_bytes, protobuf_bytes, yaml_bytes) = (read("json"), read("pb"), read("yaml"));
    let kind = kind(stem);
    let Some(ty) = registry.lookup(&kind) else { return vec![format!("{stem}: no such kind")] };
    let mut errors = Vec::new();
    let mut check = |holds: bool, message: String| {
        if !holds {
            errors.push(format!("{stem}: {message}"));
        }
    };

    let decoded = codec::decode_object(&json_bytes, &kind, registry).unwrap();
    check(decoded.strict.is_empty(), format!("JSON has {:?}", decoded.strict));
    let canonical = codec::encode(registry, ty, &decoded.value);
    check(
        json::read(&canonical).unwrap() == json::read(&json_bytes).unwrap(),
        "JSON does not come back".to_owned(),
    );

    // A watch event is no object: its envelope names no kind.
    let mut without_type = decoded.value.clone();
    if !registry.structure(ty).unwrap().object {
        without_type.remove("kind");
        without_type.remove("apiVersion");
    }
    let encoded = protobuf::encode_object(registry, ty, &without_type);
    check(
        encoded == protobuf_bytes,
        format!("Protobuf differs from byte {}", first_difference(&encoded, &protobuf_bytes)),
    );
    let transcoded = protobuf::transcode(registry, ty, &canonical).unwrap();
    check(
        transcoded == protobuf::message(registry, ty, &decoded.value),
        "transcoding is not decoding and encoding".to_owned(),
    );
    match protobuf::decode_object(&protobuf_bytes, &kind, registry) {
        Ok(read) => check(read.value == decoded.value, "Protobuf is read as something else".to_owned()),
        Err(error) => check(false, error.message),
    }
    match yaml::decode_object(&yaml_bytes, &kind, registry) {
        Ok(read) => check(read.value == decoded.value, "YAML is read as something else".to_owned()),
        Err(error) => check(false, error.message),
    }
    errors
}

fn first_difference(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).position(|(left, right)| left != right).unwrap_or(left.len().min(right.len()))
}

#[test]
#[cfg_attr(not(has_fixtures), ignore = "needs ../shared/fixtures/roundtrip-1.33, or PILOTHOUSE_FIXTURES")]
fn fixtures_round_trip_in_every_encoding() {
    let folder = folder();
    let files = fs::read_dir(&folder).expect("the folder of fixtures");
    let registry = Registry::complete().unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut stems: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".pb").map(str::to_owned)).collect();
    stems.sort();
    assert!(stems.len() >= 184, "only {} kinds", stems.len());
    let errors: Vec<String> =
        stems.iter().flat_map(|stem| round_trip_errors(&folder, stem, &registry)).collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

/// The errors of converting one fixture from each encoding to each.
fn transcode_errors(folder: &Path, stem: &str, registry: &Registry) -> Vec<String> {
    let read = |ext: &str| fs::read(folder.join(format!("{stem}.{ext}"))).unwrap();
    let (json_bytes, protobuf_bytes, yaml_bytes) = (read("json"), read("pb"), read("yaml"));
    let mut errors = Vec::new();
    // The file is indented, so the compact output is compared after indenting.
    let line = transcode(registry, Encoding::Json, Encoding::Json, &json_bytes).unwrap_or_default();
    if codec::pretty(line.trim_ascii_end()) != json_bytes.trim_ascii_end() || !line.ends_with(b"\n") {
        errors.push(format!("{stem}: JSON to JSON differs"));
    }
    let cbor_bytes = transcode(registry, Encoding::Json, Encoding::Cbor, &json_bytes).unwrap_or_default();
    let forms = [
        (Encoding::Json, &json_bytes, &line),
        (Encoding::Yaml, &yaml_bytes, &yaml_bytes),
        (Encoding::Protobuf, &protobuf_bytes, &protobuf_bytes),
        (Encoding::Cbor, &cbor_bytes, &cbor_bytes),
    ];
    for (source, input, _) in &forms {
        for (target, _, expected) in &forms {
            match transcode(registry, *source, *target, input) {
                Ok(output) if output == **expected => {}
                Ok(output) => {
                    let offset = first_difference(&output, expected);
                    errors.push(format!("{stem}: {source:?} to {target:?} differs from byte {offset}"));
                }
                Err(reason) => errors.push(format!("{stem}: {source:?} to {target:?}: {reason}")),
            }
        }
    }
    errors
}

#[test]
#[cfg_attr(not(has_fixtures), ignore = "needs ../shared/fixtures/roundtrip-1.33, or PILOTHOUSE_FIXTURES")]
fn fixtures_transcode_between_all_encodings() {
    let folder = folder();
    let files = fs::read_dir(&folder).expect("the folder of fixtures");
    let registry = Registry::complete().unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut stems: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".json")?.to_owned())).collect();
    stems.sort();
    let errors: Vec<String> =
        stems.iter().flat_map(|stem| transcode_errors(&folder, stem, &registry)).collect();
    assert!(errors.is_empty(), "{} conversions:\n{}", errors.len(), errors.join("\n"));
}
