//! Builds a [`Profile`] from stacks, and renders it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use pilothouse_types::clock::Timestamp;
use prost::Message as _;

use super::profile_proto::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

/// The only mapping of a profile.
const PROGRAM: u64 = 1;

/// A place in the code, or what stands for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The name of the function.
    pub function: String,
    /// Its source file; empty if unknown.
    pub file: String,
    /// The line; 0 if unknown.
    pub line: u32,
}

impl Frame {
    /// What has a name but no source.
    pub fn named(function: impl Into<String>) -> Frame {
        Frame { function: function.into(), ..Frame::default() }
    }
}

/// A profile that grows.
pub struct ProfileBuilder {
    profile: Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<Frame, u64>,
}

/// The number of the next entry of a table whose numbers begin with 1.
fn next_id<T>(table: &[T]) -> u64 {
    table.len() as u64 + 1
}

impl ProfileBuilder {
    /// An empty profile of values with these names and units.
    pub fn new(sample_types: &[(&str, &str)], begin: Timestamp) -> ProfileBuilder {
        let mut builder = ProfileBuilder {
            profile: Profile::default(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
        };
        builder.text("");
        let filename = builder.text(env!("CARGO_PKG_NAME"));
        builder.profile.mapping = vec![Mapping { id: PROGRAM, filename, has_functions: true }];
        builder.profile.sample_type =
            sample_types.iter().map(|(name, unit)| builder.value_type(name, unit)).collect();
        builder.profile.time_nanos = i64::try_from(begin.0).unwrap_or(i64::MAX).saturating_mul(1_000);
        builder
    }

    /// How often there is a sample, and for how long.
    pub fn set_period(&mut self, name: &str, unit: &str, period: i64, length: Duration) {
        self.profile.period_type = Some(self.value_type(name, unit));
        self.profile.period = period;
        self.profile.duration_nanos = i64::try_from(length.as_nanos()).unwrap_or(i64::MAX);
    }

    /// A remark for readers.
    pub fn add_comment(&mut self, text: &str) {
        let comment = self.text(text);
        self.profile.comment.push(comment);
    }

    /// A stack, the innermost frame first, with one value for each sample type.
    pub fn add(&mut self, stack: &[Frame], values: &[i64], labels: &[(&str, &str)]) {
        let location_id = stack.iter().map(|frame| self.location(frame)).collect();
        let label =
            labels.iter().map(|(key, value)| Label { key: self.text(key), str: self.text(value) }).collect();
        self.profile.sample.push(Sample { location_id, value: values.to_vec(), label });
    }

    /// The profile.
    pub fn finish(self) -> Profile {
        self.profile
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.text(name), unit: self.text(unit) }
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = i64::try_from(self.profile.string_table.len()).unwrap_or(i64::MAX);
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        if let Some(id) = self.locations.get(frame) {
            return *id;
        }
        let line = Line { function_id: self.function(frame), line: i64::from(frame.line) };
        let id = next_id(&self.profile.location);
        self.profile.location.push(Location { id, mapping_id: PROGRAM, line: vec![line] });
        self.locations.insert(frame.clone(), id);
        id
    }

    fn function(&mut self, frame: &Frame) -> u64 {
        let (name, filename) = (self.text(&frame.function), self.text(&frame.file));
        let table = &mut self.profile.function;
        *self.functions.entry((name, filename)).or_insert_with(|| {
            let id = next_id(table);
            table.push(Function { id, name, filename });
            id
        })
    }
}

impl Profile {
    /// The profile as pprof reads it: compressed.
    pub fn encode_compressed(&self) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        // Writing to memory cannot fail.
        let _written = encoder.write_all(&self.encode_to_vec());
        encoder.finish().unwrap_or_default()
    }

    /// The profile for people: each sample with its stack, the largest last value first.
    pub fn to_text(&self) -> String {
        let types = self.sample_type.iter();
        let types: Vec<String> =
            types.map(|value| format!("{}/{}", self.text(value.r#type), self.text(value.unit))).collect();
        let mut text = format!("{}\n", types.join(" "));
        for comment in &self.comment {
            let _written = writeln!(text, "# {}", self.text(*comment));
        }
        let mut samples: Vec<&Sample> = self.sample.iter().collect();
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.value.last().copied()));
        for sample in samples {
            let values: Vec<String> = sample.value.iter().map(i64::to_string).collect();
            let _written = writeln!(text, "\n{}", values.join(" "));
            for id in &sample.location_id {
                let _written = writeln!(text, "  {}", self.place(*id));
            }
        }
        text
    }

    fn text(&self, index: i64) -> &str {
        usize::try_from(index).ok().and_then(|index| self.string_table.get(index)).map_or("", String::as_str)
    }

    /// A location with its line, if that is known.
    fn place(&self, location: u64) -> String {
        let entry = |id: u64| usize::try_from(id).unwrap_or_default().wrapping_sub(1);
        let line = self.location.get(entry(location)).and_then(|location| location.line.first());
        let Some(line) = line else { return String::new() };
        let Some(function) = self.function.get(entry(line.function_id)) else { return String::new() };
        match (self.text(function.name), self.text(function.filename)) {
            (name, "") => name.to_owned(),
            (name, file) => format!("{name} {file}:{}", line.line),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn example() -> Profile {
        let types = [("samples", "count"), ("cpu", "nanoseconds")];
        let mut builder = ProfileBuilder::new(&types, Timestamp(7));
        let frame =
            |function: &str, line| Frame { function: function.to_owned(), file: "a.rs".to_owned(), line };
        builder.add(&[frame("inner", 3), frame("outer", 9)], &[1, 10], &[("thread", "worker")]);
        builder.add(&[frame("inner", 4), frame("outer", 9)], &[2, 20], &[]);
        builder.add_comment("an example");
        builder.finish()
    }

    #[test]
    fn equal_texts_functions_and_places_are_stored_once() {
        let profile = example();
        assert_eq!((profile.function.len(), profile.location.len(), profile.sample.len()), (2, 3, 2));
        let mut texts = profile.string_table.clone();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!((texts.len(), texts[0].as_str()), (profile.string_table.len(), ""));
        assert_eq!(profile.string_table[0], "");
        assert_eq!(profile.sample[0].location_id[1], profile.sample[1].location_id[1]);
        assert_eq!(profile.time_nanos, 7_000);
    }

    #[test]
    fn compressed_profile_is_decoded_as_it_was() {
        let mut bytes = Vec::new();
        GzDecoder::new(example().encode_compressed().as_slice()).read_to_end(&mut bytes).unwrap();
        assert_eq!(Profile::decode(bytes.as_slice()).unwrap(), example());
    }

    #[test]
    fn text_has_the_largest_sample_first() {
        let expected = "samples/count cpu/nanoseconds\n# an example\n\n2 20\n  inner a.rs:4\n  outer a.rs:9\n\n\
                        1 10\n  inner a.rs:3\n  outer a.rs:9\n";
        assert_eq!(example().to_text(), expected);
    }
}
