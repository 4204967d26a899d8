//! Decodes messages against a type: structs, lists and maps. The result equals that of the object's JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::reader::{Fault, Reader, Tag, WireType};
use crate::limits;
use crate::schema::decode::{is_absent, zero};
use crate::schema::{Either, Field, List, Other, Registry, Scalar, Struct, Type, TypeId, WireContent};
use crate::value::{Fields, Value};

/// Words at the beginning of field names that Go types write in capitals.
const CAPITALS: [&str; 17] = [
    "api", "csi", "dns", "fc", "grpc", "http", "id", "ip", "iscsi", "json", "nfs", "os", "rbd", "tls", "uid",
    "url", "xml",
];

/// Decodes a message of type `ty`.
pub fn read(registry: &Registry, ty: TypeId, message: &[u8]) -> Result<Value, Fault> {
    let mut fields = Fields::new();
    if let Some(structure) = registry.structure(ty) {
        MessageDecoder { registry }.fields(structure, message, &mut fields, limits::PROTOBUF_DEPTH)?;
    }
    Ok(Value::Object(fields.into()))
}

#[derive(Clone, Copy)]
struct MessageDecoder<'r> {
    registry: &'r Registry,
}

impl<'r> MessageDecoder<'r> {
    /// Decodes the fields of a struct and merges them into `into`. Fields of an inlined type go into the same object.
    fn fields(
        self,
        structure: &'r Struct,
        message: &[u8],
        into: &mut Fields,
        depth: usize,
    ) -> Result<(), Fault> {
        let depth = descend(depth, 1)?;
        let mut reader = Reader::new(message);
        while let Some(tag) = reader.tag(&structure.name)? {
            match structure.slot(tag.number) {
                None => reader.skip(tag.form)?,
                Some(WireContent::Inlined(ty, _)) => {
                    let Some(inner) = self.registry.structure(ty) else { continue };
                    let message = bytes(&mut reader, tag, || inner.name.to_string())?;
                    // Not a level of the object, but one of the recursion; types are inlined at most two levels deep.
                    self.fields(inner, message, into, depth)?;
                }
                Some(WireContent::Field(index)) => {
                    let Some(field) = structure.fields.get(usize::from(index)) else { continue };
                    self.field(field, tag, &mut reader, into, depth)?;
                }
            }
        }
        Ok(())
    }

    fn field(
        self,
        field: &Field,
        tag: Tag,
        reader: &mut Reader<'_>,
        into: &mut Fields,
        depth: usize,
    ) -> Result<(), Fault> {
        let decoder = FieldDecoder { messages: self, field };
        match self.registry.get(field.ty) {
            Type::List(List { name: None, item, .. }) => {
                let depth = descend(depth, 1)?;
                // An empty chunk of packed numbers must not create an empty list.
                let mut decoded = Vec::new();
                decoder.items(*item, tag, reader, &mut decoded, depth)?;
                if !decoded.is_empty()
                    && let Some(Value::Array(items)) = entry_or_insert(into, field, Value::array)
                {
                    // A whole packed list is moved, not copied.
                    if items.is_empty() {
                        *items = decoded.into();
                    } else {
                        items.append(&mut decoded);
                    }
                }
                Ok(())
            }
            Type::Map(map) => {
                let depth = descend(depth, 1)?;
                let entry = bytes(reader, tag, || self.go_name(field))?;
                let (key, value) = decoder.entry(map.value, entry, depth)?;
                if let Some(Value::Object(entries)) = entry_or_insert(into, field, Value::object) {
                    entries.insert(key, value);
                }
                Ok(())
            }
            _ => {
                let previous = if into.is_empty() { None } else { into.remove(&field.name) };
                let value = decoder.single(field.ty, tag, reader, previous, depth)?;
                if !value.is_null() && !is_absent(self.registry, field, &value) {
                    into.insert((*field.name).to_owned(), value);
                }
                Ok(())
            }
        }
    }

    /// The Go name of a field, for error messages.
    fn go_name(self, field: &Field) -> String {
        if let Type::Struct(inner) = self.registry.get(field.ty)
            && &*field.name == "metadata"
        {
            return inner.name.to_string();
        }
        let name = &*field.name;
        let (word, rest) = name.split_at(name.find(char::is_uppercase).unwrap_or(name.len()));
        if CAPITALS.contains(&word) {
            return format!("{}{rest}", word.to_uppercase());
        }
        let mut letters = name.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
    }
}

/// A field that is being decoded. Scalars are decoded in [`super::scalars`].
pub(super) struct FieldDecoder<'r, 'f> {
    messages: MessageDecoder<'r>,
    field: &'f Field,
}

impl<'r> FieldDecoder<'r, '_> {
    /// The name of the field in messages.
    pub(super) fn name(&self) -> String {
        self.messages.go_name(self.field)
    }

    fn items(
        &self,
        ty: TypeId,
        tag: Tag,
        reader: &mut Reader<'_>,
        items: &mut Vec<Value>,
        depth: usize,
    ) -> Result<(), Fault> {
        let is_packable = matches!(self.registry().get(ty), Type::Scalar(Scalar::Int32 | Scalar::Int64));
        if is_packable && tag.form == WireType::BYTES {
            // Real clients do not write packed lists, but readers must accept them.
            let bytes = reader.bytes()?;
            // The last byte of each number has its highest bit clear.
            items.reserve_exact(bytes.iter().filter(|byte| byte.is_ascii()).count());
            let mut packed = Reader::new(bytes);
            let tag = Tag { form: WireType::VARINT, ..tag };
            while !packed.is_empty() {
                items.push(self.single(ty, tag, &mut packed, None, depth)?);
            }
            return Ok(());
        }
        items.push(self.single(ty, tag, reader, None, depth)?);
        Ok(())
    }

    fn entry(&self, ty: TypeId, message: &[u8], depth: usize) -> Result<(String, Value), Fault> {
        let (mut key, mut value) = (String::new(), None);
        let mut reader = Reader::new(message);
        while let Some(tag) = reader.tag(&self.field.name)? {
            match tag.number {
                1 => key = self.text(&mut reader, tag)?,
                2 => value = Some(self.single(ty, tag, &mut reader, value, depth)?),
                _ => reader.skip(tag.form)?,
            }
        }
        let absent = || match self.registry().get(ty) {
            Type::Scalar(Scalar::Bytes) => Value::String(String::new()),
            Type::List(_) => Value::array(),
            _ => zero(self.registry(), ty),
        };
        Ok((key, value.unwrap_or_else(absent)))
    }

    /// One value. A repeated message is merged into the previous one.
    fn single(
        &self,
        ty: TypeId,
        tag: Tag,
        reader: &mut Reader<'_>,
        previous: Option<Value>,
        depth: usize,
    ) -> Result<Value, Fault> {
        match self.registry().get(ty) {
            Type::Scalar(Scalar::String) => self.text(reader, tag).map(Value::String),
            Type::Scalar(Scalar::Int32) => Ok(Value::Int(i64::from(self.number(reader, tag)? as i32))),
            Type::Scalar(Scalar::Int64) => Ok(Value::Int(self.number(reader, tag)? as i64)),
            Type::Scalar(Scalar::Bool) => Ok(Value::Bool(self.number(reader, tag)? != 0)),
            Type::Scalar(Scalar::Double) => self.double(reader, tag),
            Type::Scalar(Scalar::Bytes) => {
                let bytes = bytes(reader, tag, || self.name())?;
                Ok(Value::String(STANDARD.encode(bytes)))
            }
            _ => {
                let message = bytes(reader, tag, || self.name())?;
                self.message(ty, message, previous, depth)
            }
        }
    }

    /// A value whose type is a message.
    fn message(
        &self,
        ty: TypeId,
        message: &[u8],
        previous: Option<Value>,
        depth: usize,
    ) -> Result<Value, Fault> {
        match self.registry().get(ty) {
            Type::Struct(structure) => {
                let mut fields = match previous {
                    Some(Value::Object(fields)) => fields.into_fields(),
                    _ => Fields::new(),
                };
                self.messages.fields(structure, message, &mut fields, depth)?;
                Ok(Value::Object(fields.into()))
            }
            Type::List(list) => {
                let mut items = match previous {
                    Some(Value::Array(items)) => items.into_items(),
                    _ => Vec::new(),
                };
                let depth = descend(depth, 1)?;
                let mut reader = Reader::new(message);
                while let Some(tag) = reader.tag(list.name.as_deref().unwrap_or_default())? {
                    match tag.number {
                        1 => self.items(list.item, tag, &mut reader, &mut items, depth)?,
                        _ => reader.skip(tag.form)?,
                    }
                }
                Ok(Value::Array(items.into()))
            }
            Type::Either(either) => self.either(*either, message, previous, depth),
            Type::Scalar(scalar) => self.scalar(*scalar, message, previous, depth),
            Type::Map(_) => Ok(Value::Null),
        }
    }

    fn either(
        &self,
        either: Either,
        message: &[u8],
        previous: Option<Value>,
        depth: usize,
    ) -> Result<Value, Fault> {
        let (object_number, other_number) = if either.other == Other::Bool { (2, 1) } else { (1, 2) };
        let (mut object, mut boolean, mut items) = (None, false, Vec::new());
        match previous {
            Some(Value::Array(previous)) => items = previous.into_items(),
            Some(Value::Bool(previous)) => boolean = previous,
            previous => object = previous.filter(|previous| !previous.is_null()),
        }
        let mut reader = Reader::new(message);
        while let Some(tag) = reader.tag("JSONSchemaProps")? {
            if tag.number == object_number {
                object = Some(self.single(either.object, tag, &mut reader, object, depth)?);
            } else if tag.number != other_number {
                reader.skip(tag.form)?;
            } else if let Other::List(list) = either.other
                && let Type::List(list) = self.registry().get(list)
            {
                self.items(list.item, tag, &mut reader, &mut items, descend(depth, 1)?)?;
            } else {
                boolean = self.number(&mut reader, tag)? != 0;
            }
        }
        Ok(match (object, either.other) {
            (_, Other::List(_)) if !items.is_empty() => Value::Array(items.into()),
            (Some(object), _) => object,
            (None, Other::Bool) => Value::Bool(boolean),
            (None, Other::List(_)) => Value::Null,
        })
    }

    fn registry(&self) -> &'r Registry {
        self.messages.registry
    }
}

/// The bytes of a field; `name` gives its name for the error.
pub(super) fn bytes<'a>(
    reader: &mut Reader<'a>,
    tag: Tag,
    name: impl FnOnce() -> String,
) -> Result<&'a [u8], Fault> {
    if tag.form != WireType::BYTES {
        return Err(Fault::wire_type(tag.form, &name()));
    }
    reader.bytes()
}

/// The value of a repeated field, inserted as empty if absent.
fn entry_or_insert<'o>(
    into: &'o mut Fields,
    field: &Field,
    empty: impl FnOnce() -> Value,
) -> Option<&'o mut Value> {
    if !into.contains_key(&field.name) {
        into.insert((*field.name).to_owned(), empty());
    }
    into.get_mut(&field.name)
}

/// The remaining depth, `levels` further down.
pub(super) fn descend(depth: usize, levels: usize) -> Result<usize, Fault> {
    depth.checked_sub(levels).ok_or_else(|| Fault::new("exceeded max depth".to_owned()))
}
