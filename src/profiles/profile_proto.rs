//! The messages of profile.proto. The numbers of the fields are those of pprof. Texts are indexes of the string table.

use prost::Message;

/// A profile.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// What the values of each sample are.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// The programs and libraries that the code is from.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// The places that samples name.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// The functions that locations name.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// All texts; the first is empty.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When the profile begins, in nanoseconds of Unix time.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long it was recorded.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What happens between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// How much of it.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Remarks for readers.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
}

/// What a value is.
#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Its unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// Values of one stack.
#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// The stack, the innermost place first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One value for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// More about the sample.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A property of a sample.
#[derive(Clone, PartialEq, Message)]
pub struct Label {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Its value.
    #[prost(int64, tag = "2")]
    pub str: i64,
}

/// A program or library.
#[derive(Clone, PartialEq, Message)]
pub struct Mapping {
    /// The number that locations name it by.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its file.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Whether functions are named, so that a reader need not look them up.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
}

/// A place in the code.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// The number that samples name it by.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The program that it is in.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// The lines: more than one if functions were inlined here, the innermost first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A line of a function.
#[derive(Clone, PartialEq, Message)]
pub struct Line {
    /// The function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// The number of the line; 0 if unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function. The name that the linker knows is left out: readers that find it equal take the name for one that is not demangled.
#[derive(Clone, PartialEq, Message)]
pub struct Function {
    /// The number that lines name it by.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its source file; empty if unknown.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
