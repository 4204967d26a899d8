//! Writes a stream of objects.

use std::io::{self, Write};

use clap::ValueEnum;
use pilothouse_apimachinery::codec::yaml::to_yaml;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;

/// The form of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamFormat {
    /// One object per line, as JSON.
    Jsonl,
    /// One YAML document per object.
    Yaml,
}

/// Writes a stream.
pub(crate) struct ObjectWriter<W> {
    output: W,
    format: StreamFormat,
    /// The encoded object, kept for its capacity.
    buffer: Vec<u8>,
    bytes: u64,
}

impl<W: Write> ObjectWriter<W> {
    /// Writes to this output, which should be buffered.
    pub(crate) fn new(output: W, format: StreamFormat) -> ObjectWriter<W> {
        ObjectWriter { output, format, buffer: Vec::new(), bytes: 0 }
    }

    /// Writes an object, which has apiVersion and kind.
    pub(crate) fn write(&mut self, object: Value) -> io::Result<()> {
        self.buffer.clear();
        match self.format {
            StreamFormat::Jsonl => {
                json::write_value(&mut self.buffer, &object);
                self.buffer.push(b'\n');
            }
            StreamFormat::Yaml => {
                self.buffer.extend_from_slice(b"---\n");
                self.buffer.extend_from_slice(&to_yaml(object));
            }
        }
        self.bytes += self.buffer.len() as u64;
        self.output.write_all(&self.buffer)
    }

    /// The bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The output, after everything was passed on to it.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::super::reader::{Element, ObjectReader};
    use super::*;

    #[test]
    fn written_streams_are_read_again() {
        let objects = [
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {x: \"a\\n---\\nb: c\\n\", y: \"yes\"}}",
            "{apiVersion: v1, kind: Node, metadata: {name: b}, status: {number: 1.5, \"null\": \"null\"}}",
        ]
        .map(|text| yaml::read(text.as_bytes()).unwrap());
        for format in [StreamFormat::Jsonl, StreamFormat::Yaml] {
            let mut writer = ObjectWriter::new(Vec::new(), format);
            for object in &objects {
                writer.write(object.clone()).unwrap();
            }
            let bytes = writer.bytes();
            let text = writer.finish().unwrap();
            assert_eq!(bytes, text.len() as u64);
            let mut reader = ObjectReader::new(text.as_slice());
            for object in &objects {
                assert_eq!(reader.next().unwrap(), Some(Element::Object(object.clone())), "{format:?}");
            }
            assert_eq!(reader.next().unwrap(), None);
        }
    }
}
