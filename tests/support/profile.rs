//! Reads profiles of pprof, independently of what writes them.

use std::collections::HashMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use prost::Message;

/// The parts of profile.proto that tests look at.
#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(message, repeated, tag = "1")]
    sample_types: Vec<WireType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<WireSample>,
    #[prost(message, repeated, tag = "4")]
    locations: Vec<WireLocation>,
    #[prost(message, repeated, tag = "5")]
    functions: Vec<WireFunction>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WireType {
    #[prost(int64, tag = "1")]
    name: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WireSample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct WireLocation {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    lines: Vec<WireLine>,
}

#[derive(Clone, PartialEq, Message)]
struct WireLine {
    #[prost(uint64, tag = "1")]
    function: u64,
}

#[derive(Clone, PartialEq, Message)]
struct WireFunction {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

/// A profile as a test wants it.
#[derive(Debug)]
pub struct Profile {
    /// The names and units of the values.
    pub types: Vec<(String, String)>,
    /// The functions of each stack, the innermost first, and its values.
    pub samples: Vec<(Vec<String>, Vec<i64>)>,
    /// How long it was recorded, in nanoseconds.
    pub duration: i64,
    /// The time between two samples.
    pub period: i64,
}

impl Profile {
    /// Decodes a compressed profile. Everything that it refers to must be there.
    pub fn decode(compressed: &[u8]) -> Profile {
        let mut bytes = Vec::new();
        GzDecoder::new(compressed).read_to_end(&mut bytes).expect("a profile is compressed");
        let wire = Wire::decode(bytes.as_slice()).expect("a profile is a profile.proto");
        let text = |index: i64| wire.strings[usize::try_from(index).unwrap()].clone();
        let functions: HashMap<u64, String> =
            wire.functions.iter().map(|function| (function.id, text(function.name))).collect();
        let locations: HashMap<u64, Vec<String>> = wire
            .locations
            .iter()
            .map(|location| {
                let names = location.lines.iter().map(|line| functions[&line.function].clone());
                (location.id, names.collect())
            })
            .collect();
        let samples = wire.samples.iter().map(|sample| {
            assert_eq!(sample.values.len(), wire.sample_types.len());
            let stack = sample.locations.iter().flat_map(|id| locations[id].clone()).collect();
            (stack, sample.values.clone())
        });
        Profile {
            types: wire.sample_types.iter().map(|kind| (text(kind.name), text(kind.unit))).collect(),
            samples: samples.collect(),
            duration: wire.duration_nanos,
            period: wire.period,
        }
    }

    /// Whether a function of such a name is in a stack.
    pub fn mentions(&self, part: &str) -> bool {
        self.samples.iter().any(|(stack, _)| stack.iter().any(|name| name.contains(part)))
    }
}
