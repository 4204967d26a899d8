//! JSON written straight into a buffer. The documents are megabytes: a tree of values would cost ten times that.

use openssl::sha::Sha512;
use pilothouse_apimachinery::json::write_string;

/// Bytes that are buffered before they are hashed.
const HASH_CHUNK_BYTES: usize = 1 << 16;

/// A buffer that inserts the commas.
#[derive(Default)]
pub(super) struct JsonWriter {
    bytes: Vec<u8>,
    /// The hasher, if only the digest is wanted and not the text.
    digest: Option<Sha512>,
}

impl JsonWriter {
    /// A buffer that computes only the digest of the text.
    pub(super) fn digesting() -> JsonWriter {
        JsonWriter { bytes: Vec::with_capacity(2 * HASH_CHUNK_BYTES), digest: Some(Sha512::new()) }
    }

    /// The text, unless only the digest is computed.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The digest of the text.
    pub(super) fn into_digest(self) -> [u8; 64] {
        let mut digest = self.digest.unwrap_or_default();
        digest.update(&self.bytes);
        digest.finish()
    }

    /// An object.
    pub(super) fn object(&mut self, write_content: impl FnOnce(&mut JsonWriter)) {
        self.comma();
        self.bytes.push(b'{');
        write_content(self);
        self.bytes.push(b'}');
        self.hash_chunk();
    }

    /// A list.
    pub(super) fn list(&mut self, write_content: impl FnOnce(&mut JsonWriter)) {
        self.comma();
        self.bytes.push(b'[');
        write_content(self);
        self.bytes.push(b']');
    }

    /// The name of a field; its value must follow.
    pub(super) fn key(&mut self, name: &str) -> &mut JsonWriter {
        self.comma();
        write_string(&mut self.bytes, name);
        self.bytes.push(b':');
        self
    }

    /// A string.
    pub(super) fn text(&mut self, text: &str) {
        self.comma();
        write_string(&mut self.bytes, text);
    }

    /// A field that holds a string.
    pub(super) fn field(&mut self, name: &str, text: &str) {
        self.key(name).text(text);
    }

    /// A field that holds a list of strings.
    pub(super) fn texts<'a>(&mut self, name: &str, texts: impl IntoIterator<Item = &'a str>) {
        self.key(name).list(|out| texts.into_iter().for_each(|text| out.text(text)));
    }

    /// Appends a text that is JSON already.
    pub(super) fn raw(&mut self, json: &[u8]) {
        self.comma();
        self.bytes.extend_from_slice(json);
    }

    /// Hashes the collected text except for the last byte, which decides about the next comma.
    fn hash_chunk(&mut self) {
        if let Some(digest) = &mut self.digest
            && self.bytes.len() > HASH_CHUNK_BYTES
        {
            let last = self.bytes.len() - 1;
            digest.update(self.bytes.get(..last).unwrap_or_default());
            self.bytes.drain(..last);
        }
    }

    fn comma(&mut self) {
        if !matches!(self.bytes.last(), None | Some(b'{' | b'[' | b':')) {
            self.bytes.push(b',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digesting_writer_has_the_digest_of_the_text() {
        let write = |out: &mut JsonWriter| {
            out.list(|out| (0..20_000).for_each(|_| out.object(|out| out.field("a", "b"))));
        };
        let (mut buffered, mut digesting) = (JsonWriter::default(), JsonWriter::digesting());
        write(&mut buffered);
        write(&mut digesting);
        assert!(digesting.bytes.len() < 2 * HASH_CHUNK_BYTES);
        let text = buffered.into_bytes();
        assert!(text.len() > 2 * HASH_CHUNK_BYTES);
        assert_eq!(openssl::sha::sha512(&text), digesting.into_digest());
    }

    #[test]
    fn writer_separates_values_by_commas() {
        let mut out = JsonWriter::default();
        out.object(|out| {
            out.field("a", "x:");
            out.texts("b", ["{", "["]);
            out.key("c").list(|out| {
                out.object(|_| {});
                out.object(|out| out.key("d").raw(b"1"));
                out.raw(b"true");
            });
        });
        let text = String::from_utf8(out.into_bytes()).unwrap();
        assert_eq!(text, r#"{"a":"x:","b":["{","["],"c":[{},{"d":1},true]}"#);
    }
}
