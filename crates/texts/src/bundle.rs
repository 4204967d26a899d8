//! The two files that the server embeds.
//!
//! `words` is text: every name and every description, each once. `index` is numbers of four bytes, the lowest first: how
//! many types there are, then six numbers for each type by its name (where its name is in `words` and how long, the same
//! of its description, and which fields are its own), then four for each field. It is searched where it lies: nothing
//! of it is in memory before somebody asks, and nothing has to be unpacked.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use super::Texts;

/// The two files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// Every name and every description.
    pub words: String,
    /// Where they are.
    pub index: Vec<u8>,
}

impl Bundle {
    /// Packs descriptions.
    pub fn of(texts: &Texts) -> Bundle {
        let mut packer = Packer::default();
        let (mut types, mut fields) = (Vec::new(), Vec::new());
        let mut first = 0;
        for (name, words) in texts {
            types.extend(packer.place(name));
            types.extend(packer.place(&words.about));
            types.extend([first, number(words.fields.len())]);
            for (field, text) in &words.fields {
                fields.extend(packer.place(field));
                fields.extend(packer.place(text));
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
    known: HashMap<&'a str, u32>,
}

impl<'a> Packer<'a> {
    /// Where a text is and how long; the same text is written once.
    fn place(&mut self, text: &'a str) -> [u32; 2] {
        let at = *self.known.entry(text).or_insert_with(|| {
            let at = number(self.words.len());
            self.words.push_str(text);
            at
        });
        [at, number(text.len())]
    }
}

/// All of the texts are a thousandth of what the number can say; more would be cut, not wrapped.
fn number(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::Words;
    use super::*;

    #[test]
    fn each_text_is_packed_once() {
        let words = |about: &str| Words {
            about: about.to_owned(),
            fields: [("f".to_owned(), "same".to_owned())].into(),
        };
        let texts = Texts::from([("A".to_owned(), words("same")), ("B".to_owned(), words(""))]);
        let bundle = Bundle::of(&texts);
        assert_eq!(bundle.words, "AsamefB");
        let numbers: Vec<u32> =
            bundle.index.chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
        let expected =
            [vec![2], vec![0, 1, 1, 4, 0, 1], vec![6, 1, 7, 0, 1, 1], vec![5, 1, 1, 4], vec![5, 1, 1, 4]];
        assert_eq!(numbers, expected.concat());
    }
}
