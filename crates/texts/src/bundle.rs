//! The two files that the server embeds.
//!
//! `descriptions.txt` is every name and every description, each once. `descriptions.idx` is little-endian `u32`s: the number of
//! types, then six per type in the order of names (offset and length of its name, the same of its description, its first field
//! and the number of its fields), then four per field. The server searches both in place: nothing is parsed or copied at
//! startup.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use super::Descriptions;

/// The descriptions of all types, packed for embedding.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// Every name and every description.
    pub words: String,
    /// Offsets and lengths into `words`.
    pub index: Vec<u8>,
}

impl Bundle {
    /// Packs descriptions.
    pub fn pack(texts: &Descriptions) -> Bundle {
        let mut packer = Packer::default();
        let (mut types, mut fields) = (Vec::new(), Vec::new());
        let mut first = 0;
        for (name, words) in texts {
            types.extend(packer.intern(name));
            types.extend(packer.intern(&words.description));
            types.extend([first, number(words.fields.len())]);
            for (field, text) in &words.fields {
                fields.extend(packer.intern(field));
                fields.extend(packer.intern(text));
                first += 1;
            }
        }
        let numbers = std::iter::once(number(texts.len())).chain(types).chain(fields);
        Bundle { words: packer.words, index: numbers.flat_map(u32::to_le_bytes).collect() }
    }

    /// Writes both files into a folder.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join("descriptions.txt"), &self.words)?;
        fs::write(folder.join("descriptions.idx"), &self.index)
    }
}

#[derive(Default)]
struct Packer<'a> {
    words: String,
    offsets: HashMap<&'a str, u32>,
}

impl<'a> Packer<'a> {
    /// The offset and length of a string. Equal strings are stored once.
    fn intern(&mut self, text: &'a str) -> [u32; 2] {
        let offset = *self.offsets.entry(text).or_insert_with(|| {
            let offset = number(self.words.len());
            self.words.push_str(text);
            offset
        });
        [offset, number(text.len())]
    }
}

/// Saturates: the real size is a thousandth of what fits.
fn number(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::TypeDescriptions;
    use super::*;

    #[test]
    fn equal_descriptions_are_packed_once() {
        let words = |description: &str| TypeDescriptions {
            description: description.to_owned(),
            fields: [("f".to_owned(), "same".to_owned())].into(),
        };
        let texts = Descriptions::from([("A".to_owned(), words("same")), ("B".to_owned(), words(""))]);
        let bundle = Bundle::pack(&texts);
        assert_eq!(bundle.words, "AsamefB");
        let numbers: Vec<u32> =
            bundle.index.chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
        let expected =
            [vec![2], vec![0, 1, 1, 4, 0, 1], vec![6, 1, 7, 0, 1, 1], vec![5, 1, 1, 4], vec![5, 1, 1, 4]];
        assert_eq!(numbers, expected.concat());
    }
}
