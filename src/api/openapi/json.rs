//! JSON written straight into a buffer. The documents are megabytes: a tree of values would cost ten times that.

use crate::api::codec::json::write_string;

/// A buffer that puts the commas where they belong.
#[derive(Debug, Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    /// An object.
    pub(super) fn object(&mut self, inside: impl FnOnce(&mut Out)) {
        self.comma();
        self.0.push(b'{');
        inside(self);
        self.0.push(b'}');
    }

    /// A list.
    pub(super) fn list(&mut self, inside: impl FnOnce(&mut Out)) {
        self.comma();
        self.0.push(b'[');
        inside(self);
        self.0.push(b']');
    }

    /// The name of a field; its value must follow.
    pub(super) fn key(&mut self, name: &str) -> &mut Out {
        self.comma();
        write_string(&mut self.0, name);
        self.0.push(b':');
        self
    }

    /// A string.
    pub(super) fn text(&mut self, text: &str) {
        self.comma();
        write_string(&mut self.0, text);
    }

    /// A field that holds a string.
    pub(super) fn field(&mut self, name: &str, text: &str) {
        self.key(name).text(text);
    }

    /// A field that holds a list of strings.
    pub(super) fn texts<'a>(&mut self, name: &str, texts: impl IntoIterator<Item = &'a str>) {
        self.key(name).list(|out| texts.into_iter().for_each(|text| out.text(text)));
    }

    /// What is JSON already.
    pub(super) fn raw(&mut self, json: &[u8]) {
        self.comma();
        self.0.extend_from_slice(json);
    }

    fn comma(&mut self) {
        if !matches!(self.0.last(), None | Some(b'{' | b'[' | b':')) {
            self.0.push(b',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_stand_between_things() {
        let mut out = Out::default();
        out.object(|out| {
            out.field("a", "x:");
            out.texts("b", ["{", "["]);
            out.key("c").list(|out| {
                out.object(|_| {});
                out.object(|out| out.key("d").raw(b"1"));
                out.raw(b"true");
            });
        });
        let text = String::from_utf8(out.0).unwrap();
        assert_eq!(text, r#"{"a":"x:","b":["{","["],"c":[{},{"d":1},true]}"#);
    }
}
