//! The envelope with the kind of a message, watch frames, and the ends of lists.
//!
//! A message may be written in consecutive parts. So the derived types write the bytes before and after the payload, and the
//! payload is never copied into one of them.

use std::ops::Deref;

use prost::Message as _;

use super::reader::{Fault, Reader, Tag, WireType};
use super::source::Source;
use super::writer::put_varint;
use super::{MAGIC, encode};
use crate::schema::{Registry, TypeId};
use crate::value::Value;

/// The field number of the raw bytes in the envelope.
const RAW: u32 = 2;
/// The field number of the object in a watch event.
const OBJECT: u32 = 2;
/// The field number of the bytes in a RawExtension.
const ANY_RAW: u32 = 1;

/// The field numbers of a list. Fields are written in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListFields {
    /// The metadata is 1, the items are 2.
    MetadataFirst,
    /// The items are 1, the metadata is 2: PartialObjectMetadataList in v1beta1.
    ItemsFirst,
}

impl ListFields {
    fn metadata(self) -> u32 {
        match self {
            ListFields::MetadataFirst => 1,
            ListFields::ItemsFirst => 2,
        }
    }

    fn items(self) -> u32 {
        3 - self.metadata()
    }

    /// The bytes before an item of `len` bytes.
    pub fn item_header(self, len: usize) -> Header {
        Header::new(self.items(), len)
    }
}

/// The kind of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypeMeta {
    /// The apiVersion.
    #[prost(string, optional, tag = "1")]
    pub api_version: Option<String>,
    /// The kind.
    #[prost(string, optional, tag = "2")]
    pub kind: Option<String>,
}

/// The envelope.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Unknown {
    /// The kind of the object.
    #[prost(message, optional, tag = "1")]
    pub type_meta: Option<TypeMeta>,
    /// The message of the object.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub raw: Option<Vec<u8>>,
    /// Always written, always empty.
    #[prost(string, optional, tag = "3")]
    pub content_encoding: Option<String>,
    /// Always written, always empty.
    #[prost(string, optional, tag = "4")]
    pub content_type: Option<String>,
}

/// A value that may be any object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RawExtension {
    /// The object in its envelope.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub raw: Option<Vec<u8>>,
}

/// A watch event.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchEvent {
    /// The type of the event.
    #[prost(string, optional, tag = "1")]
    pub kind: Option<String>,
    /// The object of the event.
    #[prost(message, optional, tag = "2")]
    pub object: Option<RawExtension>,
}

/// An opened envelope. The API ignores its other fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenedEnvelope<'a> {
    /// The apiVersion.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// The message.
    pub raw: &'a [u8],
}

/// Opens the envelope of a body. Parsed by hand, because the error messages are the reference's.
pub fn open(body: &[u8]) -> Result<OpenedEnvelope<'_>, Fault> {
    if body.is_empty() {
        return Err(Fault::new("empty data".to_owned()));
    }
    let Some(message) = body.strip_prefix(&MAGIC) else {
        let [a, b, c, d] = MAGIC;
        return Err(Fault::new(format!(
            "provided data does not appear to be a protobuf message, expected prefix [{a} {b} {c} {d}]"
        )));
    };
    if message.is_empty() {
        return Err(Fault::new("empty body".to_owned()));
    }
    let mut opened = OpenedEnvelope::default();
    let mut reader = Reader::new(message);
    while let Some(tag) = reader.tag("Unknown")? {
        match tag.number {
            1 => type_meta(bytes(&mut reader, tag, "TypeMeta")?, &mut opened)?,
            2 => opened.raw = bytes(&mut reader, tag, "Raw")?,
            3 => bytes(&mut reader, tag, "ContentEncoding").map(drop)?,
            4 => bytes(&mut reader, tag, "ContentType").map(drop)?,
            _ => reader.skip(tag.form)?,
        }
    }
    Ok(opened)
}

fn type_meta(message: &[u8], opened: &mut OpenedEnvelope<'_>) -> Result<(), Fault> {
    let mut reader = Reader::new(message);
    while let Some(tag) = reader.tag("TypeMeta")? {
        match tag.number {
            1 => opened.api_version = text(bytes(&mut reader, tag, "APIVersion")?),
            2 => opened.kind = text(bytes(&mut reader, tag, "Kind")?),
            _ => reader.skip(tag.form)?,
        }
    }
    Ok(())
}

/// Invalid UTF-8 matches no kind, so a lossy conversion is fine.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn bytes<'a>(reader: &mut Reader<'a>, tag: Tag, field: &str) -> Result<&'a [u8], Fault> {
    if tag.form != WireType::BYTES {
        return Err(Fault::wire_type(tag.form, field));
    }
    reader.bytes()
}

/// The bytes before a message of `raw_len` bytes in its envelope.
pub fn head(api_version: &str, kind: &str, raw_len: usize) -> Vec<u8> {
    let type_meta = TypeMeta { api_version: Some(api_version.to_owned()), kind: Some(kind.to_owned()) };
    let head = Unknown { type_meta: Some(type_meta), ..Unknown::default() };
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&head.encode_to_vec());
    out.extend_from_slice(&Header::new(RAW, raw_len));
    out
}

/// The bytes after a message in its envelope.
pub fn tail() -> Vec<u8> {
    let content_encoding = Some(String::new());
    Unknown { content_encoding, content_type: Some(String::new()), ..Unknown::default() }.encode_to_vec()
}

/// The bytes before and after the items of a list. `items_total_len` is the total length of all items, each with its
/// [`ListFields::item_header`].
pub fn list_envelope(
    api_version: &str,
    list_kind: &str,
    fields: ListFields,
    list_meta: &Value,
    registry: &Registry,
    items_total_len: usize,
) -> (Vec<u8>, Vec<u8>) {
    let meta =
        registry.meta("ListMeta").map(|ty| super::message(registry, ty, list_meta)).unwrap_or_default();
    let meta = [&*Header::new(fields.metadata(), meta.len()), &meta].concat();
    let prefix = head(api_version, list_kind, meta.len() + items_total_len);
    match fields {
        ListFields::MetadataFirst => ([prefix, meta].concat(), tail()),
        ListFields::ItemsFirst => (prefix, [meta, tail()].concat()),
    }
}

/// A watch frame: its length, and an event with an object in its envelope.
pub fn watch_frame(kind: &str, enveloped: &[u8]) -> Vec<u8> {
    let event = WatchEvent { kind: Some(kind.to_owned()), object: None };
    let raw = Header::new(ANY_RAW, enveloped.len());
    let object = Header::new(OBJECT, raw.len() + enveloped.len());
    let length = event.encoded_len() + object.len() + raw.len() + enveloped.len();
    let mut out = Vec::with_capacity(4 + length);
    // Objects are bounded far below the maximum of four bytes.
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(&event.encode_to_vec());
    out.extend_from_slice(&object);
    out.extend_from_slice(&raw);
    out.extend_from_slice(enveloped);
    out
}

/// The whole envelope of a value.
pub fn enveloped<'a>(registry: &Registry, ty: TypeId, value: impl Source<'a>) -> Vec<u8> {
    let mut out = encode::writer();
    out.raw(&tail());
    let end = out.len();
    encode::write(&mut out, registry, ty, value);
    let (mut api_version, mut kind) = (None, None);
    for (name, value) in value.entries_back() {
        match &*name {
            "apiVersion" => api_version = value.text(),
            "kind" => kind = value.text(),
            _ => {}
        }
    }
    let (api_version, kind) = (api_version.unwrap_or_default(), kind.unwrap_or_default());
    let head = head(&api_version, &kind, out.len() - end);
    out.raw(&head);
    out.finish()
}

/// A tag and a length, before bytes.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    bytes: [u8; 20],
    length: usize,
}

impl Header {
    fn new(field: u32, bytes_len: usize) -> Header {
        let mut bytes = [0; 20];
        let mut length = put_varint(&mut bytes, u64::from(field) << 3 | 2);
        length += bytes.get_mut(length..).map_or(0, |rest| put_varint(rest, bytes_len as u64));
        Header { bytes, length }
    }
}

impl Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Header {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
