//! The envelope of a list in each encoding: what comes before and after the items.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::print;
use pilothouse_apimachinery::codec::protobuf::ListFields;
use pilothouse_apimachinery::codec::{cbor, protobuf};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::response_format::{MetaVersion, Representation, ResponseFormat};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Object;

use super::objects::Objects;
use crate::limits::LIST_TURN_BYTES;

/// The least number of bytes that an object counts when a list yields: many small objects are work, too.
const ITEM_BYTES: usize = LIST_TURN_BYTES / 256;

/// An empty list in the format of a watch event, from which clients that build a list from events learn its kind.
pub(crate) fn blueprint(
    objects: &Objects,
    resource: &Resource,
    response_format: ResponseFormat,
) -> Result<Bytes> {
    let (kind, api_version) = list_kind(resource, response_format.shape);
    let (head, tail) = match response_format.encoding {
        Encoding::Json | Encoding::Yaml => {
            let list =
                format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{}},"items":null}}"#);
            return Ok(Bytes::from(list + "\n"));
        }
        Encoding::Protobuf => protobuf_ends(objects, resource, response_format, "{}", 0)?,
        Encoding::Cbor => cbor_ends(resource, response_format, "{}", 0)?,
    };
    Ok([head, tail].concat().into())
}

/// The kind and apiVersion of the list.
pub(crate) fn list_kind(resource: &Resource, shape: Representation) -> (&str, &str) {
    match shape {
        Representation::Metadata(version) => ("PartialObjectMetadataList", version.api_version()),
        _ => (&resource.list_kind, &resource.api_version),
    }
}

/// The text before the first item and after the last one, in JSON.
pub(crate) fn json_ends(
    resource: &Resource,
    response_format: ResponseFormat,
    list_meta: &str,
    empty: bool,
) -> (Bytes, Bytes) {
    if let Representation::Table(version, _) = response_format.shape {
        let (columns, mut head, mut tail) = (print::columns(resource), Vec::new(), Vec::new());
        if empty {
            let has_own_columns = !resource.columns.is_empty();
            print::without_rows(&mut head, Some(&columns), version, list_meta.as_bytes(), has_own_columns);
            return (Bytes::from(head), Bytes::from_static(b"\n"));
        }
        print::head(&mut head, Some(&columns), version, list_meta.as_bytes());
        print::tail(&mut tail);
        tail.push(b'\n');
        return (Bytes::from(head), Bytes::from(tail));
    }
    let (kind, api_version) = list_kind(resource, response_format.shape);
    if empty && matches!(response_format.shape, Representation::Metadata(_)) {
        // A null list, though lists of whole objects are empty arrays: the reference has always done so.
        let all = format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{list_meta},"items":null}}"#
        );
        return (Bytes::from(all), Bytes::from_static(b"\n"));
    }
    let head = format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{list_meta},"items":["#);
    (Bytes::from(head), Bytes::from_static(b"]}\n"))
}

/// The field that holds the items.
pub(crate) fn items_key(shape: Representation) -> &'static str {
    match shape {
        Representation::Table(..) => "rows",
        _ => "items",
    }
}

/// Encodes all items in Protobuf, because the envelope states their total length. The encoded items are cached with their
/// objects. Yields to other requests in between.
pub(crate) async fn protobuf_items(
    objects: &Objects,
    resource: &Resource,
    response_format: ResponseFormat,
    items: &[Arc<Object>],
) -> Result<Vec<Bytes>> {
    let (mut messages, mut turn) = (Vec::with_capacity(items.len()), YieldEvery::new(LIST_TURN_BYTES));
    for object in items {
        messages.push(objects.protobuf_message(resource, response_format, object)?);
        turn.worked(object.bytes.len().max(ITEM_BYTES)).await;
    }
    Ok(messages)
}

/// The total length of the items in Protobuf, each with its header. The encoded items are not cached. Yields to other
/// requests in between.
pub(crate) async fn protobuf_items_len(
    objects: &Objects,
    resource: &Resource,
    response_format: ResponseFormat,
    items: &[Arc<Object>],
) -> Result<usize> {
    let (mut total, mut turn, fields) =
        (0, YieldEvery::new(LIST_TURN_BYTES), list_fields(response_format.shape));
    for object in items {
        total += item_len(fields, &objects.transient_message(resource, response_format, object)?);
        turn.worked(object.bytes.len().max(ITEM_BYTES)).await;
    }
    Ok(total)
}

/// The length of an item of a Protobuf list with its header.
pub(crate) fn item_len(fields: ListFields, message: &Bytes) -> usize {
    fields.item_header(message.len()).len() + message.len()
}

/// The field numbers of a Protobuf list.
pub(crate) fn list_fields(shape: Representation) -> ListFields {
    match shape {
        Representation::Metadata(MetaVersion::V1beta1) => ListFields::ItemsFirst,
        _ => ListFields::MetadataFirst,
    }
}

/// The bytes before the first item and after the last one, in Protobuf. `items_len` is the total length of the items with their
/// headers.
pub(crate) fn protobuf_ends(
    objects: &Objects,
    resource: &Resource,
    response_format: ResponseFormat,
    list_meta: &str,
    items_len: usize,
) -> Result<(Bytes, Bytes)> {
    let (kind, api_version) = list_kind(resource, response_format.shape);
    let (meta, fields) = (read_meta(list_meta)?, list_fields(response_format.shape));
    let (head, tail) =
        protobuf::list_envelope(api_version, kind, fields, &meta, &objects.registry, items_len);
    Ok((Bytes::from(head), Bytes::from(tail)))
}

/// The bytes before the first item and after the last one, in CBOR.
pub(crate) fn cbor_ends(
    resource: &Resource,
    response_format: ResponseFormat,
    list_meta: &str,
    items: usize,
) -> Result<(Bytes, Bytes)> {
    let (kind, api_version) = list_kind(resource, response_format.shape);
    let frame = cbor::list_frame(kind, api_version, &read_meta(list_meta)?, items);
    Ok((Bytes::from(frame.head), Bytes::from(frame.tail)))
}

fn read_meta(list_meta: &str) -> Result<Value> {
    json::read(list_meta.as_bytes()).map_err(|error| Status::internal(error.to_string()))
}
